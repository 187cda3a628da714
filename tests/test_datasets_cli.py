from __future__ import annotations

import json
from dataclasses import replace

import huggingface_hub.constants
import pytest

from pettingllms.cli.data import main
from pettingllms.data.catalog import CATALOG
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.data.splits import SPLITS
from pettingllms.envs import plan_path_v0
from pettingllms.errors import DatasetError
from tests.datasets_fixtures import FOLDER, LCB, LCB_CALL, rows, write
from tests.kernel import needs_namespaces


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def test_list_names_every_data_set_and_can_be_narrowed(run):
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(CATALOG)
    _, out, _ = run("list", "--kind", "math")
    assert {line.split()[1] for line in out.splitlines()} == {"math"}


@pytest.mark.parametrize("name", CATALOG)
def test_show_says_where_what_and_under_which_license(run, name):
    code, out, _ = run("show", name)
    assert code == 0
    assert CATALOG[name].page in out
    assert (CATALOG[name].license or "see its page") in out
    assert "splits" in out


def test_a_misspelt_name_says_what_was_meant(run):
    for command in ("show", "fetch", "check"):
        code, _, err = run(command, "livecodebnch")
        assert code == 2
        assert "did you mean 'livecodebench'" in err


@pytest.mark.parametrize(
    ("name", "kind", "kept"),
    [
        ("apps.jsonl", "coding", 4),
        ("code_contests.jsonl", "coding", 2),
        ("mbpp.jsonl", "coding", 3),
        ("humaneval.jsonl", "coding", 3),
        ("tasks.jsonl", "coding", 2),
        ("gsm8k.jsonl", "math", 2),
        ("olympiadbench.jsonl", "math", 2),
        ("dapo_math.jsonl", "math", 2),
        ("problems.jsonl", "math", 3),
        ("sudoku.csv", "sudoku", 2),
        ("boxoban.txt", "sokoban", 2),
    ],
)
def test_check_knows_every_schema_by_its_first_row(run, name, kind, kept):
    code, out, _ = run("check", FOLDER / name)
    assert code == 0
    assert f"{kept} kept" in out
    assert f"kind {kind}: first id " in out


def test_check_counts_what_the_tasks_have(run, tmp_path):
    code, out, _ = run("check", write(tmp_path / "test.jsonl", LCB, LCB_CALL), "--split", "test")
    assert code == 0
    assert "1 tasks of function calls and 1 of standard input, 4 tests, 2 tasks without" in out


def test_check_fails_where_a_row_does_not_fit_and_lists_it(run, tmp_path):
    good, bad = rows("gsm8k")[0], {"question": "?", "answer": "3"}
    file = write(tmp_path / "mine.jsonl", good, bad)
    code, out, _ = run("check", file, "--as", "gsm8k", "--all")
    assert code == 1
    assert "1 kept, 0 repeated, 0 left out, 1 refused" in out
    assert f"refused  {file}:2: field 'answer' has no '####'" in out
    assert run("check", file, "--as", "problems")[0] == 0  # as it is, it is a fine file of ours


def test_check_against_a_training_set_fails_where_they_share_tasks(run, tmp_path):
    test = write(tmp_path / "test.jsonl", {"problem": "What is 2 +  2?", "answer": "4"})
    train = write(
        tmp_path / "train.jsonl", *rows("polaris"), {"problem": "What is 1?", "answer": "1"}
    )
    code, out, _ = run("check", test, "--against", train)
    assert code == 1
    assert f"1 of 1 tasks of {test} are also in {train}" in out
    assert "1 is 1" in out
    other = write(tmp_path / "other.jsonl", {"question": "What is 4?", "answer": "4"})
    code, out, _ = run("check", other, "--against", train)
    assert (code, "0 of 1 tasks" in out) == (0, True)


def test_check_of_an_unknown_schema_or_unknown_rows_says_what_is_known(run, tmp_path):
    file = write(tmp_path / "mine.jsonl", {"ask": "?"})
    code, _, err = run("check", file)
    assert code == 2
    assert "name one with --as: tasks, apps" in err
    code, _, err = run("check", file, "--as", "gsm8")
    assert (code, "did you mean 'gsm8k'" in err) == (2, True)
    code, _, err = run("check", FOLDER / "gsm8k.jsonl", "--against", "mbpp")
    assert (code, "mbpp is for coding, not math" in err) == (2, True)


def test_a_name_stands_for_its_schema(run):
    code, out, _ = run("check", FOLDER / "polaris.jsonl", "--as", "polaris")
    assert (code, "2 kept" in out) == (0, True)


def test_check_runs_references_and_writes_what_can_be_trained_on(run, tmp_path):
    good, bare = rows("code_contests")
    bad = {**good, "name": "2_A", "description": "Print half.", "private_tests": None}
    file = write(
        tmp_path / "mine.jsonl",
        good,
        bare,
        {**bad, "public_tests": {"input": ["2"], "output": ["1"]}},
    )
    out = tmp_path / "verified.jsonl"
    code, text, _ = run("check", file, "--write", out, "--as", "code_contests")
    assert code == 1
    assert "  2_A: its reference fails tests[0]: ok, gave '4\\n', expected '1'" in text
    assert "1 references pass, 1 fail, 1 tasks have none" in text
    (task,) = load_tasks(out).records
    (original, *_) = load_tasks(file).records
    assert task == replace(original, mutants=("print(2)",))  # the other one is right
    assert run("check", out, "--run")[0] == 0
    code, _, err = run("check", FOLDER / "gsm8k.jsonl", "--run")
    assert (code, "--run is for coding" in err) == (2, True)


def test_fetch_without_a_network_is_one_clear_line(run, tmp_path):
    code, out, err = run("fetch", "gsm8k", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith(
        "error: cannot download gsm8k from https://huggingface.co/datasets/openai/gsm8k"
    )
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_fetch_says_how_to_use_what_it_fetched(run, tmp_path):
    folder = tmp_path / "cache" / "datasets--math-ai--aime25"
    write(folder / "snapshots" / "abc" / "test.jsonl", *rows("aime25"))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    code, out, _ = run("fetch", "aime25", "--out", tmp_path / "out")
    assert code == 0
    assert f"pettingllms-data check {tmp_path / 'out'}" in out
    fetched = (tmp_path / "out" / "test" / "test-test.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in fetched] == rows("aime25")
    assert run("check", tmp_path / "out", "--split", "test")[0] == 0
    code, out, _ = run("fetch", "aime25")
    assert (code, "--dataset aime25" in out) == (0, True)


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_boxoban_has_to_be_cloned(run, command):
    code, _, err = run(command, "boxoban")
    clone = "git clone https://github.com/google-deepmind/boxoban-levels, then give boxoban-levels/"
    assert (code, clone in err) == (2, True)


def test_help_explains(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "pettingllms-data check" in out
    assert "hub id" in out


@needs_namespaces
def test_references_run_within_the_limits_of_the_user_the_row_and_the_environment(tmp_path, capsys):
    busy = "import time\nwhile time.process_time() < 0.6: pass\nprint(1)"
    row = {"question": "q", "tests": [{"input": "", "output": "1"}], "reference": busy}
    file = tmp_path / "train.jsonl"
    for limits, words, code in (
        ({}, [], 0),
        ({"cpu_s": 0.3}, [], 1),
        ({"cpu_s": 0.3}, ["--sandbox.cpu_s", "3"], 0),
        ({}, ["--sandbox", "embedded", "--sandbox.cpu-s", "0.3"], 1),
        ({}, ["--sandbox.cpu", "3"], 2),
    ):
        file.write_text(json.dumps(row | {"limits": limits}) + "\n")
        assert main(["check", str(file), "--run", *words]) == code, (limits, words)
    assert "did you mean 'cpu_s'" in capsys.readouterr().err


GRIDS = "; 1\n@.#\n..G\n\n; 2\n#@.\nG..\n"


def test_check_reads_the_grids_of_plan_path(run, tmp_path):
    file = tmp_path / "grids.txt"
    file.write_text(GRIDS)
    code, text, _ = run("check", file)
    assert (code, "2 kept" in text, "kind plan_path" in text) == (0, True, True)
    file.write_text(GRIDS + "\n; 3\n@#.\n##G\n")
    code, text, _ = run("check", file)
    assert (code, "no path leads from the start to the goal" in text) == (1, True)


def test_check_counts_the_splits_that_the_environment_plays(run, tmp_path):
    (tmp_path / "grids.txt").write_text(GRIDS)
    file = f"{tmp_path / 'grids.txt'}?divide"
    for split in SPLITS:
        try:
            played = plan_path_v0.env(dataset=file, split=split).num_tasks
        except DatasetError:
            played = 0
        code, text, _ = run("check", file, "--split", split)
        assert (f"{played} kept" in text) if played else (code == 2)
