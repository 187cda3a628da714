"""What a tester's reply is worth, by strategy, and what it may cost."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pettingllms.data import coding
from pettingllms.data.asserts import Test as Pair
from pettingllms.envs import coding_v0
from pettingllms.envs.coding_judge import WRONG_COST, is_example, judged, score
from pettingllms.envs.coding_text import MAX_TESTS, NOT_RUN
from pettingllms.envs.coding_v0 import (
    LIMITS,
    PROGRAM_SHARE,
    REFERENCE_SHARE,
)
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.sandbox import RunResult, open_sandbox
from pettingllms.sandbox.together import _DRIVER, SHARED_CPU_S


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def checks(*pairs):
    return "".join(f"```input\n{a}\n```\n```output\n{b}\n```\n" for a, b in pairs)


def code(program):
    return f"```python\n{program}\n```"


# Examples of the statement

CONTEST = """Sum all numbers but the first, which says how many there are.

Sample Input 1:

```
3
1 2 3
```

**Sample Output 1:**

```
6
```
"""
DOCTEST = '''def near(a: List[float], t) -> bool:
    """ Check whether 3 numbers are near.
    >>> near([1.0, 2.0, 3.0], 0.5)
    False
    >>> near("ab", (1, 2), None)
    'yes'
    """
'''
ARGUMENTS = "You get two things.\nInput: nums = [2,7], target = 9\nOutput: [0,1]\n"


@pytest.mark.parametrize(
    ("question", "function", "given", "expected", "shown"),
    [
        (CONTEST, None, "3\n1 2 3\n", "6", True),
        (CONTEST, None, " 3\n1  2 3", "6\n", True),
        (CONTEST, None, "3\n1 2 3", "7", False),
        (CONTEST, None, "3\n1 2 4", "6", False),
        (CONTEST, None, "2\n1 2", "3", False),
        (CONTEST, None, "", "6", False),
        (DOCTEST, "near", "[[1.0, 2.0, 3.0], 0.5]", "false", True),
        (DOCTEST, "near", "[[1, 2, 3], 0.5]", "false", True),
        (DOCTEST, "near", '["ab", [1, 2], null]', '"yes"', True),
        (DOCTEST, "near", "[[1.0, 2.0, 3.0], 0.5]", "true", False),
        (DOCTEST, "near", "[[1.0, 2.0], 0.5]", "false", False),
        (DOCTEST, "near", "[]", "false", False),
        (DOCTEST, "near", "[", "false", False),
        (ARGUMENTS, "f", "[[2, 7], 9]", "[0, 1]", True),
        (ARGUMENTS, "f", "[[2, 7], 8]", "[0, 1]", False),
    ],
)
def test_an_example_is_an_input_with_its_output_soon_after(
    question, function, given, expected, shown
):
    assert is_example(question, Pair(given, expected), function) == shown


def test_no_generated_problem_shows_its_hidden_tests():
    for seed in range(300):
        task = coding.generate(seed, "test")
        assert not any(is_example(task.question, test, task.function) for test in task.tests)


@given(st.text(), st.text(), st.text(), st.sampled_from([None, "f"]))
@example("7", "7", "7", "f")
@example("[", "[" * 900 + "]" * 900, "1", "f")
def test_any_text_is_an_example_or_not(question, input_text, expected, function):
    assert is_example(question, Pair(input_text, expected), function) in (True, False)


# The verdict

lines = st.sampled_from(["1", "1 ", "2", "3", "1 2", "bad"])
outputs = st.sampled_from(["10", "10 ", "20", "30", "99"])
ANSWERS = {"1": "10", "2": "20", "3": "30", "1 2": "12"}
STATEMENT = "Times ten. Example: input 3 output 30"


def verdict_of(pairs):
    tests = [Pair(*pair) for pair in pairs]
    ran = {
        t.input: RunResult(
            "ok" if t.input.strip() in ANSWERS else "error",
            ANSWERS.get(t.input.strip(), "").encode(), b"", 0, 0.0, 0.0, 0.0, "",
        )
        for t in tests
    }  # fmt: skip
    return judged(tests, ran, STATEMENT, None)


pairs = st.lists(st.tuples(lines, outputs), max_size=8)


@given(pairs, st.integers(0, 4))
def test_repeating_a_test_changes_nothing(told, place):
    twice = [*told, told[place]] if place < len(told) else told
    assert verdict_of(twice)[1:] == verdict_of(told)[1:]


@given(pairs, st.sampled_from([0.25, 0.5, 1.0]))
def test_each_wrong_test_costs_and_an_example_is_worth_nothing(told, power):
    before = verdict_of(told)
    wrong = verdict_of([*told, ("7", "1")])
    assert wrong.wrong == before.wrong + 1
    if before.right:
        assert score(wrong, power) < score(before, power)
    if "3" not in {input_text for input_text, _ in told}:
        assert score(verdict_of([*told, ("3", "30")]), power) == score(before, power)
        assert verdict_of([*told, ("3", "31")]).wrong == before.wrong + 1
    assert -FORMAT_PENALTY < -WRONG_COST <= score(before, power) <= 1.0


@given(st.lists(outputs, min_size=2, max_size=8, unique=True))
def test_outputs_that_contradict_each_other_are_all_wrong(guesses):
    verdict = verdict_of([("1", guess) for guess in guesses])
    distinct = len({guess.strip() for guess in guesses})
    assert (verdict.right, verdict.wrong) == (
        (0, distinct) if {*guesses} - {"10", "10 "} else (1, 0)
    )


def test_the_inputs_of_a_function_are_compared_as_values():
    result = RunResult("ok", b"", b"", 0, 0.0, 0.0, 0.0, "", value_bytes=b"3")
    tests = [Pair("[1,2]", "3"), Pair("[1, 2]", " 3"), Pair("[1, 2 ]", "3")]
    verdict = judged(tests, {test.input: result for test in tests}, "Add.", "f")
    assert (verdict.right, verdict.wrong) == (1, 0)


@pytest.mark.parametrize("depth", [*range(940, 1000), 20_000])
def test_an_input_that_is_nested_as_deeply_as_can_be_is_judged(depth):
    nested = "[" * depth + "]" * depth
    result = RunResult("ok", b"", b"", 0, 0.0, 0.0, 0.0, "", value_bytes=b"3")
    tests = [Pair(nested, "3"), Pair(nested, nested)]
    verdict = judged(tests, {nested: result}, "Add.", "f")
    assert (verdict.right, verdict.wrong) == (0, 2)


# Strategies, played in the sandbox on problems with an example in their statement

TASKS = 8


def composed(number):
    """A composition, with an example in the statement, and a way to work out right tests."""
    rng = random.Random(f"strategies {number}")
    composition, function = rng.choice(coding.COMPOSITIONS["train"]), number % 3 == 0
    task = coding.from_composition(composition, rng, function=function, id=f"{number}")
    shown = task.tests[0]
    question = f"{task.question}\nExample: input {shown.input} output {shown.output}"
    row = {
        "question": question,
        "tests": [{"input": t.input, "output": t.output} for t in task.tests],
        "reference": task.reference,
        "mutants": [*task.mutants],
        "split": "train",
    }
    worked: list[tuple[str, str]] = []
    while len({input_text for input_text, _ in worked}) < 2 * MAX_TESTS:
        values = coding.random_values(rng, composition.family, 6)
        worked.append(
            (
                coding.input_text(composition.family, values, function=function),
                coding.output_text(composition.run(values), function=function),
            )
        )
    if function:
        return {**row, "function": task.function}, shown, list(dict.fromkeys(worked))
    return row, shown, list(dict.fromkeys(worked))


def strategies(shown, worked, function):
    one, small = worked[0], ("[[1, 2]]" if function else "1 2", "0")
    wrong = [(input_text, "[7]" if function else "x") for input_text, _ in worked[1:MAX_TESTS]]
    guesses = [str(n) for n in range(MAX_TESTS - 1)]
    return {
        "expert: eight right tests": checks(*worked[:MAX_TESTS]),
        "one right test": checks(one),
        "that test fifty times": checks(*[one] * 50),
        "it and the example": checks(one, (shown.input, shown.output)),
        "it and three wrong ones": checks(one, *wrong[:3]),
        "it with lines that nobody reads, and three wrong ones": checks(
            *((one[0] if function else f"{one[0]}\n{n}", one[1]) for n in range(5)), *wrong[:3]
        ),
        "it and seven wrong ones": checks(one, *wrong),
        "it among eight outputs for its input": checks(*((one[0], g) for g in guesses), one),
        "the example alone": checks((shown.input, shown.output)),
        "the example's input, another output": checks((shown.input, "[7]" if function else "x")),
        "a constant test": checks(small),
        "eight inputs, always 0": checks(
            *((input_text, "0") for input_text, _ in worked[:MAX_TESTS])
        ),
        "one wrong test": checks(wrong[0]),
        "no test": "I would rather not.",
    }


@pytest.fixture(scope="module")
def earned(sandbox, tmp_path_factory):
    """Strategy -> what it earns on each of the tasks."""
    rewards: dict[str, list[float]] = {}
    drawn = [composed(number) for number in range(4 * TASKS)]
    file = tmp_path_factory.mktemp("strategies") / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row, *_ in drawn))
    env = coding_v0.env(dataset=file, sandbox=sandbox)
    for number, (row, shown, worked) in enumerate(drawn):
        env.reset(seed=number)
        if not env._state.task.mutants:
            continue  # the example catches all of them: nothing is left to tell apart
        env.step("no program")
        replies = strategies(shown, worked, "function" in row)
        for name, twin in zip(replies, env.branch([*replies.values()]), strict=True):
            rewards.setdefault(name, []).append(twin.rewards["tester_0"])
        if len(rewards[name]) == TASKS:
            break
    for name, values in rewards.items():
        print(f"| {name} | {sum(values) / len(values):.2f} |")  # noqa: T201 - the table of the manual
    return rewards


def test_strategies_earn_what_they_tell(earned):
    mean = {name: sum(values) / len(values) for name, values in earned.items()}
    expert, one = mean["expert: eight right tests"], mean["one right test"]
    assert expert > 0.9
    assert 0.3 < one < expert
    assert earned["that test fifty times"] == earned["one right test"]
    assert earned["it and the example"] == earned["one right test"]
    padded = "it with lines that nobody reads, and three wrong ones"
    assert earned[padded] == earned["it and three wrong ones"]
    assert mean["it and seven wrong ones"] < 0.05 * expert
    assert set(earned["it among eight outputs for its input"]) == {-WRONG_COST}
    assert set(earned["the example alone"]) == {0.0}
    assert set(earned["the example's input, another output"]) == {-WRONG_COST}
    assert set(earned["one wrong test"]) == {-WRONG_COST}
    assert set(earned["no test"]) == {-FORMAT_PENALTY}
    assert mean["a constant test"] < 0.3 * expert
    assert mean["eight inputs, always 0"] < 0.3 * expert


# What a reply costs

LOOPS = {
    "question": "Count down from the number.",
    "tests": [{"input": str(n), "output": "0"} for n in (1, 2, 5)],
    "reference": "n = int(input())\nwhile n:\n    n -= 1\nprint(n)",
    "mutants": [f"n = int(input())\nwhile n != {n}:\n    n -= 1\nprint(n)" for n in range(1, 7)],
    "split": "train",
}


class Counting:
    """A sandbox that notes what it is asked to run."""

    def __init__(self, inner, ran):
        self.inner, self.ran = inner, ran

    def run(self, programs, cases, **options):
        rows = self.inner.run(programs, cases, **options)
        inputs = [case.stdin for case in cases]
        seconds = sum(result.cpu_s for row in rows for result in row)
        self.ran.append((list(programs), inputs, seconds))
        return rows

    def close(self):
        self.inner.close()


@pytest.fixture
def counting(sandbox, tmp_path):
    """An environment, and everything that its sandbox is asked to run: (programs, inputs, CPU seconds)."""

    def make(row):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        env = coding_v0.env(dataset=tmp_path / "rows.jsonl", sandbox=sandbox)
        env.reset(seed=0)
        ran: list[tuple[list[str], list[str], float]] = []

        env.sandbox = Counting(sandbox, ran)
        return env, ran

    return make


def test_where_the_reference_does_not_end_nothing_else_runs(counting):
    env, ran = counting(LOOPS)
    env.step(code("n = int(input())\nwhile n:\n    n -= 1\nprint(0)"))
    ran.clear()
    env.step(checks(*((str(-n), "0") for n in range(1, MAX_TESTS + 1)), ("3", "0")))
    info = env.infos["tester_0"]
    together, *alone = [programs for programs, _, _ in ran]
    assert together == [_DRIVER]
    assert alone == [[LOOPS["reference"]]]
    assert info["valid"] == 0.0
    assert env.rewards["tester_0"] == -WRONG_COST
    # Each run is stopped at its limit, give or take what the watcher needs to see it.
    allowed = REFERENCE_SHARE * LIMITS.cpu_s
    assert sum(cpu for *_, cpu in ran) < SHARED_CPU_S + allowed + 0.1
    assert env.observe("coder_0")["text"].count(NOT_RUN) == MAX_TESTS
    assert not any(env.terminations.values())


def test_a_test_that_hangs_ends_its_own_reply_alone(counting):
    reference = f"import sys\n{LOOPS['reference']}"  # in a process of its own
    env, ran = counting({**LOOPS, "reference": reference, "mutants": ["print(7)"]})
    env.step(code("print(0)"))
    ran.clear()
    hanging = checks(("1", "0"), ("-1", "0"), ("-2", "0"), ("2", "0"))
    branches = env.branch([hanging, checks(("2", "0"), ("-1", "0")), checks(("2", "0"))])
    assert [after.infos["tester_0"]["valid"] for after in branches] == [1 / 4, 1 / 2, 1.0]
    asked = [inputs for programs, inputs, _ in ran if programs == [reference]]
    assert asked == [["1", "-1", "-2", "2"], ["2"]]


@pytest.mark.slow
def test_a_reply_costs_no_more_than_the_manual_says_whatever_it_says(counting):
    # Every mutant and the program loop on every test, where the reference does not.
    env, ran = counting(LOOPS)
    env.step(code("n = int(input())\nwhile n < 1000:\n    n -= 1\nprint(0)"))
    ran.clear()
    env.step(checks(*((str(n), "0") for n in (0, -0, 7, 8, 9, 10, 11, 12))))
    bound = MAX_TESTS * LIMITS.cpu_s * (REFERENCE_SHARE + (coding.MUTANTS + 1) * PROGRAM_SHARE)
    assert bound == 15 * LIMITS.cpu_s
    assert sum(cpu for *_, cpu in ran) <= bound + SHARED_CPU_S
    # A program is not run on after it has used a limit up.
    assert sum(cpu for *_, cpu in ran) < 0.3 * bound


def test_more_known_wrong_programs_than_the_bound_allows_are_not_run(counting):
    many = [f"import sys\nprint({n})" for n in range(1, 40)]  # each in a process of its own
    env, ran = counting({**LOOPS, "mutants": many})
    env.step("no program")
    ran.clear()
    env.step(checks(("4", "0")))
    assert [len(programs) for programs, _, _ in ran] == [1, coding.MUTANTS]
    assert env.infos["tester_0"]["caught"] == 1.0


def test_mutants_that_the_examples_catch_are_not_paid_for(counting):
    row = {
        "question": "Print the absolute value.\nInput\n5\nOutput\n5",
        "tests": [{"input": str(n), "output": str(abs(n))} for n in (5, -3)],
        "reference": "print(abs(int(input())))",
        "mutants": ["print(-int(input()))", "print(0)", "print(int(input()))"],
        "split": "train",
    }
    env, _ = counting(row)
    assert env._state.task.mutants == ("print(int(input()))",)
    env.step("no program")
    replies = [checks(("5", "5")), checks(("6", "6")), checks(("-6", "6"))]
    assert [twin.rewards["tester_0"] for twin in env.branch(replies)] == [0.0, 0.0, 1.0]
