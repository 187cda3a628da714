from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from pettingllms.data import coding, splits
from pettingllms.data.asserts import Test as Pair
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.envs import coding_judge
from pettingllms.errors import DatasetError
from pettingllms.sandbox import Case, Limits, open_sandbox

SPLITS = pytest.mark.parametrize("split", splits.SPLITS)


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def verdicts(sandbox, task, programs):
    """For each program, which hidden tests it passes, in the sandbox."""
    cases = [
        Case(stdin=test.input)
        if task.function is None
        else Case(function=task.function, args=test.input)
        for test in task.tests
    ]
    results = sandbox.run(programs, cases, limits=Limits(cpu_s=5))
    return [
        [
            coding_judge.passes(test, r, task.function)
            for test, r in zip(task.tests, row, strict=True)
        ]
        for row in results
    ]


# Generated tasks


@pytest.mark.slow
@SPLITS
def test_references_pass_their_hidden_tests_and_every_mutant_fails_one(split, sandbox):
    forms = set()
    for seed in range(60):
        task = coding.generate(seed, split)
        forms.add(task.function)
        reference, *mutants = verdicts(sandbox, task, [task.reference, *task.mutants])
        assert all(reference), task
        assert len(task.tests) == coding.HIDDEN_TESTS
        assert 1 <= len(mutants) <= coding.MUTANTS
        assert not any(map(all, mutants)), task
        assert len({task.reference, *task.mutants}) == len(mutants) + 1
    assert forms == {None, "solve"}


@SPLITS
def test_a_seed_gives_one_task_for_ever_and_of_its_own_split(split):
    programs = {
        composition.program(function=function)
        for composition in coding.COMPOSITIONS[split]
        for function in (True, False)
    }
    for seed in (*range(50), 1 << 40):
        task = coding.generate(seed, split)
        assert task == coding.generate(seed, split)
        assert task.reference in programs


def test_seeds_and_splits_give_different_tasks():
    tasks = [coding.generate(seed, split) for split in splits.SPLITS for seed in range(100)]
    assert len({task.id for task in tasks}) == 300
    assert len({(task.question, task.tests) for task in tasks}) == 300


def test_a_function_and_a_program_of_one_composition_ask_for_the_same():
    composition = coding.COMPOSITIONS["train"][0]
    pair = [
        coding.from_composition(composition, random.Random(1), function=function, id="x")
        for function in (True, False)
    ]
    assert [json.loads(t.input)[0] for t in pair[0].tests] == [
        list(map(int, t.input.split())) for t in pair[1].tests
    ]


# Files

ROW: dict[str, Any] = {
    "question": "Print twice the number.",
    "tests": [{"input": "2", "output": "4"}, {"input": "-1", "output": "-2"}],
    "reference": "print(2 * int(input()))",
    "split": "train",
}
CALL: dict[str, Any] = {
    **ROW,
    "function": "twice",
    "tests": [{"input": "[2]", "output": "4"}],
    "reference": "def twice(n):\n    return 2 * n",
}


def write(path, *rows, encoding="utf-8"):
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.jsonl"


def test_rows_become_tasks(file):
    rows = ({**ROW, "mutants": ["print(1)"], "id": "a"}, "", {**CALL, "split": "test"})
    write(file, *rows)
    (first,), (second,) = (load_tasks(file, split).records for split in ("train", "test"))
    with pytest.raises(
        DatasetError, match=r"no task of the split 'val'.* 1 of train and 1 of test"
    ):
        load_tasks(file, "val")
    assert first == coding.CodingTask(
        id="a",
        question=ROW["question"],
        tests=(Pair("2", "4"), Pair("-1", "-2")),
        reference=ROW["reference"],
        mutants=("print(1)",),
    )
    assert (second.id, second.function, second.mutants) == ("3", "twice", ())


def test_rows_without_a_split_are_divided_by_question_and_always_alike(file):
    rows = [{**ROW, "question": f"Question {n}."} for n in range(400)]
    for row in rows:
        del row["split"]
    write(file, *rows)
    source = f"{file}?divide"
    parts = {split: load_tasks(source, split).records for split in splits.SPLITS}
    shares = {split: len(tasks) / 400 for split, tasks in parts.items()}
    assert shares == pytest.approx({"train": 0.8, "val": 0.1, "test": 0.1}, abs=0.06)
    # The same problem in other letter case or spacing, anywhere in the file, stays in its split.
    again = [{**row, "question": f"  {row['question'].upper()} "} for row in reversed(rows)]
    write(file, *again)
    other = {split: load_tasks(source, split).records for split in splits.SPLITS}
    for split, tasks in parts.items():
        names = {task.question.lower() for task in tasks}
        assert names == {task.question.strip().lower() for task in other[split]}


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x1d", "\u2029"])
def test_a_line_ends_at_a_newline_only(file, separator):
    row = {**ROW, "question": f"One{separator}two."}
    line = json.dumps(row, ensure_ascii=False) if separator != "\x1d" else json.dumps(row)
    (task,) = load_tasks(write(file, line), "train").records
    assert task.question == f"One{separator}two."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_of_other_systems_can_be_read(file, encoding, newline):
    file.write_bytes(f"{json.dumps(ROW)}{newline}{json.dumps(ROW)}{newline}".encode(encoding))
    assert load_tasks(file, "train").report.repeated == 1


def without(field):
    return {name: value for name, value in ROW.items() if name != field}


BAD = {
    "question": [without("question"), {**ROW, "question": 3}, {**ROW, "question": None}],
    "tests": [
        without("tests"),
        {**ROW, "tests": []},
        {**ROW, "tests": "2 4"},
        {**ROW, "tests": {"input": "2", "output": "4"}},
    ],
    "tests[1]": [{**ROW, "tests": [ROW["tests"][0], ["2", "4"]]}],
    "tests[0].input": [
        {**ROW, "tests": [{"output": "4"}]},
        {**ROW, "tests": [{"input": 2, "output": "4"}]},
        {**CALL, "tests": [{"input": "2 3", "output": "4"}]},
        {**CALL, "tests": [{"input": '{"n": 2}', "output": "4"}]},
        {**CALL, "tests": [{"input": "[" * 100_000, "output": "4"}]},
    ],
    "tests[0].output": [
        {**ROW, "tests": [{"input": "2"}]},
        {**ROW, "tests": [{"input": "2", "output": 4}]},
        {**CALL, "tests": [{"input": "[2]", "output": "four"}]},
    ],
    "reference": [{**ROW, "reference": ["print(1)"]}],
    "function": [{**CALL, "function": name} for name in (3, "Solution.twice", "f()")],
    "mutants": [{**ROW, "mutants": "print(1)"}, {**ROW, "mutants": [1]}],
    "split": [{**ROW, "split": "training"}, {**ROW, "split": ["train"]}],
}


@pytest.mark.parametrize(
    ("field", "row"), [(field, row) for field, rows in BAD.items() for row in rows]
)
def test_a_bad_row_is_named_with_file_line_and_field(file, field, row):
    write(file, ROW, "", row)
    with pytest.raises(DatasetError) as error:
        load_tasks(file)
    assert str(error.value).startswith(f"{file}:3: field '{field}' ")


@pytest.mark.parametrize("field", ["question", "reference"])
def test_half_a_surrogate_pair_is_a_bad_row(file, field):
    row = {**without("split"), field: "a \ud800 b"}
    file.write_text(json.dumps(row))
    with pytest.raises(DatasetError, match=f":1: field '{field}' has half of a surrogate pair"):
        load_tasks(file)


@pytest.mark.parametrize("line", ["{", "[]", "3", "null", '"text"', "[" * 100_000])
def test_a_line_that_is_no_object_is_named(file, line):
    write(file, ROW, line)
    with pytest.raises(DatasetError, match=r"mine\.jsonl:2: .*JSON object"):
        load_tasks(file)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_refused(file, content):
    file.write_text(content)
    with pytest.raises(DatasetError, match=r"has no rows|it is empty"):
        load_tasks(file)


def test_a_file_that_cannot_be_read_is_refused(file, tmp_path):
    with pytest.raises(DatasetError, match=r"cannot read .*mine\.jsonl: there is no such file"):
        load_tasks(file)
    with pytest.raises(DatasetError, match="has no files of rows"):
        load_tasks(tmp_path)
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(DatasetError, match="cannot read"):
        load_tasks(file)


# Verdicts


def test_only_a_run_that_ended_well_can_pass(sandbox):
    [[good], [late], [none]] = sandbox.run(
        ["print(4)", "print(4)\nraise SystemExit(1)", "def f():\n    return 4"],
        [Case(stdin="")],
    )
    expected = Pair("", "4")
    assert coding_judge.passes(expected, good, None)
    assert not coding_judge.passes(expected, late, None)
    assert not coding_judge.passes(expected, none, None)
    assert not coding_judge.passes(expected, good, "f")  # printed, not returned
    for status in ("cpu_limit", "wall_limit", "memory_limit", "killed", "forbidden"):
        assert not coding_judge.passes(expected, replace(good, status=status), None)
