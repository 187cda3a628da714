"""# Sudoku.

A tool proposes numbers for the empty cells, a planner decides which are written.

| | |
|---|---|
| Creation | `sudoku_v0.env()`, `pettingzoo.make("aec", "pettingllms/sudoku-v0")` |
| Agents | `tool_0`, then `planner_0`, each turn; `agents="single"`: `planner_0` alone |
| Action | `FreeText`: a reply that ends in a list of fills, or in a whole grid |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

Every puzzle has exactly one solution. The prompt shows the grid as it now is; what was proposed
and answered in each earlier turn; and to the planner the tool's proposal of this turn. A reply may
reason before its list: the last list counts, fills `[[row, column, number], ...]`, counted from 1,
or all rows of the grid.

# Answers

An answer is fills of single cells, or a whole grid. All of these are read:
`[[1, 2, 4], [2, 2, 1]]` and `[a2=4 b2=1]`, which are the same two fills;
`[[1, 2, 3, 4], [3, 4, 1, 2], ...]`, `["1234", "3412", ...]` and `[1234341221434321]`, which are
whole grids. A 0 empties a cell; a grid may also have `.` or `_` there.

Fills are played one after the other. One that changes a clue is refused, and so is one whose
number is already in its row, column or box; a refused fill ends the answer (`refused="skip"`: is skipped). An agent may overwrite what was written before, and 0
empties such a cell; a wrong number that breaks no rule stays until then. A whole grid replaces all
that was written, fill by fill; where it contradicts a clue it is refused as a whole. The episode
ends with the grid complete and valid, which is success.

Numbers published for the original PettingLLMs are not comparable: its whole-grid answers were not
held to the clues, so that one constant grid solved every puzzle, and most of its puzzles had no
solution.

# Rewards

`reward = alpha * team + local`, as `pettingllms.envs.boards` says: schemes `"paper"`, `"sparse"`.
Progress is (right - wrong) / blanks: numbers written, held against the only solution, over the
empty cells of the puzzle as dealt. `infos[agent]` adds `answer_solves`, `illegal`, `right`,
`wrong`, `blanks`, `clues` (a count), `difficulty` and, from a data set, `id`.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack, cast

from pettingllms.data import sudoku
from pettingllms.data.rows import Source, as_path
from pettingllms.data.splits import Split
from pettingllms.data.sudoku import DIGITS, Puzzle, PuzzleRow
from pettingllms.data.sudoku_solver import BOXES, GRADES, Grid, shape
from pettingllms.envs import arguments, rendering, small_text
from pettingllms.envs.base import metadata_of
from pettingllms.envs.boards import AnswerResult, BoardArguments, BoardEnv, BoardState, Picture
from pettingllms.envs.parsing import ParseError, cell_name, last_list
from pettingllms.envs.rendering import Tile
from pettingllms.errors import ConfigError, UnknownNameError

_FORMS = "give fills [[row, column, number], ...] or the whole grid, row by row"
_FILL = re.compile(r"([a-z])([0-9]{1,2})=([0-9]{1,2})", re.IGNORECASE)
_INNER = re.compile(r"\[([^\[\]]*)\]")
_SAME_BRACKETS = str.maketrans("(){}", "[][]", "\"'`")
_BLANKS = frozenset("._")


class Fill(NamedTuple):
    """A number for a cell, which may be outside the grid; rows and columns count from 0."""

    row: int
    column: int
    value: int
    """0 empties the cell."""


class Whole(NamedTuple):
    """All cells of the grid at once; 0 is an empty one."""

    values: Grid


Answer = tuple[Fill, ...] | Whole


class _Unreadable(Exception):
    pass


def parse_answer(text: str, size: int) -> Answer | ParseError:
    """The answer in the last list of a reply to a `size` x `size` puzzle."""
    inside = last_list(text)
    if isinstance(inside, ParseError):
        return ParseError(f"{inside.why.partition(', such as')[0]}; {_FORMS}")
    # Python and JSON write lists with other brackets and with quotes.
    inside = inside.translate(_SAME_BRACKETS)
    try:
        if "=" in inside:
            # With blanks around its sign, `b3 = 4` would be three words.
            close = "=".join(side.strip() for side in inside.split("="))
            return tuple(map(_fill, _words(close)))
        # Inner brackets hold fills or rows; without any, the words are one fill, rows or a grid.
        groups = [_words(group) for group in _INNER.findall(inside)]
        if not groups:
            return _flat(_words(inside), size)
        # Only what stands outside of the inner brackets is left, and there should be nothing.
        for word in _words(_INNER.sub(" ", inside)):
            raise _Unreadable(f"{word[:40]!r} is not a list of numbers")
        return _nested(groups, size)
    except _Unreadable as error:
        return ParseError(f"{error}; {_FORMS}")


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,;\[\]]+", text) if word]


def _nested(groups: list[list[str]], size: int) -> Answer:
    # No grid has rows of three numbers, so that three are always a fill.
    if all(len(group) == 3 for group in groups):
        return tuple(_triple(group) for group in groups)
    rows = [_row(group, size) for group in groups]
    if len(rows) != size:
        raise _Unreadable(f"the grid has {len(rows)} rows, not {size}")
    return Whole(tuple(value for row in rows for value in row))


def _flat(words: list[str], size: int) -> Answer:
    if not words:
        return ()
    if len(words) == 3:
        return (_triple(words),)
    if len(words) == 1 and len(words[0]) == size * size:
        words = [words[0][start : start + size] for start in range(0, size * size, size)]
    if len(words) == size:
        return Whole(tuple(value for word in words for value in _row([word], size)))
    if len(words) == size * size:
        return Whole(tuple(_number(word) for word in words))
    raise _Unreadable(f"a list of {len(words)} numbers is neither")


def _row(words: list[str], size: int) -> Grid:
    """A row of a grid: its numbers one by one, or as one word of digits."""
    if len(words) == 1 and len(words[0]) == size:
        return tuple(_digit(character) for character in words[0].lower())
    if len(words) != size:
        raise _Unreadable(f"a row has {len(words)} numbers, not {size}")
    return tuple(_number(word) for word in words)


def _triple(words: list[str]) -> Fill:
    row, column, value = (_number(word) for word in words)
    return Fill(row - 1, column - 1, value)


def _fill(word: str) -> Fill:
    match = _FILL.fullmatch(word)
    if match is None:
        raise _Unreadable(f"{word[:40]!r} is not a fill such as b3=4")
    return Fill(ord(match[1].lower()) - ord("a"), int(match[2]) - 1, int(match[3]))


def _number(word: str) -> int:
    # Three digits are more than any puzzle has; of a long word no number is made.
    if len(word) <= 3 and word.isascii() and word.isdigit():
        return int(word)
    if word in _BLANKS:
        return 0
    raise _Unreadable(f"{word[:40]!r} is not a number of the puzzle")


def _digit(character: str) -> int:
    if character in _BLANKS:
        return 0
    value = DIGITS.find(character)
    if value < 0:
        raise _Unreadable(f"{character!r} is not a number of the puzzle")
    return value


REASONS_SHOWN = 3


class raw_env(BoardEnv):
    """The Sudoku environment; the module's docstring is its manual.

    Args:
        size: rows of the grid: 4 (default), 6, 9 or 16.
        clues: fewest and most numbers given; None for the size's default (`pettingllms.data.sudoku.CLUES`).
        difficulty: the technique that a solver needs: "naked", "singles", "more" or "search"
            (`pettingllms.data.sudoku_solver`); None for any. Every 4x4 puzzle is "naked".
        dataset: in place of these three, one puzzle of 16, 36, 81 or 256 characters, `sudoku_extreme`, or a
            CSV file or folder (`pettingllms.data.sudoku`), of which the split is played.
        kwargs: as in `BoardEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
        DatasetError: `dataset` is not a puzzle with one solution, or has none of `split`.
        UnknownNameError: no data set, file or folder is called `dataset`.
    """

    metadata = metadata_of("sudoku_v0", "rgb_array")
    embedded_training = {
        **BoardEnv.embedded_training,
        "max_steps": 160,
    }
    smollm2 = {"prompt": "small", "clues": (14, 15)}
    word = "sudoku"
    rules: str = (
        "Solve the Sudoku: write a number into every empty cell (.), from 1 to the number of rows, "
        "so that no row, no column and no box has a number twice. Lines in the board part the "
        "boxes. The numbers given at the start must stay; a number that is already in the same "
        "row, column or box is refused. The answer is a list of fills [row, column, number], with "
        "rows and columns counted from 1, for example #### [[1, 2, 4], [3, 1, 2], ...], where the "
        "number 0 empties a cell that was filled; or the whole grid, row by row, for example "
        "#### [[1, 2, 3, ...], [3, 4, 1, ...], ...]"
    )

    def __init__(
        self,
        *,
        dataset: Source | None = None,
        size: int | None = None,
        clues: Sequence[int] | None = None,
        difficulty: str | None = None,
        **kwargs: Unpack[BoardArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.puzzles: Sequence[PuzzleRow | Puzzle] | None = None
        if dataset is not None:
            if (size, clues, difficulty) != (None, None, None):
                raise ConfigError("a dataset is as it is: leave out size, clues and difficulty")
            self.puzzles = _given(dataset, cast(Split, self.split))
        self.num_tasks = None if self.puzzles is None else len(self.puzzles)
        """Puzzles of the split: task seeds wrap around here. None for the endless generator."""
        self.size = 4 if size is None else size
        if self.size not in BOXES:
            raise ConfigError(f"size must be one of {', '.join(map(str, BOXES))}, got {size!r}")
        if difficulty is not None:
            # The others are refused for 4x4, where naked singles solve every puzzle.
            grades = GRADES[:1] if self.size == 4 else GRADES
            arguments.one_of("difficulty", difficulty, grades)
        self.difficulty = difficulty
        self.clues = sudoku.clue_range(self.size, clues)
        if (clues, difficulty) != (None, None):
            self._generated(0)  # settings for which there is no puzzle are refused here

    # ------------------------------------------------------------- rules

    def _deal(self, seed: int, options: dict[str, Any]) -> tuple[Puzzle, Grid, str | None]:  # noqa: ARG002 - has none
        name = None
        if self.puzzles is None:
            puzzle = self._dealt(seed)
        else:
            record = self.puzzles[seed % len(self.puzzles)]
            if isinstance(record, Puzzle):
                puzzle = record
            else:
                puzzle, name = sudoku.solve(record), record.id
        return puzzle, puzzle.clues, name

    def _generated(self, seed: int) -> Puzzle:
        return sudoku.generate(
            self._random(seed),
            cast(Split, self.split),
            size=self.size,
            clues=self.clues,
            difficulty=self.difficulty,
        )

    def _parse_answer(self, level: Puzzle, text: str) -> Answer | ParseError:
        return parse_answer(text, level.size)

    def _apply(self, level: Puzzle, position: Grid, answer: Answer) -> AnswerResult:
        if isinstance(answer, Whole):
            contradiction = _contradiction(level, answer)
            if contradiction:
                return _answer_result(level, position, 1, [contradiction], 1)
            # Rewritten from the clues on, so that the rules hold for a grid as for single fills.
            position, answer = level.clues, _fills_of(level, answer)
        values, reasons, looked = list(position), list[str](), 0
        for fill in answer:
            looked += 1
            why = _refusal(level, values, fill)
            if not why:
                values[fill.row * level.size + fill.column] = fill.value
                continue
            reasons.append(f"[{fill.row + 1}, {fill.column + 1}, {fill.value}] {why}")
            if self.refused == "stop":
                break
        return _answer_result(level, tuple(values), len(answer), reasons, looked)

    def _demonstrate(self, state: BoardState, agent: str) -> str:  # noqa: ARG002 - the same for both
        level, position = state.level, state.position
        blanks = [cell for cell, value in enumerate(position) if not value]
        if self.prompt == "small":
            blanks = [_easiest(level.size, position)[0]]
        places = ((*divmod(cell, int(level.size)), int(level.solution[cell])) for cell in blanks)
        return self._written(state, tuple(Fill(*place) for place in places))

    def _situation(self, state: BoardState) -> str:
        share = sum(1 for value in state.position if not value) / len(state.position)
        return "few blanks" if share < 1 / 3 else "many blanks" if share > 2 / 3 else "some blanks"

    def _progress(self, level: Puzzle, position: Grid) -> float:
        # Wrong numbers count against it, or filling every cell at random would be progress.
        right, wrong = _score(level, position)
        return (right - wrong) / level.blanks

    # ------------------------------------------------------------- prompts and pictures

    def _format_answer(self, level: Puzzle, position: Grid, answer: Answer) -> str:
        """Lists of numbers; compact, fills such as ` b3=4`, of a grid only where it changes the board."""
        size = level.size
        if self.prompt != "compact" and isinstance(answer, Whole):
            rows = (answer.values[start : start + size] for start in range(0, size * size, size))
            return f"[{', '.join(str(list(row)) for row in rows)}]"
        if self.prompt != "compact":
            return f"[{', '.join(f'[{r + 1}, {c + 1}, {value}]' for r, c, value in answer)}]"
        if isinstance(answer, Whole):
            changed = ((c, v) for c, v in enumerate(answer.values) if v != position[c])
            answer = tuple(Fill(*divmod(cell, size), value) for cell, value in changed)
        named = [fill for fill in answer if 0 <= fill.row < size and 0 <= fill.column < size]
        return f"[ {''.join(f'{cell_name(r, c)}={value} ' for r, c, value in named)}]"

    def _ask(self, level: Puzzle, position: Grid) -> str:
        _, free = _easiest(level.size, position)
        shown = ["?" if n in free else str(n) for n in range(1, level.size + 1)]
        return f"Count: {', '.join(shown)}. Say the missing number."

    def _read_small(self, level: Puzzle, position: Grid, text: str) -> Answer | ParseError:
        value = small_text.number(text)
        if isinstance(value, ParseError):
            return value
        cell, _ = _easiest(level.size, position)
        return (Fill(*divmod(cell, level.size), max(0, value)),)

    def _board(self, level: Puzzle, position: Grid) -> str:
        """The numbers, with lines between the boxes."""
        size, (high, wide) = level.size, BOXES[level.size]
        width = len(str(size))
        cells = [f"{value or '.':>{width}}" for value in position]
        lines = []
        for row in range(size):
            if row and not row % high:
                lines.append("-+-".join(["-" * (wide * (width + 1) - 1)] * (size // wide)))
            shown = cells[row * size : (row + 1) * size]
            lines.append(" | ".join(" ".join(shown[at : at + wide]) for at in range(0, size, wide)))
        return "\n".join(lines)

    def _coordinates(self, level: Puzzle, position: Grid) -> str:
        """Size, clues, and after the word `filled` what was written."""
        shown = [f"{cell_name(*divmod(c, level.size))}={v}" for c, v in enumerate(position)]
        clues = [shown[cell] for cell, clue in enumerate(level.clues) if clue]
        filled = [shown[c] for c, clue in enumerate(level.clues) if position[c] and not clue]
        head = f"{level.size}x{level.size}"
        return " ".join([head, *clues, *(["filled", *filled] if filled else [])])

    def _picture(self, state: BoardState) -> Picture:
        size = state.level.size
        shown = [
            Tile(rendering.SHADE, (), str(clue), rendering.INK)
            if clue
            else Tile(rendering.GROUND, (), str(value or ""), rendering.PLAYER)
            for value, clue in zip(state.position, state.level.clues, strict=True)
        ]
        rows = [shown[start : start + size] for start in range(0, size * size, size)]
        return rendering.draw(rows, blocks=BOXES[size])


def _given(source: Source, split: Split) -> Sequence[PuzzleRow | Puzzle]:
    dataset = as_path(source)
    text = str(dataset)
    if sudoku.is_puzzle(text):
        return (sudoku.parse(text),)
    try:
        return sudoku.load(dataset, split)
    except UnknownNameError:
        # A text of a puzzle's length is meant as one, not as the name of a file.
        if len(text) not in sudoku.SIZES:
            raise
        return (sudoku.parse(text),)  # raises, and says what is wrong with it


def _answer_result(
    level: Puzzle, position: Grid, parts: int, reasons: list[str], looked: int
) -> AnswerResult:
    right, wrong = _score(level, position)
    info = {
        "right": right,
        "wrong": wrong,
        "blanks": level.blanks,
        "clues": len(level.clues) - level.blanks,
        "difficulty": level.difficulty,
    }
    note = _note(looked, reasons, parts - looked, position.count(0))
    return AnswerResult(position, position == level.solution, note, len(reasons), info=info)


def _easiest(size: int, position: Grid) -> tuple[int, set[int]]:
    """The empty cell with the fewest numbers that its row, column and box still allow, and these."""
    every, peers = set(range(1, size + 1)), shape(size).peers
    free = {
        cell: every - {position[peer] for peer in peers[cell]}
        for cell, value in enumerate(position)
        if not value
    }
    return min(free.items(), key=lambda item: len(item[1]), default=(0, set()))


def _contradiction(level: Puzzle, whole: Whole) -> str:
    """Names the clue that a grid changes; empty where it changes none."""
    for cell, (value, clue) in enumerate(zip(whole.values, level.clues, strict=True)):
        # An empty cell of an answer takes no clue away.
        if value and clue and value != clue:
            row, column = divmod(cell, level.size)
            return f"the grid changes the clue {clue} in row {row + 1}, column {column + 1}"
    return ""


def _fills_of(level: Puzzle, whole: Whole) -> tuple[Fill, ...]:
    """The numbers of a grid for the cells that are empty in the puzzle as dealt."""
    new = [(c, value) for c, value in enumerate(whole.values) if value and not level.clues[c]]
    return tuple(Fill(c // level.size, c % level.size, value) for c, value in new)


def _refusal(level: Puzzle, values: list[int], fill: Fill) -> str:
    """Reason why a fill breaks the rules; empty where it does not."""
    size = level.size
    row, column, value = fill
    if not (0 <= row < size and 0 <= column < size):
        return f"is not in the grid: rows and columns are 1 to {size}"
    if value > size:
        return f"has no number from 1 to {size}"
    cell = row * size + column
    clue = level.clues[cell]
    if clue:
        return "" if value == clue else f"changes the clue {clue}"
    for peer in shape(size).peers[cell] if value else ():
        if values[peer] == value:
            return f"meets the {value} in row {peer // size + 1}, column {peer % size + 1}"
    return ""


def _score(level: Puzzle, position: Grid) -> tuple[int, int]:
    """Numbers written that are those of the solution, and that are not."""
    clues = len(position) - level.blanks
    # Clues are right in every position, and no progress.
    right = sum(map(int.__eq__, position, level.solution)) - clues
    return right, len(position) - clues - position.count(0) - right


def _note(parts: int, reasons: list[str], dropped: int, empty: int) -> str:
    shown = "; ".join(reasons[:REASONS_SHOWN])
    if len(reasons) > REASONS_SHOWN:
        shown += f"; and {len(reasons) - REASONS_SHOWN} more"
    refused = f"{len(reasons)} of {parts} refused: {shown}" if reasons else f"{parts} accepted"
    if dropped:
        refused += f"; {dropped} after it dropped"
    return f"{refused}. {empty} cells are empty."


env = raw_env
"""The environment as PettingZoo users make it."""
