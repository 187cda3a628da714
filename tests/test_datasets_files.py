"""Files as strangers have them: broken, compressed, mislabeled, without splits, benchmarks."""

from __future__ import annotations

import datetime
import functools
import gzip
import json
import math

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from pettingllms.assembly import make_env
from pettingllms.cli.data import main
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.data.hub import divided
from pettingllms.data.math import PROBLEMS, load_problems
from pettingllms.data.overlap import COMMON, NGRAM, overlap, words_of
from pettingllms.envs import coding_v0, math_v0, sokoban_v0
from pettingllms.envs.team_env import TeamEnv
from pettingllms.errors import DatasetError
from pettingllms.trainers.config import ATGRPOConfig
from tests.datasets_fixtures import FOLDER, LCB, rows, write, write_parquet

# Without a time, so that two processes name a case alike.
zipped = functools.partial(gzip.compress, mtime=0)

SUM = {"question": "What is 1 + 1?", "answer": "2"}
OTHER = {"question": "What is 2 + 2?", "answer": "4"}
LINE = json.dumps(SUM).encode() + b"\n"
TSV = b"question\tanswer\nWhat is 1 + 1?\t2\n"


def questions(count, start=0):
    return [
        {"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(start, start + count)
    ]


# What a file is


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", TSV),
        ("a.tsv.gz", zipped(TSV)),
        ("a.jsonl.gz", zipped(LINE)),
        ("a.json.gz", zipped(b"[" + LINE + b"]")),
        ("a.jsonl", zipped(LINE)),  # by its bytes, whatever its name
        ("a.jsonl", b"[" + LINE + b"]"),
        ("a.json", b"\xef\xbb\xbf \n" + LINE),
        ("A.JSONL", LINE),
    ],
)
def test_files_that_can_be_read_are_read(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    (problem,) = load_problems(tmp_path / name).records
    assert (problem.question, problem.answers) == ("What is 1 + 1?", ("2",))
    assert load_problems(tmp_path).records[0].question == problem.question


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 214438\n"
STRANGE = {
    "empty": (b"", "it is empty"),
    "pointer": (LFS, "a Git LFS pointer for 214438 bytes, .* `git lfs pull`"),
    "page": (b"<!DOCTYPE html>\n<html></html>", "it is a web page"),
    "zip": (b"PK\x03\x04rest", "a zip archive; unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "compressed with zstd"),
    "wide": ('{"question": "?"}'.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
    "binary": (b"\x01\x00\x02", "it is a binary file"),
    "object": (b'{\n "data": [],\n "version": 1\n}', "one JSON object with the fields data, version"),
    "table": (b'{"question": {"0": "?"}, \n"answer": {"0": "1"}}', "one JSON object with the fields"),
    "number": (b"3\n", r"one JSON value \(int\)"),
    "cut": (zipped(LINE * 9)[:-9], "end-of-stream marker"),
    "parquet": (b"PAR1", "it is parquet; name it .parquet"),
}  # fmt: skip


@pytest.mark.parametrize("what", STRANGE)
def test_a_file_without_rows_says_what_it_is(tmp_path, what, capsys):
    data, why = STRANGE[what]
    file = tmp_path / "mine.jsonl"
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=rf"cannot read .*mine\.jsonl: .*{why}"):
        load_problems(file)
    assert main(["check", str(file)]) == 2
    message = capsys.readouterr().err
    assert "cannot read" in message
    assert "no schema" not in message


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(LFS if name.endswith("parquet") else LINE)
    with pytest.raises(DatasetError, match=r"Git LFS pointer|named \.gz and not compressed"):
        load_problems(tmp_path / name)


def test_a_table_is_read_whatever_its_name_and_where_nothing_can_be_cached(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", "/proc/none")
    file = write_parquet(tmp_path / "a[1] what?*.parquet", [SUM, OTHER])
    assert [p.answers for p in load_problems(file).records] == [("2",), ("4",)]


def test_a_table_without_rows_is_no_damaged_file(tmp_path):
    nothing = pyarrow.table({"question": pyarrow.array([], pyarrow.string()), "answer": []})
    write_parquet(tmp_path / "train-0.parquet", [SUM])
    pyarrow.parquet.write_table(nothing, tmp_path / "train-1.parquet")
    assert len(load_problems(tmp_path, "train").records) == 1
    with pytest.raises(DatasetError, match=r"train-1\.parquet has no rows"):
        load_problems(tmp_path / "train-1.parquet", "train")


def test_text_that_is_no_json_is_named_with_its_first_row(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text("question,answer\n1+1,2\n")
    assert main(["check", str(tmp_path / "a.jsonl")]) == 2
    assert "a.jsonl:1: is not a JSON object: Expecting value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        ("a.jsonl", LINE + b'{"question": "gr\xf6n?", "answer": "1"}\n' + json.dumps(OTHER).encode(), 2),
        ("a.csv", b"question,answer\nWhat is 1 + 1?,2\ngr\xf6n,1\nWhat is 2 + 2?,4\n", 3),
        ("a.json", b"[" + LINE + b',{"question": "gr\xf6n?", "answer": "1"},' + json.dumps(OTHER).encode() + b"]", 2),
        ("a.jsonl.gz", zipped(b"\xff\n" + LINE + json.dumps(OTHER).encode()), 1),
    ],
)  # fmt: skip
def test_one_byte_that_is_not_utf8_costs_its_row_alone(tmp_path, name, data, row, caplog):
    (tmp_path / name).write_bytes(data)
    loaded = load_problems(tmp_path / name)
    assert [p.answers for p in loaded.records] == [("2",), ("4",)]
    (refusal,) = loaded.report.refusals
    assert (refusal.row, refusal.fits) == (row, True)
    assert f"{name}:{row}" in caplog.text
    assert "a byte that is not UTF-8" in refusal.why


@pytest.mark.slow
def test_a_large_file_of_lines_is_read_line_by_line(tmp_path):
    # One row of 30 MB of another field, and many small ones: only the records stay.
    with (tmp_path / "a.jsonl").open("w") as file:
        file.write(json.dumps(SUM | {"solution": "x" * 30_000_000}) + "\n")
        file.writelines(json.dumps(row) + "\n" for row in questions(20_000))
    assert load_problems(tmp_path / "a.jsonl", skip_bad=True).report.kept == 20_000


def test_levels_with_a_quote_in_a_title_are_levels(tmp_path, capsys):
    text = (FOLDER / "boxoban.txt").read_text()
    (tmp_path / "levels.txt").write_text(f'; "open\n{text}')
    assert main(["check", str(tmp_path / "levels.txt")]) in (0, 1)
    assert "kind sokoban" in capsys.readouterr().out


# Rows


def test_blank_questions_nan_answers_and_repeated_ids_are_left_out_and_named(tmp_path, caplog):
    table = [
        SUM | {"id": "a"},
        {"question": " \u200b\n", "answer": "1", "id": "b"},
        {"question": "x?", "answer": math.nan, "id": "c"},
        {"question": "y?", "answer": "NaN", "id": "d"},
        {"question": "z?", "answer": " ", "id": "e"},
        OTHER | {"id": "a"},
        SUM | {"id": "a"},
        {"question": "w?", "answer": math.inf, "id": "f"},
        {"question": "Is nan a number?", "answer": "no", "id": "g"},
    ]
    report = load_problems(write(tmp_path / "a.jsonl", *table)).report
    assert (report.read, report.kept, report.repeated) == (9, 2, 1)
    assert sorted((r.row, r.field) for r in report.refusals) == [
        (2, "question"), (3, "answer"), (4, "answer"), (5, "answer"), (6, "id"), (8, "answer")
    ]  # fmt: skip
    assert "'a' is the id of row 1, too, first at" in caplog.text
    numbers = [{"question": f"{n}?", "answer": n} for n in (1.0, math.nan, 3.0)]
    report = load_problems(write_parquet(tmp_path / "b.parquet", numbers)).report
    assert [(r.row, r.field) for r in report.refusals] == [(2, "answer")]
    blank = rows("tasks")[0] | {"question": "\t"}
    assert (
        load_tasks(write(tmp_path / "c.jsonl", *rows("tasks"), blank)).report.refusals[0].row == 3
    )


def test_ids_may_repeat_in_other_files(tmp_path):
    write(tmp_path / "one.jsonl", SUM | {"id": "1"})
    write(tmp_path / "two.jsonl", OTHER | {"id": "1"})
    assert load_problems(tmp_path).report.kept == 2


# Splits


def test_a_file_without_splits_is_evaluated_whole(tmp_path, caplog):
    file = write(tmp_path / "mine.jsonl", *questions(50))
    assert math_v0.env(dataset=file, split="test").num_tasks == 50
    assert not caplog.records
    assert math_v0.env(dataset=file, split="train").num_tasks == 50
    assert "nothing in it has a split: all 50 tasks are train, and all would be test" in caplog.text
    levels = tmp_path / "levels.txt"
    levels.write_text((FOLDER / "boxoban.txt").read_text())
    assert sokoban_v0.env(dataset=levels, split="test").num_tasks == 2


@pytest.mark.parametrize(
    "name", ["HumanEval.jsonl", "aime_2024.jsonl", "MATH-500.jsonl", "mine.jsonl"]
)
def test_training_on_a_benchmark_warns_and_evaluating_it_does_not(tmp_path, name, caplog):
    benchmark = {"aime_2024.jsonl": "aime24", "MATH-500.jsonl": "math500"}.get(name, "humaneval")
    file = write(tmp_path / name, *rows(benchmark))
    load = load_tasks if benchmark == "humaneval" else load_problems
    assert len(load(file, "test").records) == len(rows(benchmark))
    assert "benchmark" not in caplog.text
    assert load(file, "train").records
    assert f"this is the benchmark {benchmark} or looks like it" in caplog.text


def test_a_file_of_ones_own_is_no_benchmark(tmp_path, caplog):
    for name in ("mine.jsonl", "gsm8k.jsonl"):
        load_problems(write(tmp_path / name, SUM), "train")
    assert "benchmark" not in caplog.text


def test_training_holds_tasks_out_of_a_file_without_splits(tmp_path, caplog):
    file = write(tmp_path / "mine.jsonl", *questions(200))
    source = divided(file)
    parts = {split: load_problems(source, split).records for split in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == 200
    assert all(parts.values())
    assert f"{len(parts['val'])} of its 200 tasks are held as val" in caplog.text
    assert divided(source) == source
    assert divided("gsm8k") == "gsm8k"
    assert divided("####\n#@.#") == "####\n#@.#"
    assert divided("reasoning_gym:chain_sum") == "reasoning_gym:chain_sum"


def rows_of(env):
    return env.unwrapped.num_tasks


def test_a_training_run_divides_the_data_of_our_environments_only(tmp_path):
    file = write(tmp_path / "mine.jsonl", *questions(200))
    plain = ATGRPOConfig(env="math", dataset=str(file))
    for config in (plain, ATGRPOConfig(env="math", env_args={"dataset": str(file)})):
        counts = [
            rows_of(make_env(config, split, divide=True)) for split in ("train", "val", "test")
        ]
        assert sum(counts) == 200
        assert rows_of(make_env(config, "test")) == 200

    class Foreign(TeamEnv):  # of another package: its data are its own affair
        metadata = math_v0.raw_env.metadata

        def __init__(self, *, dataset=None, **kwargs):
            self.given = dataset
            super().__init__(roles=("solver",), **kwargs)

    made = make_env(plain, "train", Foreign, divide=True)
    assert isinstance(made, Foreign)
    assert made.given == str(file)


def test_rows_without_a_split_beside_others_with_one_are_divided(tmp_path):
    file = write(tmp_path / "mine.jsonl", SUM | {"split": "test"}, *questions(100, 2))
    parts = [len(load_problems(file, split).records) for split in ("train", "val", "test")]
    assert sum(parts) == 101
    assert parts[2] < 40


def test_mbpp_is_divided_as_its_authors_divided_it(tmp_path):
    row = rows("mbpp")[0]
    table = [row | {"task_id": n, "text": f"Task {n}."} for n in (1, 11, 510, 511, 600, 601)]
    file = write(tmp_path / "rows.jsonl", *table)
    ids = {
        s: [t.id for t in load_tasks(divided(file), s).records] for s in ("train", "val", "test")
    }
    assert ids == {"train": ["1", "601"], "val": ["511", "600"], "test": ["11", "510"]}
    assert len(load_tasks(file, "test").records) == 6


# Options


def lcb(day):
    return LCB | {
        "question_id": day,
        "question_content": f"On {day}.",
        "contest_date": f"{day}T00:00:00",
    }


def test_livecodebench_has_windows_of_time(tmp_path):
    file = write(
        tmp_path / "test.jsonl", *map(lcb, ("2024-01-01", "2024-08-01", "2025-01-31", "2025-02-01"))
    )
    window = f"{file}?from=2024-08-01&to=2025-01-31"
    loaded = load_tasks(window, "test")
    assert [task.id for task in loaded.records] == ["2024-08-01", "2025-01-31"]
    assert loaded.report.outside == 2
    assert "2024-08-01 to 2025-01-31" in loaded.report.source
    assert coding_v0.env(dataset=f"{file}?from=2025-02-01", split="test").num_tasks == 1
    for query, why in {
        "from=2026-01-01": "within the dates",
        "from=2025-01-01&to=2024-01-01": "ends on 2024-01-01, before",
        "from=soon": "'soon' is no date",
        "form=2024-01-01": "did you mean 'from'",
    }.items():
        with pytest.raises(DatasetError, match=why):
            load_tasks(f"{file}?{query}", "test")
    dates = write(tmp_path / "mine.jsonl", SUM, OTHER | {"date": str(datetime.date(2024, 9, 1))})
    assert load_problems(f"{dates}?from=2024-08-01").report.kept == 1


def test_a_file_may_have_a_question_mark_in_its_name(tmp_path):
    assert load_problems(str(write(tmp_path / "what?.jsonl", SUM))).report.kept == 1


def test_math_has_its_answers_in_boxes(tmp_path):
    row = {
        "problem": "What?",
        "level": "Level 3",
        "type": "Algebra",
        "solution": r"So $\boxed{\frac{1}{2}}$.",
    }
    more = [
        row | {"problem": "And?", "solution": r"First $\boxed{3}$, then $\boxed{\text{(4, {5})}}$."},
        row | {"problem": "Or?", "solution": r"It is $\boxed 5$."},
        row | {"problem": "None?", "solution": "It is open."},
    ]  # fmt: skip
    loaded = load_problems(write(tmp_path / "test.jsonl", row, *more), "test")
    assert [p.answers for p in loaded.records] == [(r"\frac{1}{2}",), (r"\text{(4, {5})}",), ("5",)]
    assert loaded.records[0].difficulty == "Level 3"
    assert [(r.row, r.why) for r in loaded.report.refusals] == [(4, "has no boxed answer")]


# Overlap

NUMBERED = "A farmer, {n} years old, sells {m} apples; each costs 3.50 dollars, and he keeps a tenth. What does he get?"


def problems(path, texts):
    return load_problems(write(path, *({"question": t, "answer": "1"} for t in texts)))


def test_overlap_is_found_without_commas_case_and_ends(tmp_path):
    texts = [NUMBERED.format(n=n, m=7 * n) for n in range(200)]
    train = problems(tmp_path / "train.jsonl", texts)
    edits = {
        "commas": lambda text: text.replace(",", ""),
        "case": str.upper,
        "a sentence before": lambda text: "Read this carefully. " + text,
        "another end": lambda text: text.replace("What does he get?", "How much?"),
    }
    for edit in edits.values():
        report = overlap(PROBLEMS, train, problems(tmp_path / "test.jsonl", map(edit, texts)))
        assert len(report.shared) == 200


def test_overlap_is_not_found_in_other_questions_and_common_phrases(tmp_path):
    train = problems(
        tmp_path / "train.jsonl", [NUMBERED.format(n=n, m=n) for n in range(COMMON + 5)]
    )
    other = [NUMBERED.format(n=n, m=n + 1) for n in range(500, 600)]  # one phrase around all
    assert not overlap(PROBLEMS, train, problems(tmp_path / "a.jsonl", other)).shared
    short = ["What is 3 + 4?", "What is 3 - 4?", "What is 34?", "What is 3.4?", "What is 3 * 4?"]
    for number, text in enumerate(short):
        one = problems(tmp_path / f"b{number}.jsonl", [text])
        rest = problems(tmp_path / f"c{number}.jsonl", [s for s in short if s != text])
        assert not overlap(PROBLEMS, one, rest).shared


def test_words_are_numbers_signs_and_words():
    assert words_of("What, is 1,234.5 + $x^2$?") == ("what", "is", "1234.5", "+", "x", "^", "2")
    assert NGRAM == 13


def test_check_says_how_tasks_overlap(tmp_path, capsys):
    text = NUMBERED.format(n=1, m=2)
    test = write(tmp_path / "test.jsonl", {"question": "Well. " + text, "answer": "1", "id": "t"})
    train = write(tmp_path / "train.jsonl", {"question": text, "answer": "2", "id": "r"})
    assert main(["check", str(test), "--against", str(train)]) == 1
    assert "t shares 13 words in a row with r (with another answer" in capsys.readouterr().out


# The command


@pytest.mark.parametrize(
    ("target", "why"), [("no/dir/out.jsonl", "there is no folder"), (".", "that is a folder")]
)
def test_a_place_to_write_is_checked_before_the_work(tmp_path, target, why, capsys):
    assert main(["check", str(FOLDER / "tasks.jsonl"), "--write", str(tmp_path / target)]) == 2
    output = capsys.readouterr()
    assert why in output.err
    assert not output.out  # nothing was read


def test_the_command_that_fetch_prints_checks_the_folder_that_was_written(
    tmp_path, monkeypatch, capsys
):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cache" / "datasets--math-ai--aime25"
    write(folder / "snapshots" / "abc" / "test.jsonl", *rows("aime25"))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    assert main(["fetch", "aime25", "--out", "aime25"]) == 0
    printed = capsys.readouterr().out
    assert "pettingllms-data check ./aime25" in printed
    write(tmp_path / "aime25" / "test" / "more.jsonl", SUM)
    assert main(["check", "./aime25"]) == 0
    assert "3 kept" in capsys.readouterr().out


def test_a_name_that_hides_a_folder_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxoban").mkdir()
    assert main(["check", "boxoban"]) == 2
    assert "boxoban is the published data set; ./boxoban is the file or folder" in caplog.text
