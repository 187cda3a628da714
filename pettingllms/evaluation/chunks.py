"""Which episodes of an evaluation share batches: the unit that is kept, resumed and added.

A batch of another shape rounds differently, so episodes that share one are rolled out together or
not at all. A chunk has some tasks, each with consecutive samples:

    100 tasks, 64 at once     64 tasks x sample 0, 36 x 0, 64 x 1, 36 x 1, ...
    4 tasks, 64 at once       4 tasks x sample 0, x 1, x 2-3, x 4-7, x 8-15, x 16-31, x 32-47, ...

Sizes that double make few batches of few tasks, and yet more samples can be added to any number:
only a last chunk that had fewer samples than its place allows is rolled out again, as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pettingllms.types import Task

EPISODES_AT_ONCE = 64
"""Episodes of a chunk. Part of the results."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way completions are drawn, and the number of episodes of each task."""

    max_new_tokens: int
    samples: int = 1
    """Episodes of each task."""
    greedy: bool = False
    """Always take the likeliest token."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    at_once: int = EPISODES_AT_ONCE
    """Most episodes of a chunk."""


class Chunk(NamedTuple):
    """Episodes that are rolled out together."""

    tasks: Sequence[Task]
    samples: range
    """Which of the episodes of each task."""


def chunks(tasks: Sequence[Task], sampling: Sampling) -> list[Chunk]:
    """The chunks of an evaluation, in order: the first samples of all tasks come first."""
    starts = range(0, len(tasks), sampling.at_once)
    return [
        # Samples outside, tasks inside: more samples come at the end of the log, and change no
        # chunk before.
        Chunk(tasks[start : start + sampling.at_once], samples)
        for samples in _samples(len(tasks), sampling.samples, sampling.at_once)
        for start in starts
    ]


def kept(tasks: int, before: int, now: int, at_once: int) -> int:
    """Returns how many samples of each task stay as they are when more are added.

    Args:
        tasks: number of tasks.
        before: samples that there are.
        now: samples that there shall be, no fewer.
        at_once: as in `Sampling`.
    """
    # A last range that was cut by `before` becomes a longer one, and shares no batch with what it
    # was.
    common = set(_samples(tasks, before, at_once)) & set(_samples(tasks, now, at_once))
    return max((samples.stop for samples in common), default=0)


def _samples(tasks: int, count: int, at_once: int) -> list[range]:
    """The samples 0 to `count` - 1 of each task, cut into those of a chunk each."""
    most, ranges = max(1, at_once // max(1, tasks)), list[range]()
    while (first := ranges[-1].stop if ranges else 0) < count:
        ranges.append(range(first, min(first + min(max(1, first), most), count)))
    return ranges
