"""Playing an environment and writing down all that it shows, so that runs can be compared.

Everything is turned into text: equal text is equal on every machine and in every process, which
`==` on arrays, floats that are not numbers, or dicts is not.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pettingllms.envs.base import TextEnv
from pettingllms.envs.foreign import AnyEnv, load_env
from pettingllms.errors import ConformanceError

View = dict[str, str]
"""What can be seen of an environment at one moment: a text for each thing."""

MAX_STEPS = 200
"""Steps after which a trace stops, in environments that go on for longer."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment under test, and how to make and play more of it."""

    make: Callable[..., AnyEnv]
    path: str | None
    """A name or path by which another process can make it, where there is one."""
    has_splits: bool
    episodes: int
    seed: int
    replies: tuple[str, ...]

    def script(self, offset: int = 0) -> Iterator[str]:
        """Endless replies to play, the same for the same offset."""
        return scripted(self.seed + offset, self.replies)


def require(promise: str, kept: object, otherwise: str) -> None:
    """Raises ConformanceError with the promise and what was seen, where it was not `kept`."""
    if not kept:
        raise ConformanceError(f"{promise}: {otherwise}")


def agree(promise: str, first: Sequence[View], second: Sequence[View], cure: str) -> None:
    """Raises ConformanceError with the first difference of two traces, where there is one."""
    found = difference(first, second)
    require(promise, found is None, f"{found}; {cure}")


def canonical(value: Any) -> str:
    """A text that is equal for equal values of equal types; mappings keep their order."""
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
    """All that can be seen of `env` after `reset`: its attributes and every observation."""
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
    """The first thing in which two traces differ, with both values; None where they agree."""
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
    """Endless replies, the same for the same seed: known ones where given, and random text."""
    generator = random.Random(seed)
    while True:
        if replies and generator.random() < 0.75:
            yield generator.choice(replies)
        else:
            length = generator.randrange(12)
            yield "".join(generator.choices(string.printable, k=length))


def play_on(env: AnyEnv, replies: Iterator[str]) -> list[View]:
    """Plays `env` on from where it is to its end, at most `MAX_STEPS`: a view for every step.

    Finished agents are stepped out of the episode one by one, and seen too.
    """
    views = [view(env)]
    while env.agents and len(views) <= MAX_STEPS:
        agent = env.agent_selection
        finished = env.terminations[agent] or env.truncations[agent]
        env.step(None if finished else next(replies))
        views.append(view(env))
    return views


def digest(path: str, seed: int, episodes: int, replies: Sequence[str]) -> str:
    """SHA-256 over the traces of an environment given by name or path, for other processes."""
    env = load_env(path)
    script = scripted(seed, replies)
    hasher = hashlib.sha256()
    for episode in range(episodes):
        env.reset(seed=seed if episode == 0 else None)
        hasher.update(canonical(play_on(env, script)).encode("utf-8", "backslashreplace"))
    return hasher.hexdigest()
