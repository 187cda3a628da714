"""Sokoban levels: a seeded generator whose every level has a known optimum.

A room is a frame of walls, walls inside it, and goals. From the room's solved states all states are
searched backwards by pulling boxes, breadth first, so that the fewest pushes of every state are
known before one of them is dealt as a level: the optimum is exact by construction, and
difficulty is an option. Where a room has more states than `MAX_STATES`, those with the fewest
pushes are searched; their numbers are exact all the same.

A split is a property of the room, the same for its eight rotations and reflections: no two
splits share a room, whatever the seeds.

# Levels as text

XSB, and files of many levels such as Boxoban's:

| | wall | floor | goal | box | box on goal | player | player on goal |
|---|---|---|---|---|---|---|---|
| XSB | `#` | space, `-` or `_` | `.` | `$` | `*` | `@` | `+` |

What the player can never get to, beyond the walls, is read as wall.

Cells are numbered row by row, and a set of cells is an `int` with a bit for each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from pettingllms.data import splits
from pettingllms.data.rows import boards
from pettingllms.data.splits import Split
from pettingllms.errors import ConfigError, DatasetError


class Room(NamedTuple):
    """The part of a level that no move changes. All floor is inside the grid: its outermost cells are never floor."""

    height: int
    width: int
    floor: int
    goals: int


class Position(NamedTuple):
    """The part of a level that moves change."""

    player: int
    """A cell's number."""
    boxes: int


class Level(NamedTuple):
    """A room, where its game starts, and the fewest pushes that solve it, where they are known."""

    room: Room
    start: Position
    optimum: int | None


def cells(mask: int) -> list[int]:
    """Returns the numbers of the cells in a set, ascending."""
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers


@lru_cache
def deltas(width: int) -> Mapping[str, int]:
    """Returns how each move changes a cell's number."""
    return {"U": -width, "D": width, "L": -1, "R": 1}


def moved(room: Room, position: Position, delta: int) -> Position | None:
    """Returns the position after a move; None where the rules refuse it."""
    player, boxes = position
    target = player + delta
    if not room.floor >> target & 1:
        return None
    if boxes >> target & 1:
        beyond = target + delta
        if not (room.floor & ~boxes) >> beyond & 1:
            return None
        boxes ^= 1 << target | 1 << beyond
    return Position(target, boxes)


def reach(seed: int, free: int, width: int) -> int:
    """Returns the cells of `free` that can be walked to from those in `seed`, which is part of it."""
    while True:
        # Shifts would carry over to the next row, but the outermost cells are never floor of a
        # level.
        grown = (seed | seed << 1 | seed >> 1 | seed << width | seed >> width) & free
        if grown == seed:
            return seed
        seed = grown


@lru_cache(maxsize=4096)
def pull_distances(room: Room) -> dict[int, int]:
    """Pushes from each cell to the nearest goal for a box that is alone and a player who is anywhere.

    Cells that are missing are dead: a box there never gets to a goal.
    """
    floor, steps = room.floor, deltas(room.width).values()
    pushes = dict.fromkeys(cells(room.goals), 0)
    queue = list(pushes)
    # The list grows while it is read: it is the queue of a breadth-first search.
    for cell in queue:
        for delta in steps:
            source = cell - delta
            # The player pushes from beyond the box.
            if source not in pushes and floor >> source & 1 and floor >> (source - delta) & 1:
                pushes[source] = pushes[cell] + 1
                queue.append(source)
    return pushes


@lru_cache(maxsize=4096)
def dead_cells(room: Room) -> int:
    """The floor from which a box never gets to a goal, as a set."""
    return room.floor & ~sum(1 << cell for cell in pull_distances(room))


class Solution(NamedTuple):
    """Moves that put a box on every goal."""

    moves: str
    """Letters U, D, L, R."""
    pushes: int


def solve(room: Room, start: Position, limit: int = 100_000) -> Solution | None:
    """The solution with the fewest pushes, and of those with the fewest moves.

    Searches forwards, push by push, and knows nothing of how levels are generated: it certifies
    their optima, and solves levels from files. None where there is no solution.

    Raises:
        ConfigError: not solved within `limit` states.
    """
    alive = pull_distances(room)
    layer, seen, pushes = {start: ""}, {start}, 0
    while layer:
        solved = [moves for (_, boxes), moves in layer.items() if boxes == room.goals]
        if solved:
            return Solution(min(solved, key=len), pushes)
        if len(seen) > limit:
            raise ConfigError(f"not solved within {limit} states; raise the limit")
        following: dict[Position, str] = {}
        for position, moves in layer.items():
            for after, more in _pushes(room, position, alive):
                if after in seen:
                    continue
                if after not in following or len(moves) + len(more) < len(following[after]):
                    following[after] = moves + more
        seen |= following.keys()
        layer, pushes = following, pushes + 1
    return None


def _pushes(
    room: Room, position: Position, alive: Mapping[int, int]
) -> Iterator[tuple[Position, str]]:
    """Every push to a cell that is not dead, and the fewest moves that walk to it and make it."""
    boxes = position.boxes
    free = room.floor & ~boxes
    paths = walks(room, position)
    for box in cells(boxes):
        for move, delta in deltas(room.width).items():
            stand, beyond = box - delta, box + delta
            if stand in paths and free >> beyond & 1 and beyond in alive:
                after = Position(box, boxes ^ (1 << box | 1 << beyond))
                yield after, paths[stand] + move


def walks(room: Room, position: Position) -> dict[int, str]:
    """The fewest moves to each cell that the player can walk to."""
    free, steps = room.floor & ~position.boxes, deltas(room.width).items()
    paths = {position.player: ""}
    queue = [position.player]
    for cell in queue:
        for move, delta in steps:
            if cell + delta not in paths and free >> (cell + delta) & 1:
                paths[cell + delta] = paths[cell] + move
                queue.append(cell + delta)
    return paths


SIZES = range(5, 11)
BOXES = range(1, 5)
MAX_STATES = 20_000
MAX_ROOMS, MAX_SEARCHED = 2_000, 250_000
"""Rooms that are tried for a level, and states that are searched in all, before settings are refused."""
FEWEST_WALLS, MOST_WALLS = 1 / 16, 5 / 16
"""Share of the cells inside the frame; what they close off becomes wall as well. With one box in
6x6, more walls make shorter levels."""


class Settings(NamedTuple):
    """The properties of a generated level."""

    size: int = 6
    """Height and width, the frame of walls included."""
    boxes: int = 1
    pushes: tuple[int, int | None] = (2, None)
    """Fewest and most optimal pushes; None for no bound."""


DEFAULT = Settings()


def checked(size: int, boxes: int, pushes: tuple[int, int | None] | None) -> Settings:
    """The settings.

    Raises:
        ConfigError: one of them is out of range.
    """
    if size not in SIZES:
        raise ConfigError(f"size must be {SIZES[0]} to {SIZES[-1]}, got {size}; or give levels")
    if boxes not in BOXES:
        raise ConfigError(f"boxes must be {BOXES[0]} to {BOXES[-1]}, got {boxes}; or give levels")
    try:
        low, high = DEFAULT.pushes if pushes is None else pushes
        possible = low >= 1 and (high is None or low <= high)
    except (TypeError, ValueError):
        possible = False
    if not possible:
        raise ConfigError(f"pushes must be (fewest, most) with 1 <= fewest <= most, got {pushes!r}")
    return Settings(size, boxes, (low, high))


def generate(seed: int, split: Split, settings: Settings = DEFAULT) -> Level:
    """Generates level number `seed` of a split; its optimum is exact.

    Raises:
        ConfigError: no room with such a level was found.
    """
    return deal(random.Random(f"sokoban/{split}/{seed}"), split, settings)


def deal(rng: random.Random, split: Split, settings: Settings = DEFAULT) -> Level:
    """Generates a level of a split: in a random room, its pushes the more of two uniform draws.

    Raises:
        ConfigError: no room with such a level was found.
    """
    low, high = settings.pushes
    deepest = searched = 0
    for room in _rooms(rng, split, settings):
        layers = pull_layers(room, high)
        deepest = max(deepest, len(layers) - 1)
        searched += sum(map(len, layers))
        if low < len(layers):
            pushes = max(rng.randrange(low, len(layers)) for _ in range(2))
            boxes, region = rng.choice(layers[pushes])
            return Level(room, Position(rng.choice(cells(region)), boxes), pushes)
        if searched > MAX_SEARCHED:
            break
    raise ConfigError(
        f"no level of {settings} found; the most pushes seen are {deepest}: lower the fewest "
        "pushes, or use larger rooms, another number of boxes, or levels from a file"
    )


def _rooms(rng: random.Random, split: Split, settings: Settings) -> Iterator[Room]:
    size, boxes, _ = settings
    inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    whole = sum(1 << cell for cell in inside)
    fewest, most = round(len(inside) * FEWEST_WALLS), round(len(inside) * MOST_WALLS)
    for _ in range(MAX_ROOMS):
        while True:
            order = rng.sample(inside, rng.randint(fewest, most) + boxes)
            goals = sum(1 << cell for cell in order[:boxes])
            free = whole & ~sum(1 << cell for cell in order[boxes:])
            # Floor is what hangs together with one goal; the others then have to lie on it.
            floor = reach(goals & -goals, free, size)
            room = Room(size, size, floor, goals)
            if goals & ~floor == 0 and split_of(room) == split:
                break
        yield room


def pull_layers(
    room: Room, most: int | None = None, limit: int = MAX_STATES
) -> list[list[tuple[int, int]]]:
    """States by their fewest pushes: layer n has those of which n pushes solve.

    A state is the boxes and all cells that the player can walk to. Ends after layer `most`, or
    when `limit` states are found: the last layer may then lack some, but none is in a wrong one.
    """
    width, floor = room.width, room.floor
    parts: dict[int, list[int]] = {}
    layer = [(room.goals, area) for area in _parts(floor & ~room.goals, width)]
    layers, seen = [layer], set(layer)
    while layer and len(layers) - 1 != most and len(seen) < limit:
        layer = []
        for boxes, region in layers[-1]:
            for pulled, player in _pulls(boxes, region, width):
                if pulled not in parts:
                    parts[pulled] = _parts(floor & ~pulled, width)
                state = next((pulled, area) for area in parts[pulled] if area & player)
                if state not in seen:
                    seen.add(state)
                    layer.append(state)
        if layer:
            layers.append(layer)
    return layers


def _pulls(boxes: int, region: int, width: int) -> Iterator[tuple[int, int]]:
    """Boxes and player (as a set) before each push that could have led to a state."""
    for step in (1, width):
        # A box is pulled to the cell beside it, and who pulls ends on the cell beyond.
        movable = boxes & region << step & region << 2 * step
        while movable:
            box = movable & -movable
            yield boxes ^ box ^ box >> step, box >> 2 * step
            movable ^= box
        movable = boxes & region >> step & region >> 2 * step
        while movable:
            box = movable & -movable
            yield boxes ^ box ^ box << step, box << 2 * step
            movable ^= box


def _parts(free: int, width: int) -> list[int]:
    parts = []
    while free:
        area = reach(free & -free, free, width)
        parts.append(area)
        free ^= area
    return parts


def split_of(room: Room) -> Split:
    """Returns the split that a room belongs to: seven in ten train, one val, two test."""
    return splits.split_of(canonical(room), domain="sokoban")


def canonical(room: Room) -> str:
    """Returns a text that a room shares with its rotations and reflections, and with no other room."""
    floor, goals = cells(room.floor), cells(room.goals)
    tall, wide, floor_image, goals_image = min(
        (*shape, sum([bits[cell] for cell in floor]), sum([bits[cell] for cell in goals]))
        for *shape, bits in _images(room.height, room.width)
    )
    return f"{tall}x{wide} {floor_image:x} {goals_image:x}"


@lru_cache
def _images(height: int, width: int) -> list[tuple[int, int, dict[int, int]]]:
    """Lists the symmetries of a grid: its height and width then, and each cell's bit."""
    return [
        (tall, wide, {cell: 1 << place for place, cell in enumerate(order)})
        for tall, wide, order in splits.symmetries(height, width)
    ]


MAX_SIDE = 26
"""Rows and columns of a level: a row's name is one letter."""

SYMBOLS = "# .$*@+"
FLOOR = "-_"
"""Other ways to write floor."""


def parse(text: str, source: str = "level") -> Level:
    """Reads the level in `text`; its optimum is None.

    Raises:
        DatasetError: it is no playable level; names line and column, counted from 1.
    """
    levels = [(number, row["board"]) for number, row in boards(text)]
    if len(levels) != 1:
        raise DatasetError(f"{source}: expected one level, found {len(levels)}")
    return _RoomReader(source, *levels[0]).level()


def level_of(lines: Sequence[str], source: str, first: int = 1) -> Level:
    """Reads the level in these lines, of which the first has the number `first` in `source`.

    Raises:
        DatasetError: it is no playable level.
    """
    return _RoomReader(source, first, lines).level()


def rows(room: Room, position: Position) -> list[str]:
    """Formats the rows of a position in XSB."""
    letters = list(_bare(room))
    for box in cells(position.boxes):
        letters[box] = "*" if letters[box] == "." else "$"
    letters[position.player] = "+" if letters[position.player] == "." else "@"
    text = "".join(letters)
    return [text[start : start + room.width] for start in range(0, len(text), room.width)]


@lru_cache(maxsize=4096)
def _bare(room: Room) -> str:
    """Walls, floor and goals, row after row."""
    return "".join(
        "." if room.goals >> cell & 1 else " " if room.floor >> cell & 1 else "#"
        for cell in range(room.height * room.width)
    )


class _RoomReader:
    """One level being read; `first` is the number of its first line."""

    def __init__(self, source: str, first: int, lines: Sequence[str]) -> None:
        self.source, self.first = source, first
        self.height, self.width = len(lines), max(map(len, lines))
        if max(self.height, self.width) > MAX_SIDE:
            raise self.error(
                f"the level has {self.height} rows and {self.width} columns; "
                f"at most {MAX_SIDE} of either are possible"
            )
        self.letters = "".join(line.ljust(self.width) for line in lines)

    def level(self) -> Level:
        for cell, symbol in enumerate(self.letters):
            if symbol not in SYMBOLS + FLOOR:
                raise self.error(f"{symbol!r} is no symbol of a level; use {SYMBOLS!r}", cell)
        player, boxes, goals = self.where("@+"), self.where("$*"), self.where(".*+")
        if player.bit_count() != 1:
            last = player.bit_length() - 1 if player else None
            raise self.error(f"expected one player (@ or +), found {player.bit_count()}", last)
        if boxes.bit_count() != goals.bit_count():
            raise self.error(
                f"found {boxes.bit_count()} boxes ($ or *) but {goals.bit_count()} goals (. or * or +)"
            )
        floor = reach(player, ~self.where("#") & (1 << len(self.letters)) - 1, self.width)
        # A box that stands on its goal behind walls is decoration.
        decoration = self.where("*") & ~floor
        room = Room(self.height, self.width, floor, goals & ~decoration)
        level = Level(room, Position(player.bit_length() - 1, boxes & ~decoration), None)
        self.check(level)
        return level

    def check(self, level: Level) -> None:
        room, boxes = level.room, level.start.boxes
        for cell in cells(room.floor):
            row, column = divmod(cell, self.width)
            if row in (0, self.height - 1) or column in (0, self.width - 1):
                raise self.error("the player can leave the level here; close it with #", cell)
        for cell in cells((boxes | room.goals) & ~room.floor):
            raise self.error("the player can never get to this cell", cell)
        if boxes == room.goals:
            raise self.error("the level is solved as it is, or has no boxes")
        for cell in cells(boxes & dead_cells(room)):
            raise self.error("this box can never get to a goal", cell)

    def where(self, symbols: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(self.letters) if symbol in symbols)

    def error(self, why: str, cell: int | None = None) -> DatasetError:
        row, column = divmod(cell or 0, self.width)
        place = f"line {self.first + row}" + (f" column {column + 1}" if cell is not None else "")
        return DatasetError(f"{self.source}: {place}: {why}")
