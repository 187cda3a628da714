"""Boards from text files for Sokoban and Plan-Path, checked without being solved.

Boards stand between blank lines or lines `; name`: rows of Sokoban's `#`, `.`, `$`, `@` and others
(`pettingllms.data.sokoban`), or of Plan-Path's `#`, `.`, `@` and `G` (`pettingllms.data.plan_path`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from pettingllms.data import plan_path, rows, sokoban
from pettingllms.data.dataset import Kind, Schema, load_source
from pettingllms.data.plan_path import Grid
from pettingllms.data.rows import LEVELS, Row, RowError
from pettingllms.data.sokoban import Level
from pettingllms.data.splits import Split
from pettingllms.errors import DatasetError


@dataclass(frozen=True, slots=True)
class TextBoard:
    """A board, not yet parsed: files have millions of them."""

    board: str
    """Its lines, joined by newlines."""
    id: str
    line: int = 1
    """The line of the file where it begins."""


def level(board: TextBoard) -> Level:
    """Parses the Sokoban level of a board.

    Raises:
        DatasetError: it is not a playable level.
    """
    return sokoban.level_of(board.board.split("\n"), board.id, board.line)


def grid(board: TextBoard) -> Grid:
    """Parses the Plan-Path grid of a board.

    Raises:
        DatasetError: it is not a grid in which the goal can be reached.
    """
    return plan_path.parse(board.board.split("\n"), board.id, board.line)


def boards(kind: Kind[TextBoard], source: str | Path, split: Split) -> tuple[TextBoard, ...]:
    """Loads the boards of a split, from a text with line breaks or from a source of `locate`.

    The boards of a text are divided by a hash of the board that ignores its symmetries; for files see
    `pettingllms.data.dataset`.

    Raises:
        DatasetError: a board cannot be read, or the split has none.
        UnknownNameError: no data set, file or folder has this name.
    """
    ((name, schema),) = kind.schemas.items()
    if not (isinstance(source, str) and "\n" in source):
        # The schema is given: a bad first board is then reported as such, not as an unknown format.
        return load_source(kind, source, split, schema=name).records
    read_boards = [_of_text(schema.read, row, number) for number, row in rows.boards(source)]
    assert kind.split_of is not None
    of_split = tuple(board for board in read_boards if kind.split_of(board) == split)
    if not of_split:
        raise DatasetError(
            f"{source[:80]!r} has no board of the split {split!r}, which a hash of each board "
            f"decides; give more boards, or a file of them, which is whole in every split"
        )
    return of_split


def _of_text(read: Callable[[Row, str], TextBoard], row: Row, number: int) -> TextBoard:
    try:
        return read(row, "text")
    except RowError as bad:
        raise DatasetError(f"line {number}: {bad.why}") from None


def _board(row: Row, name: str) -> TextBoard:
    lines = row["board"]
    title = f"{name}#{row['id']}" if row.get("id") else name
    return TextBoard("\n".join(lines), title, int(row.get("line", 1)))


def _sokoban(row: Row, name: str) -> TextBoard:
    board, lines = _board(row, name), row["board"]
    edge = lines[0] + lines[-1] + "".join(line[0] + line[-1] for line in lines)
    plain = (
        len({len(line) for line in lines}) == 1
        and set(board.board) <= set("# .$@\n")
        and set(edge) == {"#"}
        and board.board.count("@") == 1
        and 0 < board.board.count("$") == board.board.count(".")
    )
    # Boxoban has a million levels, so whether a box can reach a goal is checked at reset.
    return board if plain else _checked(board, level)


def _checked(board: TextBoard, read: Callable[[TextBoard], object]) -> TextBoard:
    try:
        read(board)
    except DatasetError as error:
        raise RowError("board", str(error)) from None
    return board


def _level_split(board: TextBoard) -> Split:
    try:
        return sokoban.split_of(level(board).room)
    except DatasetError as error:  # boards in Boxoban's format are not parsed before
        raise RowError("board", str(error)) from None


def _grid_split(board: TextBoard) -> Split:
    level = grid(board)
    return plan_path.split_of(level.height, level.width, level.walls, level.goal)


_OF_BOARDS: dict[str, Any] = {
    "endings": LEVELS,
    "text": attrgetter("board"),
    "key": attrgetter("board"),
    "prose": False,
}
LEVEL_FILES: Kind[TextBoard] = Kind(
    name="sokoban",
    schemas={"boxoban": Schema("board", _sokoban)},
    split_of=_level_split,
    **_OF_BOARDS,
)
GRID_FILES: Kind[TextBoard] = Kind(
    name="plan_path",
    schemas={
        "grids": Schema(
            "text files of grids",
            lambda row, name: _checked(_board(row, name), grid),
            # Sokoban does not use Plan-Path's `G`.
            lambda row: any("G" in line for line in row.get("board", ())),
        )
    },
    split_of=_grid_split,
    **_OF_BOARDS,
)
