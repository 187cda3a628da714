"""`pettingllms-envs` in a terminal: what there is, what it takes, and playing by hand."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.cli import envs, guard, train, view
from pettingllms.envs import ENVIRONMENTS
from pettingllms.envs.arguments import described

COMMAND = [sys.executable, "-m", "pettingllms.cli.envs"]


def play(monkeypatch, text, *words):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return envs.main(["play", *words])


def test_every_environment_is_listed_and_explained(capsys):
    assert envs.main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in listed]
    assert names == [
        *ENVIRONMENTS.own,
        "judged:NAME",
        "program:FILE.py:FUNCTION",
        "textarena:GAME",
        "pettingzoo:GAME",
    ]
    for name in ENVIRONMENTS.own:
        assert envs.main(["show", name]) == 0
        shown = capsys.readouterr().out
        assert "max_turns: int | None, default None" in shown
        assert "weight of the team reward" in shown
        first = "dense" if name in ("duet", "search", "read") else "paper"
        assert f"reward schemes: {first}" in shown


def test_an_environment_of_ones_own_is_explained(capsys):
    assert envs.main(["show", "tests.toy_env:env"]) == 0
    shown = capsys.readouterr().out
    assert "reset options: secret" in shown
    assert "split: str, default 'train'" in shown
    assert envs.main(["show", "tests.foreign_env:raw_env"]) == 0
    assert "rounds: Any, default 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--env.size", "8", "--dry-run"],
            "--env has no keys, got --env.size; write --env-args.size",
        ),
        (["--env", "./no_such.py:env", "--dry-run"], "there is no file .*no_such.py"),
        (["--env", "sokoban", "--env-args.sizes", "8", "--dry-run"], "did you mean 'size'"),
    ],
)
def test_training_names_the_cure_for_a_wrong_environment(words, message, capsys):
    assert train.main(words) == guard.FAILED
    assert re.search(message, capsys.readouterr().err)


def test_an_episode_is_played_by_hand(monkeypatch, capsys):
    words = ["tests.toy_env:env", "--seed", "3", "--env-args.max_turns", "2", "--env-args.alpha=2"]
    assert play(monkeypatch, "7\n\nhigher or so\n\n\n8\n\nright", *words) == 0
    out = capsys.readouterr().out
    assert "----- guesser_0\nGuess the secret, 0 to 9. Said so far: nothing.\n-----\n> 7" in out
    assert re.search(r"guesser_0 earns 0.5 = 2 \* team 0 \+ local 0.5; success False$", out, re.M)
    assert "unparsable: not higher, lower or right" in out
    assert "unparsable: not a number from 0 to 9" in out  # the empty reply
    assert re.search(
        "the episode is truncated after 4 replies, success (True|False); returns: g", out
    )


def test_json_arguments_and_the_end_of_the_input(monkeypatch, capsys):
    assert play(monkeypatch, "7\n", "tests.toy_env:env", "--env-args", '{"max_turns": 1}') == 0
    assert "stopped: the input ended after 1 replies" in capsys.readouterr().out


def test_an_environment_of_any_kind_is_played(monkeypatch, capsys):
    assert play(monkeypatch, "fig\n\n" * 4, "tests.foreign_env:env") == 0
    out = capsys.readouterr().out
    assert re.search("speaker_1 earns [01]$", out, re.M)
    assert "the episode is truncated after 4 replies; returns: speaker_1" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["play", "sokobn"], "did you mean 'sokoban'"),
        (["play", "sokoban", "--env-args", "[1]"], "must be a JSON object, got '\\[1\\]'"),
        (["play", "sokoban", "--env-args", "{"], "must be a JSON object, got '{'"),
        (["play", "sokoban", "--env-args.boxxes", "2"], "did you mean 'boxes'"),
        (["play", "sokoban", "--env-args={}", "--env-args.size", "7"], "not both"),
        (["check", "coding", "--env-args.max_turns", '"a"'], "made with max_turns='a': TypeError"),
        (
            ["play", "plan_path", "--env-args.height", "null"],
            "made with height=None: .*pettingllms-envs show",
        ),
        (
            ["check", "math", "--env-args.dataset", "5"],
            "a dataset is a name, a path, or rows, got 5",
        ),
        (["show", "sokoban", "--env-args"], "option --env-args belongs to check, play; see"),
        (["show", "sokoban", "--env-args.size", "7"], "--env-args belongs to check, play"),
        (["check", "sokoban", "--replies", "no_such.txt"], "no_such.txt: No such file"),
        (["play", "sokoban", "--seed", "-1"], "seed must not be negative"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert envs.main(words) == guard.FAILED
    captured = capsys.readouterr()
    assert re.search(message, captured.err)
    assert captured.err.startswith("error: ")


def test_check_says_what_holds_and_what_does_not(tmp_path, capsys):
    replies = tmp_path / "replies.txt"
    replies.write_text("5\n\nhigher\n\nright\n")
    words = ["--episodes", "1", "--replies", str(replies)]
    assert envs.main(["check", "tests.toy_env:env", *words, "--env-args.max_turns=2"]) == 0
    assert "tests.toy_env:env passes" in capsys.readouterr().out
    assert envs.main(["check", "tests.broken_envs:Unmixed", *words]) == envs.BROKEN
    out = capsys.readouterr().out
    assert "tests.broken_envs:Unmixed fails: reward = alpha * team + local" in out


def test_a_program_with_empty_lines_is_one_reply():
    text = "see:\n```python\na = 1\n\nprint(a)\n```\n\n\nlast\n```\n\nopen"
    replies = list(envs.read_replies(io.StringIO(text)))
    assert replies == ["see:\n```python\na = 1\n\nprint(a)\n```", "", "last\n```\n\nopen"]


@pytest.mark.slow
@given(st.lists(st.lists(st.from_regex("[a-z ]{1,5}", fullmatch=True), min_size=1), max_size=5))
def test_replies_are_read_as_they_were_written(replies):
    texts = ["\n".join(lines) for lines in replies]
    assert list(envs.read_replies(io.StringIO("\n\n".join(texts)))) == texts


@pytest.mark.slow
def test_a_reader_that_leaves_and_bytes_that_are_not_text_end_in_silence():
    for unbuffered in ("", "1"):
        reader, writer = os.pipe()
        os.close(reader)  # before the command starts, so that it never wins a race
        done = subprocess.run(
            [*COMMAND, "show", "coding"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (guard.PIPE_CLOSED, b"")
    words = [*COMMAND, "play", "tests.toy_env:env"]
    done = subprocess.run(words, input=b"\xff\xfe\n\n", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"unparsable" in done.stdout


def test_control_c_ends_a_game_in_one_line():
    words = [*COMMAND, "play", "tests.toy_env:env"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "----- guesser_0\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert (process.returncode, err) == (guard.INTERRUPTED, "interrupted\n")


def test_a_description_fits_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for command in (view.parse, envs.main):
        with pytest.raises(SystemExit):
            command(["--help"])
        text = capsys.readouterr().out.partition("ositional arguments:")[0]
        # Commands and the usage line stay whole.
        prose = [line for line in text.splitlines() if not line.startswith((" ", "usage:"))]
        assert max(map(len, prose)) <= 80


def test_a_type_is_shown_as_it_is_written():
    def maker(size=6, mode=None, more=()):
        del size, mode, more

    maker.__annotations__ = {"size": int, "mode": "str | None"}
    assert [argument.kind for argument in described(maker)] == ["int", "str | None", ""]
