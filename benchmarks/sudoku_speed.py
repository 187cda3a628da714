"""How long a Sudoku puzzle with one solution takes: this package beside reasoning-gym.

    pip install reasoning-gym
    python -m benchmarks.sudoku_speed

Both make puzzles with the same number of clues, in turns, on one thread; milliseconds of CPU time
for a puzzle, the median of the rounds. reasoning-gym may stop with more clues than asked for,
where no more can be spared; here such a grid is thrown away. The times here include the grade.
Below: puzzles of the harder grades, and one agent's turn in `sudoku_v0` (see, answer with three
fills, be scored).
"""

from __future__ import annotations

import importlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.sandbox import report
from pettingllms.data import sudoku
from pettingllms.envs import sudoku_v0

KINDS = (
    (4, 8, "mini_sudoku", 50),
    (9, 45, "sudoku", 8),
    (9, 36, "sudoku", 8),
    (9, 31, "sudoku", 8),
)
"""Size, clues, the name of such puzzles in reasoning-gym, and puzzles in a round."""
HARDER = (("more", (24, 30)), ("search", (22, 28)))
REPLY = "#### [[1, 2, 4], [2, 2, 1], [3, 3, 1]]"


def main() -> None:
    """Prints the tables, and writes them as JSON where asked."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=15, help="turns of each contestant")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args()
    rows = [generators(arguments.rounds, *kind) for kind in KINDS]
    rows += [harder(arguments.rounds, *kind) for kind in HARDER]
    rows += [turns(arguments.rounds, size) for size in (4, 9)]
    report("sudoku_speed", arguments, rows)


def generators(rounds: int, size: int, clues: int, name: str, number: int) -> dict[str, Any]:
    """Both generators, at one number of clues."""
    empty = size * size - clues
    peer: Iterator[dict[str, Any]] = iter(
        importlib.import_module("reasoning_gym").create_dataset(
            name, seed=1, size=number * (rounds + 1), min_empty=empty, max_empty=empty
        )
    )
    made: list[dict[str, Any]] = []
    rng = random.Random(1)

    def one() -> object:
        return sudoku.generate(rng, "train", size=size, clues=(clues, clues))

    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(milliseconds(one, number))
        theirs.append(milliseconds(lambda: made.append(next(peer)), number))
    clue_counts = [sum(map(bool, itertools.chain(*item["metadata"]["puzzle"]))) for item in made]
    own_ms, peer_ms = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "puzzles": f"{size}x{size}, {clues} clues",
        "ms": own_ms,
        "reasoning-gym ms": peer_ms,
        "ratio": peer_ms / own_ms,
        "its clues": statistics.mean(clue_counts),
    }


def harder(rounds: int, grade: str, clues: tuple[int, int]) -> dict[str, Any]:
    """9x9 puzzles of a grade that is seldom met by chance."""
    rng = random.Random(1)

    def one() -> object:
        return sudoku.generate(rng, "train", size=9, clues=clues, difficulty=grade)

    taken = [milliseconds(one, 2) for _ in range(rounds)]
    return {"9x9 of grade": grade, "clues": str(clues), "ms": statistics.median(taken)}


def turns(rounds: int, size: int) -> dict[str, Any]:
    """Turns in the environment, each from the same board."""
    env = sudoku_v0.env(size=size)
    env.reset(seed=0)
    start = env.snapshot()

    def turn() -> None:
        env.observe("tool_0")
        env.step(REPLY)

    def back() -> None:
        env.restore(start)
        env.snapshot()

    def both() -> None:
        back()
        turn()

    taken = [(milliseconds(both, 500), milliseconds(back, 500)) for _ in range(rounds)]
    whole, restored = (1000 * statistics.median(times) for times in zip(*taken, strict=True))
    return {
        "environment": f"{size}x{size}",
        "turn, µs": whole - restored,
        "restore and snapshot, µs": restored,
    }


def milliseconds(run: Callable[[], object], times: int) -> float:
    """CPU time of one run, over so many."""
    begin = time.process_time()
    for _ in range(times):
        run()
    return 1000 * (time.process_time() - begin) / times


if __name__ == "__main__":
    main()
