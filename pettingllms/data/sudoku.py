"""Sudoku puzzles with one solution: their generator, and puzzles from texts and files.

The generator fills a grid at random and takes numbers away, in random order, as long as what is
left still has one solution (and, where an easy grade is asked for, still yields to its
techniques). In a text, row by row, `.` or `0` is an empty cell, and `a` to `g` are 10 to 16. Rows of
files are checked when they are read, and solved when a puzzle is dealt, since files have millions.

# Splits

Renaming the digits, exchanging bands, stacks, or the rows or columns inside one, and (where boxes are square) transposing
give another guise of the same puzzle. A puzzle's split is decided by a key that all its guises share, so that no
puzzle is in two splits, whatever it looks like. For 9x9 the key is read off the solution, so that puzzles with one
solution are in one split as well. The solutions of the other sizes are too few for that: 4x4 has two in all, the 16x16 ones of
this generator are one, guises apart. There the key is read off the clues, and a test puzzle may share its solution with a training puzzle.
Different puzzles may share a key; they are then in one split.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.data import splits
from pettingllms.data.dataset import Kind, Schema, load_source
from pettingllms.data.rows import TABLES, Row, RowError, checked_text, label
from pettingllms.data.splits import Split
from pettingllms.data.sudoku_solver import (
    BOXES,
    GUESS_LIMIT,
    Grid,
    Search,
    Shape,
    Undecided,
    bits,
    grade,
    shape,
    solvable,
)
from pettingllms.errors import ConfigError, DatasetError

DIGITS = "0123456789abcdefg"
CLUES = {4: (6, 8), 6: (14, 18), 9: (30, 36), 16: (130, 150)}
"""Fewest and most clues of a puzzle where no others are asked for, by size."""
# For 9x9, 17 is proven to be the least (McGuire, Tugemann and Civario, arXiv 1201.0749).
FEWEST = {4: 4, 6: 8, 9: 17, 16: 120}
"""The fewest clues that may be asked for: those of a known puzzle with one solution. In 16x16 such a
puzzle has 55, but below 120 a grid takes the generator up to a minute instead of half a second."""
TRIES = {4: 2_000, 6: 2_000, 9: 200, 16: 20}
"""Grids that are dug before the generator gives up, by size. From a quarter of them on, numbers are taken
away as long as any can be spared, and put back where the grade stays: hard puzzles are rare otherwise.
Not in 16x16, where that takes too long."""
BY_SOLUTION = 81
"""Cells of the puzzles whose split is read off the solution."""
# More rounds would cost time; puzzles that these do not tell apart only share a split.
ROUNDS = 2
GUESSES = 2_000
"""Guesses that the generator spends on whether a number can be taken away; else it stays."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A puzzle and its only solution."""

    clues: Grid
    """0 for an empty cell."""
    solution: Grid
    difficulty: str
    """One of `GRADES`."""
    guesses: int
    """Cells at which a depth-first search had more than one number to try, all in all; 0 where no
    search is needed to grade it."""

    @property
    def size(self) -> int:
        """Rows of the grid."""
        return SIZES[len(self.clues)]

    @property
    def blanks(self) -> int:
        """Empty cells."""
        return self.clues.count(0)


SIZES = {size * size: size for size in BOXES}
"""Size of the grid by its number of cells."""


def split_of(clues: Grid, solution: Grid) -> Split:
    """Returns the split of a puzzle and of all its guises."""
    key = _solution_key(solution) if len(clues) == BY_SOLUTION else _clues_key(clues)
    return splits.split_of(key, domain="sudoku")


def _solution_key(solution: Grid) -> str:
    """Returns what all guises of a complete grid share: how each two rows, and each two columns, permute."""
    size = SIZES[len(solution)]
    high, wide = BOXES[size]
    rows = [solution[start : start + size] for start in range(0, len(solution), size)]
    columns = [solution[start::size] for start in range(size)]
    # Sorted, because transposing a grid exchanges its rows and columns.
    return repr(sorted((_permutations(rows, high), _permutations(columns, wide))))


def _permutations(lines: list[Grid], thick: int) -> list[list[tuple[int, ...]]]:
    """Lengths of the cycles between two lines: for each band of `thick` lines, then across bands."""
    inside: list[list[tuple[int, ...]]] = [[] for _ in range(len(lines) // thick)]
    across: list[tuple[int, ...]] = []
    for (i, one), (j, other) in itertools.combinations(enumerate(lines), 2):
        group = inside[i // thick] if i // thick == j // thick else across
        group.append(_cycles(dict(zip(one, other, strict=True))))
    return [*sorted(map(sorted, inside)), sorted(across)]


def _cycles(permutation: dict[int, int]) -> tuple[int, ...]:
    lengths = []
    while permutation:
        number, length = next(iter(permutation)), 0
        while number in permutation:
            number, length = permutation.pop(number), length + 1
        lengths.append(length)
    # A new name for each digit changes the cycles' members, and not their lengths.
    return tuple(sorted(lengths))


def _clues_key(clues: Grid) -> str:
    """Returns what all guises of a puzzle share, by color refinement.

    Cells are distinguished by whether they are given, then, `ROUNDS` times, by what stands in their
    row, band, column, stack and box, and in the cells with their number. Nothing that a guise
    changes is looked at.
    """
    size = SIZES[len(clues)]
    high, wide = BOXES[size]
    box = shape(size).box
    colors = [int(value > 0) for value in clues]
    signatures = []
    for _ in range(ROUNDS):
        rows = _with_band([colors[at : at + size] for at in range(0, len(clues), size)], high)
        columns = _with_band([colors[at::size] for at in range(size)], wide)
        lines = _ranks([*rows, *columns])
        boxes, numbers = ([list[int]() for _ in range(size + 1)] for _ in range(2))
        for color, place, value in zip(colors, box, clues, strict=True):
            boxes[place].append(color)
            numbers[value].append(color)
        # Empty cells have no number in common.
        numbers[0] = []
        inside, same = _ranks([sorted(group) for group in boxes]), _ranks(map(sorted, numbers))
        cells = []
        for cell, value in enumerate(clues):
            cross = (lines[cell // size], lines[size + cell % size])
            # Only a grid with square boxes may be transposed, which exchanges row and column.
            if high == wide and cross[0] > cross[1]:
                cross = cross[1], cross[0]
            cells.append((colors[cell], cross, inside[box[cell]], same[value]))
        colors = _ranks(cells)
        signatures.append((sorted(rows + columns), sorted(cells)))
    return repr(signatures)


def _with_band(lines: list[list[int]], thick: int) -> list[tuple[list[int], list[list[int]]]]:
    """Each line, in an order of its own, and its band's lines."""
    ordered = [sorted(line) for line in lines]
    bands = [sorted(ordered[at : at + thick]) for at in range(0, len(ordered), thick)]
    return [(line, bands[at // thick]) for at, line in enumerate(ordered)]


def _ranks(values: Iterable[Any]) -> list[int]:
    """Returns for each value its place among all different ones."""
    several = list(values)
    order: list[Any] = []
    for value in sorted(several):
        if not order or order[-1] != value:
            order.append(value)
    # Not by a dict, because values are lists or hold some, which have no hash.
    return [bisect.bisect_left(order, value) for value in several]


# ------------------------------------------------------------------------------- the generator


def clue_range(size: int, clues: Sequence[int] | None = None) -> tuple[int, int]:
    """The fewest and the most clues; `CLUES` where None is asked for.

    Raises:
        ConfigError: no puzzle of this size can have so many, or the generator cannot make it.
    """
    if clues is None:
        return CLUES[size]
    fewest, most = FEWEST[size], size * size - 1
    lo, hi = tuple(clues) if len(clues) == 2 else (1, 0)
    if not fewest <= lo <= min(hi, most):
        raise ConfigError(
            f"clues={clues!r} suits no {size}x{size} puzzle of the generator: give (fewest, most), "
            f"from {fewest} to {most}"
        )
    return lo, min(hi, most)


def generate(
    rng: random.Random,
    split: Split,
    *,
    size: int = 4,
    clues: Sequence[int] | None = None,
    difficulty: str | None = None,
) -> Puzzle:
    """Generates a puzzle of `split` with one solution, with a number of clues and a grade as asked for.

    Raises:
        ConfigError: no such puzzle was found in `TRIES` attempts.
    """
    lo, hi = clue_range(size, clues)
    by_solution = size * size == BY_SOLUTION
    spent = 0.0
    while spent < TRIES[size]:
        solution = _filled(rng, size)
        # Known from the solution alone, so that no grid of another split is dug in vain.
        while by_solution and split_of(solution, solution) != split:
            solution = _filled(rng, size)
        target = rng.randint(lo, hi)
        # In 6x6 the techniques of a grade take longer than looking for it among all grades.
        rare = size == 6 and difficulty in ("more", "search")
        deep = size < 16 and (rare or spent >= TRIES[size] / 4)
        wanted = None if deep and size == 6 else difficulty
        dug = _dug(rng, solution, FEWEST[size] if deep else target, wanted)
        # Filling up leaves the grade as it is.
        suits = not deep or difficulty in (None, grade(dug))
        for _ in range((10 if deep else 1) if suits else 0):
            clues_left = _filled_up(rng, dug, solution, target) if deep else dug
            count = len(clues_left) - clues_left.count(0)
            suits = lo <= count <= hi and difficulty in (None, grade(clues_left))
            if not suits:
                break
            if by_solution or split_of(clues_left, solution) == split:
                try:
                    return puzzle(clues_left, solution, grade(clues_left), 10 * GUESSES)
                except Undecided:
                    suits = False  # no solver should have to guess so often
        # A tenth of all puzzles is in the smallest split.
        spent += 0.1 if suits else 1.0
    raise ConfigError(
        f"no {size}x{size} puzzle of difficulty {difficulty!r} with {lo} to {hi} clues was found "
        f"in the split {split!r}; allow other clues or another difficulty"
    )


def puzzle(clues: Grid, solution: Grid, found: str, limit: int = GUESS_LIMIT) -> Puzzle:
    """The puzzle with these clues, this only solution and this grade; Undecided after `limit` guesses."""
    if found != "search":
        return Puzzle(clues, solution, found, 0)
    search = Search(clues, limit=limit)
    search.solutions(2)
    return Puzzle(clues, solution, found, search.guesses)


def _filled(rng: random.Random, size: int) -> Grid:
    """A random complete grid; for 16x16, where search may not end, a shuffled pattern."""
    if size == 4:
        return rng.choice(_small_grids())
    if size == 16:
        return _shuffled(rng, size)

    def at_random(options: int) -> Iterator[int]:
        several = list(bits(options))
        rng.shuffle(several)
        return iter(several)

    return Search((0,) * size**2, at_random).solutions(1)[0]


@functools.cache
def _small_grids() -> tuple[Grid, ...]:
    # All grids of 4x4, of which there are 288.
    return tuple(Search((0,) * 16).solutions(288))


def _shuffled(rng: random.Random, size: int) -> Grid:
    high, wide = BOXES[size]
    numbers = rng.sample(range(1, size + 1), size)
    rows = [
        b * high + r for b in rng.sample(range(wide), wide) for r in rng.sample(range(high), high)
    ]
    columns = [
        b * wide + c for b in rng.sample(range(high), high) for c in rng.sample(range(wide), wide)
    ]
    # Rows of a band are shifted by the width of a box, bands by one: no unit has a number twice.
    return tuple(numbers[(r % high * wide + r // high + c) % size] for r in rows for c in columns)


def _dug(rng: random.Random, solution: Grid, target: int, difficulty: str | None) -> Grid:
    """The solution with numbers taken away until `target` are left, or no more can be spared."""
    search = Search(solution, limit=GUESSES)
    left = len(solution)
    for cell in rng.sample(range(left), left):
        if left <= target:
            break
        if _can_spare(search, cell, difficulty):
            search.clear(cell)
            left -= 1
    return tuple(search.values)


def _filled_up(rng: random.Random, dug: Grid, solution: Grid, target: int) -> Grid:
    """The puzzle with numbers put back until `target` are given, or none leaves the grade as it is."""
    filled, kept = list(dug), grade(dug)
    for cell in rng.sample(range(len(dug)), len(dug)):
        if len(filled) - filled.count(0) >= target:
            break
        if not filled[cell]:
            filled[cell] = solution[cell]
            if grade(tuple(filled)) != kept:
                filled[cell] = 0
    return tuple(filled)


def _can_spare(search: Search, cell: int, difficulty: str | None) -> bool:
    if difficulty in (None, "search"):
        return search.spare(cell)
    if not search.candidates(cell):
        return True  # the number comes back as a naked single
    value, search.values[cell] = search.values[cell], 0
    done = solvable(tuple(search.values), difficulty)
    search.values[cell] = value
    return done


# ------------------------------------------------------------------------- texts and files

COLUMNS = {"question": "answer", "quizzes": "solutions", "puzzle": "solution"}
"""Names of the columns of puzzles, and of their solutions."""


def is_puzzle(text: str) -> bool:
    """Returns whether a text has the length and the characters of a puzzle."""
    size = SIZES.get(len(text), 0)
    return bool(size) and set(text.lower()) <= {".", *DIGITS[: size + 1]}


def parse(text: str) -> Puzzle:
    """Reads the puzzle in a text of 16, 36, 81 or 256 characters.

    Raises:
        DatasetError: it is no puzzle, breaks the rules, or has no solution or several.
    """
    clues = _grid(text)
    size = shape(SIZES[len(clues)])
    for unit in size.units:
        seen: dict[int, int] = {}
        for cell in unit:
            value = clues[cell]
            if value and value in seen:
                raise _refused(
                    text, f"{value} is at {_at(seen[value], size)} and at {_at(cell, size)}"
                )
            seen[value] = cell
    try:
        solutions = Search(clues).solutions(2)
    except Undecided:
        raise _refused(text, "its solution is not found within reasonable time") from None
    if not solutions:
        raise _refused(text, "it has no solution")
    if len(solutions) > 1:
        cell = next(
            cell for cell, pair in enumerate(zip(*solutions, strict=True)) if len(set(pair)) > 1
        )
        numbers = " or ".join(str(grid[cell]) for grid in solutions)
        raise _refused(text, f"it has several solutions: {_at(cell, size)} can be {numbers}")
    if not clues.count(0):
        raise _refused(text, "it has no empty cell")
    return puzzle(clues, solutions[0], grade(clues))


def _grid(text: str) -> Grid:
    if why := _fault(text):
        raise _refused(text, why)
    return tuple(max(0, DIGITS.find(character)) for character in text.lower())


def _fault(text: str) -> str:
    """Describes why a text is not a grid; empty where it is one."""
    size = SIZES.get(len(text))
    if size is None:
        return f"it has {len(text)} characters, not one of {', '.join(map(str, SIZES))}"
    allowed = DIGITS[1 : size + 1]
    for cell, character in enumerate(text.lower()):
        if character not in f".0{allowed}":
            where = f"row {cell // size + 1}, column {cell % size + 1}"
            return f"{character!r} in {where} is not '.', '0' or one of {allowed}"
    return ""


def _mismatch(clues: Grid, solution: Grid) -> str:
    """Describes why a grid cannot be a puzzle's solution; empty where it can."""
    if len(clues) != len(solution) or any(
        clue not in (0, number) for clue, number in zip(clues, solution, strict=True)
    ):
        return "has other numbers than the puzzle"
    if 0 in solution:
        return "has empty cells"
    if any(
        len({solution[cell] for cell in unit}) < len(unit)
        for unit in shape(SIZES[len(clues)]).units
    ):
        return "has a number twice in a row, column or box"
    return ""


def _at(cell: int, size: Shape) -> str:
    return f"row {size.row[cell] + 1}, column {size.column[cell] + 1}"


def _refused(text: str, why: str) -> DatasetError:
    shown = text if len(text) <= 81 else f"{text[:78]}..."
    return DatasetError(f"{shown!r} is not a Sudoku puzzle: {why}")


class PuzzleRow(NamedTuple):
    """A puzzle in a file, not yet solved: files have millions of them."""

    place: str
    """The row, for errors."""
    id: str
    text: str
    answer: str | None
    """Its solution, where the file has one."""


def load(source: str | Path, split: Split) -> tuple[PuzzleRow, ...]:
    """Loads the puzzles of a split from what `locate` finds: tables, or a puzzle on each line.

    With a header the columns may be `quizzes,solutions` (Kaggle), `puzzle,solution`, or
    `question,answer` beside others (sudoku-extreme). A column `id` names the puzzles, else their
    rows do. Solutions that are given are checked by `solve`.

    Raises:
        DatasetError: a row is no puzzle; names file and line. Or the split has none.
        UnknownNameError: no data set, file or folder has this name.
    """
    # The schema is given: a bad first puzzle is then reported as such, not as an unknown format.
    return load_source(PUZZLE_FILES, source, split, schema="sudoku").records


def _columns(first: list[str]) -> tuple[str, ...] | None:
    """Names the fields of a file whose first line is a puzzle already."""
    if not is_puzzle(first[0]):
        return None
    return ("puzzle", "solution", *map(str, range(2, len(first))))[: len(first)]


def _record(row: Row, name: str) -> PuzzleRow:
    """Reads a row of a table whose columns `COLUMNS` names."""
    pair = next((pair for pair in COLUMNS.items() if pair[0] in row), None)
    if pair is None:
        columns = ", ".join(COLUMNS)
        raise RowError("", f"has no column called {columns}, and is no puzzle")
    question, answer = pair
    text = checked_text(row[question], question)
    solution = checked_text(row[answer], answer) if row.get(answer) else None
    if why := _fault(text):
        raise RowError(question, f"is not a Sudoku puzzle: {why}")
    if solution is not None and (
        why := _fault(solution) or _mismatch(_grid(text), _grid(solution))
    ):
        raise RowError(answer, why)
    if 0 not in _grid(text):
        raise RowError(question, "is not a Sudoku puzzle: it has no empty cell")
    return PuzzleRow(name, label(row, "id") or name, text, solution)


def _has_puzzle(row: Row) -> bool:
    column = next((column for column in COLUMNS if column in row), None)
    return column is not None and is_puzzle(str(row[column]))


def _record_split(row: PuzzleRow) -> Split:
    try:
        # A solution in the file saves the search; `solve` compares it when the puzzle is dealt.
        solved = None if row.answer is not None else solve(row)
    except DatasetError as error:
        raise RowError("", str(error)) from None
    if solved is not None:
        return split_of(solved.clues, solved.solution)
    return split_of(_grid(row.text), _grid(row.answer or ""))


PUZZLE_FILES: Kind[PuzzleRow] = Kind(
    name="sudoku",
    schemas={"sudoku": Schema("; or ".join(map(", ".join, COLUMNS.items())), _record, _has_puzzle)},
    endings=(*TABLES, ".txt"),
    text=lambda row: row.text,
    key=lambda row: row.text.replace("0", "."),
    split_of=_record_split,
    prose=False,
    header=_columns,
)


def solve(row: PuzzleRow) -> Puzzle:
    """Solves the puzzle of a row of a file.

    Raises:
        DatasetError: it has no solution, several, or another than the file says.
    """
    try:
        parsed = parse(row.text)
    except DatasetError as error:
        raise DatasetError(f"puzzle {row.place}: {error}") from None
    if row.answer is not None and _grid(row.answer) != parsed.solution:
        raise DatasetError(f"puzzle {row.place}: the solution in the file is not the puzzle's")
    return parsed
