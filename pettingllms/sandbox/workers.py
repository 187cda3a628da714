"""Worker processes: started by a lasting thread, reached and ended over a `Channel`.

There is one implementation of `Channel` a launcher; `ProcessChannel` is that of a process of this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import IO, Any, Protocol, TypeVar

from pettingllms.sandbox.worker import frames

_NOTES_BYTES = 2000
_Result = TypeVar("_Result")


class WorkerLost(Exception):
    """The worker ended, fell silent, or did not speak the protocol.

    With `idle`, it or the process that waited in it for a run ended before it answered anything of
    a request after its first: most likely killed while idle, and the request is not to blame.
    """

    def __init__(self, text: str, *, idle: bool = False) -> None:
        super().__init__(text)
        self.idle = idle


class Channel(Protocol):
    """A started worker."""

    stream: frames.Stream

    def kill(self) -> None:
        """End the worker at once; readers see the end of the stream. Safe from any thread."""
        ...

    def close(self) -> None:
        """Let go of everything that is held for the worker, which has ended or been killed.

        In a process that was forked from the owner, this leaves the owner's worker alone.
        """
        ...

    def notes(self) -> str:
        """The worker's exit code, if it has ended, and the last of what it wrote to standard error."""
        ...


class _Starter(threading.Thread):
    """A thread that starts all worker processes and lasts as long as this process.

    The kernel ends a worker together with the *thread* that started it (PR_SET_PDEATHSIG in
    prctl(2)), which must therefore be none of a caller's. It also never sees Ctrl-C, so that no
    process is lost between its start and the moment when its number is known.
    """

    def __init__(self) -> None:
        super().__init__(name="sandbox-starter", daemon=True)
        self._orders: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Carry out requests until the process ends."""
        while True:
            work, future = self._orders.get()
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - it is raised again by who ordered it
                future.set_exception(error)
            # Otherwise the last order would live until the next one comes.
            del work, future

    def do(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work()`, done on this thread."""
        future: Future[_Result] = Future()
        self._orders.put((work, future))
        return future.result()


@functools.cache
def _starter() -> _Starter:
    return _Starter()


# The thread does not exist in a forked process.
os.register_at_fork(after_in_child=_starter.cache_clear)


class ProcessChannel:
    """A worker that is a process of this machine, exec'd with nothing but `environment`.

    `at_end` is called once the worker is gone, perhaps more than once.

    Raises:
        WorkerLost: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner = os.getpid()
        self._at_end = at_end
        # A file: nobody reads it while the worker runs, and a full pipe would stop the worker.
        self._notes: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the channel
        try:
            self._process = _starter().do(
                lambda: subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._notes,
                    env=dict(environment),
                    cwd="/",
                    bufsize=0,
                    # Ctrl-C in the terminal is for the caller, which may want to finish its step.
                    start_new_session=True,
                )
            )
        except OSError as error:
            self._notes.close()
            at_end()
            raise WorkerLost(f"cannot start {command[0]}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stream = frames.Stream(self._process.stdout.fileno(), self._process.stdin.fileno())

    @property
    def pid(self) -> int:
        """Process id of the worker's first process."""
        return self._process.pid

    def kill(self) -> None:
        """End the worker; the kernel ends everything in its namespaces with it."""
        if os.getpid() == self._owner and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Close the pipes and reap the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._notes.close()
        if os.getpid() == self._owner:
            self._process.wait()
        else:
            # A forked process owns no worker; this only keeps Popen from looking for it.
            self._process.returncode = 0
        self._at_end()

    def notes(self) -> str:
        """See `Channel.notes`."""
        # Its pipes close a moment before it can be reaped.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        self._notes.seek(0)
        stderr = self._notes.read()[-_NOTES_BYTES:].decode("utf-8", "replace").strip()
        code = self._process.poll()
        ended = "" if code is None else f"; the worker ended with code {code}"
        return ended + (f": {stderr}" if stderr else "")
