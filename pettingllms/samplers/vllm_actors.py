"""A sampler that asks vLLM engines in Ray's actors, and these actors.

The reference to its weights comes with every request, so an engine remembers nothing that matters: Ray
starts a lost one again by itself (`max_restarts`), and who had asked it asks the next one. The weights
of a policy are put into Ray's object store once; an engine fetches them with the first request for them.

`pettingllms.distributed.engines` starts the engines of a run, and ends one that hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from pettingllms.errors import SamplerUnavailable, StaleSamplerError
from pettingllms.samplers.base import (
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.samplers.vllm_loop import Answer, Question, VllmLoop
from pettingllms.types import Request

PATIENCE_SECONDS = 600.0


class EngineSpec(NamedTuple):
    """What an engine is made from."""

    base: str
    end_ids: tuple[int, ...]
    arguments: Callable[[], Mapping[str, Any]]
    """Makes those of vLLM on the machine where the engine runs."""
    log: Path | None
    """Folder of vLLM's log, where it is there."""


class Engine:
    """One vLLM engine. Its process ends where vLLM fails, so that Ray starts another."""

    def __init__(self, spec: EngineSpec) -> None:
        # Engines of one machine would otherwise bind their threads to the same cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        here = ray.get_runtime_context()
        log = spec.log if spec.log is not None and spec.log.is_dir() else None
        # Ray's folder goes with its cluster, also if this process is killed.
        folder = Path(here.get_temp_dir(), here.get_session_name())
        self._loop = VllmLoop(spec.base, spec.end_ids, spec.arguments, folder=folder, log=log)

    async def ready(self) -> None:
        """Done once it answers.

        Raises:
            ConfigError: vLLM cannot run this model with these settings.
        """
        await asyncio.wrap_future(self._loop.started)

    async def complete(
        self, request: Request, n: int, params: SamplingParams, version: int, weights: list[Any]
    ) -> Answer | None:
        """Completes a request `n` times; None while the engine starts, and others may be asked.

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
        try:
            if not self._loop.started.done():
                await asyncio.wait([asyncio.wrap_future(self._loop.started)], timeout=1.0)
                return None
            if error := self._loop.started.exception():
                raise SamplerUnavailable(str(error))
            key, files = weights[0].hex(), await weights[0]
            question = Question(request, n, params, version, key, files)
            return await asyncio.wrap_future(self._loop.ask(question))
        except SamplerUnavailable:
            asyncio.get_running_loop().call_later(1.0, os._exit, 1)
            raise

    async def pulse(self) -> tuple[int, float, float]:
        """The process, its busy seconds, and the seconds since it last got anywhere."""
        return (os.getpid(), *self._loop.pulse())


class RemoteEngine:
    """Asks engines, whichever of those that serve a policy.

    Args:
        pack: reference to the files of a policy's current weights.
        patience: seconds in which none of them has to answer, while they are started again.
    """

    continuous = True

    def __init__(self, pack: Callable[[str], Any], patience: float = PATIENCE_SECONDS) -> None:
        self._pack, self.patience = pack, patience
        self.held: dict[str, tuple[int, Any]] = {}
        """Policy -> version, and a reference to its files."""
        self.serving: Mapping[str, Sequence[Any]] = {}
        """Policy -> the engines that serve it."""
        self._turns = itertools.count(os.getpid())

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""
        return {policy: version for policy, (version, _) in self.held.items()}

    def publish(self, policy: str, version: int) -> None:
        """Requests are for the policy's current weights from now on."""
        self.held[policy] = version, self._pack(policy)

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times; what a lost engine was asked, another one is.

        Raises:
            ConfigError: a request that does not fit the engines.
            SamplerUnavailable: none of them has answered for `patience` seconds.
        """
        found: dict[int, list[SampledTokens]] = {}
        asked = {self._ask(request, n, params): i for i, request in enumerate(requests)}
        last, reason = time.monotonic(), "it is busy"
        while asked:
            [done], _ = ray.wait(list(asked), num_returns=1)
            place = asked.pop(done)
            answer: Answer | None = None
            try:
                answer = ray.get(done)
            except RayActorError as error:
                reason = str(error).strip().splitlines()[0]
            except RayTaskError as error:
                if not isinstance(error.cause, SamplerUnavailable):
                    raise (error.cause or error) from error
                reason = str(error.cause)
            if answer is None:
                if time.monotonic() - last > self.patience:
                    raise SamplerUnavailable(
                        f"no engine has answered for {self.patience:g} seconds: {reason}"
                    )
                time.sleep(0.05)
                asked[self._ask(requests[place], n, params)] = place
                continue
            last = time.monotonic()
            policy = requests[place].policy
            if answer.version != self.held[policy][0]:
                raise StaleSamplerError(
                    f"version {answer.version} of policy {policy!r} has answered in place of "
                    f"{self.held[policy][0]}"
                )
            found[place] = answer.completions
        return [found[place] for place in range(len(requests))]

    def _ask(self, request: Request, n: int, params: SamplingParams) -> Any:
        engines, (version, weights) = self.serving[request.policy], self.held[request.policy]
        engine = engines[next(self._turns) % len(engines)]
        return engine.complete.remote(request, n, params, version, [weights])

    def close(self) -> None:
        """Nothing to do: the engines are the driver's (`Engines`)."""


class PublishingEngine(RemoteEngine):
    """Asks engines in the process that has the weights.

    Args:
        served: the policies.
        settings: of the engines.
    """

    def __init__(self, served: ServedPolicies, settings: SamplerSettings) -> None:
        super().__init__(partial(_stored, served.weights))
        self.served, self.settings = served, settings


open_engine = PublishingEngine


def _stored(weights: Weights, policy: str) -> Any:
    """A reference to the files that the policy is saved as, each an array of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        weights.save(policy, Path(folder, policy))
        files = sorted(Path(folder, policy).iterdir())
        return ray.put({file.name: np.fromfile(file, np.uint8) for file in files})
