"""Several environments in one command, more samples of a finished evaluation, and SIGTERM in one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pettingllms.cli.evaluate import BELOW, main, parse
from pettingllms.cli.guard import FAILED, TERMINATED
from tests.tiny_lm import save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def words(model: Path) -> list[str]:
    return f"--model {model} --device cpu --max-completion-length 4 --limit 3".split()


QUIZ, LETTERS = "tests.quiz_env:env", "tests.letters_env:env"


def results(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


# ------------------------------------------------------------------------ several environments


@pytest.mark.slow
def test_several_environments_have_a_folder_each_and_one_table(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, alone = tmp_path / "both", tmp_path / "alone"
    assert main([*words, "--env", QUIZ, LETTERS, "--out", str(both)]) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--env", LETTERS, "--out", str(alone)]) == 0
    joint = results(both)
    assert joint["folders"] == {QUIZ: "tests.quiz_env", LETTERS: "tests.letters_env"}
    for env, folder in joint["folders"].items():
        assert joint["success"][env] == results(both / folder)["success"]
    assert results(both / "tests.letters_env") == results(alone)
    page = (both / "results.md").read_text()
    for env in (QUIZ, LETTERS):
        assert f"| {env} | success | 0." in page
        assert env in shown


@pytest.mark.slow
def test_every_environment_has_its_own_number_of_tasks(words: list[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("one two")
    envs = ("tests.rows_env:env", QUIZ)
    argv = ["--env", *envs, "--env-args.dataset", str(rows), "--out", str(tmp_path / "out")]
    assert main([*words, *argv]) == 0
    page = (tmp_path / "out" / "results.md").read_text()
    for env, tasks in zip(envs, (3, 2), strict=True):
        assert f"- {env}: test split, {tasks} held-out tasks, " in page


def test_commas_and_spaces_mean_the_same(words: list[str]) -> None:
    assert parse(["--env", QUIZ, LETTERS, *words]).envs == [QUIZ, LETTERS]
    assert parse(["--env", f"{QUIZ},{LETTERS}", *words]).envs == [QUIZ, LETTERS]
    assert parse(["--env", QUIZ, *words]).envs == ()
    assert parse(["--env", QUIZ, *words]).options.over["env"] == QUIZ
    with pytest.raises(SystemExit):
        parse(["--env", "coding", "math", "--help"])


def test_a_mistake_in_the_last_environment_costs_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for envs, says in (
        ((QUIZ, "codng"), "did you mean 'coding'"),
        ((QUIZ, QUIZ), "an environment twice"),
    ):
        assert main([*words, "--env", *envs, "--out", str(tmp_path / "out")]) == FAILED
        assert says in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    (tmp_path / "settings.json").write_text("{}")
    assert main([*words, "--env", QUIZ, LETTERS, "--out", str(tmp_path)]) == FAILED
    assert "holds the evaluation of one environment" in capsys.readouterr().err
    assert main(["--compare", "a", "b", "--env", QUIZ, LETTERS]) == FAILED
    assert "--compare is for one environment" in capsys.readouterr().err


def test_every_environment_has_to_reach_the_bar(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--env", QUIZ, LETTERS, "--fail-under", "1"]) == BELOW
    out = capsys.readouterr().out
    assert f"{LETTERS}: success" in out
    assert "is below 1.0" in out


# -------------------------------------------------------------------------------- more samples


@pytest.mark.slow
@pytest.mark.parametrize("few", [2, 3])
def test_samples_are_added_to_a_finished_folder_with_the_numbers_of_asking_at_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    command = [*words, "--env", QUIZ, "--out"]
    grown, once = tmp_path / "grown", tmp_path / "once"
    assert main([*command, str(once), "--samples", "4"]) == 0
    assert main([*command, str(grown), "--samples", str(few)]) == 0
    before = (grown / "trajectories.jsonl").read_bytes().splitlines()
    assert main([*command, str(grown), "--samples", "4"]) == 0
    after = (grown / "trajectories.jsonl").read_bytes()
    # Sample 2 is rolled out again, in one batch with sample 3; nothing else is.
    assert after.splitlines()[:6] == before[:6]
    assert after == (once / "trajectories.jsonl").read_bytes()
    for name in ("settings.json", "results.json", "results.md", "results.png"):
        assert (grown / name).read_bytes() == (once / name).read_bytes(), name
    # Asked again there is nothing left to sample, and no model is needed.
    monkeypatch.setattr("pettingllms.evaluation.run.build_policies", None)
    assert main([*command, str(grown), "--samples", "4"]) == 0
    assert main([*command, str(grown), "--samples", str(few)]) == FAILED


def test_success_with_its_interval_stands_at_the_top_of_the_results(
    words: list[str], tmp_path: Path
) -> None:
    assert main([*words, "--env", QUIZ, "--out", str(tmp_path)]) == 0
    content = results(tmp_path)
    assert next(iter(content)) == "success"
    row = content["results"]["base"][0]
    ends = {"mean": "", "low": "/low", "high": "/high"}
    assert content["success"] == {end: row[f"eval/success{suffix}"] for end, suffix in ends.items()}


# ------------------------------------------------------------------------------------ SIGTERM


@pytest.mark.slow
def test_sigterm_keeps_the_episodes_says_how_to_go_on_and_exits_with_143(
    words: list[str], tmp_path: Path
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    trap = json.dumps({"trap": str(tmp_path / "trap"), "trap_signal": int(signal.SIGTERM)})
    command = [*words[:-1], "66", "--env", QUIZ, "--env-args", trap, "--out"]
    (tmp_path / "trap").write_text("64")
    stopped = subprocess.run(
        [sys.executable, "-m", "pettingllms.cli.evaluate", *command, str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert stopped.returncode == TERMINATED, stopped.stderr
    assert f"episodes so far are in {out}; the same command resumes" in stopped.stdout
    assert stopped.stderr == "terminated\n"
    assert len((out / "trajectories.jsonl").read_text().splitlines()) == 64
    assert main([*command, str(out)]) == 0
    assert main([*command, str(whole)]) == 0
    assert (out / "results.json").read_bytes() == (whole / "results.json").read_bytes()
