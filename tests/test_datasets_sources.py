from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data.board_files import LEVEL_FILES
from pettingllms.data.dataset import Kind, load, normal_text
from pettingllms.data.hub import local, split_of_name
from pettingllms.data.math import PROBLEMS, load_problems
from pettingllms.data.splits import checksum_split
from pettingllms.errors import DatasetError
from tests.datasets_fixtures import write, write_parquet

SUM = {"question": "What is 1 + 1?", "answer": "2"}
OTHER = {"question": "What is 2 + 2?", "answer": "4"}


def questions(count, start=0):
    return [
        {"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(start, start + count)
    ]


def asked(loaded):
    return {problem.question for problem in loaded.records}


# Formats


def test_one_set_of_rows_reads_alike_in_every_format(tmp_path):
    expected = load_problems(write(tmp_path / "a.jsonl", SUM, OTHER)).records
    (tmp_path / "b.json").write_text(json.dumps([SUM, OTHER]))
    (tmp_path / "c.json").write_text(json.dumps(SUM) + "\n" + json.dumps(OTHER))
    (tmp_path / "d.csv").write_text('question,answer\nWhat is 1 + 1?,2\n"What is 2 + 2?",4\n')
    write_parquet(tmp_path / "e.parquet", [SUM, OTHER])
    datasets.Dataset.from_list([SUM, OTHER]).to_parquet(tmp_path / "f.parquet")
    for name in ("b.json", "c.json", "d.csv", "e.parquet", "f.parquet"):
        records = load_problems(tmp_path / name).records
        assert [(p.question, p.answers) for p in records] == [
            (p.question, p.answers) for p in expected
        ]


def test_a_table_of_many_batches_keeps_its_row_numbers(tmp_path):
    table = questions(100)
    table[70]["answer"] = None
    write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(DatasetError, match=r"a\.parquet:71: field 'answer' is absent"):
        load_problems(tmp_path / "a.parquet")
    report = load_problems(tmp_path / "a.parquet", skip_bad=True).report
    assert (report.kept, report.refused, report.read) == (99, 1, 100)


BROKEN = {
    "a.jsonl": b'{"question": "?", "answer": "1"}\n{\n',
    "b.jsonl": b'{"question": "?", "answer": "1"}\n\n[]\n',
    "c.jsonl": b'{"question": "?", "answer": "1"}\n' + b"[" * 100_000,
    "d.json": b'[{"question": "?", "answer": "1"}, 3]',
    "e.csv": b"question,answer\n?,1\n!,2,3\n",
    "f.csv": b"question,answer\n?,1\n!\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_row_that_is_none_is_named_and_can_be_skipped(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(BROKEN[name])
    with pytest.raises(
        DatasetError, match=rf"{name}:[23]: (is not a JSON object|has [13] fields and the header 2)"
    ):
        load_problems(file)
    report = load_problems(file, skip_bad=True).report
    assert (report.kept, report.refused) == (1, 1)


DAMAGED = {
    "a.jsonl": b"\xff\xfe{}",
    "b.json": b"[" * 100_000,
    "c.json": b'[{"question": 1}',
    "d.parquet": b"PAR1 and no more",
    "e.csv": b'question,answer\n"open,1\n',
    "f.jsonl": b"",
    "g.csv": b"question,answer\n",
    "h.json": b"[]",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_empty_file_is_refused_whole(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(DAMAGED[name])
    with pytest.raises(DatasetError, match=rf"cannot read .*{name}|{name} has no rows"):
        load_problems(file, skip_bad=True)


@given(
    st.binary(max_size=300),
    st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".csv.gz"]),
)
def test_any_bytes_give_records_or_an_error_of_ours(tmp_path_factory, data, ending):
    file = tmp_path_factory.getbasetemp() / f"any{ending}"
    file.write_bytes(data)
    kind: Kind[Any] = LEVEL_FILES if ending == ".txt" else PROBLEMS
    with pytest.raises(DatasetError):
        load(kind, local(file, kind.endings))


def test_a_missing_file_an_unknown_ending_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="there is no such file"):
        load_problems(tmp_path / "no.jsonl")
    with pytest.raises(DatasetError, match=r"no\.jsonl: there is no such file"):
        load_problems(str(tmp_path / "no.jsonl"))
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(DatasetError, match=r"has an unsupported ending; supported: \.jsonl"):
        load_problems(tmp_path / "a.xml")
    with pytest.raises(DatasetError, match="has no files of rows"):
        load_problems(tmp_path)


# Splits


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("data/test-00000-of-00001.parquet", "test"),
        ("test2.jsonl", "test"),
        ("validation.csv", "val"),
        ("default/partial-train/0000.parquet", "train"),
        ("dev.json", "val"),
        ("latest.jsonl", None),
        ("trainer.jsonl", None),
        ("contest.jsonl", None),
        ("mine.jsonl", None),
    ],
)
def test_the_split_in_the_name_of_a_file(name, split):
    assert split_of_name(Path(name)) == split


def test_files_of_a_folder_are_their_splits_and_train_lends_val(tmp_path):
    write(tmp_path / "train.jsonl", *questions(200))
    write(tmp_path / "sub" / "test.jsonl", *questions(5, start=500))
    train, val, test = (load_problems(tmp_path, split) for split in ("train", "val", "test"))
    assert asked(test) == {f"What is {n} + 1?" for n in range(500, 505)}
    assert asked(train) | asked(val) == {f"What is {n} + 1?" for n in range(200)}
    assert not asked(train) & asked(val)
    assert 5 <= len(val.records) <= 40
    assert load_problems(tmp_path).report.kept == 205


def test_a_split_reads_no_file_that_it_does_not_need(tmp_path):
    write(tmp_path / "train.jsonl", *questions(30), {"question": 1, "answer": 1})
    write(tmp_path / "test.jsonl", *questions(3, 100))
    loaded = load_problems(tmp_path, "test")
    assert asked(loaded) == {"What is 100 + 1?", "What is 101 + 1?", "What is 102 + 1?"}
    assert loaded.report.read == 3
    for split in ("train", "val", None):
        with pytest.raises(DatasetError, match=r"train\.jsonl:31: field 'question'"):
            load_problems(tmp_path, split)


def test_rows_name_a_split_that_no_file_has(tmp_path):
    file = write(tmp_path / "train.jsonl", SUM, {**OTHER, "split": "test"})
    assert asked(load_problems(file, "test")) == {OTHER["question"]}


def test_a_file_of_validation_rows_is_the_only_validation_split(tmp_path):
    write(tmp_path / "train.jsonl", *questions(50))
    write(tmp_path / "valid.jsonl", *questions(3, start=100))
    assert len(load_problems(tmp_path, "train").records) == 50
    assert len(load_problems(tmp_path, "val").records) == 3


def test_rows_without_any_split_are_divided_by_checksum_where_that_is_asked_for(tmp_path):
    file = write(tmp_path / "mine.jsonl", *questions(300))
    parts = [load_problems(f"{file}?divide", split) for split in ("train", "val", "test")]
    assert sum(len(loaded.records) for loaded in parts) == 300
    for dataset, split in zip(parts, ("train", "val", "test"), strict=True):
        assert dataset.records
        assert {checksum_split(question) for question in asked(dataset)} == {split}


def test_texts_that_are_one_task_are_in_one_split(tmp_path):
    twins = [
        {"question": question, "answer": str(2 * n + 7)}
        for n in range(60)
        for question in (f"What is ${n}+{n + 7}$?", f"What is {n} + {n + 7}?")
    ]
    file = write(tmp_path / "mine.jsonl", *twins)
    parts = [load_problems(f"{file}?divide", split).records for split in ("train", "val", "test")]
    assert sum(map(len, parts)) == 60
    write(tmp_path / "lent" / "train.jsonl", *twins)
    lent = [load_problems(tmp_path / "lent", split).records for split in ("train", "val")]
    assert sum(map(len, lent)) == 60


@pytest.mark.parametrize("given", ["field", "file", "lent"])
@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
def test_a_row_without_a_split_goes_where_a_row_that_is_the_same_task_has_one(
    tmp_path, given, order
):
    mine, theirs = (
        [{"question": text.format(n), "answer": str(n + 3)} for n in range(60)]
        for text in ("What is ${}+3$?", "What is {} + 3?")
    )
    if given == "field":
        stated = [row | {"split": ("train", "test")[n % 2]} for n, row in enumerate(theirs)]
        write(tmp_path / "all.jsonl", *[*mine, *stated][::order])
    else:
        write(tmp_path / ("a.jsonl" if order == 1 else "z.jsonl"), *mine)
        write(tmp_path / "train.jsonl", *theirs[::2])
        write(tmp_path / ("test.jsonl" if given == "lent" else "val.jsonl"), *theirs[1::2])
    answers = {
        split: {problem.answers for problem in load_problems(tmp_path, split).records}
        for split in (("train", "test") if given == "field" else ("train", "val"))
    }
    if given == "lent":
        answers["test"] = {problem.answers for problem in load_problems(tmp_path, "test").records}
        assert answers["val"]
    assert sum(map(len, answers.values())) == len(set().union(*answers.values())) == 60


def test_what_the_publisher_put_into_two_splits_stays_in_both(tmp_path):
    file = write(tmp_path / "a.jsonl", *({**SUM, "split": split} for split in ("train", "test")))
    assert asked(load_problems(file, "train")) == asked(load_problems(file, "test"))


def test_a_long_cell_of_a_table_is_read(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(f"question,answer\n{'x' * 200_000}?,1\n")
    assert len(load_problems(file).records[0].question) == 200_001


def test_two_columns_with_one_name_are_refused_and_blank_names_are_not(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("question,answer,answer\n?,1,2\n")
    with pytest.raises(DatasetError, match="the column 'answer' twice"):
        load_problems(file)
    file.write_text("question,answer,,\n?,1,,\n")
    assert load_problems(file).records[0].answers == ("1",)


def test_a_split_that_is_not_there_says_what_is(tmp_path):
    file = write(tmp_path / "test.jsonl", *questions(3))
    with pytest.raises(
        DatasetError,
        match=r"no task of the split 'train'.*: it has 3 of test|no file for the split 'train', only for test",
    ):
        load_problems(file, "train")
    file = write(tmp_path / "mine.jsonl", {**SUM, "split": "val"})
    with pytest.raises(
        DatasetError, match=r"no task of the split 'train'; add rows.* it has 1 of val"
    ):
        load_problems(file, "train")
    with pytest.raises(DatasetError, match="split must be one of train, val, test, got 'dev'"):
        load_problems(file, "dev")


def test_a_source_of_bad_rows_only_says_so(tmp_path):
    file = write(tmp_path / "mine.jsonl", {"question": 1, "answer": 1})
    with pytest.raises(DatasetError, match=r"no row of .*mine\.jsonl can be used"):
        load_problems(file, skip_bad=True)


@given(st.text(max_size=40))
def test_the_split_of_a_text_does_not_depend_on_case_of_ascii_and_space(text):
    assert checksum_split(f"  {text}\n") == checksum_split(text)
    assert normal_text(f"  {text}\n") == normal_text(text)
