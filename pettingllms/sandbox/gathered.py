"""Requests of several threads in one process: what arrives while processes run goes next, together.

A process costs more than the small programs that run in it, and the completions of many prompts are
scored at the same time. At most half as many of these processes run at once as there are cores: the
threads that read and judge results need the other half. A request that finds a place free runs at
once, by itself; those that arrive while all are taken are gathered, and the first thread that is woken runs
them all. So no request waits for company, and the busier the scorers, the more share a process.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pettingllms.sandbox.types import Case, Limits, RunResult, Sandbox

MOST_RUNS, MOST_CHARS = 512, 1 << 20
"""Runs and characters of one process."""


class ProcessOutput(NamedTuple):
    """What a process wrote about one request."""

    whole: RunResult
    """The process itself."""
    lines: list[str]
    """One for each program; fewer where the process ended early."""


@dataclass(eq=False)
class _Request:
    """Programs and cases of one caller; compared by identity."""

    job: Mapping[str, Any]
    limits: Limits
    runs: int
    chars: int
    shared: ProcessOutput | None = None
    alone: bool = field(default=False)
    """It was in a process that did not come to its end, and is not put at risk by others again."""


class Gatherer:
    """Runs a driver, a program that does the jobs of its standard input, for all threads of one sandbox.

    Args:
        driver: reads `{"jobs": [...]}`, a JSON object, and prints a line for each program of each job.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._busy, self._most = 0, max(1, (os.cpu_count() or 1) // 2)

    def __call__(self, sandbox: Sandbox, job: Mapping[str, Any], limits: Limits) -> ProcessOutput:
        """Has a job done, perhaps with those of other threads.

        Args:
            sandbox: where; the same for all threads.
            job: `programs` and `cases`, and what else the driver reads.
            limits: of the process; jobs with other limits have another one.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        texts = (*job["programs"], *job["cases"])
        runs = len(job["programs"]) * len(job["cases"])
        mine = _Request(job, limits, runs, sum(map(len, texts)))
        while True:
            with self._changed:
                batch = self._next(mine)
            if mine.shared is not None:
                return mine.shared
            try:
                self._run(sandbox, batch)
            finally:
                with self._changed:
                    self._busy -= 1
                    # An endless loop in one job says nothing about the others, nor does an error here.
                    for each in batch:
                        each.alone = True
                    self._waiting += [e for e in batch if e is not mine and e.shared is None]
                    self._changed.notify_all()

    def _next(self, mine: _Request) -> list[_Request]:
        """Waits until a request is done, which is an empty list, or until this thread is to do it with others."""
        if mine not in self._waiting:
            self._waiting.append(mine)
        try:
            self._changed.wait_for(lambda: mine.shared is not None or self._is_free(mine))
            if mine.shared is not None:
                return []
            batch = self._beside(mine)
            self._waiting = [each for each in self._waiting if each not in batch]
            self._busy += 1
        except BaseException:  # Ctrl-C
            self._waiting = [each for each in self._waiting if each is not mine]
            raise
        return batch

    def _is_free(self, mine: _Request) -> bool:
        return self._busy < self._most and mine in self._waiting

    def _beside(self, mine: _Request) -> list[_Request]:
        """A request and those that fit into one process with it."""
        batch, runs, chars = [mine], mine.runs, mine.chars
        for each in [] if mine.alone else self._waiting:
            fits = runs + each.runs <= MOST_RUNS and chars + each.chars <= MOST_CHARS
            if fits and each is not mine and not each.alone and each.limits == mine.limits:
                batch.append(each)
                runs, chars = runs + each.runs, chars + each.chars
        return batch

    def _run(self, sandbox: Sandbox, batch: Sequence[_Request]) -> None:
        asked = json.dumps({"jobs": [each.job for each in batch]})
        [[whole]] = sandbox.run([self._driver], [Case(asked)], limits=batch[0].limits)
        lines = [line for line in whole.stdout.splitlines(True) if line.endswith("\n")]
        for each in batch:
            count = len(each.job["programs"])
            mine, lines = lines[:count], lines[count:]
            if len(mine) == count or len(batch) == 1:
                each.shared = ProcessOutput(whole, mine)


_GATHERERS: weakref.WeakKeyDictionary[Sandbox, Gatherer] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def gatherer_of(sandbox: Sandbox, driver: str) -> Gatherer:
    """The gatherer of a sandbox, the same for all threads."""
    with _LOCK:
        try:
            return _GATHERERS.setdefault(sandbox, Gatherer(driver))
        except TypeError:  # an object of the user's without weak references gathers nothing
            return Gatherer(driver)
