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
_BETWEEN = re.compile(r"[,;|\[\]\"'`]+|(?<=\w)[ \t]*->[ \t]*(?=\w)")
"""Between the items of a list of moves."""
_NUMBERED = re.compile(r"(\d{1,3})[.):]\s*(.+)", re.DOTALL)
_TIMES = r"(?:twice|thrice|(?:\d+|two|three|four) times|repeat|revers)"
_BEFORE = re.compile(
    rf"(?:\](?:[ ,;+&]|and|then|followed by)*|(?:\d\s*[x×*]|{_TIMES}\w*(?: of)?)[ (]*)$"
)
_AFTER = re.compile(rf"[ )]*(?:[²³]|\(?[x×*^]\s*\d|[ ,(]*{_TIMES})")
_CELL = re.compile(r"[A-Za-z]\d{1,3}")
_NAMES = {
    **dict.fromkeys(("U", "u", "up", "north"), "U"),
    **dict.fromkeys(("D", "d", "down", "south"), "D"),
    **dict.fromkeys(("L", "l", "left", "west"), "L"),
    **dict.fromkeys(("R", "r", "right", "east"), "R"),
}
_NAME = "|".join(_NAMES)
_REPEATED = re.compile(
    rf"({_NAME})\s*[x×*]\s*(\d{{1,4}})|(\d{{1,4}})\s*[x×*]\s*({_NAME})", re.IGNORECASE
)
_ARROWS = dict(zip("↑↓←→", "UDLR", strict=True))


class ParseError(NamedTuple):
    """A reply that could not be read. Returned, never raised: model-written text is not bad input."""

    why: str
    """The reason, as the agent is shown it."""


def shortened(text: str, most: int) -> str:
    """Returns a text, or its two ends where it has more than so many characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[...]\n{text[-half:]}"


def last_list(text: str) -> str | ParseError:
    """Returns the inside of the last closed list, of the outermost one where lists are nested."""
    # From the end: a reply may be a megabyte of reasoning, and only its last list matters.
    stop = text.rfind("]") + 1
    # Nothing before this window can be part of a list that is short enough.
    window = text[max(0, stop - MAX_LIST_CHARS) : stop]
    before, opening, last = window.rpartition("[")
    if opening and last.find("]") == len(last) - 1:  # the usual case: a list without lists in it
        if _BEFORE.search(before[-24:]) or _AFTER.match(text[stop : stop + 24]):
            return ParseError(
                "lists side by side, or one that is repeated; write out a single list"
            )
        return last[:-1]
    opened: list[int] = []
    inside: str | None = None
    for bracket in re.finditer(r"[\[\]]", window):
        if bracket[0] == "[":
            opened.append(bracket.end())
        elif opened:
            inside = window[opened.pop() : bracket.start()]
    return _after_mark(text) if inside is None else inside


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

    Letters and words in any case, with or without commas and quotes, run together (`RRU`),
    numbered from 1 (`1. Up`), repeated (`R x3`), each followed by the cell that it leads to
    (`R b3`), which is ignored; or arrows alone. Anything else is an error: no other moves are played.
    """
    inside = last_list(text)
    if isinstance(inside, ParseError):
        return inside
    parts = map(str.strip, _BETWEEN.split(inside.strip().removesuffix(".")))
    items = [word for word in parts if word]
    numbered = [match for item in items if (match := _NUMBERED.fullmatch(item))]
    if [int(match[1]) for match in numbered] == list(range(1, len(items) + 1)):
        items = [match[2] for match in numbered]
    marks = "".join("".join(items).split())
    if marks and set(marks) <= _ARROWS.keys():
        items = ["".join(map(_ARROWS.__getitem__, marks))]
    moves: list[str] = []
    for item in items:
        read = _moves_of(item)
        if read is None:
            return ParseError(
                f"{item[:40]!r} is not a move; moves are U, D, L and R, each written out: [R, R, U]"
            )
        moves += read
    return tuple(moves[:MAX_MOVES])


def _moves_of(item: str) -> list[str] | None:
    """Returns the moves of an item of a list; None where it is anything else than moves."""
    if repeated := _REPEATED.fullmatch(item):
        name, count = repeated[1] or repeated[4], int(repeated[2] or repeated[3])
        # No count is a way to write no move.
        return [_NAMES[name.lower()]] * min(count, MAX_MOVES) or None
    moves: list[str] = []
    before = ""
    for word in item.split():
        # Single letters, as most moves are written, are found without a copy in lower case.
        move = _NAMES.get(word) or _NAMES.get(word.lower())
        if move:
            moves.append(move)
        elif before and _CELL.fullmatch(word):
            # After `u`, `r2` may be a cell or a move made twice; after `U` it is a cell.
            if word[0] in "UDLRXx" or (word[0] in "udlr" and not before[0].isupper()):
                return None
            before = ""
            continue
        elif set(word.upper()) <= set("UDLR"):
            moves += word.upper()
        else:
            return None
        before = word
    return moves


def cell_name(row: int, column: int) -> str:
    """Names a cell: the row as a letter from a, the column as a number from 1; (1, 2) is b3."""
    letters = ""
    # As columns of spreadsheets are named: aa comes after z.
    row += 1
    while row:
        row, rest = divmod(row - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return f"{letters}{column + 1}"
