"""Workers: started by a lasting thread, spoken to in frames, handed out one by one, replaced.

A `Channel` is how a worker is reached and ended (one implementation a launcher), a `WorkerConnection` is a
worker that has said hello, and the `WorkerPool` gives connections to many threads.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import select
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import isolation
from pettingllms.sandbox.types import STATUSES
from pettingllms.sandbox.worker import frames

START_S = 60.0
"""Seconds that a worker may take to start on a busy machine."""
GRACE_S = 15.0
"""Seconds beyond the wall limits after which a worker counts as lost."""

_PROTOCOL = 1
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
            del work, future

    def do(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work()`, done on this thread."""
        future: Future[_Result] = Future()
        self._orders.put((work, future))
        return future.result()


@functools.cache
def _starter() -> _Starter:
    return _Starter()


os.register_at_fork(after_in_child=_starter.cache_clear)


class ProcessChannel:
    """A worker that is a process of this machine, exec'd with nothing but `environment`.

    Args:
        command: program and arguments.
        environment: all of its environment variables.
        at_end: called once the worker is gone, perhaps more than once.

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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        self._notes.seek(0)
        said = self._notes.read()[-_NOTES_BYTES:].decode("utf-8", "replace").strip()
        code = self._process.poll()
        ended = "" if code is None else f"; the worker ended with code {code}"
        return ended + (f": {said}" if said else "")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One run's result as it travels."""

    run: int
    status: str
    exit_code: int
    cpu_us: int
    wall_us: int
    memory_kib: int
    stdout: bytes
    stderr: bytes
    value: bytes | None


class WorkerConnection:
    """A worker that has said hello over `channel`, which it owns from now on.

    Not thread-safe: one request at a time.

    Raises:
        WorkerLost: it has not; the channel is closed.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.requests = 0
        self._stream = channel.stream
        try:
            hello = self._read_hello(time.monotonic() + START_S)
            if hello.get("protocol") != _PROTOCOL:
                raise WorkerLost(f"the worker speaks protocol {hello.get('protocol')!r}")
        except WorkerLost:
            self.close()
            raise
        self.layers: tuple[str, ...] = tuple(map(str, hello.get("layers", ())))
        self.problems: tuple[str, ...] = tuple(map(str, hello.get("problems", ())))

    def ask(
        self, header: dict[str, Any], payload: Sequence[bytes], wall_s: float
    ) -> Generator[ResultRow]:
        """Send a request and yield its results as they come.

        `wall_s` is the longest that one reply may take if the worker keeps its limits.

        Raises:
            WorkerLost: also in the middle; rows already yielded are good.
        """
        self.requests += 1
        patience = wall_s + GRACE_S
        deadline = time.monotonic() + patience
        idle = self.requests > 1
        most = header["limits"]["output_kib"] << 10
        try:
            self._stream.write(frames.encode(header, payload), deadline)
            while True:
                deadline = time.monotonic() + patience
                reply = self._stream.read_header(deadline)
                if "failure" in reply:
                    raise WorkerLost(str(reply["failure"]), idle=idle)
                idle = False
                rows = reply.get("results")
                if not isinstance(rows, list):
                    raise frames.FrameError("a reply has results")
                for row in rows:
                    yield self._read_row(row, most, deadline)
                if reply.get("done") is True:
                    return
        except (frames.FrameError, OSError) as error:
            ended = time.monotonic() < deadline
            raise WorkerLost(f"{error}{self.channel.notes()}", idle=idle and ended) from error

    def has_ended(self) -> bool:
        """Tell whether the worker, which has no request now, is gone."""
        poll = select.poll()
        poll.register(self._stream.read_fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _read_hello(self, deadline: float) -> dict[str, Any]:
        try:
            header = self._stream.read_header(deadline)
        except (frames.FrameError, OSError) as error:
            raise WorkerLost(f"{error}{self.channel.notes()}") from error
        if "failure" in header:
            raise WorkerLost(str(header["failure"]))
        return header

    def _read_row(self, row: object, most: int, deadline: float) -> ResultRow:
        if not (isinstance(row, list) and len(row) == 9 and row[1] in STATUSES):
            raise frames.FrameError(f"not a result: {str(row)[:80]}")
        numbers = [row[0], *row[2:]]
        if any(type(number) is not int for number in numbers):
            raise frames.FrameError(f"a result holds whole numbers: {str(row)[:80]}")
        lengths = row[6:]
        if not all(-1 <= length <= most for length in lengths):
            raise frames.FrameError(f"a result's lengths are wrong: {lengths}")
        texts = [bytes(self._stream.read(max(0, length), deadline)) for length in lengths]
        value = texts[2] if lengths[2] >= 0 else None
        run, status, exit_code, cpu_us, wall_us, memory_kib = row[:6]
        return ResultRow(
            run, status, exit_code, cpu_us, wall_us, memory_kib, texts[0], texts[1], value
        )

    def kill(self) -> None:
        """Kill the worker; pending callers get `WorkerLost`. Safe from any thread."""
        self.channel.kill()

    def close(self) -> None:
        """Kill the worker and everything it started, and take back what it held."""
        self.channel.kill()
        self.channel.close()


class WorkerPool:
    """At most `size` workers, each made by `launch`.

    A worker is replaced after `requests` requests, if these are given. After a fork, the new process
    forgets its parent's workers and starts its own.
    """

    def __init__(
        self,
        launch: Callable[[], WorkerConnection],
        size: int,
        *,
        requests: float = math.inf,
    ) -> None:
        self.size = size
        self.required: tuple[str, ...] = ()
        """Layers of isolation that every worker has to report."""
        self._requests = requests
        self._launch = launch
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[WorkerConnection] = []
        self._all: set[WorkerConnection] = set()
        self._starting = 0
        self._closed = False

    @property
    def lock(self) -> threading.Condition:
        """Guards the pool; a forked process has a new one."""
        return self._changed

    @contextlib.contextmanager
    def worker(self) -> Iterator[WorkerConnection]:
        """A worker for the caller alone; it is thrown away if the body raises.

        Raises:
            WorkerLost: no worker could be started.
            SandboxUnavailable: the pool is closed.
        """
        connection = self._take()
        good = False
        try:
            yield connection
            good = True
        finally:
            self._give_back(connection, good)

    def require(self, layers: tuple[str, ...]) -> None:
        """Refuse workers that lack one of `layers`, from now on.

        Raises:
            SandboxUnavailable: one that works already lacks it.
        """
        self.required = layers
        with self._changed:
            connections = list(self._all)
        for connection in connections:
            isolation.require(layers, connection.layers, connection.problems)

    @property
    def waiting(self) -> int:
        """Number of workers that could take a request at once."""
        with self._changed:
            return self.size - len(self._all) - self._starting + len(self._idle)

    def close(self) -> None:
        """Kill every worker; those in use are taken away from their callers."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all = busy
            self._changed.notify_all()
        for connection in busy:
            connection.kill()
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Forget the workers of the process that this one was forked from."""
        connections = self._all
        self._reset()
        for connection in connections:
            connection.close()

    def _take(self) -> WorkerConnection:
        while (connection := self._take_idle()) is not None:
            if not connection.has_ended():
                return connection
            # The kernel kills workers first where memory runs out, idle ones as well.
            self._give_back(connection, good=False)
        return self._start()

    def _take_idle(self) -> WorkerConnection | None:
        """A worker that waits, perhaps a dead one, or None where there is room for a new one."""
        with self._changed:
            while True:
                if self._closed:
                    raise SandboxUnavailable("the sandbox is closed; open another one")
                if self._idle:
                    return self._idle.pop()
                if len(self._all) + self._starting < self.size:
                    self._starting += 1
                    return None
                self._changed.wait()

    def _start(self) -> WorkerConnection:
        connection = None
        try:
            connection = self._launch()
        finally:
            with self._changed:
                self._starting -= 1
                if connection is not None:
                    self._all.add(connection)
                self._changed.notify()
        try:
            if self._closed:
                raise SandboxUnavailable("the sandbox was closed while a worker started")
            isolation.require(self.required, connection.layers, connection.problems)
        except SandboxUnavailable:
            self._give_back(connection, good=False)
            raise
        return connection

    def _give_back(self, connection: WorkerConnection, good: bool) -> None:
        with self._changed:
            keep = (
                good
                and connection.requests < self._requests
                and connection in self._all
                and not self._closed
            )
            if keep:
                self._idle.append(connection)
                self._changed.notify()
        if keep:
            return
        # It has its place, and perhaps a core, until it is gone: there are never more than `size`.
        try:
            connection.close()
        finally:
            with self._changed:
                self._all.discard(connection)
                self._changed.notify()


def _abandon_all() -> None:
    for pool in list(_POOLS):
        pool.abandon()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
os.register_at_fork(after_in_child=_abandon_all)
