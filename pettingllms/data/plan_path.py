"""Grids with walls, a start and a goal, for Plan-Path: generated, reachable, with the optimum known.

Walls are scattered, start and goal are two free cells with a path between them (the task of
arXiv 2510.11062), and breadth-first search from the goal gives the length of a shortest path from every
cell. Cells are numbered row by row. The split of a grid is decided by its walls and goal up to
symmetry, so that no layout, turned or mirrored, is in two splits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pettingllms.data import splits
from pettingllms.data.splits import Split
from pettingllms.errors import ConfigError, DatasetError

TRIES = 2_000
"""Grids that are drawn; after that each is changed step by step, as often, towards longer paths."""
SIDES = (2, 26)
"""Fewest and most rows and columns: a row's name is one letter."""
SYMBOLS = "#.@G"
UNREACHABLE = -1


class Grid(NamedTuple):
    """A level of Plan-Path."""

    height: int
    width: int
    walls: frozenset[int]
    start: int
    goal: int
    distances: tuple[int, ...]
    """Moves from each cell to the goal; `UNREACHABLE` for walls and what they cut off."""

    @property
    def optimum(self) -> int:
        """Moves of a shortest path."""
        return self.distances[self.start]

    @property
    def neighbours(self) -> tuple[dict[str, int], ...]:
        """For each cell where moves lead: direction -> cell."""
        return neighbours(self.height, self.width)


@lru_cache(maxsize=64)
def neighbours(height: int, width: int) -> tuple[dict[str, int], ...]:
    """Lists for each cell where moves lead: direction -> cell."""
    table = []
    for cell in range(height * width):
        row, column = divmod(cell, width)
        around = {}
        if row > 0:
            around["U"] = cell - width
        if row < height - 1:
            around["D"] = cell + width
        if column > 0:
            around["L"] = cell - 1
        if column < width - 1:
            around["R"] = cell + 1
        table.append(around)
    return tuple(table)


def distances(height: int, width: int, walls: frozenset[int], goal: int) -> tuple[int, ...]:
    """Counts the moves from each cell to `goal`, by breadth-first search; `UNREACHABLE` where none."""
    table = neighbours(height, width)
    moves = [UNREACHABLE] * (height * width)
    moves[goal] = 0
    edge = [goal]
    while edge:
        following = []
        for cell in edge:
            for near in table[cell].values():
                if moves[near] == UNREACHABLE and near not in walls:
                    moves[near] = moves[cell] + 1
                    following.append(near)
        edge = following
    return tuple(moves)


def generate(
    rng: random.Random,
    split: Split,
    *,
    height: int = 10,
    width: int = 10,
    walls: float = 0.22,
    moves: tuple[int, int] | None = None,
) -> Grid:
    """Generates a grid of `split` whose shortest path has at least one move, or a number within `moves`.

    Args:
        rng: where the grid is drawn from.
        split: "train", "val" or "test".
        height: rows.
        width: columns.
        walls: share of cells that are walls, rounded to whole cells.
        moves: least and greatest length of the shortest path.

    Raises:
        ConfigError: no such grid was found in `TRIES` tries of either kind.
    """
    cells = list(range(height * width))
    count = round(len(cells) * walls)
    least, most = moves or (1, len(cells))
    for _ in range(TRIES):
        rng.shuffle(cells)
        # Of one shuffle, so that walls, goal and start never fall on one cell.
        wall, goal, start = frozenset(cells[:count]), cells[count], cells[count + 1]
        if split_of(height, width, wall, goal) != split:
            continue
        table = distances(height, width, wall, goal)
        if least <= table[start] <= most:
            return Grid(height, width, wall, start, goal, table)
    # Rare paths are not found by drawing. Walls move as long as the farthest cell comes no nearer.
    farthest = 0
    for _ in range(TRIES if 0 < count < len(cells) - 1 else 0):
        i, j = rng.randrange(count), rng.randrange(count, len(cells))
        cells[i], cells[j] = cells[j], cells[i]
        wall, goal = frozenset(cells[:count]), cells[count]
        table = distances(height, width, wall, goal)
        starts = [cell for cell in cells[count + 1 :] if least <= table[cell] <= most]
        if starts and split_of(height, width, wall, goal) == split:
            return Grid(height, width, wall, rng.choice(starts), goal, table)
        if max(table) < farthest:
            cells[i], cells[j] = cells[j], cells[i]
        else:
            farthest = min(max(table), least)
    raise ConfigError(
        f"found no {height} x {width} grid with {walls:.0%} walls and {least} to {most} moves in "
        f"{2 * TRIES} tries that is of the split {split!r}; ask for fewer walls, a larger grid or a wider "
        "range of moves"
    )


def parse(lines: Sequence[str], source: str = "grid", first: int = 1) -> Grid:
    """Reads the grid in these rows of `#` (wall), `.` (free), `@` (start) and `G` (goal).

    Raises:
        DatasetError: it is no grid in which the goal can be reached; names the line.
    """
    height, width = len(lines), max(map(len, lines), default=0)

    def refused(why: str, row: int = 0) -> DatasetError:
        return DatasetError(f"{source}: line {first + row}: {why}")

    if not (SIDES[0] <= height <= SIDES[1] and SIDES[0] <= width <= SIDES[1]):
        raise refused(f"a grid has {SIDES[0]} to {SIDES[1]} rows and columns, got {height}x{width}")
    for row, line in enumerate(lines):
        if len(line) != width:
            raise refused(f"the row has {len(line)} cells, others have {width}", row)
        if strange := sorted(set(line) - set(SYMBOLS)):
            raise refused(f"{strange[0]!r} is no cell of a grid; use {SYMBOLS!r}", row)
    cells = "".join(lines)
    for symbol, name in (("@", "start"), ("G", "goal")):
        if cells.count(symbol) != 1:
            raise refused(f"expected one {name} ({symbol}), found {cells.count(symbol)}")
    walls = frozenset(cell for cell, symbol in enumerate(cells) if symbol == "#")
    start, goal = cells.index("@"), cells.index("G")
    table = distances(height, width, walls, goal)
    if table[start] == UNREACHABLE:
        raise refused("no path leads from the start to the goal")
    return Grid(height, width, walls, start, goal, table)


def split_of(height: int, width: int, walls: frozenset[int], goal: int) -> Split:
    """Returns the split that a layout belongs to: seven of ten train, one val, two test."""
    key = canonical(height, width, walls, goal).decode("ascii")
    return splits.split_of(key, domain="plan_path")


def canonical(height: int, width: int, walls: frozenset[int], goal: int) -> bytes:
    """Returns one name for a layout and all that turning and mirroring makes of it."""
    return min(
        # For each cell of the turned grid, what is there.
        bytes((tall, wide)) + bytes(2 if cell == goal else cell in walls for cell in order)
        for tall, wide, order in splits.symmetries(height, width)
    )
