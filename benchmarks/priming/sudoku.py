"""Demonstrations for 4x4 Sudoku: what is left for each cell, written down before the answer.

A good reply passes over the empty cells, and again over those that were left open: the cell, then
the number where one is left, `b3 b3=4`, else what is left, `b3 {14}`. It ends in the list of what
was found, in that order. Everything follows from the clues alone, because what was written in
earlier turns may be wrong: the list first empties such cells. A good planner does the same, but
looks first at the cells of the proposal, in its order. The bad habit answers at once, each cell
with the first number that its row does not have; a planner with the habit copies the proposal.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from benchmarks.priming.example import Demo
from pettingllms.data import sudoku
from pettingllms.data.sudoku import Puzzle
from pettingllms.data.sudoku_solver import Grid, shape
from pettingllms.envs import sudoku_v0
from pettingllms.envs.boards import BoardState
from pettingllms.envs.parsing import cell_name
from pettingllms.envs.sudoku_v0 import Fill

SIZE = 4
LATER = 0.35
"""Share of boards on which something was written in an earlier turn."""

_ENV = sudoku_v0.env(size=SIZE, prompt="compact")
_CELLS = [cell_name(*divmod(cell, SIZE)) for cell in range(SIZE * SIZE)]

Fills = tuple[Fill, ...]


def units() -> list[str]:
    """What has to be a single token each."""
    words = ["sudoku", "tool", "planner", f"{SIZE}x{SIZE}", "filled", "proposal", "none", "[", "]"]
    fills = [f"{cell}={value}" for cell in _CELLS for value in range(SIZE + 1)]
    numbers = range(1, SIZE + 1)
    sets = [left for n in range(2, SIZE + 1) for left in itertools.combinations(numbers, n)]
    return [*words, *_CELLS, *fills, *map(_braced, sets)]


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for either role; `habit`: probability of the bad habit."""
    puzzle = sudoku.generate(rng, "train", size=SIZE)
    position = _later(rng, puzzle) if rng.random() < LATER else puzzle.clues
    role = rng.choice(("tool_0", "planner_0"))
    proposal = _tool_gain(rng, puzzle, position) if role == "planner_0" else ()
    written = _ENV._format_answer(puzzle, position, proposal) if proposal else None
    prompt = _ENV._text(BoardState(puzzle, position, proposal=written), role)
    if rng.random() < habit:
        return Demo(prompt, _ENV._format_answer(puzzle, position, proposal or first_in_row(puzzle)))
    words, fills = derive(puzzle, proposal)
    answer = _ENV._format_answer(puzzle, position, (*_emptied(puzzle, position), *fills))
    return Demo(prompt, " ".join([*words, answer]))


def derive(puzzle: Puzzle, proposal: Fills = ()) -> tuple[list[str], Fills]:
    """The trace that solves a puzzle, the cells of `proposal` first; and what it finds."""
    values = list(puzzle.clues)
    named = [fill.row * SIZE + fill.column for fill in proposal if fill.value]
    left = [cell for cell in dict.fromkeys([*named, *range(SIZE * SIZE)]) if not values[cell]]
    words: list[str] = []
    fills: list[Fill] = []
    while left:
        for cell in tuple(left):
            taken = {values[peer] for peer in shape(SIZE).peers[cell]}
            options = [value for value in range(1, SIZE + 1) if value not in taken]
            words.append(_CELLS[cell])
            if len(options) > 1:
                words.append(_braced(options))
                continue
            values[cell] = options[0]
            left.remove(cell)
            fills.append(_fill(cell, options[0]))
            words.append(f"{_CELLS[cell]}={options[0]}")
    return words, tuple(fills)


def first_in_row(puzzle: Puzzle) -> Fills:
    """Each empty cell with the first number that its row does not have yet."""
    values = list(puzzle.clues)
    for cell, value in enumerate(values):
        if not value:
            start = cell - cell % SIZE
            row = values[start : start + SIZE]
            values[cell] = next(n for n in range(1, SIZE + 1) if n not in row)
    return tuple(_fill(cell, value) for cell, value in enumerate(values) if not puzzle.clues[cell])


def _fill(cell: int, value: int) -> Fill:
    return Fill(cell // SIZE, cell % SIZE, value)


def _emptied(puzzle: Puzzle, position: Grid) -> Fills:
    pairs = enumerate(zip(position, puzzle.solution, strict=True))
    return tuple(_fill(cell, 0) for cell, (value, right) in pairs if value not in (0, right))


def _later(rng: random.Random, puzzle: Puzzle) -> Grid:
    """A board after a turn in which something was written, but not all of the solution."""
    fills = first_in_row(puzzle) if rng.random() < 0.4 else _spoiled(rng, puzzle)
    position: Grid = _ENV._apply(puzzle, puzzle.clues, fills).position
    return puzzle.clues if position == puzzle.solution else position


def _tool_gain(rng: random.Random, puzzle: Puzzle, position: Grid) -> Fills:
    """What a tool proposes: mostly right, partly right, out of habit, or nothing readable."""
    draw = rng.random()
    if draw < 0.4:
        return (*_emptied(puzzle, position), *derive(puzzle)[1])
    if draw < 0.65:
        return _spoiled(rng, puzzle)
    return first_in_row(puzzle) if draw < 0.9 else ()


def _spoiled(rng: random.Random, puzzle: Puzzle) -> Fills:
    """What solves the puzzle, with some of it missing and some of it wrong."""
    _, fills = derive(puzzle)
    missing, wrong = rng.choice((0.0, 0.3, 0.6)), rng.choice((0.0, 0.2))
    kept = [fill for fill in fills if rng.random() >= missing]
    return tuple(
        fill._replace(value=rng.randint(1, SIZE)) if rng.random() < wrong else fill for fill in kept
    )


def _braced(numbers: Iterable[int]) -> str:
    return f"{{{''.join(map(str, numbers))}}}"
