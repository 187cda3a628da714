"""Several environments in one training run: `--env a=coding,b=search*2`.

Two thirds of these tasks are those of `b`, by its weight; without weights, the shares are equal. `--env-args.a.max_turns 2`
is an argument of `a`. Roles with the same name in two environments share a policy.

A step draws the environment of each of its tasks from the seed and its number alone, and there plays the
task that this environment would have at this place of the step in a run of its own.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from pettingzoo import AECEnv

from pettingllms.errors import ConfigError


class SeveralEnvs(AECEnv[str, Any, Any]):
    """Several named environments in one run; `Task.size` is the name of a task's environment."""

    def __init__(self, parts: Mapping[str, Any], entries: Mapping[str, tuple[str, float]]) -> None:
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
