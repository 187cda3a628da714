"""What commands say and how they exit where something outside of them is wrong."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pettingllms
from pettingllms import cli
from pettingllms.cli import data, envs, evaluate, guard, sandbox, serve, train, view
from pettingllms.cli.options import OptionParser, fields_of
from pettingllms.evaluation.config import EvalConfig
from pettingllms.trainers.config import ATGRPOConfig

COMMANDS = {
    "data": data,
    "envs": envs,
    "evaluate": evaluate,
    "sandbox": sandbox,
    "serve": serve,
    "train": train,
    "view": view,
}


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_ctrl_c_while_a_command_ends_is_no_traceback() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "from pettingllms.cli.guard import guarded\n"
        "def command():\n"
        "    atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "    raise KeyboardInterrupt\n"
        "sys.exit(guarded(command))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("together", [False, True], ids=["stdout", "both"])
def test_a_reader_that_has_left_ends_every_command_quietly(name: str, together: bool) -> None:
    """As `| head -0` and `2>&1 | head -0` leave at once."""
    pipe = closed_pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"pettingllms.cli.{name}", "--help"],
            stdout=pipe,
            stderr=pipe if together else subprocess.PIPE,
            env=BUFFERED,
            check=False,
        )
    finally:
        os.close(pipe)
    assert done.returncode == guard.PIPE_CLOSED
    assert not done.stderr


def test_an_error_that_nobody_reads_is_quiet_too() -> None:
    pipe = closed_pipe()
    try:
        words = [sys.executable, "-m", "pettingllms.cli.envs", "show", "nothing"]
        assert subprocess.run(words, stderr=pipe, check=False).returncode == guard.PIPE_CLOSED
    finally:
        os.close(pipe)


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_standard_output_on_a_full_disk_is_one_line(more: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pettingllms.cli.envs", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED | more,
        )  # fmt: skip
    assert done.returncode == guard.FAILED
    assert done.stderr == "error: a file cannot be written: No space left on device; free some\n"


NUMBERS = [
    (command, field.name)
    for command, kind in ((train, ATGRPOConfig), (evaluate, EvalConfig))
    for field in dataclasses.fields(kind)
    if "float" in str(field.type) and field.metadata
]


@pytest.mark.parametrize("value", ["1e400", "-inf", "nan"])
def test_no_option_takes_a_number_that_is_not_finite(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(NUMBERS) >= 14
    for command, name in NUMBERS:
        option = f"--{name.replace('_', '-')}={value}"
        assert command.main([option, "--dry-run"]) == guard.FAILED, option
        assert f"{name} must be" in capsys.readouterr().err
    for words in (
        [f"--env-args.alpha={value}"],
        ["--env-args", f'{{"alpha": {value}}}'],
        ["--env-args", '{"alpha": NaN}'],
    ):
        assert train.main([*words, "--dry-run"]) == guard.FAILED, words
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_steps": "many"}, "max_steps must be a whole number, got 'many'"),
        ({"max_steps": 2.5}, "max_steps must be a whole number, got 2.5"),
        ({"max_steps": True}, "max_steps must be a whole number, got True"),
        ({"learning_rate": [1]}, r"learning_rate must be a number, got \[1\]"),
        ({"full": "yes"}, "full must be true or false, got 'yes'"),
        ({"env": 3}, "env must be a text, got 3"),
        ({"env_args": 3}, "env_args must be a JSON object, got 3"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(pettingllms.errors.ConfigError, match=says):
        ATGRPOConfig(**settings)


def test_an_argument_of_the_environment_of_another_type_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for env, words in {
        "coding": ["--env-args.max_turns", "many"],
        "math": ["--env-args.topology", "true"],
        "sudoku": ["--env-args", '{"dataset": [1]}'],
    }.items():
        assert train.main(["--env", env, *words, "--dry-run"]) == guard.FAILED
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_a_name_that_is_too_long_for_a_file_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("--adapters", "--model"):
        assert evaluate.main([option, "x" * 5000, "--dry-run"]) == guard.FAILED
        err = capsys.readouterr().err
        assert "File name too long" in err
        assert len(err) < 200


def test_a_misspelt_argument_of_the_environment_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (train, evaluate):
        assert command.main(["--env-args.max_trns", "2", "--dry-run"]) == guard.FAILED
        assert "no argument 'max_trns'; did you mean 'max_turns'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: {", "line 2, column 2: expected ',' or ']', but got ':'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("\t- x", "line 1, column 1: found character '\\t' that cannot start any token"),
        ("env: 'coding", "line 1, column 13: found unexpected end of stream"),
    ],
)
def test_a_broken_file_of_settings_is_one_line_with_its_place(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert train.main(["--config", str(tmp_path / "c.yaml")]) == guard.FAILED
    err = capsys.readouterr().err
    assert err == f"error: --config {tmp_path / 'c.yaml'} is not YAML: {says}\n"


def test_an_unknown_model_is_one_line_and_no_retries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network: the hub's client is asked, which does not retry, and transformers is not."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    for command in (train, evaluate):
        assert command.main(["--model", "nosuch/x", "--dry-run"]) == guard.FAILED
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "there is no folder nosuch/x, and the Hugging Face hub did not hand out" in err
        assert "give the path of a downloaded copy" in err


def test_the_next_command_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Path(sys.executable).parent / "pettingllms-eval"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program, *rest = shlex.split(guard.typed("pettingllms-eval --env 'a b' --adapters runs/x"))
    assert rest[-4:] == ["--env", "a b", "--adapters", "runs/x"]
    command = [program, *rest[:-4], "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"pettingllms {pettingllms.__version__}\n"
    if beside.exists():
        monkeypatch.setenv("PATH", str(beside.parent))
        assert guard.typed("pettingllms-eval x") == "pettingllms-eval x"
    # The command of another installation is not this one.
    other = tmp_path / "pettingllms-eval"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("pettingllms-eval") == str(other)
    assert guard.typed("pettingllms-eval x") != "pettingllms-eval x"


def test_every_command_has_the_same_kind_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.items():
        with pytest.raises(SystemExit) as stopped:
            command.main(["--help"])
        assert stopped.value.code in (0, None)
        shown = capsys.readouterr().out
        assert shown.startswith("usage: pettingllms-"), name
        assert "Print this help and exit" in shown, name
        assert "Print the version and exit" in shown, name
        assert command.main(["--nosuch"]) == guard.FAILED
        assert capsys.readouterr().err.startswith("error: "), name


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_misspelled_option_gets_its_suggestion_before_what_else_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[name].main(["--hlep"]) == guard.FAILED
    assert "unknown option '--hlep'; did you mean '--help'" in capsys.readouterr().err


def test_sigterm_stops_a_training_in_order_and_exits_with_143() -> None:
    with train.stop_signals() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked.signal == signal.SIGTERM


def test_an_option_of_several_words_keeps_one_spelling_in_files(tmp_path: Path) -> None:
    parser = OptionParser(fields_of(ATGRPOConfig), prog="x", description="", several=("env",))
    (tmp_path / "c.yaml").write_text("env: [coding, math]\n")
    found = parser.read(["--config", str(tmp_path / "c.yaml")])
    assert found.env == parser.read(["--env", "coding", "math"]).env == "coding,math"


def test_a_misspelled_option_is_said_without_importing_what_takes_seconds() -> None:
    code = (
        "import sys\n"
        "from pettingllms.cli import evaluate, serve, train\n"
        "codes = [command.main(['--hlep']) for command in (evaluate, serve, train)]\n"
        "assert codes == [2, 2, 2], codes\n"
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("did you mean '--help'") == 3


def variable(name: str, chosen: str | None) -> list[str]:
    """A variable in the environment of a command, and whether torch has been imported before it was set."""
    code = f"import os, sys, pettingllms.cli as _; print(os.environ.get('{name}'), 'torch' in sys.modules)"
    env = {key: value for key, value in os.environ.items() if key != name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | ({name: chosen} if chosen else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_commands_bound_the_kernels_that_are_kept_unless_the_user_does() -> None:
    assert variable("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None) == ["128", "False"]
    assert variable("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7") == ["7", "False"]


def test_threads_of_commands_sleep_while_they_wait_beside_other_programs() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        assert variable("OMP_WAIT_POLICY", None) == ["PASSIVE", "False"], (
            "torch reads it when imported"
        )
        assert variable("OMP_WAIT_POLICY", "ACTIVE") == ["ACTIVE", "False"], (
            "the user's choice stays"
        )
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_threads_of_commands_may_spin_where_few_cores_are_busy() -> None:
    assert not cli.busy(cores=10_000)


def test_a_command_that_ends_looks_for_no_garbage_among_what_it_imported() -> None:
    # Handlers run in reverse order: the command's is the first.
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_count()[0], gc.get_freeze_count()))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import pettingllms.cli"],
        capture_output=True,
        text=True,
        check=True,
    )
    young, frozen = map(int, done.stdout.split())
    assert young < 100 < frozen
