from __future__ import annotations

import random
import re

import pytest

from benchmarks.priming import sudoku as demos
from pettingllms.data import sudoku
from pettingllms.envs import sudoku_v0
from pettingllms.envs.boards import BoardState
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.sudoku_v0 import parse_answer

ROLES = ("tool", "planner")
CELL = re.compile(r"([a-d][1-4])=([0-4])")


def draw(habit, number=800):
    rng = random.Random(f"sudoku demos {habit}")
    return [demos.demo(rng, habit) for _ in range(number)]


@pytest.fixture(scope="module")
def good():
    return draw(0.0)


@pytest.fixture(scope="module")
def bad():
    return draw(1.0)


def numbers(text):
    return {cell: int(value) for cell, value in CELL.findall(text)}


def parts(prompt):
    """Role, clues, what was filled in, and the proposal, as they stand in a prompt."""
    board, _, proposal = prompt.partition(" proposal ")
    clues, _, filled = board.partition(" filled ")
    return prompt.split()[1], numbers(clues), numbers(filled), proposal


def text_of(numbers):
    return "".join(
        str(numbers.get(f"{row}{column}", ".")) for row in "abcd" for column in range(1, 5)
    )


def board_after(demo):
    """An environment with the board of a demonstration, on which the planner answered with it."""
    _, clues, filled, _ = parts(demo.prompt)
    env = sudoku_v0.env(dataset=text_of(clues), agents="single", prompt="compact")
    env.reset(seed=0)
    position = tuple(int(value) for value in text_of({**clues, **filled}).replace(".", "0"))
    env._state = BoardState(env._state.level, position)
    before = env.observe("planner_0")["text"]
    env.step(demo.reply)
    return before, env.infos["planner_0"]


@pytest.mark.slow
def test_prompts_are_those_of_the_environment(good, bad):
    for demo in [*good, *bad]:
        role, _, _, proposal = parts(demo.prompt)
        shown, _ = board_after(demo)
        expected = shown.replace("planner", role, 1)
        assert demo.prompt == expected + (f" proposal {proposal}" if role == "planner" else "")


def test_both_roles_and_boards_of_later_turns_are_shown(good):
    prompts = [parts(demo.prompt) for demo in good]
    assert all(sum(role == name for role, *_ in prompts) > 300 for name in ROLES)
    assert sum(bool(filled) for _, _, filled, _ in prompts) > 150
    assert sum(proposal == "none" for *_, proposal in prompts) > 10


def test_a_good_reply_solves_its_board(good):
    for demo in good:
        _, info = board_after(demo)
        # What was written wrong is emptied first, so that nothing stands in the way.
        assert info["success"], demo
        assert info["illegal"] == 0


def test_a_trace_says_what_is_left_for_each_cell(good):
    for demo in good:
        _, fills, _, _ = parts(demo.prompt)
        trace, _, answer = demo.reply.partition("[ ")
        words, solved = trace.split(), []
        for cell, claim in zip(words[::2], words[1::2], strict=True):
            row, column = cell
            taken = {
                value
                for (r, c), value in fills.items()
                if r == row
                or c == column
                or ("ab".find(r) < 0, c > "2") == ("ab".find(row) < 0, column > "2")
            }
            left = [value for value in (1, 2, 3, 4) if value not in taken]
            if len(left) == 1:
                assert claim == f"{cell}={left[0]}"
                fills[cell] = left[0]
                solved.append(claim)
            else:
                assert claim == f"{{{''.join(map(str, left))}}}"
        assert [word for word in answer.split()[:-1] if not word.endswith("=0")] == solved


def test_a_good_planner_looks_first_at_the_proposed_cells(good):
    for demo in good:
        role, _, _, proposal = parts(demo.prompt)
        proposed = list(dict.fromkeys(c for c, value in CELL.findall(proposal) if value != "0"))
        if role == "planner" and proposed:
            assert demo.reply.split()[: 2 * len(proposed) : 2] == proposed


def test_a_bad_reply_is_the_habit_and_seldom_solves(bad):
    solved = 0
    for demo in bad:
        role, clues, _, proposal = parts(demo.prompt)
        puzzle = sudoku.parse(text_of(clues))
        habit = sudoku_v0.env(prompt="compact")._format_answer(
            puzzle, puzzle.clues, demos.first_in_row(puzzle)
        )
        assert demo.reply == (proposal if role == "planner" and proposal != "none" else habit)
        if role == "tool":
            solved += board_after(demo)[1]["success"]
    assert solved < 0.1 * len(bad) / 2


def test_every_word_is_a_token_of_its_own(good, bad):
    units = demos.units()
    assert len(units) == len(set(units))
    words = {word for d in [*good, *bad] for word in f"{d.prompt} {d.reply}".split(" ")}
    assert words <= set(units)
    sets = {word for word in words if word.startswith("{")}
    assert len(sets) == 11


def test_only_training_solutions_are_shown(good, bad):
    for demo in [*good, *bad]:
        _, clues, _, _ = parts(demo.prompt)
        puzzle = sudoku.parse(text_of(clues))
        assert sudoku.split_of(puzzle.clues, puzzle.solution) == "train"


def test_replies_can_be_read_and_are_short(good, bad):
    for demo in [*good, *bad]:
        assert not isinstance(parse_answer(demo.reply, 4), ParseError)
        assert len(demo.reply.split()) <= 70
    assert sum(len(demo.reply.split()) for demo in good) / len(good) < 36


def test_demonstrations_follow_from_the_seed():
    def some(seed):
        rng = random.Random(seed)
        return [demos.demo(rng, 0.5) for _ in range(20)]

    assert some(1) == some(1) != some(2)
