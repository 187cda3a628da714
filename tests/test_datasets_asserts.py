"""Published tests in Python: all rows, the benchmark's own rule, and nothing to gain by cheating."""

from __future__ import annotations

import ast
import gc
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import asserts
from pettingllms.data.coding_schemas import as_row, load_tasks
from pettingllms.data.rows import RowError
from pettingllms.envs import coding_judge, coding_v0
from pettingllms.envs.coding_judge import passes, prepared, run_inputs, run_tests, verified
from pettingllms.envs.coding_text import shown_to
from pettingllms.errors import DatasetError
from pettingllms.sandbox import Limits, open_sandbox
from tests.datasets_fixtures import rows, write
from tests.kernel import needs_namespaces

pytestmark = needs_namespaces
# Generous by the clock: a busy machine decides nothing.
LIMITS = Limits(cpu_s=4.0, wall_s=50.0, memory_mib=256)


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.fixture
def judge(sandbox, tmp_path):
    """Which of a task's published tests each program passes."""

    def run(programs, cases):
        return sandbox.run(programs, cases, limits=LIMITS)

    def play(row, *programs):
        (task,) = load_tasks(write(tmp_path / "mine.jsonl", row)).records
        ready = prepared(task, run)
        results = run_tests(ready, programs, run)
        return [
            [passes(t, r, task.function) for t, r in zip(ready.tests, line, strict=True)]
            for line in results
        ]

    play.run = run  # type: ignore[attr-defined]
    return play


def mbpp(*texts, code="def f(*a):\n    return a", **more):
    return {"task_id": 1, "text": "Do it.", "code": code, "test_list": list(texts), **more}


def humaneval(body, prompt='def f(x):\n    """Do it."""\n', solution="    return x\n", **more):
    test = "METADATA = {}\n\n\ndef check(candidate):\n" + body
    return {
        "task_id": "HumanEval/1",
        "prompt": prompt,
        "canonical_solution": solution,
        "test": test,
        "entry_point": "f",
    } | more


RULES = {
    "a float for a whole number": ("f(3) == 14400", "14400.0", True),
    "its neighbour": ("f(3) == 14400", "14401", False),
    "a tuple for a list": ("f(3) == [1, 2]", "(1, 2)", False),
    "a list for a tuple": ("f(3) == (1, 2)", "[1, 2]", False),
    "a tuple for a tuple": ("f((1, 2)) == (1, 2)", "(1, 2)", True),
    "a set in any order": ("f(3) == {3, 1, 2}", "{2, 1, 3}", True),
    "a frozenset for a set": ("f(3) == {1}", "frozenset({1})", True),
    "true for one": ("f(3) == 1", "True", True),
    "keys that are numbers": ("f({1: 2}) == {1: (2,)}", "{1: (2,)}", True),
    "a counter for a dict": ("f('aa') == {'a': 2}", "__import__('collections').Counter(x)", True),
    "a match for truth": ("f('aa')", "__import__('re').match('a', x)", True),
    "none for truth": ("f('aa')", "None", False),
    "a range for a list": ("f(2) == [0, 1]", "range(2)", False),
    "the members of a generator": ("set(f(2)) == {0, 1}", "(n for n in range(2))", True),
    "an endless generator": ("f(2) == [0]", "__import__('itertools').count()", False),
    "within the tolerance of the test": ("abs(f(2) - 0.5) < 0.1", "0.55", True),
    "outside of it": ("abs(f(2) - 0.5) < 0.1", "0.65", False),
    "exact floats": ("f(2) == 0.3", "0.1 + 0.2", False),
    "complex": ("f(2) == 1 + 2j", "1 + 2j", True),
    "a fraction": ("f(2) == 0.5", "__import__('fractions').Fraction(1, 2)", True),
    "not a number": ("f(2) == float('nan')", "float('nan')", False),
    "infinity": ("f(2) == float('inf')", "float('inf')", True),
    "a number of many digits": ("f(2) == 10 ** 5000 + 1", "10 ** 5000 + 1", True),
    "a type as argument": ("f(int) == 'int'", "x.__name__", True),
    "a computed value": ("f(3) == sum(n * n for n in range(4))", "14", True),
    "negation": ("not f(3)", "[]", True),
}


@pytest.mark.parametrize("name", RULES)
def test_an_assert_is_judged_as_python_judges_it(name, judge):
    statement, value, expected = RULES[name]
    [[verdict]] = judge(mbpp(f"assert {statement}"), f"def f(x):\n    return {value}")
    assert verdict is expected


CHEATS = {
    "an early end": "import os\nos._exit(0)",
    "an exit in the function": "def f(x):\n    raise SystemExit(0)",
    "an object that equals everything": (
        "class A(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
        "def f(x):\n    return A(3)"
    ),
    "another object that does": "class A:\n    __eq__ = lambda *_: True\ndef f(x):\n    return A()",
    "the expected value in the caller's frames": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "            if NEEDLE in repr(value)[:100000]:\n                return int(NEEDLE)\n"
        "        frame = frame.f_back"
    ),
    "the expected value on the heap": (
        "import gc\ndef f(x):\n    texts = [o for o in gc.get_objects() if isinstance(o, (list, dict, str))]\n"
        "    return int(NEEDLE) if any(NEEDLE in repr(o)[:1000] for o in texts) else 0"
    ),
    "another judge": "def pettingllms_pack(value):\n    return {'tuple': 3}\ndef f(x):\n    return 1",
    "asserts that do nothing": "import builtins\nbuiltins.AssertionError = ValueError\ndef f(x): pass",
    "no function": "g = 3",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_does_not_solve_the_task_passes_nothing(name, judge):
    program = CHEATS[name].replace("NEEDLE", "''.join(map(str, range(9, 3, -1)))")
    [[verdict]] = judge(mbpp("assert f(1) == 987654"), program)
    assert not verdict


def test_results_of_one_program_do_not_depend_on_its_company(judge):
    row = mbpp("assert f(1) == 1", "assert f(2) == (2,)")
    programs = {
        "def f(x):\n    return 1 if x == 1 else (2,)": [True, True],
        "def f(x):\n    return x": [True, False],
        "def f(x):\n    return x / 0": [False, False],
        "def f(x":  [False, False],
        "import os; os._exit(3)": [False, False],
    }  # fmt: skip
    assert judge(row, *programs) == list(programs.values())
    assert judge(row, *reversed(programs)) == [*reversed(programs.values())]


@pytest.mark.slow
def test_values_that_keep_the_judge_busy_cost_their_program_alone(judge):
    row = mbpp("assert sum(1 for _ in range(f(1))) == 3")
    endless, good = "def f(x):\n    return 10 ** 15", "def f(x):\n    return 3"
    assert judge(row, endless, good) == [[False], [True]]


def test_classes_of_the_program_are_used_in_its_own_process(judge, tmp_path):
    code = (
        "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
        "def f(p):\n    return p.a + p.b"
    )
    row = mbpp("assert f(root) == 7", "assert f(Pair(1, 2)) == 3", code=code)
    row["test_setup_code"] = "root = Pair(3, 4)"
    other = code.replace("self.a, self.b", "self.x, self.y").replace("p.a + p.b", "p.x + p.y")
    assert judge(row, code, other, "def f(p):\n    return 3") == [
        [True] * 2,
        [True] * 2,
        [False] * 2,
    ]
    (task,) = load_tasks(write(tmp_path / "a.jsonl", row)).records
    assert "root = Pair(3, 4)\nf(root)" in task.question  # what a program could not guess


LOOP = humaneval(
    "    import random\n    for _ in range(5):\n        n = random.randint(0, 99)\n"
    "        assert candidate(n) == n\n    total = sum([1, 2])\n    assert candidate(total) == 3\n"
    "    assert candidate(1) == 1, 'said ' + str(candidate(1))\n"
)


def test_loops_and_random_inputs_are_recorded_with_the_reference(judge):
    good, bad = "def f(x):\n    return x", "def f(x):\n    return min(x, 3)"
    assert judge(LOOP, good, bad) == [[True] * 3, [False, True, True]]
    assert judge(LOOP, bad) == judge(LOOP, bad)


PLUS = """import math

def assertion(out, exp):
    assert out == exp

inputs = [[[2, 4]], [[1, 3]]]
results = [[1.0, 2.0], [0.5, 1.5]]
for inp, exp in zip(inputs, results):
    assertion(f(*inp), exp)
"""


def test_rows_of_mbpp_plus_are_judged_by_their_own_tests(judge):
    row = mbpp("assert f([2, 4]) == [1, 2]", code="def f(xs):\n    return [x / 2 for x in xs]")
    del row["text"]
    row |= {"prompt": "Halve.", "source_file": "x.ipynb", "test_imports": [], "test": PLUS}
    small, right = "def f(xs):\n    return [x // 2 for x in xs]", row["code"]
    assert judge(row, right, small) == [[True, True], [True, False]]
    with pytest.raises(DatasetError, match=r"numpy'; give --sandbox\.packages numpy"):
        judge(row | {"test": f"import numpy as np\n{PLUS}"}, right)


def test_the_coder_of_mbpp_is_shown_an_assertion_and_the_tester_is_not(tmp_path):
    row = mbpp("assert f('abcabc') == 'a'", "assert f('abc') == 'None'")
    (task,) = load_tasks(write(tmp_path / "a.jsonl", row)).records
    assert "assert f('abcabc') == 'a'" in shown_to("coder", task).question
    assert "'None'" not in shown_to("coder", task).question
    assert shown_to("tester", task) == task
    assert "abcabc" not in task.question
    (again,) = load_tasks(write(tmp_path / "b.jsonl", as_row(task, None))).records
    assert shown_to("coder", again).question == shown_to("coder", task).question


def test_helpers_of_a_prompt_need_not_be_repeated(judge):
    prompt = "import math\n\n\ndef twice(x):\n    return 2 * x\n\n\ndef f(x):\n    '''Do it.'''\n"
    row = humaneval("    assert candidate(2) == twice(2)\n", prompt, "    return twice(x)\n")
    lies = "def twice(x):\n    return 0\ndef f(x):\n    return 0"
    assert judge(row, "def f(x):\n    return twice(x)", lies, "def f(x):\n    return 4") == [
        [True],
        [False],
        [True],
    ]


def test_a_test_that_calls_the_function_by_its_name_is_one_of_the_candidate(judge):
    row = humaneval("    assert tuple(candidate([1])) == tuple(f([1]))\n")
    assert judge(row, "def f(x):\n    return x") == [[True]]


def test_a_reference_that_fails_a_published_test_is_found(sandbox, tmp_path):
    wrong = humaneval("    for n in [1, 2]:\n        assert candidate(n) == n + 1\n")
    (task,) = load_tasks(write(tmp_path / "a.jsonl", wrong)).records
    error = verified(task, sandbox, LIMITS)
    assert isinstance(error, str)
    assert "its tests do not run with the reference: error AssertionError" in error
    (task,) = load_tasks(write(tmp_path / "a.jsonl", mbpp("assert f(1) == 2"))).records
    assert "fails tests[0]: error" in str(verified(task, sandbox, LIMITS))


def test_a_row_of_ones_own_may_have_asserts_and_is_written_and_read_back(tmp_path, sandbox):
    row = {
        "question": "Double it.",
        "tests": ["assert f((1, 2)) == (2, 4)", "assert f(()) == ()"],
        "function": "f",
        "reference": "def f(t):\n    return tuple(2 * n for n in t)",
        "setup": "import math",
    }
    (task,) = load_tasks(write(tmp_path / "a.jsonl", row)).records
    checked = verified(task, sandbox, LIMITS)
    assert checked == task
    (again,) = load_tasks(write(tmp_path / "b.jsonl", as_row(task, None))).records
    assert replace(again, id=task.id) == task
    with pytest.raises(DatasetError, match="field 'function' must name the function"):
        load_tasks(write(tmp_path / "c.jsonl", row | {"function": None}))


def test_tests_of_agents_reach_functions_of_tuples_and_sets_as_json(judge, tmp_path):
    code = "def f(t, s):\n    return t + (len(s | {9}),)"
    row = mbpp("assert f((1, 2), {3}) == (1, 2, 2)", code=code)
    (task,) = load_tasks(write(tmp_path / "a.jsonl", row)).records
    [[first, second]] = run_inputs(task, [code], ["[[5], [1, 2]]", "[7, []]"], judge.run)
    assert (first.status, first.value) == ("ok", "[5, 3]")
    assert second.status == "error"  # a number is no tuple, and does not become one


def test_a_published_task_is_played_by_coder_and_tester(tmp_path):
    file = write(tmp_path / "test.jsonl", *rows("mbpp")[2:])
    env = coding_v0.env(dataset=file, split="test", sandbox="embedded")
    env.reset(seed=0)
    env.step("```python\ndef common(a, b):\n    return set(a) & set(b)\n```")
    assert env.infos["coder_0"]["passed"] == 1.0
    env.step("```input\n[[1, 2, 5], [5, 2]]\n```\n```output\n[2, 5]\n```")
    assert env.infos["tester_0"]["valid"] == 1.0
    env.close()


def test_the_statements_examples_are_known_in_asserts():
    test = asserts.Test("f((1, 2))", "assert f((1, 2)) == [3]", asserts=True)
    assert coding_judge.is_example("For example f((1, 2)) is [3].", test, "f")
    assert not coding_judge.is_example("For example f((1, 2)) is [4].", test, "f")
    assert asserts.as_json(asserts.Test("", "assert abs(f(1)) < 3", asserts=True), "f") is None


@given(st.text(max_size=80), st.sampled_from(["f", "candidate"]))
def test_any_text_is_read_as_tests_or_refused(text, name):
    for read in (
        lambda: asserts.of_list([text], name, "tests"),
        lambda: asserts.of_check(f"def check(candidate):\n    {text}", name, "test"),
    ):
        try:
            tests = read()
        except RowError:
            continue
        assert all(isinstance(test.output, str) for test in tests)


PUBLISHED = {"HumanEval.jsonl": 164, "mbpp.jsonl": 974, "sanitized-mbpp.json": 427}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_published_files_is_a_task(name):
    folder = Path(os.environ.get("PETTINGLLMS_PUBLISHED", "published"))
    if not (folder / name).is_file():
        pytest.skip(f"no {name}; set PETTINGLLMS_PUBLISHED to a folder with the published files")
    loaded = load_tasks(folder / name, "test")
    assert len(loaded.records) == PUBLISHED[name] == loaded.report.read
    assert json.dumps([as_row(task, None) for task in loaded.records])


def test_a_program_is_read_also_while_garbage_is_collected() -> None:
    # Before Python 3.11.8, `ast.parse` fails where a finalizer calls it meanwhile, as formatting a
    # traceback does.
    program = "\n".join(f"x{number} = f([{number}, (a + b) * c])" for number in range(300))
    thresholds = gc.get_threshold()
    gc.set_threshold(700)  # Python's own: collections happen within the call
    try:
        for _ in range(20):
            _Parsing()
            assert asserts.is_python(program)
            _Parsing()
            assert next(coding_judge.mutants(program))
    finally:
        gc.set_threshold(*thresholds)


class _Parsing:
    """Refers to itself, so that only a garbage collection deletes it."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        ast.parse("a + b")
