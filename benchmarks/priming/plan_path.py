"""Demonstrations for Plan-Path: a depth-first search in words, with the content of each cell.

A good reply looks at a cell before it goes there: `R c3 wall D d2 free`, turns round where it has to
(`back c2`), and ends in the path that it found. The bad habit answers at once, straight towards
the goal through walls; a planner with the habit copies the proposal. In a look-up drill the reply says what
is in some cells; without it a small model is long blind to walls.
"""

from __future__ import annotations

import random

from benchmarks.priming.example import Demo
from pettingllms.data import plan_path
from pettingllms.data.plan_path import Grid
from pettingllms.envs import plan_path_v0
from pettingllms.envs.boards import BoardState
from pettingllms.envs.parsing import cell_name, parse_moves
from pettingllms.envs.plan_path_v0 import Moves

LONGEST = 90
"""Words of a reply; what takes longer is not shown."""
DRILLS = 0.35
"""Share of look-ups."""
SIDES = (6, 6, 6, 6, 8, 10)
"""Sides of the grids that are shown: the larger ones seldom, so that the base has them only half."""

_ENVS = {side: plan_path_v0.env(height=side, width=side, prompt="compact") for side in set(SIDES)}


def units() -> list[str]:
    """What has to be a single token each."""
    cells = [cell_name(row, column) for row in range(10) for column in range(10)]
    words = [
        "path",
        "tool",
        "planner",
        "at",
        "goal",
        "walls",
        "proposal",
        "none",
        "wall",
        "free",
        "back",
        "look",
    ]
    return [*cells, *words, *"UDLR", "[", "]"]


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for either role, or a drill; `habit`: probability of the bad habit."""
    if rng.random() < DRILLS:
        return drill(rng)
    while True:
        side = rng.choice(SIDES)
        env, grid = _ENVS[side], draw(rng, side)
        proposal: Moves | None = None
        if rng.random() < 0.5:
            proposal = _tool_gain(rng, env, grid)
        bad = rng.random() < habit
        if bad:
            reply = env._format_answer(grid, grid.start, proposal or straight(grid))
        else:
            trace = search(rng, env, grid, proposal or ())
            if trace is None:
                continue
            reply = trace
        return Demo(_prompt(env, grid, proposal), reply)


def drill(rng: random.Random) -> Demo:
    """A look-up: the content of some cells, half of them walls."""
    side = rng.choice(SIDES)
    env, grid = _ENVS[side], draw(rng, side)
    free = [cell for cell in range(side * side) if cell not in grid.walls]
    cells = rng.sample(sorted(grid.walls), 6) + rng.sample(free, 6)
    rng.shuffle(cells)
    contents = (f"{_name(env, cell)} {_content(grid, cell)}" for cell in cells)
    return Demo(f"{_prompt(env, grid, None)} look", " ".join(contents))


def draw(rng: random.Random, side: int) -> Grid:
    """A training grid, mostly with at least three moves to go."""
    least = 3 if rng.random() < 0.8 else 1
    return plan_path.generate(rng, "train", height=side, width=side, moves=(least, side * side))


def _prompt(env: plan_path_v0.raw_env, grid: Grid, proposal: Moves | None) -> str:
    if proposal is None:
        return env._text(BoardState(grid, grid.start), "tool_0")
    written = env._format_answer(grid, grid.start, proposal)
    return env._text(BoardState(grid, grid.start, proposal=written), "planner_0")


def _tool_gain(rng: random.Random, env: plan_path_v0.raw_env, grid: Grid) -> Moves:
    chance = rng.random()
    if chance < 0.5:
        return straight(grid)
    trace = search(rng, env, grid, (), blind=0.5 if chance < 0.7 else 0.0)
    moves = parse_moves(trace or "")
    return moves if isinstance(moves, tuple) and trace is not None else straight(grid)


def straight(grid: Grid) -> Moves:
    """The way to the goal as if there were no walls: rows first."""
    (row, column), (to_row, to_column) = (divmod(c, grid.width) for c in (grid.start, grid.goal))
    down, right = to_row - row, to_column - column
    return tuple(("D" if down > 0 else "U") * abs(down) + ("R" if right > 0 else "L") * abs(right))


def search(
    rng: random.Random,
    env: plan_path_v0.raw_env,
    grid: Grid,
    proposal: Moves,
    blind: float = 0.0,
) -> str | None:
    """A search from the start, towards the goal first, along the proposal while it lasts.

    `blind` is the probability that a wall is taken for free. None where the search gets long.
    """
    table = plan_path.neighbours(grid.height, grid.width)
    advice, cell = dict[int, str](), grid.start
    for move in proposal:
        advice.setdefault(cell, move)
        cell = table[cell].get(move, cell)
    stack, moves, seen, words = [grid.start], list[str](), {grid.start}, list[str]()
    while stack[-1] != grid.goal:
        cell = stack[-1]
        options = [
            (0 if advice.get(cell) == move else 1 + _apart(grid, near), rng.random(), move, near)
            for move, near in table[cell].items()
            if near not in seen
        ]
        if len(words) * 3 > LONGEST or (not options and not moves):
            return None
        if not options:
            moves.pop()
            stack.pop()
            words.append(f"back {_name(env, stack[-1])}")
            continue
        _, _, move, near = min(options)
        seen.add(near)
        missed = near in grid.walls and rng.random() < blind
        words.append(f"{move} {_name(env, near)} {'free' if missed else _content(grid, near)}")
        if missed or near not in grid.walls:
            stack.append(near)
            moves.append(move)
    reply = f"{' '.join(words)} {env._format_answer(grid, grid.start, tuple(moves))}"
    return reply if reply.count(" ") < LONGEST else None


def _content(grid: Grid, cell: int) -> str:
    return "wall" if cell in grid.walls else "goal" if cell == grid.goal else "free"


def _apart(grid: Grid, cell: int) -> int:
    (row, column), (to_row, to_column) = (divmod(c, grid.width) for c in (cell, grid.goal))
    return abs(row - to_row) + abs(column - to_column)


def _name(env: plan_path_v0.raw_env, cell: int) -> str:
    return cell_name(*divmod(cell, env.width))
