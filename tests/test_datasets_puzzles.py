from __future__ import annotations

import pytest

from pettingllms.data.board_files import LEVEL_FILES
from pettingllms.data.dataset import load
from pettingllms.data.hub import local
from pettingllms.data.math import PROBLEMS, load_problems
from pettingllms.data.overlap import overlap
from pettingllms.data.sudoku import PUZZLE_FILES
from pettingllms.errors import DatasetError
from tests.datasets_fixtures import FOLDER, write

SUM = {"question": "What is 1 + 1?", "answer": "2"}
OTHER = {"question": "What is 2 + 2?", "answer": "4"}


def questions(count, start=0):
    return [
        {"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(start, start + count)
    ]


def asked(loaded):
    return {problem.question for problem in loaded.records}


def test_a_clone_of_boxoban_gives_its_levels_by_split(tmp_path):
    text = (FOLDER / "boxoban.txt").read_text()
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "000.txt").write_text(text)
    loaded = load(LEVEL_FILES, local(tmp_path, LEVEL_FILES.endings), "test")
    assert [level.id for level in loaded.records] == ["000:2#0", "000:8#1"]


@pytest.mark.parametrize(
    "board",
    [
        "####\n#@ #\n####",
        "#####\n#@$.\n#####",
        "#####\n#@$#\n#####",
        "####\n#$.#\n####",
        "#####\n#@$.x\n#####",
    ],
)
def test_a_level_that_is_none_is_refused(tmp_path, board):
    file = tmp_path / "a.txt"
    file.write_text(f"{(FOLDER / 'boxoban.txt').read_text()}\n; 2\n{board}\n")
    with pytest.raises(DatasetError, match=r"a\.txt:1[3-9]: field 'board'"):
        load(LEVEL_FILES, local(file, LEVEL_FILES.endings))


@pytest.mark.parametrize(
    ("column", "change", "field"),
    [
        (1, lambda s: s[:-1], "question"),
        (1, lambda s: "x" + s[1:], "question"),
        (1, lambda s: "9" + s[1:], "answer"),
        (2, lambda s: "." + s[1:], "answer"),
        (2, lambda s: s[1:] + s[0], "answer"),
    ],
)
def test_a_puzzle_that_is_none_is_refused(tmp_path, column, change, field):
    header, first, _ = (FOLDER / "sudoku.csv").read_text().splitlines()
    cells = first.split(",")
    cells[column] = change(cells[column])
    (tmp_path / "a.csv").write_text("\n".join([header, first, ",".join(cells)]))
    with pytest.raises(DatasetError, match=rf"a\.csv:3: field '{field}'"):
        load(PUZZLE_FILES, local(tmp_path / "a.csv", PUZZLE_FILES.endings))


# Overlap


def test_overlap_finds_questions_in_other_writing_and_says_whether_answers_agree(tmp_path):
    train = load_problems(write(tmp_path / "train.jsonl", SUM, OTHER, *questions(3, 50)))
    test = load_problems(
        write(
            tmp_path / "test.jsonl",
            {"question": " what is  $1 + 1$?", "answer": "02", "id": "t1"},
            {"question": "What is 2 + 2?", "answer": "5", "id": "t2"},
            {"question": "What is 3 + 3?", "answer": "6", "id": "t3"},
        )
    )
    report = overlap(PROBLEMS, train, test)
    assert [(s.test.id, s.train.id, s.same_answer) for s in report.shared] == [
        ("t1", "1", True),
        ("t2", "2", False),
    ]
    assert str(report).startswith("2 of 3 tasks of ")
    assert not overlap(
        PROBLEMS, test, load_problems(write(tmp_path / "o.jsonl", *questions(2, 90)))
    ).shared
