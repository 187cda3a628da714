"""The `Sandbox` contract over a pool of workers, the same for every back end.

A `RunPlan` is what one call to `run` asks for, cut into requests; `RunProgress` is what has come of
it so far.
"""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar, cast

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import isolation
from pettingllms.sandbox.types import (
    DEFAULT_LIMITS,
    MAX_INPUT_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_PROGRAM_BYTES,
    RUNAWAY,
    Case,
    Limits,
    RunResult,
    Status,
)
from pettingllms.sandbox.workers import ResultRow, WorkerConnection, WorkerLost, WorkerPool

_REQUEST_BYTES = 64 << 20
_REQUEST_RUNS = 512
_LEAST_RUNS = 2
"""Runs of a request where several workers share them: less is not worth a request."""


Pair = tuple[int, int]
"""A program's and a case's number."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that the requests of one call to `run` have in common."""

    programs: tuple[bytes, ...]
    calls: tuple[bytes, ...]
    stdins: tuple[bytes, ...]
    limits: Limits
    end_at_limit: bool

    @classmethod
    def of(
        cls,
        programs: Sequence[str],
        cases: Sequence[Case],
        limits: Limits,
        *,
        end_at_limit: bool,
    ) -> RunPlan:
        """The plan for these texts, as bytes."""
        return cls(
            tuple(map(_encode, programs)),
            tuple(map(_call, cases)),
            tuple(_encode(case.stdin) for case in cases),
            limits,
            end_at_limit,
        )

    def request(self, pairs: Sequence[Pair]) -> tuple[dict[str, Any], list[bytes]]:
        """Header and payload of a request for `pairs` alone."""
        programs = sorted({program for program, _ in pairs})
        cases = sorted({case for _, case in pairs})
        program_at = {program: at for at, program in enumerate(programs)}
        case_at = {case: at for at, case in enumerate(cases)}
        sources = [self.programs[program] for program in programs]
        calls = [self.calls[case] for case in cases]
        stdins = [self.stdins[case] for case in cases]
        header = {
            "programs": [len(text) for text in sources],
            "calls": [len(text) for text in calls],
            "stdins": [len(text) for text in stdins],
            "runs": [n for p, c in pairs for n in (program_at[p], case_at[c])],
            "end": self.end_at_limit,
            "limits": asdict(self.limits),
        }
        return header, [*sources, *calls, *stdins]

    def size(self, pair: Pair) -> int:
        """Bytes that `pair` adds to a request at most."""
        program, case = pair
        return len(self.programs[program]) + len(self.calls[case]) + len(self.stdins[case])


class RunProgress:
    """The results of a plan so far. Several threads may add to it."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._results: dict[Pair, RunResult] = {}
        self._last: dict[int, int] = {}
        """Program -> the case that ended its list."""
        self._share = MAX_OUTPUT_BYTES // max(1, len(plan.programs))
        self._sizes: dict[int, dict[int, int]] = {p: {} for p in range(len(plan.programs))}
        """Program -> case -> bytes that it put out, also where they were dropped."""
        self._totals = dict.fromkeys(self._sizes, 0)
        self._lock = threading.Lock()
        self._workers: set[WorkerConnection] = set()
        self.given_up = False
        """The caller no longer waits for results."""
        for pair in self.pairs():
            refusal = _refusal(plan, pair)
            if refusal is not None:
                self.add(pair, refusal)

    def pairs(self) -> list[Pair]:
        """All pairs of the plan."""
        cases = range(len(self._plan.calls))
        return [(program, case) for program in range(len(self._plan.programs)) for case in cases]

    def add(self, pair: Pair, result: RunResult) -> None:
        """Keep a result, and note whether it ends its program's list."""
        with self._lock:
            self._results[pair] = result
            self._sizes[pair[0]][pair[1]] = result.output_bytes
            self._totals[pair[0]] += result.output_bytes
            self._drop_excess(pair)
            self._note_end(pair)

    def _note_end(self, pair: Pair) -> None:
        program, case = pair
        if self._plan.end_at_limit and self._results[pair].status in RUNAWAY:
            self._last[program] = min(case, self._last.get(program, case))

    def _drop_excess(self, changed: Pair) -> None:
        """Drop the outputs beyond the share of a program, of whose results `changed` is new.

        What exceeds the share before all earlier results are there exceeds it all the more
        afterwards, so it is dropped at once and the outcome does not depend on who was first.
        """
        program, first = changed
        sizes = self._sizes[program]
        if self._totals[program] <= self._share:
            return
        total = 0
        for case in sorted(sizes):
            total += sizes[case]
            if case >= first and total > self._share:
                result = self._results[program, case]
                said = f"dropped: the program's outputs exceed {self._share} bytes on all cases\n"
                self._results[program, case] = replace(
                    result,
                    status=result.status if result.status in RUNAWAY else "output_limit",
                    stdout_bytes=b"",
                    stderr_bytes=said.encode(),
                    value_bytes=None,
                )
                self._note_end((program, case))

    @contextlib.contextmanager
    def worked_on_by(self, worker: WorkerConnection) -> Iterator[None]:
        """Let `give_up` end `worker` while the body runs."""
        with self._lock:
            self._workers.add(worker)
        try:
            yield
        finally:
            with self._lock:
                self._workers.discard(worker)

    def give_up(self) -> None:
        """Have the caller's remaining work not be done: its call ends, perhaps by Ctrl-C."""
        with self._lock:
            self.given_up = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()

    def left(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Those of `pairs` that are still to be run."""
        with self._lock:
            if self.given_up:
                return []
            return [
                (program, case)
                for program, case in pairs
                if (program, case) not in self._results and case <= self._last.get(program, case)
            ]

    def rows(self) -> list[list[RunResult]]:
        """Every program's results, in the order of the cases."""
        return [self._row(program) for program in range(len(self._plan.programs))]

    def _row(self, program: int) -> list[RunResult]:
        cases = len(self._plan.calls)
        ran = min(cases, self._last.get(program, cases) + 1)
        row = [self._results[program, case] for case in range(ran)]
        if ran < cases:
            said = f"not run: {row[-1].status} on an earlier case\n"
            skipped = replace(_NOTHING, status=row[-1].status, stderr_bytes=said.encode())
            row += [skipped] * (cases - ran)
        return row


def _refusal(plan: RunPlan, pair: Pair) -> RunResult | None:
    """The result of what is too long to be sent: an error of the program or the case."""
    program, case = pair
    for what, size, most in (
        ("program", len(plan.programs[program]), MAX_PROGRAM_BYTES),
        ("input", len(plan.stdins[case]), MAX_INPUT_BYTES),
        ("argument list", len(plan.calls[case]), MAX_INPUT_BYTES),
    ):
        if size > most:
            text = f"the {what} has {size} bytes; the sandbox takes at most {most}\n"
            return replace(_NOTHING, stderr_bytes=text.encode())
    return None


def _encode(text: str) -> bytes:
    """UTF-8; a lone surrogate, which no file could hold, travels as its own three bytes."""
    return text.encode("utf-8", "surrogatepass")


def _call(case: Case) -> bytes:
    if case.function is None:
        return b""
    return json.dumps([case.function, case.args]).encode("ascii")


def split(plan: RunPlan, pairs: Sequence[Pair], workers: int) -> Iterator[list[Pair]]:
    """`pairs` in requests for so many workers, none too large.

    Later requests are smaller, so that all workers are done at about the same time.
    """
    request: list[Pair] = []
    size, left = 0, len(pairs)
    for pair in pairs:
        more = plan.size(pair)
        share = left if workers == 1 else max(_LEAST_RUNS, left // (2 * workers))
        if request and (len(request) >= min(_REQUEST_RUNS, share) or size + more > _REQUEST_BYTES):
            yield request
            left -= len(request)
            request, size = [], 0
        request.append(pair)
        size += more
    if request:
        yield request


_NOTHING = RunResult("error", b"", b"", 1, 0.0, 0.0, 0.0, "not run")


logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ATTEMPTS = 2
_TRIES = 2
"""Attempts of the worker at one run if something outside kills its process."""
_ADVICE = (
    "`pettingllms-sandbox doctor` says what this machine can do, and `--sandbox docker` is the "
    "other back end"
)


class PlannedSandbox(abc.ABC):
    """A `Sandbox` that carries out one plan a call, and that a `with` statement closes."""

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

    @abc.abstractmethod
    def _do_all(self, plan: RunPlan, progress: RunProgress) -> None:
        """Add the results of all pairs that are left."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what runs; see `Sandbox.close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PooledSandbox(PlannedSandbox):
    """A `Sandbox` whose workers are started by `launch`.

    `where` is put before the layers of isolation that the workers report, as in `docker`. A worker
    is replaced after `requests` requests.
    """

    def __init__(
        self,
        launch: Callable[[], WorkerConnection],
        workers: int,
        *,
        where: str = "",
        requests: float = math.inf,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._pool = WorkerPool(launch, workers, requests=requests)
        self._workers = workers
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._where = where
        # Also for callers that never close: at the latest when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._pool.close)

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

    def _do_all(self, plan: RunPlan, progress: RunProgress) -> None:
        """Do what is left in one request if it can be, else in several, on as many workers."""
        todo = progress.left(progress.pairs())
        workers = max(1, min(self._pool.waiting, len(todo) // _LEAST_RUNS))
        requests = list(split(plan, todo, workers))
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
                with self._pool.worker() as connection, progress.worked_on_by(connection):
                    # Only now: another request may have ended a program's list in the meantime.
                    todo = progress.left(pairs)
                    for pair, result in self._ask(connection, plan, todo) if todo else ():
                        progress.add(pair, result)
                    if progress.left(todo):
                        raise WorkerLost("the worker left out runs that it was asked for")
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

    def _look(self) -> tuple[str, ...]:
        try:
            with self._pool.worker() as connection:
                return self._held_by(connection)
        except WorkerLost as error:
            raise SandboxUnavailable(f"no worker starts: {error}; {_ADVICE}") from error

    def _held_by(self, connection: WorkerConnection) -> tuple[str, ...]:
        return (
            (*filter(None, (self._where,)), *connection.layers) if connection.layers else ("none",)
        )

    def _ask(
        self, connection: WorkerConnection, plan: RunPlan, pairs: list[Pair]
    ) -> Iterator[tuple[Pair, RunResult]]:
        held_by = "+".join(self._held_by(connection))
        header, payload = plan.request(pairs)
        with contextlib.closing(
            connection.ask(header, payload, plan.limits.wall_s * _TRIES)
        ) as rows:
            for row in rows:
                if not 0 <= row.run < len(pairs):
                    raise WorkerLost(f"the worker answered for run {row.run} of {len(pairs)}")
                yield pairs[row.run], _result(row, held_by)


def _result(row: ResultRow, held_by: str) -> RunResult:
    return RunResult(
        cast(Status, row.status),
        row.stdout,
        row.stderr,
        row.exit_code,
        row.cpu_us / 1e6,
        row.wall_us / 1e6,
        row.memory_kib / 1024,
        held_by,
        row.value,
    )
