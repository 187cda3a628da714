"""The embedded back end: workers on this machine, isolated by the kernel. Linux only.

The worker is exec'd, never forked from the caller, whose memory holds answers and keys, and it
sees an environment of one variable: a fixed hash seed, so that a program that prints a set
prints the same on every worker.

For workers without a mount namespace, the launcher makes a scratch folder on the host, tells the
worker where it is, and removes it: no path ever comes from a worker, and only the folder that was
made is emptied, known by its device and inode. The launcher holds a lock on it as long as it
lives, which is how a later start tells the folders of killed processes from those in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.client import PooledSandbox, WorkerConnection
from pettingllms.sandbox.worker import __file__ as _worker_file
from pettingllms.sandbox.worker import folders
from pettingllms.sandbox.workers import ProcessChannel, WorkerLost

logger = logging.getLogger(__name__)

WORKER_MAIN = Path(_worker_file).parent / "__main__.py"
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""`-I` without its refusal to read PYTHONHASHSEED."""
_REQUESTS = 100_000
"""Requests after which a worker is replaced, because its memory may be fragmented."""


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
        remove_leftovers()
        options = {"allow_unsafe": allow_unsafe, "without": list(without)}
        size = workers or usable_cores()
        cores = _Cores(size)
        super().__init__(lambda: launch(packages, cores=cores, **options), size, requests=_REQUESTS)


class _Cores:
    """Cores that no worker of a pool has yet; none where there are not as many as workers.

    Threads need no lock here, which a forked process could inherit held: a list gives each of its
    elements to one caller of `pop`.
    """

    def __init__(self, workers: int) -> None:
        found = sorted(os.sched_getaffinity(0))
        self._free = found if len(found) == workers > 1 else []

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
    try:
        folder = ScratchFolder()
    except OSError as error:
        raise WorkerLost(f"no scratch folder can be made: {error}; set TMPDIR") from error
    core, give_back = cores.take() if cores is not None else (None, lambda: None)

    def at_end() -> None:
        folder.remove()
        give_back()

    own = {"scratch": folder.path, "parent": os.getpid(), "core": core}
    command = python_command(packages, **own, **options)
    connection = WorkerConnection(ProcessChannel(command, ENVIRONMENT, at_end=at_end))
    if "namespaces" in connection.layers:
        folder.remove()  # programs have a mount of their own
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


_PREFIX = "pettingllms-scratch-"
_FILES = "files"
_REMOVE_S = 2.0
"""A killed program may still write for a moment."""


class ScratchFolder:
    """A folder for the files of one worker's programs.

    Programs write to `path`, which lies in a folder that only the launcher can change.

    Raises:
        OSError: the temporary folder cannot be written.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._outer, self._fd = _make_locked()
        # Programs may run as another user, who has to pass through.
        os.fchmod(self._fd, 0o711)
        os.mkdir(_FILES, 0o700, dir_fd=self._fd)
        self.path = str(self._outer / _FILES)
        self._identity = _identity(_FILES, self._fd)

    def remove(self) -> None:
        """Remove the folder and what programs left in it; does nothing the second time.

        A forked process lets go of its parent's folder.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if os.getpid() == self._owner:
                _remove(self._outer, fd, self._identity)
        finally:
            os.close(fd)


def remove_leftovers() -> int:
    """Remove the folders of this user's processes that were killed; returns how many."""
    removed = 0
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
    for outer in found:
        with contextlib.suppress(OSError):  # it has just been removed, or is not ours
            fd = folders.open_folder(str(outer))
            try:
                if os.fstat(fd).st_uid == os.geteuid() and _is_abandoned(fd):
                    _remove(outer, fd, _identity(_FILES, fd))
                    removed += 1
            finally:
                os.close(fd)
    return removed


def _make_locked() -> tuple[Path, int]:
    """A new folder and its locked descriptor."""
    while True:
        outer = Path(tempfile.mkdtemp(prefix=_PREFIX))
        fd = folders.open_folder(str(outer))
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Another process that looked for leftovers may have removed it before it was locked.
        if _identity(outer) is not None:
            return outer, fd
        os.close(fd)


def _is_abandoned(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(name: str | Path, folder: int | None = None) -> tuple[int, int] | None:
    """Device and inode of `name` in `folder`, without following a link; None if it is missing."""
    try:
        found = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove(outer: Path, fd: int, files: tuple[int, int] | None) -> None:
    """Empty and remove `outer`, open as `fd`, if its inner folder is still the one of `files`."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            _empty_files(fd, files)
            own = os.fstat(fd)
            if _identity(outer) == (own.st_dev, own.st_ino):
                outer.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                logger.warning("the scratch folder %s is left behind: %s", outer, error)
                return
            time.sleep(0.02)


def _empty_files(fd: int, files: tuple[int, int] | None) -> None:
    found = _identity(_FILES, fd)
    if found is None:
        return
    try:
        inner = folders.open_folder(_FILES, below=fd)
    except OSError:
        os.unlink(_FILES, dir_fd=fd)  # a link or a file in its place, not what it leads to
        return
    try:
        own = os.fstat(inner)
        if (own.st_dev, own.st_ino) != files:
            raise OSError(f"{_FILES} is another folder than the one that was made")
        folders.empty(inner)
    finally:
        os.close(inner)
    os.rmdir(_FILES, dir_fd=fd)
