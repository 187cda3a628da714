from __future__ import annotations

import functools
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test.api_test import api_test
from pettingzoo.test.render_test import render_test
from pettingzoo.test.seed_test import seed_test

from pettingllms.data import sudoku
from pettingllms.data.sudoku_solver import BOXES
from pettingllms.envs import check_env, sudoku_v0
from pettingllms.envs.parsing import ParseError, cell_name
from pettingllms.envs.sudoku_v0 import Fill, Whole, parse_answer
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.errors import ConfigError, DatasetError, UnknownNameError
from pettingllms.sandbox import open_sandbox
from tests.datasets_fixtures import sudoku_text

# One 4x4 puzzle to play by hand, and its only solution.
PUZZLE = "12..34...1...3.4"
SOLUTION = "1243342141322314"
REPLIES = ("#### [[1, 3, 4], [2, 1, 3]]", "[a3=4]", "[1243342141322314]", "[[1, 1, 0]]", "no", "[]")


def make(seed=0, **kwargs):
    env = sudoku_v0.env(**kwargs)
    env.reset(seed=seed)
    return env


def single(**kwargs):
    return make(agents="single", dataset=PUZZLE, **kwargs)


def text(env):
    return sudoku_text(env._state.position)


def solution(env):
    level = env._state.level
    rows = [level.solution[at : at + level.size] for at in range(0, level.size**2, level.size)]
    return str([list(row) for row in rows])


def play(env, reply):
    """The planner's reply, after the tool has said nothing that can be read."""
    if env.agent_selection == "tool_0":
        env.step("")
    env.step(reply)
    return env.infos["planner_0"]


# The rules.


def refused(grid, clues, size, row, column, value):
    """The rules once more, on rows and columns: whether a fill is refused."""
    if not (1 <= row <= size and 1 <= column <= size and value <= size):
        return True
    if clues[row, column]:
        return clues[row, column] != value
    high, wide = BOXES[size]
    return value > 0 and any(
        other == value
        for (r, c), other in grid.items()
        if (r, c) != (row, column)
        and (
            r == row
            or c == column
            or ((r - 1) // high, (c - 1) // wide) == ((row - 1) // high, (column - 1) // wide)
        )
    )


@settings(max_examples=50, deadline=None)
@given(
    st.data(), st.sampled_from([4, 4, 6]), st.integers(0, 10**6), st.sampled_from(["stop", "skip"])
)
def test_boards_follow_an_independent_model_of_the_rules(data, size, seed, rule):
    env = make(seed, size=size, agents="single", max_turns=5, refused=rule)
    number = st.integers(0, size + 1)
    level = env._state.level
    cells = [(cell // size + 1, cell % size + 1) for cell in range(size * size)]
    clues = dict(zip(cells, level.clues, strict=True))
    grid = dict(clues)
    while not any((*env.terminations.values(), *env.truncations.values())):
        fills = data.draw(st.lists(st.tuples(number, number, number), max_size=20))
        illegal = 0
        for row, column, value in fills:
            if refused(grid, clues, size, row, column, value):
                illegal += 1
                if rule == "stop":
                    break
            else:
                grid[row, column] = value or clues[row, column]
        env.step(f"so [9, 9] #### {[list(fill) for fill in fills]}")
        info = env.infos["planner_0"]
        filled = {cell: value for cell, value in grid.items() if value and not clues[cell]}
        right = sum(value == level.solution[cells.index(cell)] for cell, value in filled.items())
        assert env._state.position == tuple(grid.values())
        assert (info["illegal"], info["right"], info["wrong"]) == (
            illegal,
            right,
            len(filled) - right,
        )
        assert info["success"] == (right == level.blanks and info["wrong"] == 0)


def test_a_solution_in_any_form_solves():
    rows = [SOLUTION[at : at + 4] for at in range(0, 16, 4)]
    fills = [(c // 4, c % 4, SOLUTION[c]) for c in range(16) if PUZZLE[c] == "."]
    forms = [
        str([[r + 1, c + 1, int(v)] for r, c, v in fills]),
        f"[ {' '.join(f'{cell_name(r, c)}={v}' for r, c, v in fills)} ]",
        f"#### {' '.join(f'{cell_name(r, c).upper()} = {v},' for r, c, v in fills)}",
        str([tuple(map(int, row)) for row in rows]),
        str(rows),
        f"[{', '.join(rows)}]",
        f"[{' '.join(SOLUTION)}]",
        f"[{SOLUTION}]",
        "[" + "\n".join(f"[{' '.join(row)}]" for row in rows) + "]\nThat is all.",
        f"```json\n{[list(map(int, row)) for row in rows]}\n```",
    ]
    for form in forms:
        for style in ("full", "compact"):
            env = single(prompt=style)
            assert play(env, form)["success"], form
            assert env.terminations["planner_0"]
            assert text(env) == SOLUTION


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("I think a1", "no list in square brackets; give fills"),
        ("[R, U]", "a list of 2 numbers is neither"),
        ("[[1, 2], [3, 4]]", "a row has 2 numbers, not 4"),
        ("[[1, 2, 3, 4]]", "the grid has 1 rows, not 4"),
        ("[a1=4 then b2]", "'then' is not a fill such as b3=4"),
        ("[[1, 2, 4], [3, 1, 2], ...][[1, x, 4]]", "'x' is not a number"),
        ("[[1, 2, 4], [3, 1, 2], ...]", "'...' is not a list of numbers"),
        ("[[1, -2, 4]]", "'-2' is not a number"),
        ("[[1, 2, \u0664]]", "is not a number"),
        ("[12h4 3412 2143 4321]", "'h' is not a number"),
    ],
)
def test_what_cannot_be_read_is_told_and_costs(reply, why):
    env = single()
    info = play(env, reply)
    assert why in info["parse_error"]
    assert env.rewards["planner_0"] == -FORMAT_PENALTY
    assert text(env) == PUZZLE
    assert info["parse_error"] in env.observe("planner_0")["text"]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("[[1, 1, 3]]", "[1, 1, 3] changes the clue 1"),
        ("[[1, 1, 0]]", "[1, 1, 0] changes the clue 1"),
        ("[[1, 3, 2]]", "[1, 3, 2] meets the 2 in row 1, column 2"),
        ("[[1, 4, 4]]", "[1, 4, 4] meets the 4 in row 4, column 4"),
        ("[[1, 3, 7]]", "[1, 3, 7] has no number from 1 to 4"),
        ("[[5, 3, 1]]", "[5, 3, 1] is not in the grid: rows and columns are 1 to 4"),
        (
            "[[1, 1, 2], [1, 1, 3], [1, 1, 4], [1, 2, 4], [1, 2, 3]]",
            "1 of 1 refused: [1, 1, 2] changes the clue 1; 4 after it dropped",
        ),
        (
            str([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]),
            "the grid changes the clue",
        ),
    ],
)
def test_what_breaks_a_rule_is_refused_and_explained(reply, why):
    env = single()
    before = text(env)
    info = play(env, reply)
    assert info["parse_error"] is None
    assert text(env) == before
    assert env.rewards["planner_0"] == 0.0
    assert why in env.observe("planner_0")["text"]


def test_a_wrong_number_that_breaks_no_rule_stays_until_it_is_changed():
    env = single(max_turns=9)
    assert play(env, "[c1=2]")["wrong"] == 1
    assert text(env) == "12..34..21...3.4"
    assert play(env, "[c3=2 c1=4]")["illegal"] == 1  # one after the other: c1 is still 2
    assert text(env) == "12..34..21...3.4"
    play(env, "[c1=4]")
    assert play(env, "[c1=0]")["right"] == 0
    assert text(env) == PUZZLE
    assert play(env, "[c1=2 c1=4]")["right"] == 1
    assert "1 of 1 refused" in env.observe("planner_0")["text"]


def test_a_grid_replaces_what_was_written():
    env = single(max_turns=9)
    play(env, "[c1=2 b3=1]")
    info = play(env, "[12.. 34.. 41.. 2314]")
    assert (info["right"], info["wrong"], info["illegal"]) == (3, 0, 0)
    assert text(env) == "12..34..41..2314"


def test_a_grid_that_contradicts_a_clue_is_refused_as_a_whole():
    env = single()
    play(env, "[c1=4]")
    info = play(env, "[2143 3421 4132 2314]")
    assert (info["illegal"], info["right"], info["success"]) == (1, 1, False)
    assert text(env) == "12..34..41...3.4"


def test_no_constant_grid_solves_or_earns_anything():
    grids = {SOLUTION, "1" * 16, "4" * 16, "1234341221434321", "." * 16}
    for seed in range(30):
        for grid in grids:
            env = make(seed, agents="single")
            if sudoku_text(env._state.level.solution) == grid:
                continue
            assert not play(env, f"[{grid}]")["success"]
            assert env.rewards["planner_0"] <= 0


def test_only_the_planner_writes():
    env = make(dataset=PUZZLE)
    env.step(f"[{SOLUTION}]")
    assert text(env) == PUZZLE
    assert env.infos["tool_0"]["answer_solves"]
    assert not env.infos["tool_0"]["success"]
    assert "proposes: [[1, 2, 4, 3], [3, 4, 2, 1]" in env.observe("planner_0")["text"]
    env.step("[[1, 3, 4]]")
    assert text(env) == "124.34...1...3.4"
    shown = env.observe("tool_0")["text"]
    assert "the planner answered [[1, 3, 4]]" in shown
    assert "1 2 | 4 ." in shown
    assert "1 2 | . ." not in shown


def test_the_tool_may_write_a_program():
    program = """```python
import sys
grid = [w for w in sys.stdin.read().split() if w in ".1234"]
print("####", [[1, 3, 4]] if "".join(grid) == "12..34...1...3.4" else [[9]])
```"""
    with open_sandbox("embedded", workers=1) as sandbox:
        env = make(dataset=PUZZLE, tool="python", sandbox=sandbox)
        env.step(program)
        assert env.infos["tool_0"]["right"] == 1


# Rewards.


def test_rewards_are_the_documented_sums():
    env = make(dataset=PUZZLE, alpha=2.0)
    env.step("[c1=4 c3=2]")  # one right, one wrong of nine blanks
    assert env.infos["tool_0"]["local_reward"] == 0.0
    env.step("[c1=4 d1=1 a3=4]")  # one right, then one refused, the rest dropped
    assert env.infos["planner_0"]["local_reward"] == pytest.approx(0.5 / 9)
    env.step(f"[{SOLUTION}]")
    assert env.rewards["tool_0"] == pytest.approx(1.0)
    env.step(f"[{SOLUTION}]")
    assert env.rewards["planner_0"] == pytest.approx(2 + 1 - 0.5 / 9)


@pytest.mark.parametrize("scheme", ["paper", "sparse"])
def test_nothing_returns_more_than_solving(scheme):
    def returns(seed, replies):
        env = make(seed, rewards=scheme, max_turns=12)
        total = dict.fromkeys(env.possible_agents, 0.0)
        while not any((*env.terminations.values(), *env.truncations.values())):
            agent = env.agent_selection
            env.step(replies[env.turn % len(replies)](env))
            total[agent] += env.rewards[agent]
        return total

    def write(right, times=1):
        def reply(env):
            level = env._state.level
            blank = [c for c, clue in enumerate(level.clues) if not clue][:3]
            fills = [
                [c // 4 + 1, c % 4 + 1, level.solution[c] if right else level.solution[c] % 4 + 1]
                for c in blank
            ]
            return str(fills * times)

        return reply

    def erase(env):
        clues = env._state.level.clues
        return str([[c // 4 + 1, c % 4 + 1, 0] for c in range(16) if not clues[c]])

    tricks = {
        "write and erase": [write(True), erase],
        "again and again": [write(True)],
        "right and wrong": [write(True), erase, write(False), erase],
        "many at once": [write(True, 20), erase],
        "nothing": [lambda env: "[]"],
        "a constant grid": [lambda env: "[1234341221434321]"],
        "almost, and back": [write(True), write(True), erase, erase],
    }
    for seed in range(8):
        solving = returns(seed, [solution])
        assert solving == {"tool_0": 1.0, "planner_0": 2.0 if scheme == "paper" else 1.0}
        for name, replies in tricks.items():
            for agent, total in returns(seed, replies).items():
                assert total < 0.51, name
                assert total < solving[agent], name


# Any text whatsoever.


@settings(max_examples=100, deadline=None)
@given(
    st.text() | st.text("[](){}0123456789.,=ab# \n\"'", max_size=80),
    st.sampled_from([4, 6, 9, 16]),
)
def test_no_reply_raises(reply, size):
    for style in ("full", "compact"):
        env = dealt(size, style).clone()
        env.step(reply)
        env.step(f"{reply}]")


@functools.cache
def dealt(size, style):
    return make(size=size, prompt=style)


fills = st.builds(Fill, st.integers(0, 8), st.integers(0, 8), st.integers(0, 9))
wholes = st.builds(Whole, st.lists(st.integers(0, 9), min_size=81, max_size=81).map(tuple))


@settings(max_examples=100, deadline=None)
@given(st.lists(fills, max_size=20).map(tuple) | wholes)
def test_an_answer_that_is_shown_can_be_read_again(answer):
    full, compact = dealt(9, "full"), dealt(9, "compact")
    level, position = full._state.level, full._state.position
    assert full._parse_answer(level, full._format_answer(level, position, answer)) == answer
    again = compact._parse_answer(level, compact._format_answer(level, position, answer))
    assert isinstance(again, tuple)
    if not isinstance(answer, Whole):
        assert again == answer


HOSTILE = {
    "opened": "[" * 10**6,
    "closed": "]" * 10**6,
    "nested": "[" * 5 * 10**5 + "]" * 5 * 10**5,
    "pairs": "[]" * 5 * 10**5,
    "nul": "[" + "\0" * 999_000 + "]",
    "surrogates": "[" + "\ud800" * 999_000 + "]",
    "digits": "[[1, 2, " + "9" * 10**5 + "]]",
    "short digits": "[[1, 2, " + "9" * 7000 + "]]",
    "digits in a cell": "[a1=" + "9" * 7000 + "]",
    "equal signs": "[" + "= " * 3900 + "]",
    "spaces": "[= a1" + " " * 7900 + "2]",
    "marks": "#" * 10**6,
    "fills": "[" + "a1=2 " * 199_000 + "]",
    "fills that are read": "[" + "a1=2 " * 1500 + "]",
    "quotes": "[" + "\"'`" * 2600 + "]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_milliseconds(name):
    env = make(agents="single", size=16)
    begin = time.perf_counter()
    env.step(HOSTILE[name])
    env.observe("planner_0")
    assert time.perf_counter() - begin < 0.2
    assert not env.infos["planner_0"]["success"]


# What is shown.


def test_the_example_in_the_prompt_solves_no_puzzle():
    examples = [rule.split(", where")[0] for rule in sudoku_v0.raw_env.rules.split("#### ")[1:]]
    assert len(examples) == 2
    for size in BOXES:
        prompt = make(size=size).observe("tool_0")["text"]
        # They stop at "...", so that there is nothing to read in them: they cannot solve any.
        for reply in (prompt, sudoku_v0.raw_env.rules, *examples):
            assert isinstance(parse_answer(reply, size), ParseError)


def test_both_forms_of_an_answer_are_in_the_prompt():
    shown = make().observe("tool_0")["text"]
    assert "[row, column, number], with rows and columns counted from 1" in shown
    assert "or the whole grid, row by row" in shown


def test_the_compact_prompt_is_a_line_of_coordinates():
    env = make(dataset=PUZZLE, prompt="compact")
    clues = "a1=1 a2=2 b1=3 b2=4 c2=1 d2=3 d4=4"
    assert env.observe("tool_0")["text"] == f"sudoku tool 4x4 {clues}"
    assert env.observe("planner_0")["text"] == f"sudoku planner 4x4 {clues} proposal none"
    env.step("#### [[1, 3, 4], [3, 3, 3]]")
    assert env.observe("planner_0")["text"].endswith("proposal [ a3=4 c3=3 ]")
    env.step("[1243 34.. .1.. .3.4]")
    assert env.observe("tool_0")["text"] == f"sudoku tool 4x4 {clues} filled a3=4 a4=3"
    env.step("[124. 34.. .1.. .314]")
    assert env.observe("planner_0")["text"].endswith("filled a3=4 a4=3 proposal [ a4=0 d3=1 ]")


def test_the_board_has_lines_between_its_boxes():
    assert sudoku_v0.env(dataset=PUZZLE, render_mode="ansi")._view(single()._state) == (
        "1 2 | . .\n3 4 | . .\n----+----\n. 1 | . .\n. 3 | . 4"
    )
    lines = make(size=16, render_mode="ansi").render().split("\n")
    assert len(lines) == 19
    assert len({len(line) for line in lines}) == 1


def test_the_picture_shows_clues_and_numbers_written_apart():
    env = single(render_mode="rgb_array")
    before = env.render()
    play(env, "[a3=4]")
    after = env.render()
    assert before.dtype == np.uint8
    side = before.shape[0] // 4
    assert before.shape == (4 * side, 4 * side, 3)
    changed = np.argwhere((before != after).any(axis=2)) // side
    assert {tuple(map(int, cell)) for cell in changed} == {(0, 2)}


# Which puzzles.


def test_default_puzzles_suit_the_embedded_model():
    for seed in range(200):
        info = play(make(seed, agents="single"), "[]")
        assert 6 <= info["clues"] <= 8
        assert info["clues"] + info["blanks"] == 16
        assert info["difficulty"] == "naked"


def test_size_clues_and_difficulty_are_those_asked_for():
    for size, clues, difficulty in [(6, (12, 14), "singles"), (9, (40, 45), "naked")]:
        env = make(size=size, clues=clues, difficulty=difficulty, agents="single")
        info = play(env, "[]")
        assert clues[0] <= info["clues"] <= clues[1]
        assert info["difficulty"] == difficulty
        assert play(env, solution(env))["success"]


def test_a_file_is_played_in_its_order_and_carries_its_ids(tmp_path):
    path = tmp_path / "puzzles.csv"
    rng = random.Random(0)
    made = [sudoku.generate(rng, split, size=6) for split in ("test", "train", "test")]
    rows = [f"{sudoku_text(p.clues)},{sudoku_text(p.solution)}" for p in made]
    path.write_text("\n".join(["quizzes,solutions,id", *(f"{r},p{n}" for n, r in enumerate(rows))]))
    env = sudoku_v0.env(dataset=f"{path}?divide", split="test")
    assert env.num_tasks == 2
    assert env._start(5, {}).level == made[2]
    assert env._start(4, {}).level == made[0]
    env.reset(seed=5)
    env.step("nothing")
    assert env.infos["tool_0"]["id"] == "p2"
    assert "6x6" in sudoku_v0.env(dataset=path, prompt="compact")._text(env._start(0, {}), "tool_0")
    with pytest.raises(DatasetError, match="no task of the split 'val'"):
        sudoku_v0.env(dataset=f"{path}?divide", split="val")


@pytest.mark.parametrize(
    ("kwargs", "error", "why"),
    [
        ({"size": 5}, ConfigError, "size must be one of 4, 6, 9, 16, got 5"),
        ({"clues": (3, 2)}, ConfigError, "suits no 4x4 puzzle"),
        ({"difficulty": "search"}, ConfigError, "difficulty must be one of naked, got 'search'"),
        ({"size": 9, "difficulty": "hard"}, ConfigError, "one of naked, singles, more, search"),
        ({"dataset": PUZZLE, "size": 4}, ConfigError, "leave out size, clues and difficulty"),
        ({"dataset": "1" + "." * 15}, DatasetError, "several solutions"),
        ({"dataset": "11" + "." * 14}, DatasetError, "1 is at row 1, column 1 and at"),
        ({"dataset": "x" + PUZZLE[1:]}, DatasetError, "'x' in row 1, column 1 is not"),
        ({"dataset": "nowhere.csv"}, DatasetError, "there is no such file"),
        ({"dataset": "1" * 300}, UnknownNameError, "no data set, hub id"),
        ({"dataset": "a\0b"}, UnknownNameError, "no data set, hub id"),
        ({"clues": (4, 4), "difficulty": "naked", "size": 9}, ConfigError, "suits no 9x9"),
        ({"rewards": "gym"}, ConfigError, "rewards must be one of paper, sparse"),
    ],
)
def test_what_cannot_be_used_is_refused(kwargs, error, why):
    with pytest.raises(error, match=why):
        sudoku_v0.env(**kwargs)


@pytest.mark.reasoning
@pytest.mark.parametrize("name", ["mini_sudoku", "sudoku"])
def test_puzzles_of_reasoning_gym_are_played_and_solved(name):
    import reasoning_gym

    for row in reasoning_gym.create_dataset(name, seed=7, size=8):
        puzzle, answer = row["metadata"]["puzzle"], row["metadata"]["solution"]
        text = "".join(str(value) for line in puzzle for value in line)
        env = make(dataset=text, agents="single")
        assert env._state.level.solution == tuple(value for line in answer for value in line)
        assert play(env, f"#### {answer}")["success"]
        assert env.rewards["planner_0"] == 2.0


# The contracts.


@pytest.mark.slow
def test_a_seed_decides_the_episode_in_every_process():
    code = (
        "from pettingllms.envs import sudoku_v0\n"
        "for size in (4, 9):\n"
        "    env = sudoku_v0.env(size=size)\n"
        "    env.reset(seed=3)\n"
        "    print(env.observe('tool_0'))\n"
        "    env.reset()\n"
        "    print(env.observe('tool_0'))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def factory(**kwargs):
    return sudoku_v0.env(**kwargs)


@pytest.mark.filterwarnings(
    "ignore:Observation is not a NumPy array:UserWarning",
    "ignore:Observation space for each agent probably should be:UserWarning",
    "ignore:Action space for each agent probably should be:UserWarning",
)
def test_pettingzoos_own_tests_pass():
    api_test(sudoku_v0.env(), num_cycles=20)
    seed_test(sudoku_v0.env, num_cycles=20)
    render_test(factory)


def test_an_episode_is_truncated_after_max_cycles():
    env = make(max_cycles=3)
    for _ in range(6):
        assert not any(env.truncations.values())
        env.step("[]")
    assert all(env.truncations.values())


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"agents": "single", "size": 9}, {"prompt": "compact", "rewards": "sparse"}],
    ids=["team", "single", "compact"],
)
def test_check_env_passes(kwargs):
    check_env(sudoku_v0.env(**kwargs), episodes=2, replies=REPLIES)


@pytest.mark.parametrize("text", ["no answer at all", "b1=2"])
def test_every_reply_says_how_difficult_the_puzzle_is(text):
    game = sudoku_v0.env(size=4)
    game.reset(seed=3)
    agent = game.agent_selection
    game.step(text)
    assert game.infos[agent]["difficulty"] in ("naked", "singles", "more", "search")
