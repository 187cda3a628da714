"""The rules of Sokoban once more, on the characters of XSB: slow, plain, and without our code."""

from __future__ import annotations

import heapq

STEP = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
LEAVE = {"@": " ", "+": ".", "$": " ", "*": "."}


def step(rows, move):
    """The rows after a move; None where it is refused."""
    grid = [list(row) for row in rows]
    (r, c), (dr, dc) = player(rows), STEP[move]
    ahead, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
    if grid[ahead[0]][ahead[1]] == "#":
        return None
    if grid[ahead[0]][ahead[1]] in "$*":
        if grid[beyond[0]][beyond[1]] not in " .":
            return None
        enter(grid, beyond, " .", "$*")
        grid[ahead[0]][ahead[1]] = LEAVE[grid[ahead[0]][ahead[1]]]
    enter(grid, ahead, " .", "@+")
    grid[r][c] = LEAVE[grid[r][c]]
    return tuple("".join(row) for row in grid)


def enter(grid, cell, before, after):
    grid[cell[0]][cell[1]] = after[before.index(grid[cell[0]][cell[1]])]


def player(rows):
    (position,) = [
        (r, c) for r, row in enumerate(rows) for c, sign in enumerate(row) if sign in "@+"
    ]
    return position


def solved(rows):
    return "$" not in "".join(rows)


def play(rows, moves, stop=True):
    """The rows after a list of moves, how many were refused, and how many were looked at."""
    refused = looked = 0
    for move in moves:
        if solved(rows):
            break
        looked += 1
        after = step(rows, move)
        refused += after is None
        if after is None and stop:
            break
        rows = after or rows
    return rows, refused, looked


def best(rows):
    """Fewest pushes to solve the board, and fewest moves among such solutions; None if impossible."""
    queue, done = [(0, 0, tuple(rows))], set()
    while queue:
        pushes, moves, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        if solved(here):
            return pushes, moves
        for move in STEP:
            after = step(here, move)
            if after is not None:
                heapq.heappush(queue, (pushes + pushed(here, after), moves + 1, after))
    return None


def pushed(before, after):
    return [sign in "$*" for sign in "".join(before)] != [sign in "$*" for sign in "".join(after)]
