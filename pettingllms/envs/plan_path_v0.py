"""# Plan-Path.

A tool proposes a path through a grid with walls, a planner decides which path is walked.

| | |
|---|---|
| Creation | `plan_path_v0.env()`, `pettingzoo.make("aec", "pettingllms/plan_path-v0")` |
| Agents | `tool_0`, then `planner_0`, each turn; `agents="single"`: `planner_0` alone |
| Action | `FreeText`: a reply that ends in a list of moves, U, D, L and R |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

The prompt shows the grid with the agent where it now is, never where it began; what was proposed and answered in
each earlier turn; and to the planner the tool's proposal of this turn. A reply may reason before its list: the last list counts,
`[R, R, U]`, in any case, as words, with commas or without. A move off the grid or into a wall is
refused and ends the answer (`refused="skip"`: is skipped); what follows the goal is dropped. The episode ends when the planner stands on the
goal, which is success.

Grids are generated, or come from a `dataset`: a file or folder of text files, or a text, with grids of `#`
(wall), `.` (free), `@` (start) and `G` (goal) between blank lines or lines `; name`. A file with a split in its name is that
split; other grids are divided by the rule of the generated ones, which puts no layout, turned or
mirrored, into two splits. `reset(seed)` picks a grid and wraps around at `num_tasks`.

# Rewards

`reward = alpha * team + local`, as `pettingllms.envs.boards` says: schemes `"paper"` and `"sparse"`.
The progress of a cell is 1 - d / d0, where d is the length of a shortest path from it to the goal and d0 that from the start.
`infos[agent]` adds `answer_solves`, `illegal`, `distance`, `optimum` and, from a data set, `id`.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack, cast

from pettingllms.data import board_files, plan_path
from pettingllms.data.plan_path import Grid
from pettingllms.data.splits import Split
from pettingllms.envs import rendering, small_text
from pettingllms.envs.base import metadata_of
from pettingllms.envs.boards import AnswerResult, BoardArguments, BoardEnv, BoardState, Picture
from pettingllms.envs.parsing import cell_name
from pettingllms.envs.rendering import Mark, Tile
from pettingllms.errors import ConfigError

MOST_WALLS = 0.6


Moves = tuple[str, ...]
NEAR, FAR = 5, 10
"""Moves to the goal of situations that a router of policies tells apart."""


class raw_env(BoardEnv):
    """The Plan-Path environment; the module's docstring is its manual.

    Args:
        height: rows of the grid; 2 to 26.
        width: columns of the grid; 2 to 26.
        walls: share of the cells that are walls; 0 to 0.6.
        moves: least and greatest length of a shortest path, or None.
        dataset: grids to play in place of generated ones: text, a file, or a folder.
        kwargs: as in `BoardEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    metadata = metadata_of("plan_path_v0", "rgb_array")
    embedded = {
        "prompt": "compact",
        "height": 6,
        "width": 6,
        "moves": (6, 36),
    }
    smollm2 = {
        "prompt": "small",
        "height": 4,
        "width": 4,
        "walls": 0.1,
        "moves": (2, 4),
    }
    # Open boards and one move at a time: the planner has to find out whom to listen to.
    embedded_model = "embedded:parts"
    embedded_parts: ClassVar[Mapping[str, Any]] = {
        "prompt": "compact",
        "height": 6,
        "width": 6,
        "walls": 0.08,
        "moves": (3, 5),
        "max_turns": 8,
    }
    embedded_parts_training: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 4e-3,
        "tasks_per_step": 8,
        "max_completion_length": 12,
        "eval_steps": 10,
    }
    word = "path"
    rules: str = (
        "Find a path from the agent (@) to the goal (G) on the grid. # is a wall, . is free. "
        "The moves are U (up), D (down), L (left) and R (right). A move off the grid or into a "
        "wall is refused. The answer is a list of moves, for example #### [R, R, U]"
    )

    def __init__(
        self,
        *,
        dataset: str | Path | None = None,
        height: int = 10,
        width: int = 10,
        walls: float = 0.22,
        moves: tuple[int, int] | None = None,
        **kwargs: Unpack[BoardArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.height = _between("height", height)
        self.width = _between("width", width)
        if not 0 <= walls <= MOST_WALLS:
            raise ConfigError(f"walls must be between 0 and {MOST_WALLS}, got {walls}")
        if moves is not None and not (len(moves) == 2 and 1 <= moves[0] <= moves[1]):
            raise ConfigError(f"moves must be a range such as (3, 8), got {moves}")
        self.walls = float(walls)
        self.moves = None if moves is None else (moves[0], moves[1])
        self._take_boards(board_files.GRID_FILES, dataset)
        if dataset is None:
            # Settings that allow no grid are refused here, not at the first reset.
            self._generated(0)

    def _deal(self, seed: int, options: dict[str, Any]) -> tuple[Grid, int, str | None]:  # noqa: ARG002 - has none
        if self._boards is None:
            grid = self._dealt(seed)
            return grid, grid.start, None
        board = self._boards[seed % len(self._boards)]
        grid = board_files.grid(board)
        return grid, grid.start, board.id

    def _generated(self, seed: int) -> Grid:
        return plan_path.generate(
            self._random(seed),
            cast(Split, self.split),
            height=self.height,
            width=self.width,
            walls=self.walls,
            moves=self.moves,
        )

    def _apply(self, level: Grid, position: int, answer: Moves) -> AnswerResult:
        table = level.neighbours
        cell, walked, refused = position, 0, 0
        for move in answer:
            if cell == level.goal:
                break
            near = table[cell].get(move)
            if near is not None and near not in level.walls:
                cell, walked = near, walked + 1
                continue
            refused += 1
            if self.refused == "stop":
                break
        solved = cell == level.goal
        note = f"{walked} moves made, {refused} refused"
        if refused and self.refused == "stop":
            # Everything before the refused part was applied, so that its count is the part's
            # place.
            note += f" (number {walked + 1}, {answer[walked]})"
        note += f"; the agent is at {_name(level, cell)}"
        info = {"distance": level.distances[cell], "optimum": level.optimum}
        return AnswerResult(cell, solved, note, refused, info=info)

    def _demonstrate(self, state: BoardState, agent: str) -> str:  # noqa: ARG002 - the same for both
        level, cell, moves = state.level, state.position, list[str]()
        while cell != level.goal:
            near = level.neighbours[cell].items()
            left = level.distances[cell] - 1
            move, cell = next((m, c) for m, c in near if level.distances[c] == left)
            moves.append(move)
        return self._written(state, tuple(moves))

    def _situation(self, state: BoardState) -> str:
        far = state.level.distances[state.position]
        return "near" if far <= NEAR else "far" if far > FAR else "between"

    def _progress(self, level: Grid, position: int) -> float:
        return 1.0 - level.distances[position] / level.optimum

    def _format_answer(self, level: Grid, position: int, answer: Moves) -> str:
        if self.prompt != "compact":
            return f"[{', '.join(answer)}]"
        table = level.neighbours
        words, cell = [], position
        for move in answer:
            # Walls are named like any other cell: the planner can see where a proposal fails.
            cell = table[cell].get(move, cell)
            words.append(f"{move} {_name(level, cell)} ")
        return f"[ {''.join(words)}]"

    def _ask(self, level: Grid, position: int) -> str:
        table = level.neighbours[position]
        blocked = [
            word
            for word, move in small_text.MOVES.items()
            if table.get(move, -1) in {-1, *level.walls}
        ]
        row, column = divmod(position, level.width)
        goal_row, goal_column = divmod(level.goal, level.width)
        way = small_text.direction(goal_row - row, goal_column - column)
        return small_text.asked_way(f"goal is {way}", blocked)

    def _board(self, level: Grid, position: int) -> str:
        # In this order, since the last one wins: an agent at the goal hides it.
        marks = {level.goal: "G", position: "@", **dict.fromkeys(level.walls, "#")}
        rows = (
            "".join(marks.get(row * level.width + column, ".") for column in range(level.width))
            for row in range(level.height)
        )
        return "\n".join(rows)

    def _coordinates(self, level: Grid, position: int) -> str:
        walls = " ".join(_name(level, cell) for cell in sorted(level.walls))
        size = f"{level.height}x{level.width}"
        return f"{size} at {_name(level, position)} goal {_name(level, level.goal)} walls {walls}"

    def _picture(self, state: BoardState) -> Picture:
        shown = {
            "#": Tile(ground=rendering.WALL),
            "G": Tile(marks=(Mark("ring", rendering.GOAL),)),
            "@": Tile(marks=(Mark("disc", rendering.PLAYER),)),
            ".": Tile(),
        }
        rows = self._board(state.level, state.position).split("\n")
        return rendering.draw([[shown[mark] for mark in row] for row in rows])


def _name(level: Grid, cell: int) -> str:
    return cell_name(*divmod(cell, level.width))


def _between(name: str, value: int) -> int:
    number = operator.index(value)
    least, most = plan_path.SIDES
    if not least <= number <= most:
        raise ConfigError(f"{name} must be between {least} and {most}, got {number}")
    return number


env = raw_env
"""The environment as PettingZoo users make it."""
