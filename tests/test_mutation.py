from __future__ import annotations

import ast
import time
from itertools import islice

import pytest

from pettingllms.data import coding
from pettingllms.data.asserts import Test as Pair
from pettingllms.envs import coding_judge
from pettingllms.envs.coding_judge import CANDIDATES, known_wrong, mutants
from pettingllms.errors import DatasetError
from pettingllms.sandbox import Limits, open_sandbox

SUM_OF_EVENS = """
a = list(map(int, input().split()))
total = 0
for x in a:
    if x % 2 == 0 and x > 0:
        total += x
print(total if total else -1)
"""
COUNT_DOWN = """
n = int(input())
while n > 0:
    n = n - 1
print(n)
"""
LARGEST = """
def largest(a, default):
    return max([x for x in a if x != default], default=default) * 1
"""


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.fixture
def outputs(sandbox):
    return lambda programs, cases: sandbox.run(programs, cases, limits=Limits(cpu_s=0.2))


def a_task(reference, *tests, function=None, own=()):
    cases = tuple(Pair(*pair) for pair in tests)
    return coding.CodingTask("7", "?", cases, reference, tuple(own), function)


SUMS = a_task(SUM_OF_EVENS, ("1 2 3 4", "6"), ("-2 5", "-1"), ("0 2", "2"), ("-3 -5 7 9", "-1"))
CALLS = a_task(
    LARGEST, ("[[1, 5, 3], 9]", "5"), ("[[], 9]", "9"), ("[[9, 2], 9]", "2"), function="largest"
)


@pytest.mark.parametrize("program", [SUM_OF_EVENS, COUNT_DOWN, LARGEST])
def test_mutants_compile_and_differ_from_the_program_and_from_each_other(program):
    made = list(mutants(program))
    assert len(made) > 4
    for mutant in made:
        compile(mutant, "mutant", "exec")
    assert len({ast.unparse(ast.parse(text)) for text in (program, *made)}) == len(made) + 1


@pytest.mark.parametrize(
    ("program", "mutant"),
    [
        ("x + y", "x - y"),
        ("x // y", "x * y"),
        ("x < y", "x <= y"),
        ("x == y", "x != y"),
        ("x in y", "x not in y"),
        ("x and y", "x or y"),
        ("x[1]", "x[2]"),
        ("x[1]", "x[0]"),
        ("max(x)", "min(x)"),
        ("[x for x in y if x]", "[x for x in y]"),
        ("x if y else z", "x if not y else z"),
        ("if x:\n    pass", "if not x:\n    pass"),
    ],
)
def test_one_place_is_changed(program, mutant):
    assert mutant in list(mutants(program))


@pytest.mark.parametrize("program", ["print(input())", "x = True", "pass", ""])
def test_a_program_without_such_places_has_no_mutants(program):
    assert list(mutants(program)) == []


@pytest.mark.parametrize("task", [SUMS, CALLS], ids=["stdin", "function"])
def test_every_known_wrong_program_fails_a_hidden_test(task, outputs):
    wrong = known_wrong(task, outputs)
    assert len(wrong) == len(set(wrong)) >= 4
    for row in coding_judge.run_tests(task, wrong, outputs):
        passed = [
            coding_judge.passes(test, r, task.function)
            for test, r in zip(task.tests, row, strict=True)
        ]
        assert not all(passed)


def test_equivalent_mutants_are_left_out(outputs):
    # For the only test, x > 0 or x >= 0 is the same; with a test at 0 it is not.
    program = "x = int(input())\nprint('yes' if x > 0 else 'no')"
    same = "x = int(input())\nprint('yes' if x >= 0 else 'no')"
    assert same in [text.replace('"', "'") for text in mutants(program)]
    assert same not in known_wrong(a_task(program, ("5", "yes")), outputs)
    assert same in known_wrong(a_task(program, ("5", "yes"), ("0", "no")), outputs)


def test_a_mutant_that_runs_for_ever_is_left_out(outputs):
    # It is wrong, but would cost its limit on every test that a tester writes.
    assert any("n = n + 1" in program for program in mutants(COUNT_DOWN))
    wrong = known_wrong(a_task(COUNT_DOWN, ("3", "0")), outputs)
    assert wrong
    assert not any("n = n + 1" in program for program in wrong)


@pytest.mark.parametrize("own", [(), ("print(1)",)], ids=["made", "given"])
@pytest.mark.parametrize(
    ("tests", "text"),
    [
        ([("2", "4"), ("3", "7")], r"task 7: the reference fails tests\[1\]: ok, gave '6\\n'"),
        ([("x", "4")], r"fails tests\[0\]: error, gave .*ValueError.*, expected '4'"),
    ],
)
def test_a_wrong_reference_is_an_error_that_names_the_test(tests, text, own, outputs):
    task = a_task("print(2 * int(input()))", *tests, own=own)
    with pytest.raises(DatasetError, match=text):
        known_wrong(task, outputs)


def test_a_wrong_return_value_is_shown(outputs):
    task = a_task("def f(x):\n    return x + 1", ("[1]", "3"), function="f")
    with pytest.raises(DatasetError, match="gave '2', expected '3'"):
        known_wrong(task, outputs)


@pytest.mark.parametrize("reference", ["def f(:", "print(\0)", "(" * 5000])
def test_a_reference_that_is_no_python_is_an_error(reference, outputs):
    with pytest.raises(DatasetError, match="task 7: field 'reference' is not Python"):
        known_wrong(a_task(reference, ("", "")), outputs)


def test_programs_that_the_task_brings_are_kept(outputs):
    programs = ("print(0)", "print(int(input()) ** 2)")  # the second one is right on this test
    task = a_task("print(2 * int(input()))", ("2", "4"), own=programs)
    assert known_wrong(task, outputs) == programs


def test_a_long_program_is_mutated_in_bounded_time():
    program = "\n".join(f"x{n} = {n} + {n} * (x if x < {n} else -x)" for n in range(300))
    started = time.process_time()
    assert len(list(islice(mutants(program), CANDIDATES))) == CANDIDATES
    assert time.process_time() - started < 20


def test_generated_references_have_mutants_as_well(outputs):
    for seed in range(3):
        task = coding.generate(seed, "train")
        bare = a_task(
            task.reference, *((t.input, t.output) for t in task.tests), function=task.function
        )
        assert known_wrong(bare, outputs)
