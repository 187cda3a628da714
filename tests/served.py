"""A small finished run, and servers in a thread and as a process, for the tests of serving."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from pettingllms.cli import serve
from pettingllms.samplers.vllm_process import VllmEndpoint, free_port
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from tests.forks import Fork
from tests.vllm_policies import save_model

ROOT = Path(__file__).parents[1]
KEY = "a key of these tests"


def trained(folder, env="tests.letters_env:env", **changes):
    """A run of one step with a rate high enough for its roles to differ."""
    config = ATGRPOConfig(
        env=env,
        model=str(save_model(folder / "model")),
        output_dir=str(folder / "run"),
        max_steps=1,
        tasks_per_step=2,
        num_generations=4,
        max_completion_length=12,
        learning_rate=0.05,
        warmup_steps=0,
        eval_steps=0,
        eval_tasks=1,
        save_steps=1,
        lora_r=4,
        scoring_threads=1,
        **changes,
    )
    return train(config).folder


@contextlib.contextmanager
def running(server, key):
    """URL of the HTTP interface of a `RoleServer`, in a thread of this process."""
    import uvicorn

    from pettingllms.serving.app import HeadersInTime, application

    port = free_port("127.0.0.1")
    app = application(server, key)
    settings = uvicorn.Config(app, http=HeadersInTime, port=port, log_level="warning")
    running = uvicorn.Server(settings)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{port}"
    while not _answers(base):
        assert thread.is_alive()
    try:
        yield base
    finally:
        running.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


@contextlib.contextmanager
def serving(run, *options, seconds=30.0, end=signal.SIGTERM):
    """Base URL and key of `pettingllms-serve RUN`; the command must end well when asked to."""
    port = free_port("127.0.0.1")
    words = ["-m", "pettingllms.cli.serve", str(run), "--port", str(port), *options]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        lines: list[str] = []
        while not any(line.startswith("key: ") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        yield f"http://127.0.0.1:{port}/v1", lines[-1].removeprefix("key: ").strip()
        process.send_signal(end)
        started = time.monotonic()
        assert process.wait(seconds) == 0, process.stderr.read()
        assert time.monotonic() - started < seconds
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def serving_in_a_fork(run, *options, seconds=30.0, end=signal.SIGTERM):
    """As `serving`, without the seconds that a process of its own takes to import torch."""
    port = free_port("127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        (key := Path(folder, "key")).write_text(KEY)
        words = [str(run), "--port", str(port), "--key-file", str(key), *options]
        with Fork(serve.main, words, folder=ROOT) as process:
            url = f"http://127.0.0.1:{port}"
            while not _answers(url):
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.1)
            yield f"{url}/v1", KEY
            process.send_signal(end)
            said, _ = process.communicate(seconds)
            assert process.returncode == 0, said


def _answers(url):
    import httpx2

    try:
        return VllmEndpoint(url).healthy(1.0)
    except httpx2.HTTPError:
        return False
