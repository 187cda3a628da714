"""`pettingllms-sandbox`: what each command prints and how it ends."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pettingllms.cli.sandbox import _parser, main
from pettingllms.sandbox import isolation
from pettingllms.sandbox.selfcheck import GROUPS, Behavior


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def written(folder: Path, text: str, name: str = "program.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_run_prints_what_the_program_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    program = written(tmp_path, "import sys; print(input()); print('warned', file=sys.stderr)")
    assert main(["run", program, "--stdin", written(tmp_path, "hello\n", "in.txt")]) == 0
    captured = capfd.readouterr()
    assert captured.out == "hello\n"
    assert "warned" in captured.err
    assert "[ok, exit code 0" in captured.err


def test_run_ends_with_1_where_the_program_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    program = written(tmp_path, "while True: pass")
    assert main(["run", program, "--cpu-s", "0.1", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["status"] == "cpu_limit"


def test_run_calls_a_function(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    program = written(tmp_path, "def add(a, b): return a + b")
    assert main(["run", program, "--function", "add", "--args", "[1, 2]"]) == 0
    assert capfd.readouterr().out == "3\n"


def test_input_reaches_the_program_byte_for_byte(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    program = written(tmp_path, "import sys; print(sys.stdin.buffer.read().hex())")
    content = "\ufeffé\r\n\x00𝔸\n".encode()
    (tmp_path / "in.txt").write_bytes(content)
    assert main(["run", program, "--stdin", str(tmp_path / "in.txt")]) == 0
    assert capfd.readouterr().out == content.hex() + "\n"


@pytest.mark.parametrize("which", ["program", "input", "standard input"])
def test_what_is_not_utf8_is_refused_with_its_place(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    bad = tmp_path / "bad.txt"
    bad.write_bytes("# é\n#".encode() + b"\xff\n")
    words = {
        "program": [str(bad)],
        "input": [written(tmp_path, "print(input())"), "--stdin", str(bad)],
        "standard input": ["-"],
    }[which]
    with bad.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["run", *words]) == 2
    name = "standard input" if which == "standard input" else str(bad)
    assert capfd.readouterr().err == (
        f"error: {name} is not UTF-8: byte 0xff in line 2; convert it, as with "
        f"iconv -f LATIN1 -t UTF-8\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "/no/such/file"], "cannot read /no/such/file"),
        (["run", __file__, "--memory-mib", "0"], "memory_mib must be between"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    message = capfd.readouterr().err
    assert words in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "x.py", "--cpu", "1"], "unknown option '--cpu'; did you mean '--cpu-s'"),
        (["run", "x.py", "--cpu-s", "soon"], "--cpu-s: invalid float value: 'soon'"),
        (["run"], "the following arguments are required: file"),
        (["checkup"], "invalid choice: 'checkup'"),
        (["check", "--sandbox", "dockr"], "did you mean 'docker'"),
        (["check", "--runtime", "runsc"], "sandbox.runtime is for docker, not for 'embedded'"),
        (["run", __file__, "--packages", "num py"], "'num py' is not the name of a package"),
        (["run", __file__, "--sandbox", "no_such:make"], "there is no module 'no_such'"),
    ],
)
def test_a_mistyped_command_line_is_one_line_with_its_cure(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    message = capfd.readouterr().err
    assert words in message
    assert message.startswith("error: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "check", "doctor", "build"])
def test_the_help_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    [parser] = [p for name, p in subcommands().items() if name == command]
    output = capsys.readouterr().out
    assert parser.description
    for action in parser._actions:
        assert action.help, action
        assert all(option in output for option in action.option_strings)


def subcommands() -> dict[str, argparse.ArgumentParser]:
    [commands] = [
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    return dict(commands.choices)


@pytest.mark.parametrize("words", [["check", "--all"], ["run", "-"]])
def test_a_reader_that_goes_away_ends_the_command_silently(words: list[str]):
    command = subprocess.Popen(
        (sys.executable, "-m", "pettingllms.cli.sandbox", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdin is not None
    assert command.stdout is not None
    assert command.stderr is not None
    with command, command.stderr:
        command.stdout.close()
        command.stdin.write(b"print('x' * 100_000)")
        command.stdin.close()
        message = command.stderr.read()
    assert (command.returncode, message) == (141, b"")


def test_without_an_engine_build_says_how_to_get_one(
    no_engine: None, capfd: pytest.CaptureFixture[str]
):
    assert main(["build", "--base", "python:3.12"]) == 2
    assert "no Docker engine answers" in capfd.readouterr().err


def test_check_counts_by_group_and_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    for group in GROUPS:
        monkeypatch.setitem(GROUPS, group, GROUPS[group][-1:])
    assert main(["check", "--all"]) == 0
    output = capfd.readouterr().out
    assert all(f"{group}" in output for group in GROUPS)
    assert "seccomp" in output
    monkeypatch.setitem(GROUPS, "honest", (Behavior("is two", "print(1)", stdout="2\n"),))
    assert main(["check"]) == 1
    assert "FAILED   honest: is two: printed '1\\n', expected '2\\n'" in capfd.readouterr().out


def test_doctor_says_what_is_there_and_what_fixes_the_rest(
    no_engine: None, capfd: pytest.CaptureFixture[str]
):
    assert main(["doctor"]) == 0
    output = capfd.readouterr().out
    assert "embedded    isolates by" in output
    assert "MISSING  docker" in output
    assert "fix: start an engine" in output


def test_doctor_names_the_switch_that_forbids_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    switch = tmp_path / "switch"
    switch.write_text("0\n")
    switches = ((str(switch), "0", "user.max_user_namespaces=15000"),)
    monkeypatch.setattr(isolation, "_SWITCHES", switches)
    assert isolation.cure("namespaces") == "sysctl -w user.max_user_namespaces=15000"
    switch.write_text("1\n")
    assert "docker run --security-opt seccomp=" in isolation.cure("namespaces")
