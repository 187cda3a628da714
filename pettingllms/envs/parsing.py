"""Parses the last list of a reply, for boards: forgiving, and linear in time.

A reply may reason before its list and comment after it; the last closed `[...]` counts, and where
there is none, the line after the last `####`. Nothing is evaluated: a list is text between
brackets, and the words in it are read one by one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# About twice what the longest answer needs: 256 fills of a 16x16 Sudoku, such as [16, 16, 16].
MAX_LIST_CHARS = 8_000
MAX_MOVES = 200

_MARK = "####"
# A cell such as b3, a direction in letters, or a number: what a list of moves may hold.
# The cell comes first: otherwise b3 would be read as the word b and the number 3.
_WORD = re.compile(r"[A-Za-z]\d{1,3}(?![A-Za-z\d])|[^\W\d_]+|\d+")
_CELL = re.compile(r"[A-Za-z]?\d+")
_NAMES = {
    **dict.fromkeys(("U", "u", "up", "north"), "U"),
    **dict.fromkeys(("D", "d", "down", "south"), "D"),
    **dict.fromkeys(("L", "l", "left", "west"), "L"),
    **dict.fromkeys(("R", "r", "right", "east"), "R"),
}


class ParseError(NamedTuple):
    """A reply that could not be read. Returned, never raised: model-written text is not bad input."""

    why: str
    """The reason, as the agent is shown it."""


def last_list(text: str) -> str | ParseError:
    """Returns the inside of the last closed list, of the outermost one where lists are nested."""
    # From the end: a reply may be a megabyte of reasoning, and only its last list matters.
    stop = text.rfind("]") + 1
    # Nothing before this window can be part of a list that is short enough.
    window = text[max(0, stop - MAX_LIST_CHARS) : stop]
    _, opening, last = window.rpartition("[")
    if opening and last.find("]") == len(last) - 1:
        return last[:-1]  # the usual case: a list without lists in it
    opened: list[int] = []
    found: str | None = None
    for bracket in re.finditer(r"[\[\]]", window):
        if bracket[0] == "[":
            opened.append(bracket.end())
        elif opened:
            found = window[opened.pop() : bracket.start()]
    return _after_mark(text) if found is None else found


def _after_mark(text: str) -> str | ParseError:
    _, mark, after = text.rpartition(_MARK)
    if not mark:
        return ParseError("no list in square brackets, such as [R, U]")
    line = after.lstrip().partition("\n")[0]
    if len(line) > MAX_LIST_CHARS:
        return ParseError(f"the last list is longer than {MAX_LIST_CHARS} characters")
    return line


def parse_moves(text: str) -> tuple[str, ...] | ParseError:
    """Returns the moves of the last list as letters U, D, L, R; the first `MAX_MOVES` of them.

    Letters and words in any case, with or without commas and quotes, run together (`RRU`), and
    each followed by the cell that it leads to (`R b3`), which is ignored.
    """
    inside = last_list(text)
    if isinstance(inside, ParseError):
        return inside
    moves: list[str] = []
    for word in _WORD.findall(inside):
        # Single letters, as most moves are written, are found without a copy in lower case.
        move = _NAMES.get(word) or _NAMES.get(word.lower())
        if move:
            moves.append(move)
        elif not _CELL.fullmatch(word):
            if not set(word.upper()) <= set("UDLR"):
                return ParseError(f"{word[:40]!r} is not a move; moves are U, D, L and R")
            moves.extend(word.upper())
    return tuple(moves[:MAX_MOVES])


def cell_name(row: int, column: int) -> str:
    """Names a cell: the row as a letter from a, the column as a number from 1; (1, 2) is b3."""
    letters = ""
    # As columns of spreadsheets are named: aa comes after z.
    row += 1
    while row:
        row, rest = divmod(row - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return f"{letters}{column + 1}"
