from __future__ import annotations

import json
import math
from typing import Any, cast

import pytest

from pettingllms.data.asserts import Test as Pair
from pettingllms.data.coding import CodingTask
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.envs.coding_judge import verified
from pettingllms.errors import DatasetError
from pettingllms.sandbox import Limits, open_sandbox
from tests.datasets_fixtures import (
    CALLS,
    FOLDER,
    LCB,
    LCB_CALL,
    PUBLIC,
    pack,
    rows,
    without,
    write,
    write_parquet,
)
from tests.kernel import needs_namespaces

PARTS = ("apps", "code_contests", "mbpp", "mbpp_sanitized", "humaneval", "tasks")


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def read(name):
    return load_tasks(FOLDER / f"{name}.jsonl").records


def pairs(task):
    return [(test.input, test.output) for test in task.tests]


def test_apps():
    total, turned, reverse, twice = read("apps")
    assert total == CodingTask(
        id="7",
        question="Print the sum of the numbers of a line.",
        tests=(Pair("1 2\n", "3\n"), Pair("-3 3 4\n", "4\n")),
        reference="print(sum(map(int, input().split())))",  # the first solution is Python 2
        difficulty="introductory",
        limits=(("cpu_s", 4.0),),
    )
    assert pairs(turned) == [("x\ny", "y\nx")]
    assert (reverse.function, pairs(reverse)) == (
        "turned",
        [("[[1, 2, 3]]", "[3, 2, 1]"), ("[[]]", "[]")],
    )
    assert reverse.question.endswith("```python\nclass Solution:\n    def turned(self, a):\n```")
    assert (twice.reference, twice.function) == ("", "twice")
    assert pairs(twice)[1] == (f"[{10**40}]", str(2 * 10**40))


def test_code_contests_from_jsonl_and_parquet(tmp_path):
    twice, greeting = read("code_contests")
    assert pairs(twice) == [("2\n", "4\n"), ("5\n", "10\n"), ("-1\n", "-2\n")]
    assert twice.reference == "print(2 * int(input()))"
    assert twice.mutants == ("print(2)", "print(2 * int(input()))")  # Python 3 only, as published
    assert (twice.id, twice.difficulty) == ("1_A. Twice", "7")
    assert (greeting.reference, pairs(greeting)) == ("", [("", "hello\n")])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", rows("code_contests"))
    assert load_tasks(tmp_path, "test").records == (twice, greeting)


def test_livecodebench(tmp_path):
    file = write(tmp_path / "test.jsonl", LCB, LCB_CALL)
    total, call = load_tasks(file, "test").records
    assert pairs(total) == [("1 2\n", "3\n"), ("5 -5\n", "0\n")]
    assert (total.id, total.reference, total.difficulty) == ("abc900_a", "", "easy")
    assert (call.function, pairs(call)) == ("total", [("[[1, 2], 3]", "6"), ("[[], 4]", "4")])
    assert "def total(self, a: List[int], n: int)" in call.question


def test_mbpp():
    loaded = load_tasks(FOLDER / "mbpp.jsonl")
    trim, half, common = loaded.records
    assert (trim.id, trim.function) == ("11", "trim")
    assert pairs(trim) == [
        ("trim('hello', 'l')", "assert trim('hello', 'l') == 'helo'"),
        ("trim('abc', 'a')", "assert trim('abc', 'a') == 'bc'"),
        ("trim('', 'x')", "assert trim('', 'x') == ''"),
    ]
    assert trim.question.endswith("Signature: `def trim(s, ch)`")
    assert "\r" not in trim.reference
    assert pairs(half)[1] == ("half(1 + 2)", "assert half(1 + 2) == 1.5")
    assert pairs(common) == [("common((1, 2), (2, 3))", "assert common((1, 2), (2, 3)) == {2}")]
    assert not loaded.report.refusals
    (even,) = read("mbpp_sanitized")
    assert (even.setup, pairs(even)[0]) == ("import math", ("even(2)", "assert even(2) is True"))


def test_humaneval():
    third, pair, many = load_tasks(FOLDER / "humaneval.jsonl").records
    assert (third.id, third.function, len(third.tests)) == ("HumanEval/900", "third", 2)
    assert third.reference == third.question + "    return x / 3\n"
    assert pairs(pair) == [("pair(2)", "assert pair(2) == (2, 4)")]
    assert [test.input for test in many.tests] == [""]  # a loop: its calls are recorded


def test_tasks_of_ones_own_keep_their_split_and_difficulty():
    file = FOLDER / "tasks.jsonl"
    written = [json.loads(line) for line in file.read_text().splitlines()]
    for split in ("train", "test"):
        questions = [row["question"] for row in written if row["split"] == split]
        assert [task.question for task in load_tasks(file, split).records] == questions
    assert load_tasks(file, "train").records[0].difficulty == "easy"


@needs_namespaces
@pytest.mark.parametrize("name", PARTS)
def test_references_pass_the_tests_that_were_read(name, sandbox):
    for task in read(name):
        if task.reference:
            checked = verified(task, sandbox, Limits(cpu_s=5, wall_s=50))
            assert isinstance(checked, CodingTask), checked


APPS, CONTEST, MBPP, EVAL, OWN = (
    rows(name)[0] for name in ("apps", "code_contests", "mbpp", "humaneval", "tasks")
)


def io(**values):
    return {**APPS, "input_output": json.dumps(values)}


BAD = {
    "question": [without(APPS, "question"), {**OWN, "question": 3}],
    "input_output": [
        {**APPS, "input_output": "{"},
        {**APPS, "input_output": "[]"},
        {**APPS, "input_output": 3},
        io(inputs=["1"]),
        io(inputs=["1"], outputs=[]),
        {**APPS, "input_output": "[" * 100_000},
    ],
    "input_output[0].input": [io(inputs=[{}], outputs=["1"]), io(fn_name="f", inputs=[1], outputs=[1])],
    "input_output[0].output": [io(inputs=["1"], outputs=[None])],
    "input_output.fn_name": [io(fn_name=3, inputs=[[1]], outputs=[1])],
    "function": [
        io(fn_name="a.b", inputs=[[1]], outputs=[1]),
        {**OWN, "function": "class", "tests": [{"input": "[1]", "output": "2"}]},
    ],
    "solutions": [
        {**APPS, "solutions": "["},
        {**APPS, "solutions": "{}"},
        {**APPS, "solutions": "[3]"},
        {**CONTEST, "solutions": {"language": [3], "solution": []}},
        {**CONTEST, "solutions": {"language": [3], "solution": [None]}},
        {**CONTEST, "solutions": "print(1)"},
    ],
    "starter_code": [{**APPS, "starter_code": ["def"]}],
    "description": [{**CONTEST, "description": None}],
    "public_tests": [
        {**CONTEST, "public_tests": {"input": ["1"]}},
        {**CONTEST, "public_tests": {"input": ["1"], "output": []}},
        {**CONTEST, "public_tests": "1"},
    ],
    "tests[0].input": [
        {**CONTEST, "public_tests": {"input": [None], "output": ["1"]}},
        {**CONTEST, "public_tests": {"input": ["\ud800"], "output": ["1"]}},
        {**LCB_CALL, "public_test_cases": json.dumps([{**CALLS[0], "input": "[1, 2"}])},
    ],
    "tests[0].output": [
        {**LCB_CALL, "public_test_cases": json.dumps([{**CALLS[0], "output": "six"}])},
        # Equal to no return value.
        {**OWN, "function": "f", "tests": [{"input": "[1]", "output": "NaN"}]},
        {**OWN, "function": "f", "tests": [{"input": "[1]", "output": "[1, -Infinity]"}]},
    ],
    # No program could pass, or the field would do nothing.
    "setup": [
        {**OWN, "setup": "import math"},
        {**OWN, "function": "f", "tests": ["assert f(1) == 2"], "setup": "x = ("},
    ],
    "question_content": [{**LCB, "question_content": None}],
    "public_test_cases": [{**LCB, "public_test_cases": "{}"}, {**LCB, "public_test_cases": "["}],
    "private_test_cases": [
        {**LCB, "private_test_cases": "not base64!"},
        {**LCB, "private_test_cases": pack(["a list"])},
        {**LCB, "private_test_cases": pack("{}")},
    ],
    "testtype": [
        {**LCB, "public_test_cases": json.dumps([*PUBLIC, *CALLS])},
        {**LCB, "public_test_cases": json.dumps([{**PUBLIC[0], "testtype": "other"}])},
        {**LCB, "public_test_cases": "[3]"},
        {**LCB, "public_test_cases": json.dumps([{**PUBLIC[0], "testtype": []}])},
    ],
    "metadata": [{**LCB_CALL, "metadata": "["}, {**LCB_CALL, "metadata": None}],
    "metadata.func_name": [{**LCB_CALL, "metadata": "{}"}],
    "code": [{**MBPP, "code": None}, {**MBPP, "code": "def other(): pass"}, {**MBPP, "code": "def"}],
    "test_setup_code": [{**MBPP, "test_setup_code": "root = ("}],
    "text": [{**MBPP, "text": None}],
    "test_list": [{**MBPP, "test_list": "assert"}, {**MBPP, "test_list": [1]}],
    "test_list[0]": [{**MBPP, "test_list": ["assert trim("]}],
    "challenge_test_list": [{**MBPP, "challenge_test_list": "assert"}],
    "test": [{**EVAL, "test": "def test(): pass"}, {**EVAL, "test": "def check("}, {**EVAL, "test": 1}],
    "entry_point": [{**EVAL, "entry_point": None}],
    "reference": [
        {**OWN, "reference": 1},
        {"question": "?", "tests": ["for n in [1]: assert f(n) == n"], "function": "f"},
    ],
    "tests": [{**OWN, "tests": []}],
    "limits": [
        {**OWN, "limits": {name: value}}
        for name, value in (
            ("cpu_s", 999_999), ("cpu_s", 1e-300), ("cpu_s", True), ("cpu_s", "6"), ("wall_s", [6]),
            ("processes", 0.5), ("memory_mib", 1e300), ("memory_mib", math.nan), ("open_files", 64.5),
        )
    ],
}  # fmt: skip


def schema_of(row):
    marks = {
        "input_output": "apps",
        "description": "code_contests",
        "question_content": "livecodebench",
        "test_list": "mbpp",
        "entry_point": "humaneval",
    }
    return next((schema for field, schema in marks.items() if field in row), "tasks")


@pytest.mark.parametrize(("field", "row"), [(f, row) for f, many in BAD.items() for row in many])
def test_a_bad_row_is_named_with_file_row_and_field(tmp_path, field, row):
    good = {
        "apps": APPS, "code_contests": CONTEST, "livecodebench": LCB, "mbpp": MBPP,
        "humaneval": EVAL, "tasks": OWN,
    }[schema_of(row)]  # fmt: skip
    file = write(tmp_path / "mine.jsonl", good, row)
    with pytest.raises(DatasetError) as error:
        load_tasks(file)
    assert str(error.value).startswith(f"{file}:2: field '{field}' "), error.value
    assert len(str(error.value)) < len(str(file)) + 300
    loaded = load_tasks(file, skip_bad=True)
    assert len(loaded.records) == loaded.report.refused == 1


LEFT_OUT = {
    "input_output": [
        {**APPS, "input_output": ""},
        {**APPS, "input_output": None},
        {**APPS, "input_output": json.dumps({"fn_name": "f", "inputs": [["#"]], "outputs": [1]}).replace('"#"', "7" * 5000)},
    ],
    "tests": [
        io(inputs=[], outputs=[]),
        {**CONTEST, "public_tests": None, "private_tests": None, "generated_tests": None},
        {**LCB, "public_test_cases": "[]", "private_test_cases": ""},
        io(inputs=["x" * (16 << 20) + "x"], outputs=["1"]),
        {**OWN, "tests": [{"input": "x" * (16 << 20) + "x", "output": "1"}]},
    ],
    "input_file": [{**CONTEST, "input_file": "in.txt"}],
    "output_file": [{**CONTEST, "output_file": "out.txt"}],
    "question": [{**APPS, "question": " \n"}],
    "test_list": [
        {**MBPP, "test_list": ["assert trim(1) == 1", "assert other(1) == 1"]},
        {**MBPP, "test_list": []},
    ],
    "test": [
        {**EVAL, "test": "def check(candidate):\n    assert other(1) == 1\n"},
        {**EVAL, "test": "def check(candidate):\n    assert True\n"},
    ],
    "canonical_solution": [
        {**without(EVAL, "canonical_solution"), "test": "def check(f):\n    for n in 1, 2:\n        assert f(n)"}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "row"), [(f, row) for f, many in LEFT_OUT.items() for row in many]
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_reason(tmp_path, field, row):
    row = {**row, "challenge_test_list": []} if "test_list" in row else row
    other = {"mbpp": rows("mbpp")[1], "livecodebench": LCB_CALL}.get(schema_of(row))
    file = write(tmp_path / "mine.jsonl", row, other or rows(schema_of(row))[1])
    loaded = load_tasks(file)
    assert len(loaded.records) == 1
    assert [(r.row, r.field, r.fits) for r in loaded.report.refusals] == [(1, field, True)]


def test_whole_limits_are_read_as_integers(tmp_path):
    limits = {"memory_mib": 256.0, "output_kib": 1e5, "cpu_s": 2, "wall_s": 2.5}
    (task,) = load_tasks(write(tmp_path / "a.jsonl", {**OWN, "limits": limits})).records
    assert dict(task.limits) == limits
    assert [type(value) for _, value in task.limits] == [int, int, int, float]
    assert type(Limits(open_files=cast(Any, 64.0)).open_files) is int


def test_wrapped_results_are_taken_out_only_where_all_are_wrapped(tmp_path):
    call = {"fn_name": "f", "inputs": [[1], [2]]}
    file = write(
        tmp_path / "a.jsonl",
        io(**call, outputs=[["a"], ["b"]]),
        {**io(**call, outputs=[[1], [1, 2]]), "question": "Another.", "problem_id": 8},
    )
    wrapped, plain = load_tasks(file).records
    assert [test.output for test in wrapped.tests] == ['"a"', '"b"']
    assert [test.output for test in plain.tests] == ["[1]", "[1, 2]"]
