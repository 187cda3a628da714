"""Sudoku puzzles from texts and files, checked to have exactly one solution.

A text has one character for each cell, row by row: `.` or `0` for an empty one, `a` to `g` for
10 to 16 in a 16x16 puzzle. Rows of files are checked when they are read, and solved when a puzzle is
dealt, since files have millions of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pettingllms.data.dataset import Kind, Schema, load_source
from pettingllms.data.rows import TABLES, Row, RowError, checked_text, label
from pettingllms.data.splits import Split
from pettingllms.data.sudoku import DIGITS, SIZES, Puzzle, puzzle, split_of
from pettingllms.data.sudoku_solver import (
    Grid,
    Search,
    Shape,
    Undecided,
    grade,
    shape,
)
from pettingllms.errors import DatasetError

COLUMNS = {"question": "answer", "quizzes": "solutions", "puzzle": "solution"}
"""Names of the columns of puzzles, and of their solutions."""


def is_puzzle(text: str) -> bool:
    """Whether a text has the length and the characters of a puzzle."""
    size = SIZES.get(len(text), 0)
    return bool(size) and set(text.lower()) <= {".", *DIGITS[: size + 1]}


def parse(text: str) -> Puzzle:
    """The puzzle in a text of 16, 36, 81 or 256 characters.

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
        found = Search(clues).solutions(2)
    except Undecided:
        raise _refused(text, "its solution is not found within reasonable time") from None
    if not found:
        raise _refused(text, "it has no solution")
    if len(found) > 1:
        cell = next(
            cell for cell, pair in enumerate(zip(*found, strict=True)) if len(set(pair)) > 1
        )
        numbers = " or ".join(str(grid[cell]) for grid in found)
        raise _refused(text, f"it has several solutions: {_at(cell, size)} can be {numbers}")
    if not clues.count(0):
        raise _refused(text, "it has no empty cell")
    return puzzle(clues, found[0], grade(clues))


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
    if any(len({solution[cell] for cell in unit}) < len(unit) for unit in _units(len(clues))):
        return "has a number twice in a row, column or box"
    return ""


def _units(cells: int) -> tuple[Grid, ...]:
    return shape(SIZES[cells]).units


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
        known = ", ".join(COLUMNS)
        raise RowError("", f"has no column called {known}, and is no puzzle")
    question, answer = pair
    text = checked_text(row[question], question)
    solution = checked_text(row[answer], answer) if row.get(answer) else None
    if why := _fault(text):
        raise RowError(question, f"is not a Sudoku puzzle: {why}")
    if solution is not None and (
        why := _fault(solution) or _mismatch(_grid(text), _grid(solution))
    ):
        raise RowError(answer, why)
    return PuzzleRow(name, label(row, "id") or name, text, solution)


def _has_puzzle(row: Row) -> bool:
    column = next((column for column in COLUMNS if column in row), None)
    return column is not None and is_puzzle(str(row[column]))


def _record_split(row: PuzzleRow) -> Split:
    try:
        found = None if row.answer is not None else solve(row)
    except DatasetError as error:
        raise RowError("", str(error)) from None
    if found is not None:
        return split_of(found.clues, found.solution)
    return split_of(_grid(row.text), _grid(row.answer or ""))


PUZZLE_FILES: Kind[PuzzleRow] = Kind(
    name="sudoku",
    schemas={"sudoku": Schema("; or ".join(map(", ".join, COLUMNS.items())), _has_puzzle, _record)},
    own="",
    endings=(*TABLES, ".txt"),
    text=lambda row: row.text,
    key=lambda row: row.text.replace("0", "."),
    answer=lambda _: None,
    split_of=_record_split,
    prose=False,
    header=_columns,
)


def solve(row: PuzzleRow) -> Puzzle:
    """The puzzle of a row of a file.

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
