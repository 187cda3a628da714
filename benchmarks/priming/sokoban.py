"""Demonstrations for Sokoban: push by push, with the walk to each, cell by cell.

A good reply says for each push its direction and the cell to stand on, walks there, and says where
the box then is: `push R c2 D d3 L d2 U c2 R c3 box c4`; it ends in the list of all moves. A good planner
follows the proposal while its pushes lead nearer to a solution, then searches on its own. The bad habit
answers at once: straight to the box, walls or not, and on until it is level with the goal; a
planner with the habit copies the proposal. In a look-up drill the reply says what is in some cells.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from benchmarks.priming.example import Demo
from pettingllms.data import sokoban
from pettingllms.data.sokoban import Level, Position, cells, deltas, moved, solve, walks
from pettingllms.envs import sokoban_v0
from pettingllms.envs.boards import BoardState
from pettingllms.envs.parsing import cell_name

LONGEST = 90
"""Words of a reply; what takes longer is not shown."""
DRILLS = 0.2
"""Share of look-ups."""
WANDERED = 0.35
"""Share of boards on which some moves, mostly useless ones, have been made."""

_ENV = sokoban_v0.env(prompt="compact")


def units() -> list[str]:
    """What has to be a single token each."""
    side = range(1, _ENV.settings.size - 1)
    words = (
        "sokoban tool planner player boxes goals walls proposal none push box look wall free goal"
    )
    return [*(cell_name(row, column) for row in side for column in side), *words.split(), *"UDLR[]"]


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for either role, or a drill; `habit`: probability of the bad habit."""
    if rng.random() < DRILLS:
        return drill(rng)
    while True:
        level, position = _board(rng)
        proposal = _proposal(rng, level, position) if rng.random() < 0.5 else None
        reply = (
            (proposal or straight(level, position))
            if rng.random() < habit
            else worked(level, position, followed(level, position, _moves(proposal)))
        )
        if reply.count(" ") < LONGEST:
            return Demo(_prompt(level, position, proposal), reply)


def drill(rng: random.Random) -> Demo:
    """A look-up: the content of some cells inside the frame, about half of them free."""
    level, position = _board(rng)
    size = _ENV.settings.size
    inside = [r * size + c for r in range(1, size - 1) for c in range(1, size - 1)]
    free = [cell for cell in inside if _content(level, position, cell) == "free"]
    other = [cell for cell in inside if cell not in free]
    looked = rng.sample(other, min(5, len(other))) + rng.sample(free, min(5, len(free)))
    rng.shuffle(looked)
    contents = (f"{_name(level, cell)} {_content(level, position, cell)}" for cell in looked)
    return Demo(f"{_prompt(level, position, None)} look", " ".join(contents))


def worked(level: Level, position: Position, moves: Iterable[str]) -> str:
    """The reply that finds these moves: every push and the walk to it, then the list."""
    steps, words, walk, first = deltas(level.room.width), list[str](), list[str](), True
    here = position
    for move in moves:
        after = moved(level.room, here, steps[move])
        assert after is not None
        name = _name(level, after.player)
        if after.boxes == here.boxes:
            walk += (move, name)
        else:
            if walk or first:
                words += ("push", move, _name(level, here.player), *walk)
            box = (after.boxes & ~here.boxes).bit_length() - 1
            words += (move, name, "box", _name(level, box))
            walk, first = [], False
        here = after
    return " ".join([*words, _ENV._format_answer(level, position, tuple(moves))])


def followed(level: Level, position: Position, proposal: Iterable[str]) -> str:
    """Moves that solve the board: the proposal's pushes while each leads nearer, then the best."""
    room, steps = level.room, deltas(level.room.width)
    rest = solve(room, position)
    assert rest is not None
    done, here, there = "", position, position
    for move in proposal:
        after = moved(room, there, steps[move])
        if after is not None and after.boxes != there.boxes:
            then = solve(room, after)
            if then is None or then.pushes >= rest.pushes:
                break
            done += walks(room, here)[there.player] + move
            here, rest = after, then
        there = after or there
    return done + rest.moves


def straight(level: Level, position: Position) -> str:
    """The hasty answer: rows first to the box, and on until it is level with the goal.

    Walls are not looked at: the cells in the list are where the moves would lead without any.
    """
    width = level.room.width
    row, column = divmod(position.player, width)
    box_row, box_column = divmod(cells(position.boxes)[0], width)
    goal_row, goal_column = divmod(cells(level.room.goals)[0], width)
    down, right = box_row - row, box_column - column
    vertical, horizontal = "D" if down > 0 else "U", "R" if right > 0 else "L"
    if right:
        wanted = (goal_column - box_column) * (1 if right > 0 else -1)
        moves = vertical * abs(down) + horizontal * (abs(right) - 1 + max(1, wanted))
    else:
        wanted = (goal_row - box_row) * (1 if down > 0 else -1)
        moves = vertical * (abs(down) - 1 + max(1, wanted))
    words, cell = list[str](), position.player
    for move in moves:
        cell += deltas(width)[move]
        words += (move, _name(level, cell))
    return " ".join(["[", *words, "]"])


def _board(rng: random.Random) -> tuple[Level, Position]:
    level = sokoban.deal(rng, "train", _ENV.settings)
    if rng.random() >= WANDERED:
        return level, level.start
    moves = [rng.choice("UDLR") for _ in range(rng.randint(1, 8))]
    if rng.random() < 0.5:
        moves = _moves(straight(level, level.start))
    played = _ENV._apply(level, level.start, tuple(moves))
    if played.solved or solve(level.room, played.position) is None:
        return level, level.start
    return level, played.position


def _proposal(rng: random.Random, level: Level, position: Position) -> str:
    draw = rng.random()
    if draw < 0.4:
        moves = _moves(straight(level, position))
    else:
        moves = list(followed(level, position, ()))
        if draw < 0.7:
            # A slip somewhere, and on as if nothing had happened.
            moves[rng.randrange(len(moves))] = rng.choice("UDLR")
    return _ENV._format_answer(level, position, tuple(moves))


def _moves(answer: str | None) -> list[str]:
    return [word for word in (answer or "").split() if word in "UDLR"]


def _prompt(level: Level, position: Position, proposal: str | None) -> str:
    agent = "tool_0" if proposal is None else "planner_0"
    return _ENV._text(BoardState(level, position, proposal=proposal), agent)


def _content(level: Level, position: Position, cell: int) -> str:
    if position.boxes >> cell & 1:
        return "box"
    if level.room.goals >> cell & 1:
        return "goal"
    return "free" if level.room.floor >> cell & 1 else "wall"


def _name(level: Level, cell: int) -> str:
    return cell_name(*divmod(cell, level.room.width))
