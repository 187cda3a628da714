"""Several environments in one training run: `--env a=coding,b=search*2`.

Two thirds of these tasks are those of `b`, by its weight; without weights, the shares are equal. `--env-args.a.max_turns 2`
is an argument of `a`. Roles with the same name in two environments share a policy.

A step draws the environment of each of its tasks from the seed and its number alone, and there plays the
task that this environment would have at this place of the step in a run of its own.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from pettingzoo import AECEnv

from pettingllms.errors import ConfigError

Entries = dict[str, tuple[str, float]]
"""Name -> environment and weight."""
_NAMED = re.compile(r"(?!{)[^:/.=]*[=,]")


def entries_of(env: str) -> Entries:
    """The entries of several environments; none for the name of one.

    Raises:
        ConfigError: not of the form `a=coding,b=search*2`.
    """
    if not _NAMED.match(env):
        return {}
    entries: Entries = {}
    for entry in env.split(","):
        name, equals, value = (word.strip() for word in entry.partition("="))
        source, star, text = (word.strip() for word in value.partition("*"))
        if not (equals and name.isidentifier() and source):
            raise ConfigError(f"env: write several as a=coding,b=search*2, got {entry!r}")
        if name in entries:
            raise ConfigError(f"env: two environments are called {name!r}; give each its own name")
        if _NAMED.match(source):
            raise ConfigError(f"env: {name!r} must be one environment, got {source!r}")
        try:
            weight = float(text if star else 1)
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ConfigError(f"env: the weight of {name!r} must be a number above 0, got {text!r}")
        entries[name] = source, weight
    return entries


def alone(entries: Entries, arguments: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> environment and its own arguments: `{"a.size": 6}` is the same as `{"a": {"size": 6}}`.

    Raises:
        ConfigError: an argument without the name of an environment.
    """
    own = {name: dict[str, Any]() for name in entries}
    for key, value in arguments.items():
        name, _, argument = key.partition(".")
        if name not in own or not (argument or isinstance(value, Mapping)):
            raise ConfigError(
                f"env_args: {key!r} is of no environment of {', '.join(entries)}; say of which it is, as in "
                f"--env-args.{next(iter(entries))}.{argument or name} {value}"
            )
        own[name].update({argument: value} if argument else value)
    return {name: (env, own[name]) for name, (env, _) in entries.items()}


class SeveralEnvs(AECEnv[str, Any, Any]):
    """Several environments as one run has them, by name; `Task.size` names the one that plays a task."""

    def __init__(self, parts: Mapping[str, AECEnv[Any, Any, Any]], entries: Entries) -> None:
        self.parts = self.drawn_sizes = parts
        self.weights = {name: weight for name, (_, weight) in entries.items()}
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
