"""Runs functions in forks of one process that has loaded torch and its companions: loading takes seconds."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "transformers",
        "trl",
        "pettingllms.session",
        "pettingllms.cli.train",
        "pettingllms.cli.evaluate",
    ]
)


class Fork:
    """Runs a function in a fork; used like `subprocess.Popen`, with both output streams in one text.

    Leaving the `with` block kills it.

    Args:
        function: of a module; its return value is the exit status.
        arguments: of the function.
        folder: its working directory.
        environment: variables to set, beside those of this process.
    """

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, folder: Path, **environment: str
    ) -> None:
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._written = Path(name)
        variables = {**os.environ, **environment}
        self._process = _forks.Process(
            target=_run, args=(function, arguments, folder, variables, name)
        )
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Waits for its end; returns what it wrote, and None in place of standard error."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"{self._process} has not ended after {timeout} seconds")
        return self._written.read_text(), None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._written.unlink()


def _run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: Path,
    environment: Mapping[str, str],
    written: str,
) -> None:
    descriptor = os.open(written, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(folder)
    try:
        sys.exit(function(*arguments))
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends a process without them
