from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data.math import MathProblem, load_problems, normal_answer
from pettingllms.errors import DatasetError, UnknownNameError
from tests.datasets_fixtures import FOLDER, rows, without, write

KNOWN = {
    "problems": [
        MathProblem("What is 20 + 13?", ("033",), "one", "easy"),
        MathProblem("Which x solve x^2 = 4?", ("2", "-2"), "2"),
        MathProblem("What is half of 1?", ("0.5",), "3"),
    ],
    "gsm8k": [
        MathProblem("Ann has 3 bags of 4 apples. How many apples are there?", ("12",), "1"),
        MathProblem("A house costs $1,000 and a roof $234. What do both cost?", ("1,234",), "2"),
    ],
    "aime24": [
        MathProblem("What is $30 + 3$?", ("33",), "2024-X-1"),
        MathProblem("What is $7$?", ("007",), "2024-X-2"),
    ],
    "aime25": [
        MathProblem("What is $100 - 30$?", ("70",), "0"),
        MathProblem("What is $5 \\cdot 5$?", ("25",), "1"),
    ],
    "math500": [
        MathProblem(
            "Write $0.5$ as a fraction.", ("\\frac{1}{2}",), "test/algebra/1.json", "Level 2"
        ),
        MathProblem("What is $2^3$?", ("8",), "test/algebra/2.json", "Level 1"),
    ],
    "polaris": [
        MathProblem("What is $2+2$?", ("4",), "1", "8/8"),
        MathProblem("What is $9 \\cdot 9$?", ("81",), "2", "5/8"),
    ],
    "olympiadbench": [
        MathProblem("What is $1/4$ as a decimal?", ("0.25",), "1606"),
        MathProblem("Find all $x$ with $x^2=9$.", ("3", "-3"), "1607"),
    ],
    "dapo_math": [
        MathProblem("What is $17+17$?", ("34",), "one"),
        MathProblem("What is $6 \\cdot 7$?", ("42",), "two"),
    ],
}


@pytest.mark.parametrize("name", KNOWN)
def test_every_schema_is_recognised_and_read(name):
    loaded = load_problems(FOLDER / f"{name}.jsonl")
    assert list(loaded.records) == KNOWN[name]
    assert loaded.report.kept == len(KNOWN[name])
    assert loaded.report.read == len(rows(name))


def test_what_cannot_be_graded_is_left_out_and_reported():
    report = load_problems(FOLDER / "olympiadbench.jsonl").report
    assert [(r.row, r.field, r.fits) for r in report.refusals] == [
        (3, "error", True),
        (4, "final_answer", True),
    ]
    assert "4 rows: 2 kept, 0 repeated, 2 left out, 0 refused" in str(report)
    assert "allows a tolerance" in str(report)


def test_repeated_rows_are_kept_once_and_counted(caplog):
    report = load_problems(FOLDER / "dapo_math.jsonl").report
    assert (report.read, report.kept, report.repeated) == (3, 2, 1)
    assert "1 repeated" in caplog.text


def test_one_question_with_two_answers_is_two_problems(tmp_path):
    first, second = {"question": "1 + 1?", "answer": "2"}, {"question": "1 +  1?", "answer": "3"}
    file = write(tmp_path / "mine.jsonl", first, second, {**first, "answer": "002"})
    loaded = load_problems(file)
    assert [p.answers for p in loaded.records] == [("2",), ("3",)]
    assert loaded.report.repeated == 1


BAD: dict[str, list[Any]] = {
    "question": [
        ("problems", {"question": 3, "answer": "1"}),
        ("gsm8k", {"answer": "#### 1"}),
        ("problems", {"question": "a \ud800 b", "answer": "1"}),
        ("olympiadbench", {"question": None, "final_answer": ["1"]}),
    ],
    "Problem": [("aime24", {"Answer": 1})],
    "problem": [("problem_answer", {"answer": "1", "question": "other name"})],
    "answer": [
        ("problems", {"question": "?", "answer": None}),
        ("problems", {"question": "?", "answer": True}),
        ("problems", {"question": "?", "answer": ["1"]}),
        ("gsm8k", {"question": "?", "answer": "just 3"}),
        ("gsm8k", {"question": "?", "answer": 3}),
        ("problem_answer", {"problem": "?"}),
    ],
    "Answer": [("aime24", {"Problem": "?"})],
    "answers": [("problems", {"question": "?", "answers": []})],
    "answers[1]": [("problems", {"question": "?", "answers": ["1", {}]})],
    "final_answer": [("olympiadbench", {"question": "?", "final_answer": "1"})],
    "prompt": [
        ("dapo_math", {"prompt": "?", "reward_model": {"ground_truth": "1"}}),
        ("dapo_math", {"prompt": [], "reward_model": {"ground_truth": "1"}}),
    ],
    "prompt[0].content": [("dapo_math", {"prompt": [{}], "reward_model": {"ground_truth": "1"}})],
    "reward_model": [("dapo_math", {"prompt": [{"content": "?"}], "reward_model": "1"})],
    "reward_model.ground_truth": [
        ("dapo_math", {"prompt": [{"content": "?"}], "reward_model": {}})
    ],
    "split": [("problems", {"question": "?", "answer": "1", "split": "training"})],
}


@pytest.mark.parametrize(
    ("field", "schema", "row"), [(f, *case) for f, cases in BAD.items() for case in cases]
)
def test_a_bad_row_is_named_with_file_row_and_field(tmp_path, field, schema, row):
    good = {"problem_answer": "aime25"}.get(schema, schema)
    file = write(tmp_path / "mine.jsonl", rows(good)[0], row)
    with pytest.raises(DatasetError) as error:
        load_problems(file, schema=schema)
    assert str(error.value).startswith(f"{file}:2: field '{field}' ")
    report = load_problems(file, schema=schema, skip_bad=True).report
    assert (report.kept, report.refused) == (1, 1)
    assert [r.field for r in report.refusals] == [field]


def test_an_answer_may_be_longer_than_any_float(tmp_path):
    file = write(tmp_path / "a.jsonl", {"question": "?", "answer": 10**400})
    assert load_problems(file).records[0].answers == (str(10**400),)


@pytest.mark.parametrize("answer", ["", "  ", "#### "])
def test_an_empty_answer_is_left_out(tmp_path, answer):
    file = write(
        tmp_path / "a.jsonl", {"question": "?", "answer": "1"}, {"question": "!", "answer": answer}
    )
    schema = "gsm8k" if answer.startswith("#") else "problems"
    if schema == "gsm8k":
        write(file, {"question": "?", "answer": "#### 1"}, {"question": "!", "answer": answer})
    report = load_problems(file, schema=schema).report
    assert [(r.row, r.field, r.why) for r in report.refusals] == [(2, "answer", "is blank")]


def test_a_file_in_no_known_schema_says_what_it_has_and_what_is_known(tmp_path):
    file = write(tmp_path / "mine.jsonl", {"ask": "?", "reply": "1"})
    with pytest.raises(
        DatasetError, match=r"no known math schema: its fields are ask, reply.*gsm8k"
    ):
        load_problems(file)


def test_a_misspelt_schema_or_name_says_what_was_meant(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        load_problems(FOLDER / "gsm8k.jsonl", schema="gsm8")
    with pytest.raises(UnknownNameError, match=r"did you mean .*'aime24'"):
        load_problems("aime2024")


def test_a_data_set_of_another_kind_is_refused():
    with pytest.raises(DatasetError, match="mbpp is a data set for coding, not for math"):
        load_problems("mbpp")


def test_a_missing_field_of_gsm8k_in_the_first_row_is_no_other_schema(tmp_path):
    file = write(tmp_path / "mine.jsonl", without(rows("gsm8k")[0], "answer"))
    with pytest.raises(DatasetError, match="no known math schema"):
        load_problems(file)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("033", "33"),
        ("33.0", "33"),
        ("+7", "7"),
        ("1,234", "1234"),
        ("$5$", "5"),
        ("\\boxed{12}", "12"),
        ("0.50", "0.5"),
        ("X = 2", "x=2"),
        ("-0012.30", "-12.3"),
    ],
)
def test_answers_that_differ_in_writing_only_are_one(one, other):
    assert normal_answer(one) == normal_answer(other)


@pytest.mark.parametrize(
    ("one", "other"), [("33", "330"), ("-3", "3"), ("0.5", "5"), ("1,2", "12"), ("1/2", "12")]
)
def test_answers_that_differ_stay_two(one, other):
    assert normal_answer(one) != normal_answer(other)


@given(st.text(max_size=60))
def test_any_answer_has_a_normal_form_that_is_its_own(answer):
    once = normal_answer(answer)
    assert normal_answer("  " + answer) == once
    assert isinstance(once, str)


@given(st.integers(), st.integers(0, 5))
def test_leading_zeros_never_make_another_answer(value, zeros):
    sign = "-" if value < 0 else ""
    assert normal_answer(f"{sign}{'0' * zeros}{abs(value)}") == normal_answer(str(value))
