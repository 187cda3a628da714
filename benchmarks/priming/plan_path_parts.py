"""Demonstrations of parts for Plan-Path on nearly open boards, one move a turn.

The tool is shown boards whose goal is in its row or column, and the first move of a shortest path. The planner is
shown uniformly random moves beside uniformly random proposals: its demonstrations teach the form of an answer,
and nothing about the proposal, which in them is as often wrong as chance has it. Whom to listen to is left to
reinforcement learning, and so are boards whose goal is in another row and column.
"""

from __future__ import annotations

import random

from benchmarks.priming.example import Demo
from pettingllms.data import plan_path
from pettingllms.data.plan_path import Grid
from pettingllms.envs import plan_path_v0
from pettingllms.envs.boards import BoardState
from pettingllms.envs.parsing import cell_name

SIDE = 6
"""Of the boards; coordinates beyond it are never shown."""
WALLS = 0.08
"""Share of walls: three cells. Without any, few boards would differ, and splits could not be told apart."""
TOOL = 0.6
"""Share of the tool's demonstrations."""

_ENV = plan_path_v0.env(height=SIDE, width=SIDE, walls=WALLS, prompt="compact")


def units() -> list[str]:
    """What has to be a single token each."""
    cells = [cell_name(row, column) for row in range(8) for column in range(8)]
    words = ["path", "tool", "planner", "at", "goal", "walls", "proposal", "none"]
    return [*cells, *words, *"UDLR", "[", "]", *(f"{side}x{side}" for side in range(4, 9))]


def demo(rng: random.Random, habit: float = 0.0) -> Demo:  # noqa: ARG001 - it has none
    """A demonstration for either role."""
    if rng.random() < TOOL:
        grid = _grid(rng)
        while not _straight(grid):
            grid = _grid(rng)
        return Demo(_prompt(grid, None), _said(grid, rng.choice(_shortest(grid))))
    grid = _grid(rng)
    table = plan_path.neighbours(SIDE, SIDE)[grid.start]
    return Demo(_prompt(grid, rng.choice(list(table))), _said(grid, rng.choice(list(table))))


def _grid(rng: random.Random) -> Grid:
    return plan_path.generate(rng, "train", height=SIDE, width=SIDE, walls=WALLS)


def _straight(grid: Grid) -> bool:
    """Whether the goal is in the row or the column of the start."""
    (row, column), (to_row, to_column) = (divmod(c, SIDE) for c in (grid.start, grid.goal))
    return row == to_row or column == to_column


def _shortest(grid: Grid) -> list[str]:
    """The moves that shorten the path."""
    table = plan_path.neighbours(grid.height, grid.width)[grid.start]
    return [move for move, cell in table.items() if grid.distances[cell] < grid.optimum]


def _said(grid: Grid, move: str) -> str:
    return _ENV._format_answer(grid, grid.start, (move,))


def _prompt(grid: Grid, proposal: str | None) -> str:
    if proposal is None:
        return _ENV._text(BoardState(grid, grid.start), "tool_0")
    written = _said(grid, proposal)
    return _ENV._text(BoardState(grid, grid.start, proposal=written), "planner_0")
