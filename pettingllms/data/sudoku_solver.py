"""Searches and grades Sudoku puzzles: grids of numbers, their solutions, and what a solver needs.

A grid is a flat tuple, row by row, of numbers from 1 to its size; 0 is an empty cell. Sets of
numbers are bit masks: bit `n - 1` stands for the number `n`.

Clue counts say little, so that a puzzle is graded by techniques (with their usual names):

| grade | needs |
|---|---|
| `"naked"` | naked singles alone: a cell for which one number is left |
| `"singles"` | hidden singles as well: a number for which one cell of a unit is left |
| `"more"` | locked candidates, naked or hidden pairs as well |
| `"search"` | trying out numbers: nothing of the above is enough |
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

Grid = tuple[int, ...]

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3), 16: (4, 4)}
"""Rows and columns of a box, by the size of the grid."""
GUESS_LIMIT = 200_000
"""Guesses after which a search gives up."""


class Shape(NamedTuple):
    """The parts that all grids of a size have in common; cells are numbered row by row."""

    size: int
    row: Grid
    """The row of each cell."""
    column: Grid
    box: Grid
    units: tuple[Grid, ...]
    """The cells of each row, then of each column, then of each box."""
    peers: tuple[Grid, ...]
    """The other cells in the row, column and box of each cell."""


@functools.cache
def shape(size: int) -> Shape:
    """The shape of a `size` x `size` grid."""
    high, wide = BOXES[size]
    row = tuple(cell // size for cell in range(size * size))
    column = tuple(cell % size for cell in range(size * size))
    box = tuple(r // high * (size // wide) + c // wide for r, c in zip(row, column, strict=True))
    units = tuple(
        tuple(cell for cell in range(size * size) if index_of[cell] == number)
        for index_of in (row, column, box)
        for number in range(size)
    )
    peers = tuple(
        tuple(sorted({other for unit in units if cell in unit for other in unit} - {cell}))
        for cell in range(size * size)
    )
    return Shape(size, row, column, box, units, peers)


class Undecided(Exception):
    """A search made too many guesses."""


class Search:
    """Depth-first search for solutions, at the cell with the fewest numbers left.

    Args:
        clues: the grid; no number may occur twice in a unit.
        order: puts the numbers for a cell, a bit mask, into the order in which they are tried.
        limit: guesses after which a search gives up.
    """

    def __init__(
        self,
        clues: Grid,
        order: Callable[[int], Iterator[int]] | None = None,
        limit: int = GUESS_LIMIT,
    ) -> None:
        self.shape = shape(round(len(clues) ** 0.5))
        self.values = list(clues)
        self.guesses = 0
        self._order = order or bits
        self._limit = limit
        self._full = (1 << self.shape.size) - 1
        # Numbers that a row, column or box has.
        self._used = tuple([0] * self.shape.size for _ in range(3))
        self._empty = [cell for cell, value in enumerate(clues) if not value]
        for cell, value in enumerate(clues):
            if value:
                self._flip(cell, 1 << (value - 1))

    def candidates(self, cell: int) -> int:
        """The numbers that no peer of the cell has."""
        rows, columns, boxes = self._used
        _, row, column, box, _, _ = self.shape
        return self._full & ~(rows[row[cell]] | columns[column[cell]] | boxes[box[cell]])

    def solutions(self, most: int) -> list[Grid]:
        """The first `most` solutions.

        Raises:
            Undecided: after too many guesses.
        """
        solutions: list[Grid] = []
        if self._visit(solutions, most) and len(solutions) < most:
            raise Undecided
        return solutions

    def spare(self, cell: int) -> bool:
        """Returns whether the grid, which has one solution, still has one without the number in the cell.

        Where that takes too many guesses the answer is no.
        """
        bit = 1 << (self.values[cell] - 1)
        others = self.candidates(cell)
        if not others:
            return True
        # The limit is for each question, not for the whole puzzle.
        self.guesses = 0
        self._flip(cell, bit)
        other_solution = False
        for other in bits(others):
            self._flip(cell, other)
            other_solution = self._visit([], 1)
            self._flip(cell, other)
            if other_solution:
                break
        self._flip(cell, bit)
        return not other_solution

    def clear(self, cell: int) -> None:
        """Takes the number in the cell away."""
        self._flip(cell, 1 << (self.values[cell] - 1))
        self.values[cell] = 0
        self._empty.append(cell)

    def _visit(self, solutions: list[Grid], most: int) -> bool:
        """Collects solutions until there are as many as wanted, or guesses run out: then True.

        Leaves the grid as it was.
        """
        empty = self._empty
        if not empty:
            solutions.append(tuple(self.values))
            return len(solutions) >= most
        at, options = self._narrowest()
        # A cell with one number left is no guess.
        if options & (options - 1):
            self.guesses += 1
            if self.guesses > self._limit:
                return True
        cell = empty[at]
        # The last one takes its place, so that nothing moves up; it is put back in the same way.
        empty[at] = empty[-1]
        empty.pop()
        enough = False
        for bit in self._order(options):
            self.values[cell] = bit.bit_length()
            self._flip(cell, bit)
            # One call for each empty cell: 256 at most, which Python's stack allows.
            enough = self._visit(solutions, most)
            self._flip(cell, bit)
            if enough:
                break
        self.values[cell] = 0
        empty.append(empty[at] if at < len(empty) else cell)
        empty[at] = cell
        return enough

    def _narrowest(self) -> tuple[int, int]:
        """Finds where in `_empty` the cell with the fewest candidates is, and these."""
        rows, columns, boxes = self._used
        _, row, column, box, _, _ = self.shape
        # 99 is more numbers than any cell can have.
        full, least, where, options = self._full, 99, 0, 0
        for at, cell in enumerate(self._empty):
            free = full & ~(rows[row[cell]] | columns[column[cell]] | boxes[box[cell]])
            count = free.bit_count()
            if count < least:
                least, where, options = count, at, free
                # Such a cell leaves nothing to guess, so that no other can be better.
                if count < 2:
                    break
        return where, options

    def _flip(self, cell: int, bit: int) -> None:
        rows, columns, boxes = self._used
        _, row, column, box, _, _ = self.shape
        # An exclusive or: the same call takes a number away again.
        rows[row[cell]] ^= bit
        columns[column[cell]] ^= bit
        boxes[box[cell]] ^= bit


def bits(mask: int) -> Iterator[int]:
    """The bits of a mask, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


GRADES = ("naked", "singles", "more", "search")


def grade(clues: Grid) -> str:
    """Returns what a solver needs for a puzzle that has one solution; the module's docstring lists it."""
    for name in GRADES[:-1]:
        if solvable(clues, name):
            return name
    return GRADES[-1]


def solvable(clues: Grid, grade: str) -> bool:
    """Returns whether the techniques up to `grade`, which is not "search", are enough."""
    notes = _Notes(clues)
    # How many of the three each grade has: none, hidden singles alone, or all.
    harder = (notes.hidden_singles, notes.locked, notes.pairs)[: (0, 1, 3)[GRADES.index(grade)]]
    # After any step the simplest technique has its turn again.
    while notes.naked_singles() or any(technique() for technique in harder):
        pass
    return notes.left == 0


class _Notes:
    """Pencil marks: the candidates of each empty cell. Every technique says if it did anything."""

    def __init__(self, clues: Grid) -> None:
        self.shape = shape(round(len(clues) ** 0.5))
        self.marks = [(1 << self.shape.size) - 1] * len(clues)
        self.left = len(clues)
        self._ready: list[int] = []  # cells that may have one candidate left
        for cell, value in enumerate(clues):
            if value:
                self._place(cell, 1 << (value - 1))
        # Anew, because later clues have filled some of those that were noted above.
        self._ready = [cell for cell, mask in enumerate(self.marks) if mask.bit_count() == 1]

    def _place(self, cell: int, bit: int) -> None:
        marks, ready = self.marks, self._ready
        marks[cell] = 0
        self.left -= 1
        for other in self.shape.peers[cell]:
            mask = marks[other]
            if mask & bit:
                marks[other] = mask = mask ^ bit
                if not mask & (mask - 1):
                    ready.append(other)

    def _strike(self, cells: Iterable[int], mask: int) -> bool:
        """Removes candidates from cells."""
        done = False
        for cell in cells:
            if self.marks[cell] & mask:
                self.marks[cell] &= ~mask
                done = True
                if self.marks[cell].bit_count() == 1:
                    self._ready.append(cell)
        return done

    def naked_singles(self) -> bool:
        done = False
        while self._ready:
            cell = self._ready.pop()
            if self.marks[cell]:  # may have been placed since
                self._place(cell, self.marks[cell])
                done = True
        return done

    def hidden_singles(self) -> bool:
        marks, done = self.marks, False
        for unit in self.shape.units:
            once = twice = 0
            for cell in unit:
                twice |= once & marks[cell]
                once |= marks[cell]
            for bit in bits(once & ~twice):
                # A number that was placed a moment ago may stand in this one's cell.
                cell = next((cell for cell in unit if marks[cell] & bit), -1)
                if cell >= 0:
                    self._place(cell, bit)
                    done = True
        return done

    def locked(self) -> bool:
        """Numbers of a box that are all in one line leave the rest of the line, and vice versa."""
        for shared, line, box in _crossings(self.shape.size):
            common = self._union(shared)
            for one, other in ((line, box), (box, line)):
                numbers = common & ~self._union(one)
                if numbers and self._strike(other, numbers):
                    return True
        return False

    def pairs(self) -> bool:
        """Two cells that share two numbers, or two numbers that share two cells."""
        for unit in self.shape.units:
            for one, other in itertools.combinations([c for c in unit if self.marks[c]], 2):
                both = self.marks[one] | self.marks[other]
                rest = [cell for cell in unit if cell not in (one, other)]
                shared = self.marks[one] & self.marks[other] & ~self._union(rest)
                if both.bit_count() == 2 and self._strike(rest, both):
                    return True
                if shared.bit_count() == 2 and self._strike((one, other), ~shared):
                    return True
        return False

    def _union(self, cells: Iterable[int]) -> int:
        mask = 0
        for cell in cells:
            mask |= self.marks[cell]
        return mask


@functools.cache
def _crossings(size: int) -> list[tuple[Grid, Grid, Grid]]:
    """Lists the cells that a line and a box share, and the rest of the line and of the box."""
    units = shape(size).units
    return [
        (shared, tuple(c for c in line if c not in box), tuple(c for c in box if c not in line))
        for line, box in itertools.product(units[: 2 * size], units[2 * size :])
        if (shared := tuple(c for c in line if c in box))
    ]
