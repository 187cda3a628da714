from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.data import sokoban
from pettingllms.data.sokoban import (
    Position,
    Room,
    canonical,
    cells,
    checked,
    generate,
    pull_distances,
    pull_layers,
    reach,
    solve,
    split_of,
)
from pettingllms.errors import ConfigError, DatasetError
from tests import sokoban_model as model

SETTINGS = {
    "6x6, 1 box": (6, 1, None, 400),
    "6x6, 1 box, hardest": (6, 1, (5, 5), 10),
    "6x6, 2 boxes": (6, 2, (3, 8), 60),
    "5x5, 3 boxes": (5, 3, None, 60),
    "7x7, 2 boxes": (7, 2, (6, 15), 20),
    "8x8, 3 boxes": (8, 3, (4, 9), 3),
    "10x10, 4 boxes": (10, 4, (2, 5), 2),
}


def levels(size, boxes, pushes, number, split="train"):
    return [generate(seed, split, checked(size, boxes, pushes)) for seed in range(number)]


def solution(level):
    solved = solve(level.room, level.start)
    assert solved is not None
    return solved


# The generator.


@pytest.mark.parametrize("name", SETTINGS)
def test_a_search_from_the_other_end_confirms_every_optimum(name):
    size, boxes, pushes, number = SETTINGS[name]
    low, high = pushes or (2, 99)
    for level in levels(size, boxes, pushes, number):
        moves, fewest = solution(level)
        assert fewest == level.optimum
        assert low <= level.optimum <= high
        assert (level.room.height, level.start.boxes.bit_count()) == (size, boxes)
        rows, refused, _ = model.play(sokoban.rows(level.room, level.start), moves)
        assert model.solved(rows)
        assert refused == 0


@pytest.mark.parametrize(("size", "boxes", "number"), [(6, 1, 25), (5, 2, 10)])
def test_solutions_have_the_fewest_pushes_and_then_the_fewest_moves(size, boxes, number):
    for level in levels(size, boxes, None, number):
        moves, fewest = solution(level)
        assert (fewest, len(moves)) == model.best(sokoban.rows(level.room, level.start))


def test_a_board_that_cannot_be_solved_has_no_solution():
    level = sokoban.parse("#######\n#     #\n# .$@ #\n#     #\n#######")
    cornered = 1 << 1 * 7 + 1
    assert solve(level.room, Position(level.start.player, cornered)) is None
    assert solution(level).moves == "L"


def test_a_search_says_where_it_gave_up():
    (level,) = levels(8, 2, (8, 20), 1)
    with pytest.raises(ConfigError, match="10 states"):
        solve(level.room, level.start, limit=10)


def test_a_bounded_search_keeps_exact_distances():
    (level,) = levels(7, 2, None, 1)
    whole = {state: n for n, layer in enumerate(pull_layers(level.room)) for state in layer}
    bounded = {
        state: n for n, layer in enumerate(pull_layers(level.room, limit=50)) for state in layer
    }
    assert len(bounded) < len(whole)
    assert bounded.items() <= whole.items()


def test_no_box_gets_to_a_goal_from_a_dead_cell_nor_sooner_than_its_distance_says():
    exact = []
    for level in levels(6, 1, None, 15):
        room, distances = level.room, pull_distances(level.room)
        for box in cells(room.floor):
            starts = [Position(player, 1 << box) for player in cells(room.floor) if player != box]
            solutions = [solve(room, start) for start in starts]
            fewest = min((one.pushes for one in solutions if one is not None), default=99)
            assert distances.get(box, 99) <= fewest
            exact.append(distances.get(box, 99) == fewest)
    assert sum(exact) > 0.8 * len(exact)


def test_six_pushes_are_the_most_in_any_6x6_room_with_one_box_and_one_room_needs_them():
    inside = [6 * row + column for row in range(1, 5) for column in range(1, 5)]
    depths: Counter[int] = Counter()
    seen = set()
    for bits in range(1, 1 << 16):
        floor = sum([1 << cell for n, cell in enumerate(inside) if bits >> n & 1])
        if reach(floor & -floor, floor, 6) != floor:
            continue
        shape = canonical(Room(6, 6, floor, 0))
        if shape not in seen:
            seen.add(shape)
            rooms = (Room(6, 6, floor, 1 << goal) for goal in cells(floor))
            depths.update(len(pull_layers(room)) - 1 for room in rooms)
    assert (max(depths), depths[6]) == (6, 1)


def test_settings_that_no_level_meets_are_refused_and_say_what_there_is():
    with pytest.raises(ConfigError, match=r"the most pushes seen are [56]"):
        generate(0, "train", checked(6, 1, (30, None)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 1, None), "size must be 5 to 10, got 4"),
        ((6, 5, None), "boxes must be 1 to 4, got 5"),
        ((6, 1, (3, 2)), "pushes"),
        ((6, 1, (0, 2)), "pushes"),
        ((6, 1, 3), "pushes"),
        ((6, 1, ("a", "b")), "pushes"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    size, boxes, pushes = arguments
    with pytest.raises(ConfigError, match=message):
        checked(size, boxes, pushes)


# Splits.


@pytest.mark.slow
@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (6, 2), (7, 2)])
def test_no_room_is_in_two_splits(size, boxes):
    rooms = {
        split: {canonical(level.room) for level in levels(size, boxes, None, 1000, split)}
        for split in ("train", "val", "test")
    }
    assert not rooms["train"] & rooms["val"] | rooms["train"] & rooms["test"]
    assert not rooms["val"] & rooms["test"]
    assert min(map(len, rooms.values())) > 200


def test_seven_rooms_in_ten_are_for_training_and_two_for_testing():
    # Any numbers will do: only the hash is looked at.
    rooms = [Room(7, 7, 1 << 48 | n, 1 << 24) for n in range(2000)]
    counts = Counter(map(split_of, rooms))
    assert counts["train"] == pytest.approx(1400, abs=80)
    assert counts["val"] == pytest.approx(200, abs=50)


rectangles = st.tuples(st.integers(3, 6), st.integers(3, 6)).flatmap(
    lambda size: st.lists(
        st.lists(st.sampled_from("# .."), min_size=size[1], max_size=size[1]).map("".join),
        min_size=size[0],
        max_size=size[0],
    )
)


def room_of(rows):
    def mask(signs):
        return sum(1 << i for i, sign in enumerate("".join(rows)) if sign in signs)

    return Room(len(rows), len(rows[0]), mask(" ."), mask("."))


@given(rectangles)
def test_rotations_and_reflections_share_a_canonical_text(rows):
    def turned(rows):
        return ["".join(column) for column in zip(*reversed(rows), strict=True)]

    same = [rows, turned(rows), turned(turned(rows)), turned(turned(turned(rows)))]
    same += [[row[::-1] for row in turn] for turn in same]
    assert len({canonical(room_of(rows)) for rows in same}) == 1


@given(rectangles, rectangles)
def test_rooms_of_one_canonical_text_are_one_room(one, other):
    def images(rows):
        for _ in range(4):
            rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]
            yield rows
            yield [row[::-1] for row in rows]

    same = canonical(room_of(one)) == canonical(room_of(other))
    assert same == (other in list(images(one)))


# XSB.


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from([(5, 1), (6, 2), (8, 3)]))
def test_a_level_is_read_as_it_was_written(seed, size_and_boxes):
    size, boxes = size_and_boxes
    level = generate(seed, "test", checked(size, boxes, (1, 4)))
    text = "\n".join(sokoban.rows(level.room, level.start))
    assert sokoban.parse(text) == level._replace(optimum=None)
    text = "\n\n; a comment\n" + text.replace(" ", "-") + "\n\n"
    assert sokoban.parse(text) == level._replace(optimum=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one level, found 0"),
        ("#####\n# $.#\n#####", r"line 1: expected one player \(@ or \+\), found 0"),
        ("######\n#@$.@#\n######", r"line 2 column 5: expected one player .* found 2"),
        ("######\n#@$ ##\n######", r"line 1: found 1 boxes .* but 0 goals"),
        ("######\n#@$ .#\n#  x #\n######", "line 3 column 4: 'x' is no symbol"),
        ("######\n#@$ .\n######", "line 2 column 6: the player can leave"),
        ("######\n#@$ .#\n# ####", "line 3 column 2: the player can leave"),
        ("######\n#@ *##\n######", "solved as it is"),
        ("######\n#@   #\n######", "solved as it is, or has no boxes"),
        ("#######\n#$ . @#\n#######", "line 2 column 2: this box can never"),
        ("########\n#@$ #.##\n########", "line 2 column 6: the player can never get to this"),
        ("#####\n#@$.#\n#####\n\n#####\n#@$.#\n#####", "found 2"),
        ("#" * 30, "30 columns"),
    ],
)
def test_a_malformed_level_is_refused_with_line_and_column(text, message):
    with pytest.raises(DatasetError, match=message):
        sokoban.parse(text)


@given(st.text(alphabet="# .$*@+-_;\n", max_size=80) | st.text())
def test_any_text_is_a_level_or_refused(text):
    try:
        level = sokoban.parse(text)
    except DatasetError:
        return
    room, start, _ = level
    assert start.boxes.bit_count() == room.goals.bit_count() > 0
    assert reach(1 << start.player, room.floor, room.width) == room.floor


def test_decoration_beyond_the_walls_is_wall():
    level = sokoban.parse("#########\n#@$.#*# #\n#########")
    assert sokoban.rows(level.room, level.start)[1] == "#@$.#####"
