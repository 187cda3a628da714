"""Rows of one's own: the documented ones, in every format and as objects, and what is wrong with others."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import decimal
import gzip
import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from pettingllms.assembly import make_env
from pettingllms.data import coding_schemas, math, question_schemas, rows
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.data.math import load_problems
from pettingllms.data.question_schemas import load_questions
from pettingllms.envs import math_v0
from pettingllms.errors import DatasetError
from pettingllms.trainers.config import ATGRPOConfig
from tests.datasets_fixtures import write, write_parquet

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
MINIMAL = dict(
    zip(
        ("coding", "math", "search"),
        map(json.loads, re.findall(r'({"question": .*?})[`\n]', PAGE)),
        strict=True,
    )
)
FULL: dict[str, dict[str, Any]] = {
    "coding": {
        "question": "Double.",
        "tests": ["assert f((1, 2)) == (2, 4)"],
        "reference": "def f(t): return tuple(2 * n for n in t)",
        "function": "f",
        "mutants": ["def f(t): return t"],
        "limits": {"cpu_s": 6},
        "setup": "import math",
        "example": "f(()) is ()",
        "id": "d",
        "difficulty": "easy",
        "split": "test",
    },
    "math": {"question": "x^2 = 4?", "answers": ["2", "-2"], "id": "m", "split": "test"},
    "search": {"question": "who?", "accepted": ["Ann", "Eva"], "gold": ["Ann"], "split": "test"},
}
LOADERS: dict[str, Any] = {"coding": load_tasks, "math": load_problems, "search": load_questions}
FIELDS: dict[str, Any] = {"coding": coding_schemas, "math": math, "search": question_schemas}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "CACHE", tmp_path / "cache")


def sources(folder, row):
    """The row in every format that is read."""
    flat = {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}
    yield write(folder / "a.jsonl", row)
    (folder / "b.json").write_text(json.dumps([row], indent=1))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    yield from (folder / "b.json", folder / "c.jsonl.gz")
    for name, delimiter in (("d.csv", ","), ("e.tsv", "\t")):
        with (folder / name).open("w", newline="") as file:
            # An empty cell is an absent field.
            writer = csv.writer(file, delimiter=delimiter)
            many = ("id", "split", "mutants", "limits") if "tests" in row else ("id", "split")
            absent = [name for name in many if name not in row]
            writer.writerows([[*flat, *absent], [*flat.values(), *["" for _ in absent]]])
        yield folder / name
    yield write_parquet(folder / "f.parquet", [row])
    yield write_parquet(folder / "g.parquet", [flat])
    table = datasets.Dataset.from_list([row])
    table.save_to_disk(folder / "saved")
    (folder / "saved" / "cache-1.arrow").write_bytes(b"what datasets keeps of a map")
    datasets.DatasetDict({"test": table}).save_to_disk(folder / "splits")
    yield from (folder / "saved", folder / "splits", [row], (row,), table)
    yield from (datasets.DatasetDict({"test": table}), {"test": [row]})


@pytest.mark.parametrize("rows", [MINIMAL, FULL], ids=["minimal", "full"])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_row_reads_alike_in_every_format_and_as_an_object(tmp_path, kind, rows):
    records = []
    for source in sources(tmp_path, rows[kind]):
        (record,) = LOADERS[kind](source, "test").records
        records.append(dataclasses.replace(record, id="") if "id" not in rows[kind] else record)
    assert len(records) == 14
    assert set(records) == {records[0]}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_documented_fields_are_those_that_are_read(kind):
    read: set[str] = set()

    class Spied(dict):
        def get(self, key, default=None):
            read.add(key)
            return super().get(key, default)

        def __contains__(self, key):
            read.add(key)
            return super().__contains__(key)

    schemas: dict[str, Any] = {"coding": coding_schemas.TASKS, "math": math.PROBLEMS}
    schemas["search"] = question_schemas.QUESTIONS
    schema = schemas[kind].schemas[schemas[kind].own]
    schema.read(Spied(FULL[kind]), "1")
    schema.read(Spied(MINIMAL[kind]), "1")
    assert schema.about is FIELDS[kind].FIELDS
    assert read - {"answers"} | {"split"} == schema.about.keys() - {"answers"}
    assert f"\n{{{{ fields {kind} }}}}\n" in PAGE  # docs/hooks.py shows `FIELDS` there


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("functions", "function"),
        ("limit", "limits"),
        ("mutant", "mutants"),
        ("splits", "split"),
        ("references", "reference"),
        ("LIMITS", "limits"),
    ],
)
def test_a_misspelt_field_says_what_was_meant(tmp_path, name, meant):
    file = write(tmp_path / "a.jsonl", MINIMAL["coding"] | {name: "x"})
    with pytest.raises(DatasetError, match=f":1: field '{name}' is unknown; .* '{meant}'"):
        load_tasks(file)
    assert load_tasks(write(file, MINIMAL["coding"], {"question": 1}), skip_bad=True).records


@pytest.mark.parametrize("kind", LOADERS)
def test_an_unknown_field_is_named_in_a_warning(tmp_path, kind, caplog):
    row = MINIMAL[kind] | {"checker": "def check(): pass", "question_id": 7}
    report = LOADERS[kind](write(tmp_path / "a.jsonl", row), "test").report
    assert "unknown fields are ignored: checker, question_id" in caplog.text
    assert "checker" in str(report)


def test_answers_are_needed_together_and_of_those_that_are_accepted_one_is_right(tmp_path):
    row = {"question": "?", "answers": ["2", "-2"]}
    file = write(tmp_path / "a.jsonl", row)
    assert load_problems(file).records[0].answers == ("2", "-2")
    with pytest.raises(DatasetError, match=r"'answers' are needed together; name .* 'accepted'"):
        load_questions(file)
    listed = write(tmp_path / "b.jsonl", {"question": "?", "answer": ["2", "-2"]})
    assert load_questions(listed).records[0].answers == ("2", "-2")
    with pytest.raises(DatasetError, match=r"'answer' is a list; name .* needed 'answers'"):
        load_problems(listed)


def test_a_split_that_is_there_is_named_where_test_is_not(tmp_path):
    write(tmp_path / "validation.jsonl", MINIMAL["math"])
    with pytest.raises(DatasetError, match=r"only for val; give --split val \(split='val'\)"):
        load_problems(tmp_path, "test")
    row = MINIMAL["math"] | {"split": "val"}
    with pytest.raises(DatasetError, match=r"it has 1 of val; give --split val"):
        load_problems(write(tmp_path / "b.jsonl", row), "test")
    with pytest.raises(DatasetError, match=r"only for val$"):
        load_problems(tmp_path / "validation.jsonl", "train")


def test_values_of_tables_read_as_they_would_from_a_file():
    values = {
        "answer": np.array(["Paris", "Lutetia"]),
        "id": np.int64(7),
        "split": np.str_("test"),
        "day": np.datetime64("2030-01-02"),
        "date": datetime.date(2030, 1, 2),
        "price": decimal.Decimal("1.50"),
    }
    (question,) = load_questions([{"question": "Capital of France?"} | values], "test").records
    assert (question.answers, question.id) == (("Paris", "Lutetia"), "7")
    written = json.loads(Path(rows.as_path([values])).read_text())
    assert [written[name] for name in ("day", "date", "price")] == ["2030-01-02"] * 2 + ["1.50"]


LOOP: dict[str, Any] = {"question": "?"}
LOOP["tests"] = LOOP
DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"tests": DEEP}


def test_settings_name_a_file_of_rows_that_are_given_as_objects():
    settings: Any = ATGRPOConfig
    rows = [MINIMAL["math"], {"question": "What is 2 + 2?", "answer": "4"}]
    config = settings(env="math", dataset=rows)
    assert config.dataset == settings(env="math", dataset=datasets.Dataset.from_list(rows)).dataset
    assert config.dataset != settings(env="math", dataset=rows[:1]).dataset
    tables = (
        datasets.Dataset.from_list(rows),
        datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)}),
    )
    configs = [settings(env="math", env_args={"dataset": source}) for source in (rows, *tables)]
    assert configs[1].env_args == {"dataset": config.dataset}
    for variant in (config, *configs):
        env: Any = make_env(variant, "test")
        assert env.unwrapped.num_tasks == 2
        env.close()
    env = math_v0.env(dataset=rows)
    env.reset(seed=0)
    assert env.unwrapped.num_tasks == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"test": [7]}, "row 1 of a dataset must be a dict, got 7"),
        (["a row"], "row 1 of a dataset must be a dict, got 'a row'"),
        ([{"question": "?", "tests": "[{"}], "field 'tests' is not JSON"),
        (
            [{}, {"question": b"?"}],
            "row 2 of a dataset cannot be written: it holds a bytes, b'\\?'",
        ),
        ([{"question": "?", "tests": {"2"}}], "row 1 .* it holds a set"),
        ([{"question": "?", "tests": np.array([b"2"])}], "row 1 .* it holds a bytes"),
        ([{("question",): "?"}], "row 1 .* cannot be written: keys must be"),
        ([LOOP], "row 1 .* cannot be written: Circular reference"),
        ([DEEP], "row 1 .* cannot be written: maximum recursion"),
        ({"../../evil": [MINIMAL["coding"]]}, "'../../evil' cannot name a split"),
        ({"a/b": [MINIMAL["coding"]]}, "'a/b' cannot name a split"),
        ({"a\0b": [MINIMAL["coding"]]}, "cannot write the rows"),
    ],
)
def test_an_object_that_holds_no_rows_says_what_is_needed(given, why):
    with pytest.raises(DatasetError, match=why):
        load_tasks(given)
