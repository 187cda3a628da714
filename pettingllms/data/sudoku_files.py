"""Sudoku puzzles from texts and files, checked to have exactly one solution.

A text has one character for each cell, row by row: `.` or `0` for an empty one, `a` to `g` for
10 to 16 in a 16x16 puzzle. Rows of files are checked when they are read, and solved when a puzzle is
dealt, since files have millions of them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pettingllms.data.dataset import Kind, Schema, checksum_split
from pettingllms.data.hub import locate
from pettingllms.data.rows import TABLES, DataFile, Row, RowError, checked_text, label
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
    """File and line."""
    id: str
    text: str
    answer: str | None
    """Its solution, where the file has one."""


def load(path: str | Path, split: Split) -> list[PuzzleRow]:
    """The puzzles of `split` in what `locate` finds: CSV files, or text files with a puzzle on each line.

    With a header the columns may be `quizzes,solutions` (Kaggle), `puzzle,solution`, or
    `question,answer` beside others (sudoku-extreme). Solutions that are given are checked by
    `solve`; where there are none every puzzle is solved here. Files whose names say a split are that split, as
    published (and a tenth of its training puzzles the validation split, where it has none); elsewhere a hash
    of each puzzle decides. A column `id` names the puzzles, else their lines do.

    Raises:
        DatasetError: a row is no puzzle; names file and line. Or the split has none.
    """
    located = locate(path, split, (".csv", ".txt"), "sudoku")
    rows: list[PuzzleRow] = []
    for file in located.files:
        lent = located.lends_val and file.split == "train"
        if file.split not in (None, split) and not lent:
            continue
        try:
            rows += _rows(file, split, lent=lent)
        except DatasetError:
            raise
        except (OSError, ValueError, csv.Error) as error:
            raise DatasetError(f"cannot read {file.path}: {error}") from error
    if not rows:
        raise DatasetError(
            f"{path} has no puzzle of the split {split!r}: a hash of each puzzle decides it"
        )
    return rows


def _rows(source: DataFile, split: Split, *, lent: bool) -> Iterator[PuzzleRow]:
    """The rows of `split`; `lent`: a tenth of this file is the validation split, by a checksum."""
    path = source.path
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        columns = _columns(path, header)
        if is_puzzle(header[columns[0]]):
            file.seek(0)
            lines = csv.reader(file)
        named = header.index("id") if "id" in header else None
        for fields in lines:
            row, own = _row(path, lines.line_num, fields, columns, named)
            if lent:
                found: Split = "val" if checksum_split(row.text) == "val" else "train"
            else:
                found = source.split or own()
            if found == split:
                yield row


def _columns(path: Path, header: list[str]) -> tuple[int, int | None]:
    """Which fields of a row are the puzzle and its solution."""
    for name, answer in COLUMNS.items():
        if name in header:
            return header.index(name), header.index(answer) if answer in header else None
    if not header or not is_puzzle(header[0]):
        known = ", ".join(COLUMNS)
        raise DatasetError(f"{path}:1: no column is called one of {known}, and it is no puzzle")
    return 0, None


def _row(
    path: Path, line: int, fields: list[str], columns: tuple[int, int | None], named: int | None
) -> tuple[PuzzleRow, Callable[[], Split]]:
    """A row, checked but not solved, and what works out its split."""
    question, answer = columns
    place = f"{path}:{line}"
    try:
        name, clues = str(line) if named is None else fields[named], _grid(fields[question])
        row = PuzzleRow(place, name, fields[question], None if answer is None else fields[answer])
        solution = None if row.answer is None else _grid(row.answer)
    except IndexError:
        raise DatasetError(f"{place}: the row has only {len(fields)} fields") from None
    except DatasetError as error:
        raise DatasetError(f"{place}: {error}") from None
    if solution is None:
        return row, lambda: _own_split(solve(row))
    if why := _mismatch(clues, solution):
        raise DatasetError(f"{place}: the solution {why}")
    return row, lambda: split_of(clues, solution)


def _record(row: Row, name: str) -> PuzzleRow:
    """Reads a row of a table whose columns `COLUMNS` names; a missing solution is left out."""
    question, answer = next(pair for pair in COLUMNS.items() if pair[0] in row)
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
    if row.answer is not None:
        return split_of(_grid(row.text), _grid(row.answer))
    try:
        return _own_split(solve(row))
    except DatasetError as error:
        raise RowError("", str(error)) from None


PUZZLE_FILES: Kind[PuzzleRow] = Kind(
    name="sudoku",
    schemas={"sudoku": Schema("; or ".join(map(", ".join, COLUMNS.items())), _has_puzzle, _record)},
    own="",
    endings=TABLES,
    text=lambda row: row.text,
    key=lambda row: row.text.replace("0", "."),
    answer=lambda _: None,
    split_of=_record_split,
)


def _own_split(puzzle: Puzzle) -> Split:
    return split_of(puzzle.clues, puzzle.solution)


def solve(row: PuzzleRow) -> Puzzle:
    """The puzzle of a row of a file.

    Raises:
        DatasetError: it has no solution, several, or another than the file says.
    """
    try:
        parsed = parse(row.text)
    except DatasetError as error:
        raise DatasetError(f"{row.place}: {error}") from None
    if row.answer is not None and _grid(row.answer) != parsed.solution:
        raise DatasetError(f"{row.place}: the solution in the file is not the puzzle's")
    return parsed
