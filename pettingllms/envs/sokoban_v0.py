"""# Sokoban.

A tool proposes moves, a planner decides which moves push the boxes.

| | |
|---|---|
| Creation | `sokoban_v0.env()`, `pettingzoo.make("aec", "pettingllms/sokoban-v0")` |
| Agents | `tool_0`, then `planner_0`, each turn; `agents="single"`: `planner_0` alone |
| Action | `FreeText`: a reply that ends in a list of moves, U, D, L and R |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

The prompt shows the board as it now is, never as it began; what was proposed and answered in each
earlier turn; and to the planner the tool's proposal of this turn. A reply may reason before its list: the last list
counts, `[R, R, U]`, in any case, as words, with commas or without. A move into a wall, or one that would
push a box into a wall or another box, is refused and ends the answer (`refused="skip"`: is skipped). What
follows the solution is dropped. The episode ends with success when a box stands on every goal, and without it when a box
stands on a dead square, from which it can never get to a goal. Other ways to spoil a level are not looked for.

# Levels

Generated ones have a certified optimum (`pettingllms.data.sokoban`) of at least two pushes unless
`pushes` says otherwise. The default, 6x6 with one box, is the paper's setting (arXiv 2510.11062) and has a low
ceiling: half of them need two pushes, one in seven four or more, and of all 6x6 rooms with one box only one
needs six. For harder ones take two boxes (to about 8 pushes), 7x7 (12) or 8x8 (20); 10x10 with four boxes take
a tenth of a second a level. With `dataset` levels from outside are played instead (XSB, `pettingllms.data.sokoban`):
`boxoban` and its kin, a text file, a folder of them, or a text. A file with a split in its name is that split; of others each
split gets the rooms that are its own by the rule for generated ones. The seed picks a level and wraps around at
`num_tasks`. `reset(options={"level": text})` plays one XSB level.

# Rewards

`reward = alpha * team + local`, as `pettingllms.envs.boards` says: schemes `"paper"` and `"sparse"`.
The progress of a board is 1 - h / h0, where h is the sum over the boxes of the fewest pushes to a nearest goal
for a box that is alone, and h0 that of the level's start; with a box on a dead square it is -0.5. The scheme `"gym"` is
gym-sokoban's for the planner: local is -0.1 a move, +1 for each box put on a goal, -1 for each
taken off, +10 for the solution. The tool pays -0.1 a move and earns (10 + boxes) times what it
earns under "paper", so that proposing the same again earns nothing.
`infos[agent]` adds, from a data set, `id`, and `answer_solves`, `moves`, `illegal`, `optimal_pushes` (of the level; None for one from outside,
see `pettingllms.data.sokoban.solve`), `boxes_on_goal`, `deadlock` and `gym` (gym-sokoban's score of the answer).

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack, cast

from pettingllms.data import board_files, sokoban
from pettingllms.data.sokoban import (
    Level,
    Position,
    cells,
    dead_cells,
    deltas,
    moved,
    pull_distances,
)
from pettingllms.data.splits import Split
from pettingllms.envs import rendering, small_text
from pettingllms.envs.base import metadata_of
from pettingllms.envs.boards import (
    WORST,
    AnswerResult,
    BoardArguments,
    BoardEnv,
    BoardState,
    Picture,
)
from pettingllms.envs.parsing import cell_name
from pettingllms.envs.rendering import Mark, Tile

MOVE_COST, SOLVED_BONUS = 0.1, 10.0

Moves = tuple[str, ...]


NAMES = ("wall", "floor", "goal", "box", "box on goal", "player", "player on goal")
"""Of the signs in `sokoban.SYMBOLS`."""
_LEGEND = ", ".join(
    f"{sign if sign.strip() else 'a space'} {name}"
    for sign, name in zip(sokoban.SYMBOLS, NAMES, strict=True)
)
RULES = (
    f"Push every box onto a goal. On the board: {_LEGEND}. "
    "The moves are U (up), D (down), L (left) and R (right). Moving against a box pushes it one "
    "cell further, where neither a wall nor another box is; boxes cannot be pulled. "
    "A move that is not possible is refused. "
    "The answer is a list of moves, for example #### [R, R, U]"
)
_BOX, _DISC = Mark("square", rendering.BOX), Mark("disc", rendering.PLAYER)
_GOAL, _DONE = Mark("ring", rendering.GOAL), Mark("ring", rendering.DONE)
# In the order of `NAMES`.
_MARKS = ((), (), (_GOAL,), (_BOX,), (_BOX, _DONE), (_DISC,), (_DISC, _GOAL))


class raw_env(BoardEnv):
    """The Sokoban environment; the module's docstring is its manual.

    Args:
        size: height and width in cells, the frame of walls included; 5 to 10.
        boxes: boxes of a level; 1 to 4.
        pushes: fewest and most pushes of the shortest solution, such as (3, 8); None for at least
            two.
        dataset: levels to play in place of generated ones: text, a file or folder (XSB, Boxoban),
            or a named set.
        kwargs: as in `BoardEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
        DatasetError: `dataset` cannot be read, has a bad level, or none of `split`.
        UnknownNameError: no data set, file or folder is called `dataset`.
    """

    metadata = metadata_of("sokoban_v0", "rgb_array")
    reset_options = ("level",)
    smollm2 = {"prompt": "small", "size": 5, "pushes": (1, 2)}
    word = "sokoban"
    rules: str = RULES
    schemes = ("paper", "sparse", "gym")

    def __init__(
        self,
        *,
        dataset: str | Path | None = None,
        size: int = 6,
        boxes: int = 1,
        pushes: tuple[int, int | None] | None = None,
        **kwargs: Unpack[BoardArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.settings = sokoban.checked(size, boxes, pushes)
        self._take_boards(board_files.LEVEL_FILES, dataset)
        if dataset is None and (pushes is not None or size == sokoban.SIZES[0]):
            # Only these can be impossible; they are refused here, not at the first reset.
            self._generated(0)

    def _deal(self, seed: int, options: dict[str, Any]) -> tuple[Level, Position, str | None]:
        name = None
        if "level" in options:
            level = sokoban.parse(str(options["level"]), "reset(options)")
        elif self._boards is not None:
            board = self._boards[seed % len(self._boards)]
            level, name = board_files.level(board), board.id
        else:
            level = self._dealt(seed)
        return level, level.start, name

    def _generated(self, seed: int) -> Level:
        return sokoban.generate(seed, cast(Split, self.split), self.settings)

    def _apply(self, level: Level, position: Position, answer: Moves) -> AnswerResult:
        room = level.room
        steps = deltas(room.width)
        # Cells are bits of an integer, so that sets of boxes compare and hash in one step.
        before = (position.boxes & room.goals).bit_count()
        parts, refused = 0, list[int]()
        for move in answer:
            if position.boxes == room.goals:
                break  # what follows the solution is dropped, so that it cannot undo it
            parts += 1
            after = moved(room, position, steps[move])
            if after is not None:
                position = after
                continue
            refused.append(parts)
            if self.refused == "stop":
                break
        solved, lost = position.boxes == room.goals, bool(position.boxes & dead_cells(room))
        on_goal = (position.boxes & room.goals).bit_count()
        note = f"{parts - len(refused)} moves made, {len(refused)} refused"
        if refused:
            note += f" (the first was number {refused[0]}, {answer[refused[0] - 1]})"
        note += f"; {on_goal} of {room.goals.bit_count()} boxes on goals"
        if lost:
            note += "; a box can no longer get to a goal"
        info = {
            "moves": parts,
            "optimal_pushes": level.optimum,
            "boxes_on_goal": on_goal,
            "deadlock": lost,
            "gym": on_goal - before + SOLVED_BONUS * solved - MOVE_COST * parts,
        }
        return AnswerResult(position, solved, note, len(refused), lost, info)

    def _demonstrate(self, state: BoardState, agent: str) -> str:  # noqa: ARG002 - the same for both
        solution = sokoban.solve(state.level.room, state.position)
        return self._written(state, tuple(solution.moves) if solution else ())

    def _situation(self, state: BoardState) -> str:
        left = (state.position.boxes & ~state.level.room.goals).bit_count()
        return f"{left} boxes off goals"

    def _progress(self, level: Level, position: Position) -> float:
        if position.boxes & dead_cells(level.room):
            return WORST
        distances = pull_distances(level.room)
        left = sum([distances[box] for box in cells(position.boxes)])
        return 1.0 - left / sum([distances[box] for box in cells(level.start.boxes)])

    def _local(self, role: str, result: AnswerResult, gain: float) -> float:
        # gym-sokoban pays for moves that happen. The tool's do not: it is paid for what they gain.
        if role == "planner":
            return float(result.info["gym"])
        return gain - MOVE_COST * float(result.info["moves"])

    def _tool_gain(self, state: BoardState, nearness: float) -> float:
        gain = super()._tool_gain(state, nearness)
        if self.rewards_scheme != "gym":
            return gain
        level: Level = state.level
        return gain * (SOLVED_BONUS + level.room.goals.bit_count())

    def _format_answer(self, level: Level, position: Position, answer: Moves) -> str:
        if self.prompt != "compact":
            return f"[{', '.join(answer)}]"
        steps, words = deltas(level.room.width), ["["]
        for move in answer:
            # A part that is refused leads nowhere.
            position = moved(level.room, position, steps[move]) or position
            words += (move, self._name(level, position.player))
        return " ".join([*words, "]"])

    def _ask(self, level: Level, position: Position) -> str:
        room, steps = level.room, deltas(level.room.width)
        blocked = [
            word
            for word, move in small_text.MOVES.items()
            if moved(room, position, steps[move]) is None
        ]
        # The first of several boxes that are not there yet; of a solved board nobody is asked.
        box = next(iter(cells(position.boxes & ~room.goals)), position.player)
        goal = min(cells(room.goals & ~position.boxes), default=box)
        places = [divmod(cell, room.width) for cell in (position.player, box, goal)]
        (row, column), (box_row, box_column), (goal_row, goal_column) = places
        way = small_text.direction(box_row - row, box_column - column)
        push = small_text.direction(goal_row - box_row, goal_column - box_column)
        return small_text.asked_way(f"box is {way}", blocked, f" Push it {push}.")

    def _board(self, level: Level, position: Position) -> str:
        return "\n".join(sokoban.rows(level.room, position))

    def _coordinates(self, level: Level, position: Position) -> str:
        room = level.room
        # The outermost cells are wall in every level; naming them would cost tokens and say
        # nothing.
        inside = range(room.width + 1, room.width * (room.height - 1) - 1)
        walls = [
            cell
            for cell in inside
            if not room.floor >> cell & 1 and cell % room.width not in (0, room.width - 1)
        ]
        words = [f"{room.height}x{room.width} player", self._name(level, position.player)]
        for word, squares in (
            ("boxes", cells(position.boxes)),
            ("goals", cells(room.goals)),
            ("walls", walls),
        ):
            words.append(word)
            words += [self._name(level, cell) for cell in squares]
        return " ".join(words)

    def _picture(self, state: BoardState) -> Picture:
        kinds = dict(zip(sokoban.SYMBOLS, _MARKS, strict=True))
        return rendering.draw(
            [
                [
                    Tile(rendering.WALL if sign == "#" else rendering.GROUND, kinds[sign])
                    for sign in row
                ]
                for row in sokoban.rows(state.level.room, state.position)
            ]
        )

    def _name(self, level: Level, cell: int) -> str:
        return cell_name(*divmod(cell, level.room.width))


env = raw_env
"""The environment as PettingZoo users make it."""
