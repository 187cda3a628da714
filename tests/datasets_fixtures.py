"""Fixtures of the data-set tests: one small file for each schema, written for this project."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from pettingllms.data.sudoku import DIGITS

FOLDER = Path(__file__).parent / "fixtures" / "datasets"


def rows(name):
    """The rows of a fixture."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def write(path, *records):
    """A JSONL file of these rows, or of lines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_parquet(path, records):
    """A parquet file of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def without(row, field):
    """The row less one field."""
    return {name: value for name, value in row.items() if name != field}


def pack(value, protocol=pickle.DEFAULT_PROTOCOL):
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


PUBLIC = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "5 -5\n", "output": "0\n", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
LCB = {
    "question_title": "Sum",
    "question_content": "Print the sum of both numbers.",
    "platform": "atcoder",
    "question_id": "abc900_a",
    "contest_id": "abc900",
    "contest_date": "2030-01-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps(PUBLIC),
    "private_test_cases": pack(json.dumps(PRIVATE)),
    "metadata": "{}",
}
LCB_CALL = {
    **LCB,
    "question_id": "9001",
    "starter_code": "class Solution:\n    def total(self, a: List[int], n: int) -> int:\n        ",
    "public_test_cases": json.dumps(CALLS),
    "private_test_cases": json.dumps([{**CALLS[0], "input": "[]\n4", "output": "4"}]),
    "metadata": json.dumps({"func_name": "total"}),
}


def sudoku_text(grid):
    """A grid in one line, `.` for an empty cell."""
    return "".join(DIGITS[value] if value else "." for value in grid)
