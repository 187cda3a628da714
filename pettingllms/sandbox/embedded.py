"""The embedded back end: workers on this machine, isolated by the kernel. Linux only.

The worker is exec'd, never forked from the caller, whose memory holds answers and keys, and it
sees an environment of one variable: a fixed hash seed, so that a program that prints a set
prints the same on every worker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.client import PooledSandbox, WorkerConnection
from pettingllms.sandbox.worker import __file__ as _worker_file
from pettingllms.sandbox.workers import ProcessChannel

logger = logging.getLogger(__name__)

WORKER_MAIN = Path(_worker_file).parent / "__main__.py"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""`-I` without its refusal to read PYTHONHASHSEED."""


class EmbeddedSandbox(PooledSandbox):
    """Runs programs on this machine. `workers` is the number of cores by default.

    As many workers as cores keep to a core each: a worker, its fork server and its programs wake
    each other some thousand times a second, and what the kernel moves between cores finds cold
    caches and at times leaves a core idle. Fewer or more workers are placed by the kernel, which
    knows better what else is running.

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
        options = {"allow_unsafe": allow_unsafe, "without": list(without)}
        size = workers or usable_cores()
        cores = _Cores(size)
        super().__init__(lambda: launch(packages, cores=cores, **options), size)


class _Cores:
    """Cores that no worker of a pool has yet; none where there are not as many as workers.

    Threads need no lock here, which a forked process could inherit held: a list gives each of its
    elements to one caller of `pop`.
    """

    def __init__(self, workers: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._free = cores if len(cores) == workers > 1 else []

    def take(self) -> tuple[int | None, Callable[[], None]]:
        """A core, and what gives it back, once."""
        try:
            # A list, so that only the first of several calls gives the core back.
            taken = [self._free.pop(0)]
        except IndexError:
            return None, lambda: None

        def give_back() -> None:
            with contextlib.suppress(IndexError):
                self._free.append(taken.pop())

        return taken[0], give_back


def launch(
    packages: Sequence[str] = (), *, cores: _Cores | None = None, **options: Any
) -> WorkerConnection:
    """Start a worker on this machine; for `options` see `worker.start`.

    Raises:
        WorkerLost: it does not start.
    """
    core, give_back = cores.take() if cores is not None else (None, lambda: None)
    text = json.dumps({"packages": list(packages), "parent": os.getpid(), "core": core, **options})
    command = (sys.executable, *FLAGS, str(WORKER_MAIN), text)
    connection = WorkerConnection(ProcessChannel(command, ENVIRONMENT, at_end=give_back))
    for problem in connection.problems:
        if problem.startswith("user: "):
            logger.warning("%s", problem)
    return connection


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
