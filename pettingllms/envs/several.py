"""Several environments in one training run: `--env a=coding,b=search*2`.

Two thirds of these tasks are those of `b`, by its weight; without weights, the shares are equal. `--env-args.a.max_turns 2`
is an argument of `a`. Roles with the same name in two environments share a policy.

A step draws the environment of each of its tasks from the seed and its number alone, and there plays the
task that this environment would have at this place of the step in a run of its own.
"""

from __future__ import annotations

import contextlib
import math
import operator
import random
import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.errors import ConfigError

AnyEnv = AECEnv[Any, Any, Any]
FORM = "a=coding,b=search*2"
_NAMED = re.compile(r"[^:/.=]*=|[^:/.=]*,")


class Weighted(NamedTuple):
    """One of several environments, as the settings have it."""

    env: str
    weight: float


def entries_of(env: str) -> dict[str, Weighted]:
    """Name -> entry of each of several environments; nothing for the name of one.

    Raises:
        ConfigError: not of the form `a=coding,b=search*2`.
    """
    if not _NAMED.match(env) or env.startswith("{"):
        return {}
    entries: dict[str, Weighted] = {}
    for entry in env.split(","):
        name, equals, value = (word.strip() for word in entry.partition("="))
        source, star, weight = (word.strip() for word in value.partition("*"))
        if not (equals and name.isidentifier() and source):
            raise ConfigError(f"env: several environments have names, as in {FORM}, got {entry!r}")
        if name in entries:
            raise ConfigError(f"env: two environments are called {name!r}; give each its own name")
        if entries_of(source):
            raise ConfigError(f"env: {name!r} must be one environment, got {source!r}")
        entries[name] = Weighted(source, _weight(name, weight) if star else 1.0)
    return entries


def _weight(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (weight := float(text)) < math.inf:
            return weight
    raise ConfigError(f"env: the weight of {name!r} must be a number above 0, got {text!r}")


def text_of(entries: Mapping[str, Weighted]) -> str:
    """The inverse of `entries_of`."""
    return ",".join(
        f"{name}={entry.env}" + f"*{entry.weight}".removesuffix(".0") * (entry.weight != 1)
        for name, entry in entries.items()
    )


def environment_of(env: str, task: str) -> str:
    """The environment that a training task is of, by its id; `env` itself where that is the only one."""
    return task.partition(":")[0] if entries_of(env) else env


def own_arguments(names: Sequence[str], arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> the arguments of this environment: `{"a.size": 6}` is the same as `{"a": {"size": 6}}`.

    Raises:
        ConfigError: an argument without the name of an environment.
    """
    by_name = {name: dict[str, Any]() for name in names}
    for key, value in arguments.items():
        name, _, argument = key.partition(".")
        if name not in by_name or not (argument or isinstance(value, Mapping)):
            raise ConfigError(
                f"env_args: {key!r} is of no environment of {', '.join(names)}; say of which it is, as in "
                f"--env-args.{names[0]}.{argument or name} {value}"
            )
        by_name[name].update({argument: value} if argument else value)
    return by_name


@dataclass(frozen=True)
class Several:
    """What makes several environments, each from its own maker."""

    entries: Mapping[str, Weighted]
    parts: Mapping[str, Any]

    def __call__(self, **arguments: Any) -> SeveralEnvs:
        """Makes them with arguments by name: `make("a=read,b=math", a={"split": "test"})`."""
        by_name = own_arguments([*self.parts], arguments)
        return self.made(lambda name: self.parts[name](**by_name[name]))

    def made(self, make: Callable[[str], AnyEnv]) -> SeveralEnvs:
        """The environments that `make` returns for the names."""
        weights = {name: entry.weight for name, entry in self.entries.items()}
        return SeveralEnvs({name: make(name) for name in weights}, weights)


class SeveralEnvs(AECEnv[str, Any, Any]):
    """Several environments as one run has them, by name; their agents are those of all of them.

    Tasks name the one that plays them in `Task.size`, and `weights` are shares of the training tasks, up to a common factor.
    """

    reward_funcs: Sequence[Any] = ()

    def __init__(self, parts: Mapping[str, AnyEnv], weights: Mapping[str, float]) -> None:
        self.parts, self.weights = parts, weights
        self.drawn_sizes = parts
        self.metadata = {"name": ",".join(f"{name}={part}" for name, part in parts.items())}
        agents = (agent for part in parts.values() for agent in part.possible_agents)
        self.possible_agents = list(dict.fromkeys(agents))

    def drawn(self, step: int, count: int, seed: int) -> list[str]:
        """The environments of a step's tasks, in a random order; each has its share, up to one task."""
        rng = random.Random(f"{seed} environments {step}")
        names, bounds = [*self.weights], [*accumulate(self.weights.values())]
        offset = rng.random()
        # At equal distances from a random start, so that a step hardly ever lacks one of them.
        places = (bounds[-1] * (number + offset) / count for number in range(count))
        drawn = [names[bisect(bounds, place, hi=len(names) - 1)] for place in places]
        rng.shuffle(drawn)
        return drawn

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Raises ConfigError: only its parts can be played."""
        del seed, options
        raise ConfigError(f"{self} are several environments; play one of them, such as the first")


def parts_of(env: Any) -> list[Any]:
    """Several environments, or their makers, one by one; of one, itself."""
    inner = getattr(env, "unwrapped", env)
    return [*inner.parts.values()] if isinstance(inner, Several | SeveralEnvs) else [env]


def longest(env: Any, counted: Callable[[Sequence[str]], int] = len) -> tuple[int | None, int]:
    """Turns of an agent at the most, None where they are not known, and decisions of an episode.

    Without a limit, the decisions are those of one turn; `counted` says how many of the agents count.
    """
    parts = parts_of(env)
    limits: list[Any] = [getattr(part.unwrapped, "max_turns", None) for part in parts]
    counts = [counted([*map(str, part.possible_agents)]) for part in parts]
    if None in limits:
        return None, max(counts)
    return max(limits), max(map(operator.mul, limits, counts))
