"""The commands with `--workers`: killed and resumed, evaluated, and refused in one line."""

from __future__ import annotations

import importlib
import json
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Fork
from tests.processes import alive, descendants, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
TRAIN = (
    *("--env", "coding", "--policies", "shared"),
    *("--max-steps", "2", "--eval-steps", "0", "--save-steps", "1"),
    *("--tasks-per-step", "2", "--tasks-per-shard", "1", "--eval-tasks", "1"),
    *("--max-completion-length", "16"),
)


def run(name: str, *words: str) -> Any:
    """Runs a command of the package."""
    return importlib.import_module(f"pettingllms.cli.{name}").main(words)


def command(name: str, *words: str, folder: Path) -> Fork:
    """A command with a temporary folder of its own, which ends at the latest with the block."""
    # Not in a checkout, whose revision results name.
    return Fork(run, name, *words, folder=folder, TMPDIR=str(folder))


def finished(name: str, *words: str, folder: Path) -> str:
    with command(name, *words, folder=folder) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def until(condition: Callable[[], object], process: Fork) -> None:
    """Waits as long as the process runs: a busy machine takes minutes to import everything."""
    while not eventually(condition):
        assert process.poll() is None, process.communicate()[0]


def files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in names
        for path in sorted(folder.glob(name))
    }


def shared_memory() -> set[str]:
    """All but the semaphores of Python's processes, which neither Ray nor we make: other programs do."""
    paths = Path("/dev/shm").iterdir()
    return {path.name for path in paths if not path.name.startswith("sem.mp-")}


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder whose path leaves room for those of Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        yield Path(folder)


def test_a_run_that_is_stopped_and_then_killed_leaves_nothing_and_goes_on_to_the_same_bytes(
    tmp_path, short
):
    shm = shared_memory()
    run = tmp_path / "two"
    options = (*TRAIN, "--output-dir", str(run), "--workers", "1")
    with command("train", *options, folder=short) as process:
        until((run / "config.yaml").exists, process)
        started = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert "stopping after this step" in output
    assert process.returncode == 143, output
    assert eventually(lambda: not any(map(alive, started)))
    assert not list(short.glob("pllms-*"))
    with command("train", "--resume", str(run), folder=short) as process:
        until(lambda: list(run.glob("checkpoints/step-*")), process)
        started = descendants(process.pid)
    assert eventually(lambda: not any(map(alive, started)))
    assert eventually(lambda: not list(short.glob("pllms-*")))
    assert shared_memory() <= shm
    # It goes on without Ray; that a run with workers goes on with others is seen in `test_ray_train.py`.
    text = (run / "config.yaml").read_text()
    assert "workers: 1" in text
    (run / "config.yaml").write_text(text.replace("workers: 1", "workers: 0"))
    finished("train", "--resume", str(run), folder=short)
    finished("train", *TRAIN, "--output-dir", str(tmp_path / "one"), folder=short)
    names = ("adapters/*/adapter_model.safetensors", "trajectories.jsonl")
    assert files(run, names) == files(tmp_path / "one", names)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in steps] == [1, 2]
    assert 0 <= steps[0]["workers/scoring"] < steps[0]["workers/busy"] <= 1
    assert 0 < steps[0]["learners/idle"] < 1


def test_an_evaluation_by_workers_has_the_same_bytes_and_leaves_nothing(tmp_path, short):
    shm = shared_memory()
    options = ("--env", "math", "--limit", "3", "--samples", "8")
    for name, words in (("one", ()), ("two", ("--workers", "2"))):
        finished("evaluate", *options, *words, "--out", str(tmp_path / name), folder=short)
    one, two = (files(tmp_path / name, ["*"]) for name in ("one", "two"))
    assert one == two
    assert "results.json" in one
    assert not list(short.glob("pllms-*"))
    assert shared_memory() <= shm


def test_a_temporary_folder_that_ray_cannot_use_is_one_line(tmp_path, short):
    deep = short / ("a" * 90)
    deep.mkdir()
    words = (*TRAIN, "--workers", "1", "--output-dir", str(tmp_path / "run"))
    with Fork(run, "train", *words, folder=short, TMPDIR=str(deep)) as process:
        output, _ = process.communicate()
    assert process.returncode == 2, output
    (line,) = output.strip().splitlines()
    assert line.startswith(f"error: Ray cannot start in {deep}/pllms-ray-")
    assert "AF_UNIX path length cannot exceed" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "2", "--ray-address", "ray://h:1"), "Ray's client is not supported"),
        (("--workers", "2", "--ray-address", "127.0.0.1:{free}"), "nothing answers there"),
    ],
    ids=["client", "nothing-answers"],
)
def test_a_cluster_that_cannot_be_used_is_one_line(words, message, tmp_path, short):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = unused.getsockname()[1]
        arguments = [word.format(free=free) for word in words]
        run = tmp_path / "run"
        options = (*TRAIN, *arguments, "--output-dir", str(run))
        with command("train", *options, folder=short) as process:
            output, _ = process.communicate()
    assert process.returncode == 2
    assert message in output
    assert len(output.strip().splitlines()) == 1
    assert not run.exists()
