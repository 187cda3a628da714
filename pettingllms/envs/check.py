"""`check_env`: checks that an environment keeps the promises that training on it needs.

PettingZoo's `api_test` and `seed_test` check the interface. They cannot see what tree rollouts
and reinforcement learning on model text rely on: copies that continue exactly like the original,
observations without side effects, rewards that add up, hostile replies, other processes, other
splits. Each part below checks one of these and returns None, or the reason why it does not apply.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import logging
import math
import os
import pickle
import random
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Dict

from pettingllms.envs.aec import AnyEnv, clone_env, load_env, observe_text, takes_anything
from pettingllms.envs.base import RESERVED_KEYS, SPLITS, TextEnv, next_agent
from pettingllms.errors import ConformanceError, SandboxUnavailable

logger = logging.getLogger(__name__)

HOSTILE = {
    "nothing": "",
    "a million brackets": "[" * 1_000_000,
    "a hundred thousand digits": "7" * 100_000,
    "fifty thousand signs": "-" * 50_000,
    "a NUL character": "\0",
    "lone surrogates": "\ud800 \udfff",
    "characters beyond the first plane": "\U0001f600\U0010ffff",
    "digits that are not ASCII": "\u0661\u0662\u0663 \u00b2",
    "numbers that JSON lacks": "[NaN, Infinity, -1e999]",
    "unclosed markup": '```python\n<answer>{"a": [' + "<answer>" * 1000,
    "line ends of all kinds": "\r\n\x85\u2028\v\f" * 1000,
}
"""Texts that a model can write and that break parsers."""
HOSTILE_CPU_S = 5.0
"""CPU seconds of this process that one hostile reply may cost."""
POINTS = 6
"""Numbers of steps after which an episode is copied: 0, 1, ... and POINTS - 1."""
SPLIT_SEEDS = 8

_IN_CHILD = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from pettingllms.envs import check; sys.stdout.write(check.digest(*given['arguments']))"
)


View = dict[str, str]
"""All that an environment shows at one moment: a text for each thing."""

MAX_STEPS = 200
"""Steps after which a trace stops, in environments with longer episodes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment under test, and the means to make and step more of it."""

    make: Callable[..., AnyEnv]
    path: str | None
    """A name or path by which another process can make it, where there is one."""
    has_splits: bool
    episodes: int
    seed: int
    replies: tuple[str, ...]

    def script(self, offset: int = 0) -> Iterator[str]:
        """Endless replies, the same for the same offset."""
        return scripted(self.seed + offset, self.replies)


def check_env(
    env_or_factory: AnyEnv | Callable[..., AnyEnv] | str,
    *,
    episodes: int = 3,
    seed: int = 0,
    replies: Sequence[str] = (),
) -> None:
    """Tests an environment over several episodes and raises at the first failure.

    Checked for every PettingZoo AEC environment: spaces and keys; real bools and finite rewards;
    `step` returns None; observing changes nothing and is possible for every live agent; no text
    raises or takes long; copies continue exactly and leave the original alone; `reset(seed)`
    decides everything, without the global random generators and in every process.

    Only for a `TextEnv`: snapshots, the parts of the reward, truncation at exactly `max_turns`,
    over-long replies, splits.

    Args:
        env_or_factory: an instance (it is not changed), a function that makes one, or a
            registered name or `module:attribute` path. What cannot be checked is logged as
            skipped: splits of an instance or of a function that takes no `split`, and other
            processes where they cannot import the function.
        episodes: episodes of each check.
        seed: seed of the first of them.
        replies: texts that the environment can parse. Without them all replies are random, mostly
            unparsable text, and little of the environment's logic runs.

    Raises:
        ConformanceError: names the rule, the observed value, and what to do.
        ConfigError, CloneError: the environment has observations without text, or cannot be copied.
    """
    subject = _subject(env_or_factory, episodes, seed, tuple(replies))
    for check in PARTS:
        skipped = check(subject)
        if skipped is not None:
            logger.warning("check_env did not check %s: %s", check.__name__, skipped)


def _subject(
    given: AnyEnv | Callable[..., AnyEnv] | str, episodes: int, seed: int, replies: tuple[str, ...]
) -> Subject:
    make: Callable[..., AnyEnv]
    path: str | None
    if isinstance(given, str):
        make, path, has_splits = partial(load_env, given), given, True
    elif callable(given):
        named = takes_anything(given) or "split" in inspect.signature(given).parameters
        make, path, has_splits = given, _import_path(given), named
    else:
        make, path, has_splits = partial(clone_env, given), None, False
    return Subject(make, path, has_splits and isinstance(make(), TextEnv), episodes, seed, replies)


def _import_path(function: Callable[..., AnyEnv]) -> str | None:
    """`module:attribute` of a function, where another process can import it by that."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    if module in (None, "__main__"):
        return None
    attribute = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if attribute is function else None


# Checks of one moment of one episode.


def spaces(subject: Subject) -> str | None:
    """Checks that every agent has its spaces, and that a `TextEnv` takes any text as an action."""
    env = subject.make()
    agents = env.possible_agents
    named = bool(agents) and all(isinstance(agent, str) for agent in agents)
    require("agents have names", named, f"possible_agents is {agents!r}; list their names")
    for agent in agents:
        observations, actions = env.observation_space(agent), env.action_space(agent)
        same = observations is env.observation_space(agent) and actions is env.action_space(agent)
        require("spaces stay the same objects", same, f"{agent} gets new ones; make them once")
        if not isinstance(env, TextEnv):
            continue
        keys = set(observations.spaces) if isinstance(observations, Dict) else set()
        allowed = {"text", "turn"} == keys & RESERVED_KEYS
        otherwise = (
            f"{agent} sees {sorted(keys)}; have text and turn, rename {sorted(RESERVED_KEYS)}"
        )
        require("observations have text and turn", allowed, otherwise)
        for label, text in HOSTILE.items():
            require("any text is an action", text in actions, f"{label} is not; use FreeText")
    return None


def episodes(subject: Subject) -> str | None:
    """Checks every moment of whole episodes."""
    env, script = subject.make(), subject.script()
    for episode in range(subject.episodes):
        env.reset(seed=subject.seed + episode)
        _moment(env)
        for text in itertools.islice(script, MAX_STEPS):
            if (agent := next_agent(env)) is None:
                break
            returned = _step(env, agent, repr(text), text)
            require("step returns None", returned is None, f"got {returned!r}; return nothing")
            _moment(env)
            if isinstance(env, TextEnv):
                _kernel(env, agent)
    return None


def _moment(env: AnyEnv) -> None:
    """Checks what must hold of any PettingZoo environment at any time."""
    agents = list(env.agents)
    for name in ("rewards", "terminations", "truncations", "infos", "_cumulative_rewards"):
        keys = list(getattr(env, name))
        same = sorted(keys) == sorted(agents)
        require(f"{name} has the keys of agents", same, f"{keys} is not {agents}")
    for agent in agents:
        for name in ("terminations", "truncations"):
            flag = getattr(env, name)[agent]
            require(f"{name} are bool", type(flag) is bool, f"{agent} has {flag!r}; use bool(...)")
        reward, info = env.rewards[agent], env.infos[agent]
        finite = math.isfinite(float(reward))
        require("rewards are finite", finite, f"{agent} has {reward!r}; divide with care")
        require("infos are dicts", isinstance(info, dict), f"{agent} has {info!r}; make it a dict")
    before = view(env)
    for agent in agents:
        observation = env.observe(agent)
        observe_text(env, agent)
        inside = observation in env.observation_space(agent)
        require("observations lie in their space", inside, f"{agent} sees {observation!r:.300}")
    cure = "observe() must be a pure function of the state, for every agent at any time"
    agree("observing changes nothing", [before], [view(env)], cure)


def _kernel(env: TextEnv, agent: str) -> None:
    """Checks what a subclass of `TextEnv` can break of a step of `agent`."""
    info, reward = env.infos[agent], env.rewards[agent]
    expected = env.alpha * info["team_reward"] + info["local_reward"]
    adds_up = math.isclose(reward, expected, abs_tol=1e-12)
    require("reward = alpha * team + local", adds_up, f"{agent} has {reward}, not {expected}")
    error = info["parse_error"]
    readable = error is None or isinstance(error, str)
    require("parse_error is a str or None", readable, f"{agent} has {error!r}")
    ended, cut = set(env.terminations.values()), set(env.truncations.values())
    due = env.turn == env.max_turns and ended == {False}
    otherwise = f"truncated {cut}, terminated {ended} before turn {env.turn} of {env.max_turns}"
    require("truncation comes exactly at max_turns", cut == {due}, otherwise)
    inside = env.state() in env.state_space
    require("the state lies in its space", inside, f"{env.state()!r:.300}; return a str")


def hostile_replies(subject: Subject) -> str | None:
    """Checks that no text raises or takes long, of any agent, in the first two turns."""
    env, script = subject.make(), subject.script()
    env.reset(seed=subject.seed)
    texts = dict(HOSTILE)
    if isinstance(env, TextEnv):
        limit = env.action_space(env.agent_selection).max_length
        texts["a text over the limit"] = "x" * (limit + 1)
    for _ in range(2 * len(env.possible_agents)):
        agent = next_agent(env)
        if agent is None:
            break
        for label, text in texts.items():
            twin = clone_env(env)
            # CPU time: the clock would also count what else the machine does.
            start = time.process_time()
            _step(twin, agent, label, text)
            view(twin)
            spent = time.process_time() - start
            otherwise = (
                f"{label}, replied by {agent}, took {spent:.1f} s of CPU; bound what is parsed"
            )
            require("replies take bounded time", spent <= HOSTILE_CPU_S, otherwise)
            if label not in HOSTILE:
                counted = isinstance(twin.infos[agent]["parse_error"], str)
                require("over-long replies are parse errors", counted, f"not of {agent}")
        env.step(next(script))
    return None


def _step(env: AnyEnv, agent: str, label: str, text: str) -> object:
    """Steps `env`; raises ConformanceError where that raises."""
    step: Callable[..., object] = env.step
    try:
        return step(text)
    except SandboxUnavailable:
        raise
    except Exception as error:
        raise ConformanceError(
            f"no reply raises: {label}, replied by {agent}, raised {error!r:.300}; count it as a reply "
            "that cannot be read"
        ) from error


# Checks that compare two runs.


def copies(subject: Subject) -> str | None:
    """Checks that copies continue like the original, and independently of it, at several points."""
    cure = "all that changes must be in what is copied, and none of it shared"
    for episode in range(subject.episodes):
        env, script = subject.make(), subject.script(episode)
        env.reset(seed=subject.seed + episode)
        for point in range(POINTS):
            before = view(env)
            futures = [
                continued(twin, subject.script(POINTS + point)) for twin in _twins(subject, env)
            ]
            for future in futures:
                agree("copies are where the original is", [before], future[:1], cure)
                agree("copies continue alike", futures[0], future, cure)
            agree("copies leave the original alone", [before], [view(env)], cure)
            if point == POINTS - 1 or len(futures[0]) == 1:
                rest = continued(env, subject.script(POINTS + point))
                agree("the original continues like its copies", futures[0], rest, cure)
                break
            agent = env.agent_selection
            finished = env.terminations[agent] or env.truncations[agent]
            env.step(None if finished else next(script))
    return None


def _twins(subject: Subject, env: AnyEnv) -> list[AnyEnv]:
    """Copies `env` twice, in different ways where the environment has them."""
    if not isinstance(env, TextEnv):
        return [clone_env(env), clone_env(env)]
    restored: Any = subject.make()
    require("its factory makes the same kind", type(restored) is type(env), f"{restored}")
    restored.restore(pickle.loads(pickle.dumps(env.snapshot())))
    return [env.clone(), restored]


def seeds(subject: Subject) -> str | None:
    """Checks that `reset(seed)` decides all episodes, without the global generators."""
    before = _global_generators()
    runs = [
        trace(subject.make(), subject.seed, subject.episodes, subject.replies) for _ in range(2)
    ]
    untouched = _global_generators() == before
    cure = "draw from a generator made from the seed that reset() was given"
    require("global random generators are left alone", untouched, f"they moved; {cure}")
    agree("reset(seed) decides everything", runs[0], runs[1], cure)
    return None


def _global_generators() -> str:
    return canonical((random.getstate(), np.random.get_state()))  # noqa: NPY002 - its state


def splits(subject: Subject) -> str | None:
    """Checks that equal seeds are different tasks for training, validation and test."""
    if not subject.has_splits:
        return "this takes a TextEnv's factory, or name, with an argument `split`"
    shown: dict[str, list[list[str]]] = {}
    for split in SPLITS:
        env = subject.make(split=split)
        shown[split] = []
        for seed in range(subject.seed, subject.seed + SPLIT_SEEDS):
            env.reset(seed=seed)
            shown[split].append([canonical(env.observe(agent)) for agent in env.agents])
    for one, other in itertools.combinations(SPLITS, 2):
        otherwise = f"{one} and {other} have the same {SPLIT_SEEDS} tasks; use self.split in _start"
        require("splits are distinct", shown[one] != shown[other], otherwise)
    return None


def processes(subject: Subject) -> str | None:
    """Checks that fresh processes, where strings have other hashes, have the same episodes."""
    if subject.path is None:
        return "another process cannot import it; pass a registered name or `module:attribute`"
    arguments = (subject.path, subject.seed, subject.episodes, subject.replies)
    here = digest(*arguments)
    for hash_seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", _IN_CHILD],
            input=json.dumps({"path": sys.path, "arguments": arguments}),
            # Passed on as a whole: which variables the environment needs is unknown.
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        ran = child.returncode == 0
        require("other processes can make it", ran, f"the process said {child.stderr[-500:]}")
        otherwise = "equal seeds gave different episodes; use neither hash() nor the order of a set"
        require("all processes have the same episodes", child.stdout == here, otherwise)
    return None


PARTS = (spaces, episodes, hostile_replies, copies, seeds, splits, processes)


# Traces: records of all that an environment shows, so that runs can be compared. Everything becomes text:
# equal text is equal on every machine and in every process, unlike `==` on arrays, NaN, or dicts.


def require(promise: str, kept: object, otherwise: str) -> None:
    """Raises ConformanceError with the promise and what was observed, unless it was `kept`."""
    if not kept:
        raise ConformanceError(f"{promise}: {otherwise}")


def agree(promise: str, first: Sequence[View], second: Sequence[View], cure: str) -> None:
    """Raises ConformanceError with the first difference of two traces, where there is one."""
    mismatch = difference(first, second)
    require(promise, mismatch is None, f"{mismatch}; {cure}")


def canonical(value: Any) -> str:
    """Returns a text that is equal for equal values of equal types; mappings keep their order."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{canonical(key)}: {canonical(entry)}" for key, entry in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        inner = ", ".join(canonical(entry) for entry in value)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, np.ndarray):
        return f"array({value.dtype}, {value.shape}, {value.tolist()!r})"
    return repr(value)


def view(env: AnyEnv) -> View:
    """Records all that `env` shows after `reset`: its attributes and every observation."""
    seen = {
        "agents": canonical(list(env.agents)),
        "agent_selection": canonical(env.agent_selection if env.agents else None),
        "rewards": canonical(env.rewards),
        "cumulative rewards": canonical(env._cumulative_rewards),
        "terminations": canonical(env.terminations),
        "truncations": canonical(env.truncations),
        "infos": canonical(env.infos),
    }
    for agent in env.agents:
        seen[f"observation of {agent}"] = canonical(env.observe(agent))
    if isinstance(env, TextEnv):
        seen["transcript"] = canonical(env.transcript)
        seen["view"] = env._view(env._state)
    return seen


def difference(first: Sequence[View], second: Sequence[View]) -> str | None:
    """Names the first difference of two traces, with both values; None where they agree."""
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                return f"step {step}, {name}: {_short(one.get(name))} != {_short(other.get(name))}"
    if len(first) != len(second):
        return f"{len(first)} != {len(second)} steps"
    return None


def _short(text: str | None) -> str:
    return str(text) if text is None or len(text) <= 200 else f"{text[:200]}..."


def scripted(seed: int, replies: Sequence[str]) -> Iterator[str]:
    """Yields replies without end, the same for the same seed: known ones and random text."""
    generator = random.Random(seed)
    while True:
        if replies and generator.random() < 0.75:
            yield generator.choice(replies)
        else:
            length = generator.randrange(12)
            yield "".join(generator.choices(string.printable, k=length))


def continued(env: AnyEnv, replies: Iterator[str]) -> list[View]:
    """Continues `env` to its end, at most `MAX_STEPS`; returns a view for every step.

    Finished agents are stepped out of the episode one by one, and viewed too.
    """
    views = [view(env)]
    while env.agents and len(views) <= MAX_STEPS:
        agent = env.agent_selection
        finished = env.terminations[agent] or env.truncations[agent]
        env.step(None if finished else next(replies))
        views.append(view(env))
    return views


def trace(env: AnyEnv, seed: int, episodes: int, replies: Sequence[str]) -> list[View]:
    """Records episodes of which the first has a seed, and the others follow from it."""
    script, views = scripted(seed, replies), list[View]()
    for episode in range(episodes):
        env.reset(seed=seed if episode == 0 else None)
        views += continued(env, script)
    return views


def digest(path: str, *course: Any) -> str:
    """Computes the SHA-256 of the trace of an environment given by name or path."""
    text = canonical(trace(load_env(path), *course))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
