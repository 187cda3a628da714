"""A sampler that asks vLLM engines in Ray's actors, and these actors.

The reference to its weights comes with every request, so an engine remembers nothing that matters: Ray
starts a lost one again by itself (a bounded number of times, `max_restarts`), and who had asked it asks the next one. The weights
of a policy are put into Ray's object store once; an engine fetches them with the first request for them.

`pettingllms.distributed.engines` starts the engines of a run, and ends one that hangs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import re
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from pettingllms.errors import SamplerUnavailable, StaleSamplerError
from pettingllms.samplers.base import (
    OnTokens,
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.types import Request

if TYPE_CHECKING:
    from pettingllms.samplers.vllm_loop import Completed, VllmLoop

PATIENCE_SECONDS = 600.0
DOWN_SECONDS = 5.0
"""In which an engine that was lost is not asked, if there are others."""


class EngineSpec(NamedTuple):
    """The specification that an engine is made from."""

    base: str
    end_ids: tuple[int, ...]
    arguments: Callable[[], Mapping[str, Any]]
    """Makes those of vLLM on the machine where the engine runs."""
    log: Path | None
    """Folder of vLLM's log, where it is there."""


class Early(NamedTuple):
    """A completion of a request that has others."""

    number: int
    tokens: SampledTokens


class Engine:
    """One vLLM engine. Its process ends where vLLM fails, so that Ray starts another.

    Nothing heavy is imported before it answers, so that who asks it learns soon that it only starts.

    Args:
        spec: an `EngineSpec`, pickled, because what it holds imports a lot.
    """

    def __init__(self, spec: bytes) -> None:
        self._loop: Future[VllmLoop] = Future()
        gc.set_threshold(50_000)  # as in `pettingllms.distributed`
        # Beside Ray's own files, which go with its cluster also if this process is killed. What vLLM
        # leaves among temporary files is there as well.
        parent = ray.get_runtime_context().get_temp_dir()
        self._folder = Path(tempfile.mkdtemp(prefix="engine-", dir=parent))
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        threading.Thread(target=self._start, args=(spec,), daemon=True).start()

    def _start(self, spec: bytes) -> None:
        try:
            from pettingllms.samplers.vllm_loop import VllmLoop

            base, end_ids, arguments, log = pickle.loads(spec)
            # The folder is the driver's, and may not be on this machine.
            log = log if log is not None and log.is_dir() else None
            loop = VllmLoop(base, end_ids, arguments, folder=self._folder, log=log)
            loop.started.result()
            self._loop.set_result(loop)
        except Exception as error:  # noqa: BLE001 - whoever asks gets it
            self._loop.set_exception(error)

    async def ready(self) -> None:
        """Done once it answers.

        Raises:
            ConfigError: vLLM cannot run this model with these settings.
        """
        await asyncio.wrap_future(self._loop)

    async def complete(
        self, request: Request, n: int, params: SamplingParams, version: int, weights: list[Any]
    ) -> AsyncIterator[Early | Completed | None]:
        """Completes a request `n` times; yields each completion once it is there, and then the whole.

        Yields None while the engine starts, and others may be asked.

        Args:
            request: of one of its policies.
            n: number of completions.
            params: how they are drawn.
            version: of the policy.
            weights: a reference to its files; in a list, so that Ray hands it on as it is.

        Raises:
            ConfigError: a request that does not fit the engine.
            SamplerUnavailable: vLLM failed; the process ends a second later.
        """
        if not self._loop.done():
            await asyncio.wait([asyncio.wrap_future(self._loop)], timeout=1.0)
            yield None
            return
        # vLLM's thread reports, and a queue of this event loop may be filled from its own thread
        # only.
        here, news = asyncio.get_running_loop(), asyncio.Queue[Early | None]()

        def tell(*early: Any) -> None:
            here.call_soon_threadsafe(news.put_nowait, Early(*early) if early else None)

        try:
            if error := self._loop.exception():
                raise SamplerUnavailable(str(error))
            key, files = weights[0].hex(), await weights[0]
            asked = self._loop.result().ask(request, n, params, version, key, files, tell)
            # An empty report says that the whole is there, also where it failed.
            asked.add_done_callback(lambda _: tell())
            while (early := await news.get()) is not None:
                yield early
            yield asked.result()
        except SamplerUnavailable:
            # A second in which the error reaches who asked; then Ray starts another process with a
            # new vLLM.
            asyncio.get_running_loop().call_later(1.0, os._exit, 1)
            raise

    async def pulse(self) -> tuple[int, bool, float, float]:
        """The process, whether vLLM has started, its busy seconds, and since when it is stuck."""
        started = self._loop.done() and self._loop.exception() is None
        return os.getpid(), started, *(self._loop.result().pulse() if started else (0.0, 0.0))

    async def close(self) -> None:
        """Removes its files; it is not asked any more."""
        shutil.rmtree(self._folder, ignore_errors=True)


class RemoteEngine:
    """Asks engines, whichever of those that serve a policy.

    Args:
        pack: reference to the files of a policy's current weights.
        patience: seconds in which none of them has to answer, while they are started again.
    """

    continuous = early = True

    def __init__(self, pack: Callable[[str], Any], patience: float = PATIENCE_SECONDS) -> None:
        self._pack, self.patience = pack, patience
        self.held: dict[str, tuple[int, Any]] = {}
        """Policy -> version, and a reference to its files."""
        self.serving: Mapping[str, Sequence[Any]] = {}
        """Policy -> the engines that serve it."""
        self.check: Callable[[], object] = lambda: None
        """Raises where no answer will come."""
        # Workers begin at different engines, so that the first requests of all do not meet at one.
        self._turns = itertools.count(os.getpid())
        self._down: dict[Any, float] = {}
        """Engine that was lost or only started -> when it may be asked again."""

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""
        return {policy: version for policy, (version, _) in self.held.items()}

    def publish(self, policy: str, version: int) -> None:
        """Requests are for the policy's current weights from now on."""
        self.held[policy] = version, self._pack(policy)

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        params: SamplingParams,
        on_tokens: OnTokens | None = None,
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times; what a lost engine was asked, another one is.

        Args:
            requests: of policies that are served.
            n: completions of each.
            params: how they are drawn.
            on_tokens: called with each completion once it is there, and again with another one if the
                engine is lost before it has all of its request.

        Raises:
            ConfigError: a request that does not fit the engines.
            SamplerUnavailable: none of them has answered for `patience` seconds.
        """
        completions: dict[int, list[SampledTokens]] = {}
        asked = dict(self._ask(place, requests, n, params) for place in range(len(requests)))
        last, reason = time.monotonic(), "they only start"
        while asked:
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=1.0)
            if not ready:
                self.check()
                continue
            [job] = ready
            place, engine = asked[job]
            answer, why = _next(job)
            reason = why or reason
            if isinstance(answer, Early):
                last = time.monotonic()
                if on_tokens is not None:
                    on_tokens(place, *answer)
                continue
            del asked[job]
            if answer is None:
                if time.monotonic() - last > self.patience:
                    raise SamplerUnavailable(
                        f"no engine has answered for {self.patience:g} seconds: {reason}"
                    )
                # Others are asked first for a while, but this one is if there is no other.
                self._down[engine] = time.monotonic() + DOWN_SECONDS
                time.sleep(0.02)  # what is gone for good answers at once
                again, asking = self._ask(place, requests, n, params)
                asked[again] = asking
                continue
            last = time.monotonic()
            policy = requests[place].policy
            # An engine that answered with other weights would make the ratios of the update wrong
            # without a sign.
            if answer.version != self.held[policy][0]:
                raise StaleSamplerError(
                    f"version {answer.version} of policy {policy!r} has answered in place of "
                    f"{self.held[policy][0]}"
                )
            completions[place] = answer.completions
        return [completions[place] for place in range(len(requests))]

    def _ask(
        self, place: int, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> tuple[Any, tuple[int, Any]]:
        """Asks the next engine that is not known to be down; what will be the answer, and to what."""
        request, now = requests[place], time.monotonic()
        engines = self.serving[request.policy]
        engines = [engine for engine in engines if self._down.get(engine, 0.0) < now] or engines
        engine = engines[next(self._turns) % len(engines)]
        version, weights = self.held[request.policy]
        # A reference that is an argument itself would be fetched by Ray for every request; in a
        # list it stays one.
        return engine.complete.remote(request, n, params, version, [weights]), (place, engine)

    def close(self) -> None:
        """Nothing to do: the engines are the driver's (`Engines`)."""


def _next(job: Any) -> tuple[Early | Completed | None, str]:
    """Returns what an engine yields next; None and why, if it was lost or vLLM failed in it."""
    try:
        return ray.get(next(job)), ""
    except RayTaskError as error:
        if not isinstance(error.cause, SamplerUnavailable):
            raise (error.cause or error) from error
        return None, str(error.cause)
    except RayError as error:  # also of memory, of a node, or of what was on it
        return None, why_lost(error)


def why_lost(error: BaseException | None) -> str:
    """What Ray says of a process that was lost, in a line."""
    text = str(error).strip()
    lines = text.splitlines() or [type(error).__name__]
    first = lines[-1 if "creation task" in lines[0] else 0]  # of a constructor there is a traceback
    # Ray says it in the last of many lines.
    if "OUT_OF_MEMORY" in text or "low on memory" in text:
        return f"{first} Its machine had no memory left."
    code = re.search(r"exit code -?\d+", text)
    return f"{first} It ended with {code[0]}." if code else first


class PublishingEngine(RemoteEngine):
    """Asks engines in the process that has the weights."""

    def __init__(self, served: ServedPolicies, settings: SamplerSettings) -> None:
        super().__init__(partial(_stored, served.weights))
        self.served, self.settings = served, settings


open_engine = PublishingEngine


def _stored(weights: Weights, policy: str) -> Any:
    """A reference to the files that the policy is saved as, each an array of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        weights.save(policy, Path(folder, policy))
        files = sorted(Path(folder, policy).iterdir())
        # As arrays of bytes, which engines of one machine read from shared memory without a copy.
        return ray.put({file.name: np.fromfile(file, np.uint8) for file in files})
