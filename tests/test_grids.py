from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import plan_path
from pettingllms.errors import ConfigError

sizes = st.tuples(st.integers(3, 9), st.integers(3, 9))


def layout(rng, height, width):
    cells = rng.sample(range(height * width), height * width // 4 + 1)
    return frozenset(cells[1:]), cells[0]


@given(st.randoms(use_true_random=False), sizes)
def test_distances_are_those_of_relaxation(rng, size):
    height, width = size
    walls, goal = layout(rng, height, width)
    distances = plan_path.distances(height, width, walls, goal)
    # Another method: repeat "one more than the least neighbour" until nothing changes.
    far = size[0] * size[1]
    expected = {cell: 0 if cell == goal else far for cell in range(far) if cell not in walls}
    changed = True
    while changed:
        changed = False
        for cell in expected:
            row, column = divmod(cell, size[1])
            near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            inside = [r * size[1] + c for r, c in near if 0 <= r < size[0] and 0 <= c < size[1]]
            best = min([expected[n] + 1 for n in inside if n in expected], default=far)
            if cell != goal and best < expected[cell]:
                expected[cell], changed = best, True
    for cell in range(far):
        assert distances[cell] == (expected[cell] if expected.get(cell, far) < far else -1)


@pytest.mark.slow
def test_no_layout_is_in_two_splits_however_it_is_turned():
    seen: dict[bytes, str] = {}
    for split in ("train", "val", "test"):
        rng = random.Random(split)
        for _ in range(1500):
            grid = plan_path.generate(rng, split, height=5, width=5, walls=0.2)
            name = plan_path.canonical(5, 5, grid.walls, grid.goal)
            assert seen.setdefault(name, split) == split
    assert len(seen) > 2500


@given(st.randoms(use_true_random=False), sizes)
def test_turned_and_mirrored_layouts_have_one_name(rng, size):
    height, width = size
    walls, goal = layout(rng, height, width)

    def turned(cell):
        row, column = divmod(cell, width)
        return column * height + height - 1 - row

    def mirrored(cell):
        row, column = divmod(cell, width)
        return row * width + width - 1 - column

    name = plan_path.canonical(height, width, walls, goal)
    assert name == plan_path.canonical(width, height, frozenset(map(turned, walls)), turned(goal))
    assert name == plan_path.canonical(
        height, width, frozenset(map(mirrored, walls)), mirrored(goal)
    )
    other = next(c for c in range(height * width) if c not in walls and c != goal)
    assert plan_path.canonical(height, width, walls | {other}, goal) != name


@pytest.mark.parametrize("moves", [(3, 8), (12, 30)])
def test_the_optimum_is_within_the_range_asked_for(moves):
    rng = random.Random(0)
    for _ in range(50):
        grid = plan_path.generate(rng, "train", moves=moves)
        assert moves[0] <= grid.optimum <= moves[1]
        assert grid.start not in grid.walls
        assert grid.goal not in grid.walls
        assert len(grid.walls) == 22


def test_what_cannot_be_generated_is_refused():
    with pytest.raises(ConfigError, match="fewer walls"):
        plan_path.generate(random.Random(0), "train", height=2, width=2, walls=0.0, moves=(9, 9))
