"""Coverage: does training add solutions, or does it make known ones likelier?

Two evaluations with several samples of the same tasks are compared by which tasks are solved by at
least one of the first k samples: preserved (both), expansion (only the second), shrinkage (only the
first). Where RL sharpens, the first sample gets better and no task is gained at large k. The counts
and their ratio are those of https://arxiv.org/abs/2510.01571.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.statistics import tango


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which tasks two line-ups solve within k samples."""

    k: int
    preserved: int
    expansion: int
    """Tasks that only the second solves."""
    shrinkage: int
    """Tasks that only the first solves."""
    neither: int
    low: float
    high: float
    """95 % score interval of (expansion - shrinkage) / tasks."""

    @property
    def ratio(self) -> float:
        """Expansion over shrinkage: 0 where both are 0, infinite where only shrinkage is."""
        if not self.shrinkage:
            return math.inf if self.expansion else 0.0
        return self.expansion / self.shrinkage

    def row(self) -> dict[str, Any]:
        """The record as JSON has it."""
        ratio = self.ratio if math.isfinite(self.ratio) else None
        names = ("k", "preserved", "expansion", "shrinkage", "neither", "low", "high")
        return {name: getattr(self, name) for name in names} | {"ratio": ratio}


def coverage(first: Sequence[Trajectory], second: Sequence[Trajectory]) -> tuple[Coverage, ...]:
    """The coverage at k = 1, 2, 4, ... up to the samples that every task of both sides has.

    Empty where there is only one sample of a task, or the environment does not say who succeeds.

    Args:
        first: episodes, for example of the base model.
        second: episodes of the same tasks, for example after training.
    """
    one, two = _verdicts(first), _verdicts(second)
    both = [task for task in one if task in two]
    samples = min((min(len(one[task]), len(two[task])) for task in both), default=0)
    if samples < 2:
        return ()
    sizes = [1 << n for n in range(samples.bit_length()) if 1 << n <= samples]
    if sizes[-1] != samples:
        # All samples as well: there it shows best whether a task is solved at all.
        sizes.append(samples)
    return tuple(_at(k, [(one[task][:k], two[task][:k]) for task in both]) for k in sizes)


def _at(k: int, pairs: Sequence[tuple[Sequence[bool], Sequence[bool]]]) -> Coverage:
    base = np.array([any(before) for before, _ in pairs])
    after = np.array([any(found) for _, found in pairs])
    low, high = tango(after.astype(float) - base)
    return Coverage(
        k,
        preserved=int((base & after).sum()),
        expansion=int((~base & after).sum()),
        shrinkage=int((base & ~after).sum()),
        neither=int((~base & ~after).sum()),
        low=low,
        high=high,
    )


def _verdicts(episodes: Sequence[Trajectory]) -> Mapping[str, list[bool]]:
    """Task -> whether each of its samples succeeded, in their order."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for each in episodes:
        if each.success is not None:
            found.setdefault(each.task.id, []).append((each.episode, each.success))
    # By the number of the sample, because k takes the first ones.
    return {task: [won for _, won in sorted(own)] for task, own in found.items()}
