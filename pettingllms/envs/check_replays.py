"""The promises of an environment that show only where two runs are compared.

Parts of `check_env`. Each returns None, or why it did not apply.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np

from pettingllms.envs import trace
from pettingllms.envs.base import SPLITS, TextEnv
from pettingllms.envs.foreign import AnyEnv, clone_env
from pettingllms.envs.trace import Subject, agree, require

POINTS = 6
"""Steps after which an episode is copied: none, one, ... and POINTS - 1."""

SPLIT_SEEDS = 8

_IN_CHILD = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from pettingllms.envs import trace; sys.stdout.write(trace.digest(*given['arguments']))"
)


def copies(subject: Subject) -> str | None:
    """Copies at several points of an episode play on like the original, and apart from it."""
    cure = "all that changes must be in what is copied, and none of it shared"
    for episode in range(subject.episodes):
        env, script = subject.make(), subject.script(episode)
        env.reset(seed=subject.seed + episode)
        for point in range(POINTS):
            before = trace.view(env)
            futures = [
                trace.play_on(twin, subject.script(POINTS + point)) for twin in _twins(subject, env)
            ]
            for future in futures:
                agree("copies are where the original is", [before], future[:1], cure)
                agree("copies play on alike", futures[0], future, cure)
            agree("copies leave the original alone", [before], [trace.view(env)], cure)
            if point == POINTS - 1 or len(futures[0]) == 1:
                rest = trace.play_on(env, subject.script(POINTS + point))
                agree("the original plays on like its copies", futures[0], rest, cure)
                break
            agent = env.agent_selection
            finished = env.terminations[agent] or env.truncations[agent]
            env.step(None if finished else next(script))
    return None


def _twins(subject: Subject, env: AnyEnv) -> list[AnyEnv]:
    """Two copies, made in different ways where the environment has them."""
    if not isinstance(env, TextEnv):
        return [clone_env(env), clone_env(env)]
    restored: Any = subject.make()
    require("its factory makes the same kind", type(restored) is type(env), f"{restored}")
    restored.restore(pickle.loads(pickle.dumps(env.snapshot())))
    return [env.clone(), restored]


def seeds(subject: Subject) -> str | None:
    """`reset(seed)` decides this and all later episodes, without the global generators."""
    runs = []
    before = _global_generators()
    for _ in range(2):
        env, script = subject.make(), subject.script()
        run = []
        for episode in range(subject.episodes):
            env.reset(seed=subject.seed if episode == 0 else None)
            run += trace.play_on(env, script)
        runs.append(run)
    untouched = _global_generators() == before
    cure = "draw from a generator made from the seed that reset() was given"
    require("global random generators are left alone", untouched, f"they moved; {cure}")
    agree("reset(seed) decides everything", runs[0], runs[1], cure)
    return None


def _global_generators() -> str:
    return trace.canonical((random.getstate(), np.random.get_state()))  # noqa: NPY002 - its state


def splits(subject: Subject) -> str | None:
    """Equal seeds play different tasks for training, validation and test."""
    if not subject.has_splits:
        return "this takes a TextEnv's factory, or name, with an argument `split`"
    shown: dict[str, list[list[str]]] = {}
    for split in SPLITS:
        env = subject.make(split=split)
        shown[split] = []
        for seed in range(subject.seed, subject.seed + SPLIT_SEEDS):
            env.reset(seed=seed)
            shown[split].append([trace.canonical(env.observe(agent)) for agent in env.agents])
    for one, other in itertools.combinations(SPLITS, 2):
        otherwise = f"{one} and {other} play the same {SPLIT_SEEDS} tasks; use self.split in _start"
        require("splits are distinct", shown[one] != shown[other], otherwise)
    return None


def processes(subject: Subject) -> str | None:
    """Fresh processes, where strings have other hashes, play the same episodes."""
    if subject.path is None:
        return "another process cannot import it; pass a registered name or `module:attribute`"
    arguments = (subject.path, subject.seed, subject.episodes, subject.replies)
    here = trace.digest(*arguments)
    for hash_seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", _IN_CHILD],
            input=json.dumps({"path": sys.path, "arguments": arguments}),
            # Passed on whole: what the environment needs of it is not ours to know.
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        ran = child.returncode == 0
        require("other processes can play it", ran, f"the process said {child.stderr[-500:]}")
        otherwise = "equal seeds gave different episodes; use neither hash() nor the order of a set"
        require("all processes play the same", child.stdout == here, otherwise)
    return None
