"""Actors that may die, hang or lose their node at any time, without changing a result.

A `Fleet` does jobs that are pure functions of their arguments: where a worker is lost, another one
does its job again. A `JournaledActor` holds what is not pure, a policy that learns: its last state and the jobs
since, so that a lost learner is made again by repeating them.

Ray restarts actors by itself if asked, but would repeat a job on a learner in an unknown state, does not
replace an actor that hangs, and starts one whose constructor fails for ever.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from pettingllms.distributed.heart import check
from pettingllms.errors import SamplerUnavailable, SandboxUnavailable, WorkersLost
from pettingllms.samplers.vllm_actors import why_lost

if TYPE_CHECKING:
    from pettingllms.distributed.ranks import Ranks

logger = logging.getLogger(__name__)


class Hung(RuntimeError):
    """An actor did not answer in time."""


class Closed(RuntimeError):
    """The run has ended while an actor was being waited for."""


LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError, Hung)
"""The actor, its node, or what it returned is gone, or it hangs."""
BROKEN = (SandboxUnavailable, SamplerUnavailable)
"""What a worker raises where it cannot work; another one may."""
ATTEMPTS = 8
"""Actors that may be lost in one job. If there are more, the job itself kills them."""
START_SECONDS = 600.0
"""For the start of a learner, however short `worker_timeout` is: imports take long on a busy machine."""
PATIENCE_SECONDS = 3
"""After which a learner that has no place yet lacks what a worker holds."""
RANK_SECONDS = 15.0
"""In which the loss of a rank is known, after another one has failed in what they do together."""


class Fleet:
    """Workers that do pure jobs, one at a time each.

    Args:
        make: starts a worker; its method `ready` prepares it.
        size: number of workers.
        timeout: seconds after which a worker counts as hung in a job.
    """

    def __init__(self, make: Callable[[], Any], size: int, *, timeout: float) -> None:
        self._make, self._timeout = make, timeout
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._broken: BaseException | None = None
        self._closed = threading.Event()
        self._sparing, self._spared = threading.Lock(), 0
        # As many threads as workers: each gives out one job at a time, and waits for its end.
        self._heard = time.monotonic()  # when a worker was last free
        self._specs = ThreadPoolExecutor(size, "fleet-job")
        self._starting = ThreadPoolExecutor(size, "fleet-start")
        self.lost = 0
        """Workers that were replaced."""
        for _ in range(size):
            self._starting.submit(self._start)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Has a job done by whichever worker is free; jobs are begun in order.

        The future raises what the job raises; `WorkersLost` if too many workers were lost in it.

        Args:
            method: of a worker.
            args: its arguments.
        """
        return self._specs.submit(self._do, method, args)

    def spare(self, *, needed: bool) -> None:
        """Ends an idle worker, if there is one, for whom its place is needed; later starts all again."""
        with self._sparing:
            if self._closed.is_set():
                return
            if not needed:
                for _ in range(self._spared):
                    self._starting.submit(self._start)
                self._spared = 0
                return
            with contextlib.suppress(queue.Empty):
                # None says that there will be no more workers, and has to stay for those who wait.
                if (worker := self._free.get_nowait()) is None:
                    self._free.put(None)
                else:
                    ray.kill(worker)
                    self._spared += 1

    def close(self) -> None:
        """Gives up all jobs, and ends the workers."""
        self._closed.set()
        self._put(None)
        self._specs.shutdown(cancel_futures=True)
        self._starting.shutdown(cancel_futures=True)
        while not self._free.empty():
            if (worker := self._free.get()) is not None:
                ray.kill(worker)

    def _do(self, method: str, args: tuple[Any, ...]) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            worker = self._worker()
            ask = getattr(worker, method).remote
            try:
                result = _result([ask(*args)], self._timeout, self._closed)
            except (*LOST, RayTaskError, Closed) as error:
                cause = _cause(error)
                # The job's own error: any worker would raise it again, and this one can do other
                # jobs.
                if not isinstance(cause, (*LOST, *BROKEN)):
                    self._put(worker)
                    raise cause from error
                logger.warning("a worker is replaced: %s in %s", why_lost(cause), method)
                self._replace(worker)
                # As in one process: the second failure of sandbox or engine ends the step.
                if isinstance(cause, BROKEN) and attempt > 1:
                    raise cause from error
                last = cause
            else:
                self._put(worker)
                return result
        raise WorkersLost(
            f"{method} was given to {ATTEMPTS} workers, and all were lost: {why_lost(last)}"
        )

    def _worker(self) -> Any:
        began = time.monotonic()
        while True:
            check()
            with contextlib.suppress(queue.Empty):
                worker = self._free.get(timeout=1.0)
                break
            # A job ends within its limit, and a start soon after it.
            limit = self._timeout + START_SECONDS
            if time.monotonic() - max(began, self._heard) > limit:
                raise WorkersLost(
                    f"no worker has been ready for {limit:g} seconds: they hang while they start, or "
                    "have no place in the cluster"
                )
        if self._broken is None and worker is not None:
            return worker
        self._free.put(worker)  # for whoever else waits
        raise self._broken or Closed

    def _start(self) -> None:
        """Starts a worker; without one, nobody waits for it any longer."""
        try:
            self._put(self._started())
        except Exception as error:  # noqa: BLE001 - whoever waits for a worker raises it
            self._broken = error
            self._put(None)

    def _started(self) -> Any:
        """A worker that is ready; it is started again if it is lost before."""
        last: BaseException | None = None
        for _ in range(ATTEMPTS):
            worker = self._make()
            try:
                _result([worker.ready.remote()], None, self._closed)
            except Closed:
                ray.kill(worker)
                raise
            except (*LOST, RayTaskError) as error:
                last = _cause(error)
                ray.kill(worker)
                if isinstance(error, RayTaskError) or _cannot_be_made(error):
                    break  # the next one would raise the same
            else:
                return worker
        assert last is not None
        # An error of the constructor is shown as it is; a loss says nothing but that there is no
        # worker.
        if isinstance(last, Exception) and not isinstance(last, LOST):
            raise last
        raise WorkersLost(f"no worker can be started: {why_lost(last)}")

    def _put(self, worker: Any) -> None:
        """Adds a worker, or None where there will be no more."""
        self._heard = time.monotonic()
        self._free.put(worker)

    def _replace(self, worker: Any) -> None:
        self.lost += 1
        ray.kill(worker)
        if not self._closed.is_set():
            self._starting.submit(self._start)


class JournaledActor:
    """The place of one policy's learner.

    Args:
        make: starts a learner; its method `load` takes a state, at any time.
        base: reference to its state.
        timeout: seconds after which it counts as hung in a job.
        room: called while a learner has no place, to make room, and once it has started.
    """

    def __init__(
        self,
        make: Callable[[], Ranks],
        base: Any,
        *,
        timeout: float,
        room: Callable[..., object] = lambda **_: None,
    ) -> None:
        self._make, self._base, self._timeout, self._room = make, base, timeout, room
        self._ranks: Ranks | None = None
        self._loaded = False
        """Whether the learner is what base and journal say."""
        self._journal: list[tuple[Any, ...]] = []
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, "learner")  # one job at a time, in order
        self.lost = 0
        """Learners that were replaced."""
        self.started = self._thread.submit(self._steadily, None)
        """Done once the first learner is there; raises why there is none."""

    def do(self, method: str, *args: Any) -> Future[Any]:
        """Has a job done that changes the learner, once and for all, or not at all if it raises."""
        return self._thread.submit(self._do, (method, *args))

    def ask(self, method: str) -> Future[Any]:
        """Has a job done that changes nothing."""
        return self._thread.submit(self._steadily, (method,))

    def mark(self) -> Future[int]:
        """The place in the journal that `back` takes, once all jobs so far are done."""
        return self._thread.submit(lambda: len(self._journal))

    def back(self, mark: int) -> None:
        """Takes back what `do` has done since the mark."""
        self._thread.submit(self._back, mark)

    def rebase(self, base: Any, *, same: bool) -> None:
        """Continues from `base`, a reference to a state; what was done before is forgotten.

        Args:
            base: the state.
            same: whether it is the learner's present state.
        """
        self._thread.submit(self._rebase, base, same).result()

    def close(self) -> None:
        """Gives up all jobs, and ends the learner."""
        self._closed.set()
        self._thread.shutdown(cancel_futures=True)
        self._drop()

    def _do(self, job: tuple[Any, ...]) -> Any:
        result = self._steadily(job)
        # Only after it is done: the learner of a job that raised is dropped, with whatever it had
        # done.
        self._journal.append(job)
        return result

    def _back(self, mark: int) -> None:
        if len(self._journal) > mark:
            del self._journal[mark:]
            # A learner cannot undo; it is loaded again from its base, and repeats what is left of
            # the journal.
            self._loaded = False

    def _rebase(self, base: Any, same: bool) -> None:
        self._base, self._journal = base, []
        self._loaded = self._loaded and same

    def _steadily(self, job: tuple[Any, ...] | None) -> Any:
        last: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                ranks = self._ranks or self._begin()
                if not self._loaded:
                    _result(ranks.do("load", self._base), START_SECONDS, self._closed)
                    # Each job is a function of state and arguments, so that repeating them gives
                    # the same bits.
                    for earlier in self._journal:
                        self._call(ranks, earlier)
                    self._loaded = True
                return None if job is None else self._call(ranks, job)
            except (*LOST, RayTaskError) as error:
                cause = _cause(error)
                if not isinstance(cause, LOST):  # a rank of it may be lost, too
                    self._drop()  # half of a job, or of `load`, may be done
                    raise cause from error
                if _cannot_be_made(error):
                    raise WorkersLost(f"no learner can be started: {why_lost(error)}") from error
                logger.warning("a learner is replaced: %s", why_lost(error))
                self.lost, last = self.lost + 1, error
                self._drop()
        raise WorkersLost(f"{ATTEMPTS} learners were lost in one update: {why_lost(last)}")

    def _begin(self) -> Ranks:
        ranks = self._ranks = self._make()
        began = time.monotonic()
        while not ranks.placed(PATIENCE_SECONDS):
            check()
            if self._closed.is_set():
                raise Closed
            if time.monotonic() - began > START_SECONDS:
                raise WorkersLost(f"a learner has had no place for {START_SECONDS:g} seconds")
            self._room(needed=True)  # a node was lost, and workers had started where it fits
        self._room(needed=False)
        for stage in (partial(ranks.do, "ready"), ranks.join):
            _result(stage(), START_SECONDS, self._closed)
        return ranks

    def _call(self, ranks: Ranks, job: tuple[Any, ...]) -> Any:
        return _result(ranks.do(*job), self._timeout, self._closed)

    def _drop(self) -> None:
        self._loaded = False
        if self._ranks is not None:
            self._ranks.kill()
            self._ranks = None


def _result(references: Sequence[Any], timeout: float | None, closed: threading.Event) -> Any:
    """Returns the first actor's result, once all that do something together have one.

    Raises:
        Hung: it takes longer than `timeout` seconds.
        Closed: the run has ended meanwhile.
        WorkersLost: the cluster is dead.
    """
    until = None if timeout is None else time.monotonic() + timeout
    waiting = list(references)
    while waiting:
        done, waiting = _wait(waiting, until, closed)
        try:
            _fetched(done, until)
        except RayTaskError:
            # The others may wait for this one for ever, or it has failed because one of them died.
            late, _ = ray.wait(waiting, num_returns=len(waiting), timeout=RANK_SECONDS)
            _fetched(late, until)
            raise
    return _fetched(references[0], until) if references else None


def _fetched(done: Any, until: float | None) -> Any:
    """Fetches what is there, from a node that may hang.

    Raises:
        Hung: it does not come until then.
    """
    try:
        return ray.get(done, timeout=None if until is None else max(1.0, until - time.monotonic()))
    except GetTimeoutError as error:
        raise Hung("its result did not come in time") from error


def _wait(
    waiting: Sequence[Any], until: float | None, closed: threading.Event
) -> tuple[list[Any], list[Any]]:
    """Waits for one of what actors compute; that one, and the others.

    Raises:
        Hung, Closed, WorkersLost: as `_result`.
    """
    while True:
        check()
        if closed.is_set():
            raise Closed
        left = 1.0 if until is None else until - time.monotonic()
        if left <= 0:
            raise Hung("it did not answer in time, see --worker-timeout")
        # In pieces of a second, so that the end of the run and a dead head are noticed meanwhile.
        done, others = ray.wait(list(waiting), timeout=min(1.0, left))
        if done:
            return done, others


def _cause(error: BaseException) -> BaseException:
    """The error that an actor raised, or one that it has called, without Ray's wrapping."""
    while isinstance(error, RayTaskError) and error.cause:
        error = error.cause
    return error


def _cannot_be_made(error: BaseException) -> bool:
    return bool(getattr(error, "actor_init_failed", False))
