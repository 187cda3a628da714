"""A `Sandbox` over a pool of workers: spoken to in frames, handed out one by one, replaced.

A `WorkerConnection` is a worker that has said hello, the `WorkerPool` gives connections to many threads,
and a `PooledSandbox` cuts what one call asks for into requests for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar, cast

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import isolation
from pettingllms.sandbox.types import (
    DEFAULT_LIMITS,
    STATUSES,
    Case,
    Limits,
    Pair,
    RunPlan,
    RunProgress,
    RunResult,
    Status,
)
from pettingllms.sandbox.worker import frames
from pettingllms.sandbox.workers import Channel, WorkerLost

START_S = 60.0
"""Seconds that a worker may take to start on a busy machine."""
GRACE_S = 15.0
"""Seconds beyond the wall limits after which a worker counts as lost."""

_PROTOCOL = 1
_ATTEMPTS = 2
_TRIES = 2
"""Attempts of the worker at one run if something outside kills its process."""
_ADVICE = (
    "`pettingllms-sandbox doctor` says what this machine can do, and `--sandbox docker` is the "
    "other back end"
)
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


class WorkerConnection:
    """A worker that has said hello over `channel`, which it owns from now on.

    `where` is put before the layers of isolation that the worker reports, as in `docker`. Not
    thread-safe: one request at a time.

    Raises:
        WorkerLost: it has not; the channel is closed.
    """

    def __init__(self, channel: Channel, where: str = "") -> None:
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
        self.held_by = (*filter(None, (where,)), *self.layers) if self.layers else ("none",)
        """What is around its programs, from the outside in."""
        self._isolation = "+".join(self.held_by)

    def ask(
        self, header: dict[str, Any], payload: Sequence[bytes], wall_s: float
    ) -> Generator[tuple[int, RunResult]]:
        """Send a request and yield its results as they come, each with the number of its run.

        `wall_s` is the longest that one reply may take if the worker keeps its limits.

        Raises:
            WorkerLost: also in the middle; results already yielded are good.
        """
        self.requests += 1
        patience = wall_s + GRACE_S
        deadline = time.monotonic() + patience
        # A worker that has just started was not idle before its first request.
        idle = self.requests > 1
        # A run is two numbers in a flat list.
        most, waiting = header["limits"]["output_kib"] << 10, [True] * (len(header["runs"]) // 2)
        try:
            self._stream.write(frames.encode(header, payload), deadline)
            while True:
                deadline = time.monotonic() + patience
                reply = self._stream.read_header(deadline)
                if "failure" in reply:
                    raise WorkerLost(str(reply["failure"]), idle=idle)
                idle = False
                rows = reply.get("results")
                # Every frame answers a run that has no answer yet, so that they come to an end.
                if not isinstance(rows, list) or not rows:
                    raise frames.FrameError("a reply has results")
                for row in rows:
                    yield self._read_result(row, waiting, most, deadline)
                if reply.get("done") is True:
                    return
        except (frames.FrameError, OSError) as error:
            # One that fell silent was at work, and did not end while it waited.
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

    def _read_result(
        self, row: object, waiting: list[bool], most: int, deadline: float
    ) -> tuple[int, RunResult]:
        if not (isinstance(row, list) and len(row) == 9 and row[1] in STATUSES):
            raise frames.FrameError(f"not a result: {str(row)[:80]}")
        numbers = [row[0], *row[2:]]
        # `isinstance` would take true and false for numbers.
        if any(type(number) is not int for number in numbers):
            raise frames.FrameError(f"a result holds whole numbers: {str(row)[:80]}")
        lengths = row[6:]
        # Before anything is read: a wrong length could ask for gigabytes.
        if not all(-1 <= length <= most for length in lengths):
            raise frames.FrameError(f"a result's lengths are wrong: {lengths}")
        run, status, exit_code, cpu_us, wall_us, memory_kib = row[:6]
        if not 0 <= run < len(waiting) or not waiting[run]:
            raise WorkerLost(
                f"the worker answered for run {run} of {len(waiting)} unasked or twice"
            )
        waiting[run] = False
        out, err, value = (bytes(self._stream.read(max(0, n), deadline)) for n in lengths)
        return run, RunResult(
            cast(Status, status),
            out,
            err,
            exit_code,
            cpu_us / 1e6,
            wall_us / 1e6,
            memory_kib / 1024,
            self._isolation,
            value if lengths[2] >= 0 else None,
        )

    def kill(self) -> None:
        """Kill the worker; pending callers get `WorkerLost`. Safe from any thread."""
        self.channel.kill()

    def close(self) -> None:
        """Kill the worker and everything it started, and take back what it held."""
        self.channel.kill()
        self.channel.close()


class WorkerPool:
    """A pool of at most `size` workers, each made by `launch`.

    After a fork, the new process forgets its parent's workers and starts its own.
    """

    def __init__(self, launch: Callable[[], WorkerConnection], size: int) -> None:
        self.size = size
        self.required: tuple[str, ...] = ()
        """Layers of isolation that every worker has to report."""
        self.held_by: tuple[str, ...] = ()
        """What is around the programs of the first worker; no later one has less."""
        self._launch = launch
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        # A new one in a forked process, and a plain lock: Ctrl-C can hit the main thread between a
        # condition's lock and its holder.
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._idle: list[WorkerConnection] = []
        self._all: set[WorkerConnection] = set()
        self._starting = 0
        self._closed = False

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
        with self.lock:
            connections = list(self._all)
        for connection in connections:
            isolation.require(layers, connection.layers, connection.problems)

    @property
    def waiting(self) -> int:
        """Number of workers that could take a request at once."""
        with self.lock:
            return self.size - len(self._all) - self._starting + len(self._idle)

    def close(self) -> None:
        """Kill every worker; those in use are taken away from their callers."""
        with self.lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all = busy
            self._changed.notify_all()
        # Workers in use are only killed: whoever uses one sees that, and closes it.
        for connection in busy:
            connection.kill()
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Forget the workers of the process that this one was forked from."""
        # Without the lock, which a thread of the parent may have held at the fork.
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
        with self.lock:
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
            with self.lock:
                self._starting -= 1
                if connection is not None:
                    self._all.add(connection)
                    self.held_by = self.held_by or connection.held_by
                self._changed.notify()
        try:
            if self._closed:
                raise SandboxUnavailable("the sandbox was closed while a worker started")
            isolation.require(self.required, connection.layers, connection.problems)
            first = [layer for layer in isolation.LAYERS if layer in self.held_by]
            why = f"the first worker has {'+'.join(self.held_by)}"
            isolation.require(first, connection.layers, connection.problems, why)
        except SandboxUnavailable:
            self._give_back(connection, good=False)
            raise
        return connection

    def _give_back(self, connection: WorkerConnection, good: bool) -> None:
        with self.lock:
            keep = good and connection in self._all and not self._closed
            if keep:
                self._idle.append(connection)
                self._changed.notify()
        if keep:
            return
        # It has its place, and perhaps a core, until it is gone: there are never more than `size`.
        try:
            connection.close()
        finally:
            with self.lock:
                self._all.discard(connection)
                self._changed.notify()


def _abandon_all() -> None:
    for pool in list(_POOLS):
        pool.abandon()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
os.register_at_fork(after_in_child=_abandon_all)


class PooledSandbox:
    """A `Sandbox` whose workers are started by `launch`."""

    def __init__(self, launch: Callable[[], WorkerConnection], workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._pool = WorkerPool(launch, workers)
        self._workers = workers
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        # For callers that never close.
        self._finalizer = weakref.finalize(self, self._pool.close)

    def run(
        self,
        programs: Sequence[str],
        cases: Sequence[Case],
        *,
        limits: Limits = DEFAULT_LIMITS,
        end_at_limit: bool = True,
    ) -> list[list[RunResult]]:
        """Run every program on every case; see `Sandbox.run`."""
        plan = RunPlan.of(programs, cases, limits, end_at_limit=end_at_limit)
        progress = RunProgress(plan)
        self._do_all(plan, progress)
        return progress.rows()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do_all(self, plan: RunPlan, progress: RunProgress) -> None:
        """Do what is left in one request if it can be, else in several, on as many workers."""
        todo = progress.left(progress.pairs())
        requests = list(plan.requests(todo, self._pool.waiting))
        # Ctrl-C interrupts the main thread anywhere, so that one only waits.
        first = 0 if threading.current_thread() is threading.main_thread() else 1
        others: list[Future[None]] = []
        try:
            others += [
                self._on_a_thread(self._do, plan, pairs, progress) for pairs in requests[first:]
            ]
            for pairs in requests[:first]:
                self._do(plan, pairs, progress)
            for other in others:
                other.result()
        except CancelledError as error:
            raise SandboxUnavailable("the sandbox was closed while programs ran") from error
        finally:
            progress.give_up()
            for other in others:
                other.cancel()

    @property
    def isolation(self) -> tuple[str, ...]:
        """Layers of isolation around programs, as in `("docker", "namespaces", "landlock", "seccomp")`.

        Starts a worker if there is none.

        Raises:
            SandboxUnavailable: no worker starts.
        """
        return self._on_a_thread(self._look).result()

    def require_isolation(self, level: str) -> None:
        """Refuse to run programs with less isolation than `level`: `any` or `full`.

        Raises:
            ConfigError: there is no such level.
            SandboxUnavailable: a worker reports less; names what is missing and its cure.
        """
        self._pool.require(isolation.layers_of(level))
        if self._pool.required:
            self._on_a_thread(self._look).result()  # a first worker is refused now, not later

    def close(self) -> None:
        """End all workers; see `Sandbox.close`."""
        self._finalizer()
        if self._threads is not None and self._threads[0] == os.getpid():
            self._threads[1].shutdown(wait=True, cancel_futures=True)

    def _on_a_thread(self, work: Callable[..., _Result], *args: Any) -> Future[_Result]:
        """`work(*args)` on a thread of the sandbox, which no signal interrupts."""
        try:
            return self._executor().submit(work, *args)
        except RuntimeError:  # no new threads: the sandbox is closed, or the interpreter ends
            done: Future[_Result] = Future()
            done.set_result(work(*args))
            return done

    def _executor(self) -> ThreadPoolExecutor:
        """Threads of this process; those of a process that it was forked from are gone."""
        with self._pool.lock:
            if self._threads is None or self._threads[0] != os.getpid():
                executor = ThreadPoolExecutor(self._workers, thread_name_prefix="sandbox")
                self._threads = (os.getpid(), executor)
            return self._threads[1]

    def _do(self, plan: RunPlan, pairs: list[Pair], progress: RunProgress) -> None:
        """Do `pairs` on one worker; what a lost worker left undone goes to a fresh one, once.

        A worker that died while it was idle does not count, as often as there are workers.
        """
        trouble: WorkerLost | None = None
        attempts, free = 0, self._workers
        while attempts < _ATTEMPTS:
            try:
                with self._pool.worker() as connection, progress.stopped_by(connection.kill):
                    self._ask(connection, plan, pairs, progress)
                return
            except WorkerLost as error:
                if progress.given_up:
                    return
                logger.warning("a sandbox worker was lost: %s", error)
                trouble = error
                if error.idle and free:
                    free -= 1
                else:
                    attempts += 1
        raise SandboxUnavailable(
            f"the sandbox failed {_ATTEMPTS} times: {trouble}; {_ADVICE}"
        ) from trouble

    def _ask(
        self,
        connection: WorkerConnection,
        plan: RunPlan,
        pairs: list[Pair],
        progress: RunProgress,
    ) -> None:
        """Do those of `pairs` that are left: another request may have ended a program's list."""
        todo = progress.left(pairs)
        if not todo:
            return
        answers = connection.ask(*plan.request(todo), plan.limits.wall_s * _TRIES)
        with contextlib.closing(answers):
            for run, result in answers:
                progress.add(todo[run], result)
        if progress.left(todo):
            raise WorkerLost("the worker left out runs that it was asked for")

    def _look(self) -> tuple[str, ...]:
        try:
            with self._pool.worker():
                return self._pool.held_by
        except WorkerLost as error:
            raise SandboxUnavailable(f"no worker starts: {error}; {_ADVICE}") from error
