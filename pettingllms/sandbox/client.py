"""The `Sandbox` contract over a pool of workers, the same for every back end."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, cast

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox.channel import WorkerLost
from pettingllms.sandbox.link import Link, Row
from pettingllms.sandbox.pool import WorkerPool
from pettingllms.sandbox.types import (
    DEFAULT_LIMITS,
    MAX_INPUT_BYTES,
    MAX_PROGRAM_BYTES,
    Case,
    Limits,
    RunResult,
    Status,
)

logger = logging.getLogger(__name__)

_REQUEST_BYTES = 64 << 20
_REQUEST_RUNS = 512
_SHARED_RUNS = 60
_ATTEMPTS = 2
_WORTH_SPREADING = 4

Pair = tuple[int, int]
"""A program's and a case's number."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Everything that the requests of one call to `run` have in common."""

    programs: tuple[bytes, ...]
    calls: tuple[bytes, ...]
    stdins: tuple[bytes, ...]
    limits: Limits
    fresh: bool
    stop: bool

    def request(self, pairs: Sequence[Pair]) -> tuple[dict[str, Any], list[bytes]]:
        """Header and payload of a request for `pairs` alone."""
        programs = sorted({program for program, _ in pairs})
        cases = sorted({case for _, case in pairs})
        program_at = {program: at for at, program in enumerate(programs)}
        case_at = {case: at for at, case in enumerate(cases)}
        sources = [self.programs[program] for program in programs]
        calls = [self.calls[case] for case in cases]
        stdins = [self.stdins[case] for case in cases]
        limits = self.limits
        header = {
            "programs": [len(text) for text in sources],
            "calls": [len(text) for text in calls],
            "stdins": [len(text) for text in stdins],
            "runs": [n for p, c in pairs for n in (program_at[p], case_at[c])],
            "fresh": self.fresh,
            "stop": self.stop,
            "limits": {
                "cpu_ms": math.ceil(limits.cpu_s * 1000),
                "wall_ms": math.ceil(limits.wall_s * 1000),
                "memory_mib": limits.memory_mib,
                "output_kib": limits.output_kib,
                "processes": limits.processes,
                "tmp_mib": limits.tmp_mib,
                "open_files": limits.open_files,
            },
        }
        return header, [*sources, *calls, *stdins]

    def size(self, pair: Pair) -> int:
        """Bytes that `pair` adds to a request at most."""
        program, case = pair
        return len(self.programs[program]) + len(self.calls[case]) + len(self.stdins[case])


class PooledSandbox:
    """A `Sandbox` whose workers are started by `launch`.

    `where` is put before the layers of isolation that the workers report, as in `docker`. A worker
    is replaced after `requests` requests or `age_s` seconds.
    """

    def __init__(
        self,
        launch: Callable[[], Link],
        workers: int,
        *,
        where: str = "",
        requests: float = math.inf,
        age_s: float = math.inf,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._pool = WorkerPool(launch, workers, requests=requests, age_s=age_s)
        self._workers = workers
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._where = where
        # Also for callers that never close: at the latest when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._pool.close)

    def run(
        self,
        programs: Sequence[str],
        cases: Sequence[Case],
        *,
        limits: Limits = DEFAULT_LIMITS,
        fresh_process: bool = True,
        stop_on_failure: bool = False,
    ) -> list[list[RunResult]]:
        """Run every program on every case; see `Sandbox.run`."""
        order = _Order(
            tuple(_encode(program) for program in programs),
            tuple(_call(case) for case in cases),
            tuple(_encode(case.stdin) for case in cases),
            limits,
            fresh_process,
            stop_on_failure,
        )
        everything = [(p, c) for p in range(len(programs)) for c in range(len(cases))]
        results = _refused(order, everything)
        todo = [pair for pair in everything if pair not in results]
        for part in self._do_all(order, todo):
            results.update(part)
        return [_in_order(results, p, len(cases), stop_on_failure) for p in range(len(programs))]

    def close(self) -> None:
        """End all workers; see `Sandbox.close`."""
        self._finalizer()
        if self._threads is not None and self._threads[0] == os.getpid():
            self._threads[1].shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do_all(self, order: _Order, todo: list[Pair]) -> Iterator[dict[Pair, RunResult]]:
        """Do `todo` in one request if it can be, else in several, on as many workers."""
        parts = 1
        if order.fresh and len(todo) >= _WORTH_SPREADING:
            parts = max(1, min(self._pool.waiting, len(todo) // 2))
        requests = list(_split(order, todo, parts))
        others: list[Future[dict[Pair, RunResult]]] = []
        try:
            if len(requests) > 1:
                submit = self._executor().submit
                others += [submit(self._do, order, pairs) for pairs in requests[1:]]
            if requests:
                yield self._do(order, requests[0])
            for other in others:
                yield other.result()
        finally:
            for other in others:
                other.cancel()

    def _executor(self) -> ThreadPoolExecutor:
        """Threads of this process; those of a process that it was forked from are gone."""
        with self._pool.lock:
            if self._threads is None or self._threads[0] != os.getpid():
                executor = ThreadPoolExecutor(self._workers, thread_name_prefix="sandbox")
                self._threads = (os.getpid(), executor)
            return self._threads[1]

    def _do(self, order: _Order, pairs: list[Pair]) -> dict[Pair, RunResult]:
        """Do `pairs` on one worker; what a lost worker left undone goes to a fresh one, once."""
        results: dict[Pair, RunResult] = {}
        todo = pairs
        trouble: WorkerLost | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._pool.worker() as link:
                    for pair, result in self._ask(link, order, todo):
                        results[pair] = result
                return results
            except WorkerLost as error:
                logger.warning("a sandbox worker was lost: %s", error)
                trouble = error
            failed = {pair[0] for pair, result in results.items() if result.status != "ok"}
            todo = [pair for pair in todo if pair not in results]
            if order.stop:
                todo = [pair for pair in todo if pair[0] not in failed]
        raise SandboxUnavailable(
            f"the sandbox failed {_ATTEMPTS} times: {trouble}; `pettingllms-sandbox doctor` says "
            "what this machine can do, and `--sandbox docker` is the other back end"
        ) from trouble

    def _ask(
        self, link: Link, order: _Order, pairs: list[Pair]
    ) -> Iterator[tuple[Pair, RunResult]]:
        isolation = "+".join((*filter(None, (self._where,)), *link.layers))
        if not link.layers:
            isolation = "none"
        together = 1 if order.fresh else min(len(pairs), _SHARED_RUNS)
        header, payload = order.request(pairs)
        with contextlib.closing(link.ask(header, payload, order.limits.wall_s * together)) as rows:
            for row in rows:
                if not 0 <= row.run < len(pairs):
                    raise WorkerLost(f"the worker answered for run {row.run} of {len(pairs)}")
                yield pairs[row.run], _result(row, isolation)


def _result(row: Row, isolation: str) -> RunResult:
    return RunResult(
        cast(Status, row.status),
        row.stdout.decode("utf-8", "replace"),
        row.stderr.decode("utf-8", "replace"),
        row.exit_code,
        row.cpu_us / 1e6,
        row.wall_us / 1e6,
        row.memory_kib / 1024,
        isolation,
        row.value.decode("utf-8", "replace") if row.value else None,
    )


def _encode(text: str) -> bytes:
    """UTF-8; a lone surrogate, which no file could hold, travels as its own three bytes."""
    return text.encode("utf-8", "surrogatepass")


def _call(case: Case) -> bytes:
    if case.function is None:
        return b""
    return json.dumps([case.function, case.args]).encode("ascii")


def _refused(order: _Order, pairs: Sequence[Pair]) -> dict[Pair, RunResult]:
    """Results for what is too long to be sent: an error of the program or the case."""
    refused = {}
    for program, case in pairs:
        for what, size, most in (
            ("program", len(order.programs[program]), MAX_PROGRAM_BYTES),
            ("input", len(order.stdins[case]), MAX_INPUT_BYTES),
            ("argument list", len(order.calls[case]), MAX_INPUT_BYTES),
        ):
            if size > most:
                text = f"the {what} has {size} bytes; the sandbox takes at most {most}\n"
                refused[program, case] = RunResult(
                    "error", "", text, 1, 0.0, 0.0, 0.0, "not run", None
                )
                break
    return refused


def _split(order: _Order, pairs: Sequence[Pair], parts: int) -> Iterator[list[Pair]]:
    """`pairs` in about `parts` requests that are not too large, programs unbroken if they stop."""
    share = math.ceil(len(pairs) / parts) if pairs else 1
    request: list[Pair] = []
    size = 0
    for pair in pairs:
        more = order.size(pair)
        same_program = bool(request) and request[-1][0] == pair[0]
        breakable = not (order.stop and same_program)
        full = len(request) >= share and breakable and order.fresh
        if request and (full or len(request) >= _REQUEST_RUNS or size + more > _REQUEST_BYTES):
            yield request
            request, size = [], 0
        request.append(pair)
        size += more
    if request:
        yield request


def _in_order(
    results: dict[Pair, RunResult], program: int, cases: int, stop: bool
) -> list[RunResult]:
    ordered = []
    for case in range(cases):
        result = results.get((program, case))
        if result is None:
            break
        ordered.append(result)
        if stop and result.status != "ok":
            break
    return ordered
