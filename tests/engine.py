"""A Docker engine for tests: the one that is there, or one of our own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import docker

SCRIPT = Path(__file__).parents[1] / "sandbox" / "dev-engine.sh"
START_S = 60


def reachable(url: str | None) -> bool:
    """Whether an engine answers at `url`, or where the environment says."""
    try:
        docker.connect(url).close()
    except SandboxUnavailable:
        return False
    return True


@contextmanager
def own_engine(folder: Path, *options: str) -> Iterator[str]:
    """An engine of our own below `folder`, with further options of `dockerd`; its address."""
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("no Docker engine answers, and dockerd cannot be started: it needs root")
    url = f"unix://{folder}/docker.sock"
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            [str(SCRIPT), str(folder), *options], stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not reachable(url):
            ended = engine.poll() is not None or time.monotonic() > deadline
            assert not ended, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield url
    finally:
        stop(engine)
        shutil.rmtree(folder, ignore_errors=True)


def stop(engine: subprocess.Popen[bytes]) -> None:
    """End an engine and what it started."""
    engine.send_signal(signal.SIGTERM)
    try:
        engine.wait(30)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def stop_at(url: str) -> None:
    """Stop the engine of `own_engine` at `url`, and with it its containers."""
    pid = int((Path(url.removeprefix("unix://")).parent / "dockerd.pid").read_text())
    os.kill(pid, signal.SIGTERM)
