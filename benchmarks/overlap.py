"""What has the base with habits seen of the tasks that it is tested on? `python -m benchmarks.overlap`.

It was primed when splits followed other rules. The test tasks of `benchmarks.learning` are compared with the 4x4 grids
that were for training then, all of which it was shown, and with as many stories as it was shown, drawn again by the rule
of then. Renamed grids differ in the names of digits, not in places; reordered stories have the same start and
steps, a start counting as a gain. Prints counts and writes `results/overlap.json`. CPU only.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.evidence import revision
from benchmarks.learning import TASKS
from benchmarks.options import Options
from pettingllms.data import arithmetic
from pettingllms.data.arithmetic import Step, Story
from pettingllms.data.sudoku_solver import Grid, Search
from pettingllms.envs import make

STORIES = 42_437
"""Demonstrations of math in the priming."""


def trained(grid: Grid) -> bool:
    """Whether puzzles with this solution were for training."""
    digest = hashlib.blake2b("".join(map(str, grid)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 10 < 7


def old_stories(count: int) -> Iterator[Story]:
    """Stories for training, when another order was another story."""
    rng, largest = random.Random(0), arithmetic.LARGEST
    while count:
        start = rng.randint(1, largest)
        steps = arithmetic._steps(rng, start, rng.randint(*arithmetic.DEPTH), largest)
        story = Story(start, steps or (), "")
        if steps and zlib.crc32(story.computation.encode()) % 10 >= 3:
            count -= 1
            yield story


def renamed(grid: Grid) -> Grid:
    """The grid with its digits named in the order in which they appear."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(digit, len(names) + 1) for digit in grid)


def reordered(story: Story) -> tuple[Step, ...]:
    """The start and the steps, sorted."""
    return tuple(sorted([Step("+", story.start), *story.steps]))


def seen(shown: Iterable[Any], tested: Iterable[Any], key: Callable[[Any], Hashable]) -> int:
    """How many of `tested` have the key of one that was shown."""
    return sum(map({*map(key, shown)}.__contains__, map(key, tested)))


def main() -> None:
    """Compares, prints, writes."""
    Options(__doc__.splitlines()[0]).parse_args()
    board: Any = make("sudoku", split="test").unwrapped
    solutions = [board._start(seed, {}).level.solution for seed in range(TASKS)]
    tested = [arithmetic.generate(seed, "test") for seed in range(TASKS)]
    grids = [*filter(trained, Search((0,) * 16).solutions(288))]
    stories = [*old_stories(STORIES)]
    content = {
        "revision": revision(),
        "tasks": TASKS,
        "stories": STORIES,
        "sudoku": seen(grids, solutions, tuple),
        "sudoku, renamed": seen(grids, solutions, renamed),
        "math": seen(stories, tested, lambda story: story.computation),
        "math, reordered": seen(stories, tested, reordered),
    }
    print(content)
    file = Path(__file__).parent / "results" / "overlap.json"
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
