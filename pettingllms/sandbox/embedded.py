"""The embedded back end: workers on this machine, isolated by the kernel. Linux only.

The worker is exec'd, never forked from the caller, whose memory holds answers and keys, and it
sees an environment of one variable: a fixed hash seed, so that a program that prints a set
prints the same on every worker.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.scratch import ScratchFolder, remove_leftovers
from pettingllms.sandbox.worker import __file__ as _worker_file
from pettingllms.sandbox.workers import ProcessChannel, WorkerConnection, WorkerLost

logger = logging.getLogger(__name__)

WORKER_MAIN = Path(_worker_file).parent / "__main__.py"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""`-I` without its refusal to read PYTHONHASHSEED."""
_REQUESTS = 100_000
"""Requests after which a worker is replaced, because its memory may be fragmented."""


class EmbeddedSandbox(PooledSandbox):
    """Runs programs on this machine. `workers` is the number of cores by default.

    Args:
        workers: processes that run programs at the same time, started when needed.
        packages: third-party packages that programs may import, preloaded in every worker.
        allow_unsafe: run programs even where the kernel isolates nothing; every result then
            says `isolation="none"`.
        without: layers to leave out, for tests.

    Raises:
        SandboxUnavailable: this is not Linux.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        packages: Sequence[str] = (),
        allow_unsafe: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(
                f"the embedded sandbox needs Linux, this is {sys.platform}; use `--sandbox docker`"
            )
        remove_leftovers()
        options = {"allow_unsafe": allow_unsafe, "without": list(without)}
        super().__init__(
            lambda: launch(packages, **options), workers or usable_cores(), requests=_REQUESTS
        )


def launch(packages: Sequence[str] = (), **options: Any) -> WorkerConnection:
    """Start a worker on this machine; for `options` see `worker.start`.

    Raises:
        WorkerLost: it does not start.
    """
    try:
        folder = ScratchFolder()
    except OSError as error:
        raise WorkerLost(f"no scratch folder can be made: {error}; set TMPDIR") from error
    command = python_command(packages, scratch=folder.path, parent=os.getpid(), **options)
    channel = ProcessChannel(command, ENVIRONMENT, folder)
    connection = WorkerConnection(channel)
    if "namespaces" in connection.layers:
        channel.drop_folder()  # programs have a mount of their own
    for problem in connection.problems:
        if problem.startswith("user: "):
            logger.warning("%s", problem)
    return connection


def python_command(packages: Sequence[str] = (), **options: Any) -> tuple[str, ...]:
    """The command that starts a worker with this Python; for `options` see `worker.start`."""
    text = json.dumps({"packages": list(packages), **options})
    return (sys.executable, *FLAGS, str(WORKER_MAIN), text)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
