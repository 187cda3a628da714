"""Workers for many threads: started when needed, handed out one by one, replaced when lost."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.link import Link


class WorkerPool:
    """At most `size` workers, each made by `launch`.

    A worker is replaced after `requests` requests or `age_s` seconds, if these are given. After a
    fork, the new process forgets its parent's workers and starts its own.
    """

    def __init__(
        self,
        launch: Callable[[], Link],
        size: int,
        *,
        requests: float = math.inf,
        age_s: float = math.inf,
    ) -> None:
        self.size = size
        self._requests = requests
        self._age_s = age_s
        self._launch = launch
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._starting = 0
        self._closed = False

    @property
    def lock(self) -> threading.Condition:
        """Guards the pool; a forked process has a new one."""
        return self._changed

    @contextlib.contextmanager
    def worker(self) -> Iterator[Link]:
        """A worker for the caller alone; it is thrown away if the body raises.

        Raises:
            WorkerLost: no worker could be started.
            SandboxUnavailable: the pool is closed.
        """
        link = self._take()
        good = False
        try:
            yield link
            good = True
        finally:
            self._give_back(link, good)

    @property
    def waiting(self) -> int:
        """How many workers could take a request at once."""
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
        for link in busy:
            link.kill()
        for link in idle:
            link.close()

    def abandon(self) -> None:
        """Forget the workers of the process that this one was forked from."""
        links = self._all
        self._reset()
        for link in links:
            link.close()

    def _take(self) -> Link:
        with self._changed:
            while True:
                if self._closed:
                    raise SandboxUnavailable("the sandbox is closed; open another one")
                if self._idle:
                    return self._idle.pop()
                if len(self._all) + self._starting < self.size:
                    self._starting += 1
                    break
                self._changed.wait()
        link = None
        try:
            link = self._launch()
        finally:
            with self._changed:
                self._starting -= 1
                if link is not None:
                    self._all.add(link)
                self._changed.notify()
        return link

    def _is_worn(self, link: Link) -> bool:
        old = time.monotonic() - link.begun >= self._age_s
        return old or link.requests >= self._requests

    def _give_back(self, link: Link, good: bool) -> None:
        good = good and not self._is_worn(link)
        with self._changed:
            if link not in self._all:
                keep = False
            elif good and not self._closed:
                keep = True
                self._idle.append(link)
            else:
                keep = False
                self._all.discard(link)
            self._changed.notify()
        if not keep:
            link.close()


def _abandon_all() -> None:
    for pool in list(_POOLS):
        pool.abandon()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
os.register_at_fork(after_in_child=_abandon_all)
