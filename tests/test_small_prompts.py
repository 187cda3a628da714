"""Small prompts: one instruction, and replies in free text that are read leniently."""

from __future__ import annotations

import pytest

from pettingllms.data import asserts
from pettingllms.envs import make, small_text
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.search_text import parse_reply


def small(name, seed=1, **changes):
    env = make(name, **{**make(name).smollm2, **changes})
    env.reset(seed=seed)
    return env


def shown(env):
    return env.last()[0]["text"]


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (small_text.moves, "The goal is up, then RIGHT.", ("U", "R")),
        (small_text.number, "1, 2: the missing number is 3.", 3),
        (small_text.number, "v2.5", None),
        (small_text.number, "It is 12.5", None),
        (small_text.number, "5/2", None),
        (small_text.number, "12,345.67", None),
        (small_text.number, "1,000.", 1000),
        (small_text.number, "1,2,3", 3),
        (small_text.number, "-4, not -4.5", -4),
        (small_text.formula, "It is 5 + 4 - 2 = 7", "print(5 + 4 - 2)"),
        (small_text.formula, "7", None),
        (small_text.yes_or_no, "No, it is not. Yes?", "no"),
        (small_text.program, "Sure:\n```python\nprint(1)", "print(1)"),
        (small_text.program, "print(1)", None),
    ],
)
def test_the_one_thing_that_was_asked_for_is_read(read, text, expected):
    parsed = read(text)
    assert isinstance(parsed, ParseError) if expected is None else parsed == expected
    assert isinstance(read(""), ParseError)
    read("9 + " * 300_000 + "`" * 300_000)


def test_an_example_is_a_test_of_a_program_or_of_a_function():
    assert small_text.example("Input: `3 5`\nOutput: 8", None) == (asserts.Test("3 5", "8"),)
    called = small_text.example("Input: 3, [5]\nOutput: 8", "solve")
    assert called == (asserts.Test("[3, [5]]", "8"),)
    assert isinstance(small_text.example("Input: a\nOutput: b", "solve"), ParseError)


@pytest.mark.parametrize("name", ["plan_path", "sokoban"])
def test_a_proposal_is_said_in_words(name):
    env = small(name)
    assert "Say which way it is:" in shown(env)
    env.step("up and left I guess")
    assert shown(env).startswith("The tool says: up, left. The ")
    env.step("no idea")
    assert env.infos["planner_0"]["parse_error"] == "none of up, down, left and right"


def test_a_small_grid_is_solved_by_saying_the_way_again():
    env = small("plan_path", walls=0.0, moves=(2, 2), seed=3)
    while env.agents and not any(env.terminations.values()):
        goal = shown(env).rpartition("goal is ")[2].partition(".")[0]
        env.step(f"The way is {goal}.")
    assert env.infos["planner_0"]["success"]


def test_a_small_sudoku_asks_for_one_number_after_the_other():
    env = small("sudoku", clues=(14, 14))
    for _ in range(2):
        counted = shown(env).partition("Count: ")[2].partition(".")[0].split(", ")
        missing = counted.index("?") + 1
        env.step("no number")
        env.step(f"The missing number is {missing}.")
    assert env.infos["planner_0"]["success"]


def test_a_formula_runs_and_the_reasoner_is_told_its_value():
    env = small("math")
    env.step("So: 2 + 3 = 9")
    assert shown(env).endswith("The tool says 5. Say the number:")
    env.step(f"It is {env._state.problem.answers[0]}.")
    assert env.infos["reasoner_0"]["right"]


def test_short_answers_that_contain_the_right_one_earn_a_part():
    def earned(reply):
        env = small("search")
        env.step("Yes.")
        (answer,) = env._state.question.answers
        env.step(reply.format(answer))
        return env.infos["answerer_0"]["team_reward"], env.infos["answerer_0"]["local_reward"]

    assert earned("{}.") == (1.0, 0.0)
    assert earned("It is {}") == (0.0, 0.3)
    assert earned("I think that it is {}") == (0.0, 0.0)


def test_every_role_of_search_can_reply_to_a_small_prompt():
    assert parse_reply("solver", "Search: owl8 pupil\nmore", "small")[:] == ("search", "owl8 pupil")
    assert parse_reply("worker", "result: horse4", "small")[:] == ("result", "horse4")
    assert isinstance(parse_reply("planner", "owl8", "small"), ParseError)


def test_a_small_program_and_a_small_example_run():
    env = small("coding", families=("numbers",))
    task = env._state.task
    env.step(f"```python\n{task.reference}")
    assert env.infos["coder_0"]["success"]
    input_text = task.tests[-1].input if task.function is None else task.tests[-1].input[1:-1]
    env.step(f"Input: {input_text}\nOutput: {task.tests[-1].output}")
    assert env.infos["tester_0"]["valid"] == 1
