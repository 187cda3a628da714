"""The vLLM engines of a run or an evaluation: started, looked after, and asked by workers that load no model.

    driver --- weights, once ---> object store ------------> Engine x replicas    one vLLM each
       '------ a reference ---> worker --- request, reference --^
                                   ^------ completions, version-'

Ray starts a lost engine again, and what it had been asked another one is (`samplers.vllm_actors`). An
engine that hangs has to be found and ended, which is done here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from pettingllms.distributed import heart
from pettingllms.distributed.actors import RolloutWorker, RunSpec
from pettingllms.distributed.fleet import ATTEMPTS, START_SECONDS
from pettingllms.distributed.pools import ENGINE_SHARE, Share, engine_pool
from pettingllms.errors import WorkersLost
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.chat import Chat
from pettingllms.policies.policy_set import AskedBase, Base, PolicySet
from pettingllms.samplers.base import SamplerSettings, ServedPolicies
from pettingllms.samplers.vllm_actors import (
    Engine,
    EngineSpec,
    PublishingEngine,
    RemoteEngine,
    why_lost,
)
from pettingllms.samplers.vllm_args import engine_options
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.settings import own_settings

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
"""Between two looks at each engine."""
CLOSE_SECONDS = 2.0


class Asking(NamedTuple):
    """The parts that a worker needs to sample from engines."""

    chats: Mapping[str, Chat]
    contexts: Mapping[str, int]
    serving: Mapping[str, Sequence[Any]]
    patience: float

    def policies(
        self, pack: Callable[[str], Any], roles_to_policies: Mapping[str, str]
    ) -> PolicySet:
        """Policies that the engines sample; see `RemoteEngine` for `pack`."""
        engine = RemoteEngine(pack, self.patience)
        engine.serving = self.serving
        return PolicySet([AskedBase(self.chats, self.contexts, engine)], roles_to_policies)


class EngineWorker(RolloutWorker):
    """Plays shards: environments and sandbox; engines elsewhere sample, and no model is loaded."""

    def __init__(self, spec: RunSpec, asking: Asking) -> None:
        super().__init__(spec)
        self._asking, self._given = asking, dict[str, Any]()

    def _load(self) -> PolicySet:
        return self._asking.policies(self._given.get, self._spec.roles_to_policies)

    def _take(self, policy: str, version: int, reference: Any) -> None:
        self._given[policy] = reference
        self._policies.publish(policy, version=version)


@dataclass
class _Place:
    """An engine as it was when it last said something."""

    engine: Any
    process: int = 0
    last: float = 0.0
    """Busy seconds of that process."""
    busy: float = 0.0
    """Of all of its processes."""
    seen: float = field(default_factory=time.monotonic)
    ping: Any = None
    since: float = 0.0
    answers: bool = False
    """Whether its process has answered, and was not lost since."""
    started: bool = False


class Engines:
    """The engines of a run: started here, looked after, and ended."""

    def __init__(
        self, policies: PolicySet, config: ResolvedConfig, pools: Mapping[str, Share]
    ) -> None:
        self.lost = 0
        """Engines that were replaced."""
        self._timeout, self._closed = config.worker_timeout, threading.Event()
        serving: dict[str, list[Any]] = {}
        for names, spec, share in _engines(policies, config, pools):
            # Ray starts a lost engine again, but not for ever one that its machine has no memory
            # for. Requests wait inside of it, where vLLM can batch them, and not in Ray's queue.
            options = {**share.options, "max_restarts": ATTEMPTS, "max_concurrency": 10_000}
            maker: Any = ray.remote(**options)(Engine)
            pickled = cloudpickle.dumps(spec)
            made = [maker.remote(pickled) for _ in range(share.replicas)]
            serving |= dict.fromkeys(names, made)
        self._asked = [_asked(base) for base in policies.bases]
        for sampler in self._asked:
            sampler.serving, sampler.check = serving, heart.check
        chats = {name: policies.chat_for(name) for name in policies.names}
        # Before a worker that waits for engines counts as hung itself.
        self.asking = Asking(chats, policies.contexts, serving, 0.8 * config.worker_timeout)
        engines = dict.fromkeys(engine for made in serving.values() for engine in made)
        self._places = [_Place(engine) for engine in engines]
        self._before = self._spent()
        self._watching = threading.Thread(target=self._watch, name="engines", daemon=True)
        self._watching.start()

    def wait(self) -> None:
        """Waits until all engines answer.

        Raises:
            ConfigError: vLLM cannot run a model.
            WorkersLost: an engine cannot be started.
        """
        last: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                ray.get(
                    [place.engine.ready.remote() for place in self._places], timeout=START_SECONDS
                )
                return
            except RayTaskError as error:
                raise (error.cause or error) from error
            except GetTimeoutError:
                raise WorkersLost(
                    f"an engine has not started for {START_SECONDS:g} seconds"
                ) from None
            except RayError as error:
                last = error
        raise WorkersLost(f"no engine can be started: {last and why_lost(last)}")

    def held(self) -> dict[str, tuple[int, Any]]:
        """Policy -> the version of its weights that are published, and a reference to them."""
        return {name: weights for sampler in self._asked for name, weights in sampler.held.items()}

    def metrics(self) -> dict[str, float]:
        """The share of time since the last call in which engines had nothing to do; how many were lost."""
        before, self._before = self._before, self._spent()
        busy, seconds = (now - then for now, then in zip(self._before, before, strict=True))
        idle = 1.0 - busy / seconds if seconds else 1.0
        return {"engines/idle": min(1.0, max(0.0, idle)), "engines/lost": float(self.lost)}

    def close(self) -> None:
        """Ends the engines."""
        self._closed.set()
        self._watching.join()
        ray.wait(
            [place.engine.close.remote() for place in self._places],
            timeout=CLOSE_SECONDS,
            num_returns=len(self._places),
        )
        for place in self._places:
            ray.kill(place.engine)

    def _spent(self) -> tuple[float, float]:
        return sum(place.busy for place in self._places), sum(place.seen for place in self._places)

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            for place in self._places:
                self._look(place)

    def _look(self, place: _Place) -> None:
        """Hears what an engine says; ends it if it hangs, so that Ray starts it again."""
        if place.ping is None:
            place.ping, place.since = place.engine.pulse.remote(), time.monotonic()
        stuck = 0.0
        if ray.wait([place.ping], timeout=0)[0]:
            reference, place.ping = place.ping, None
            try:
                process, place.started, busy, stuck = ray.get(reference)
            except RayError as error:  # it is being started again
                if place.answers:
                    logger.warning(
                        "an engine was lost: %s Ray starts it again, at most %d times in a run",
                        why_lost(error),
                        ATTEMPTS,
                    )
                place.answers = False
                return
            if place.process not in (0, process):
                logger.warning("an engine was replaced")
                self.lost, place.last = self.lost + 1, 0.0
            place.busy += busy - place.last
            place.process, place.last, place.seen = process, busy, time.monotonic()
            place.answers = True
        # Silence counts only of a process that has answered before: until then it is being started.
        waits = place.ping is not None and place.answers
        silent = time.monotonic() - place.since if waits else 0.0
        # Imports may keep an engine that starts from answering.
        allowed = self._timeout / 10 if place.started else START_SECONDS
        if silent > allowed or stuck > self._timeout / 2:
            logger.warning("an engine hangs, and is ended")
            place.answers = False  # once: it may take long to start again
            ray.kill(place.engine, no_restart=False)


def _engines(
    policies: PolicySet, config: ResolvedConfig, pools: Mapping[str, Share]
) -> Iterator[tuple[Sequence[str], EngineSpec, Share]]:
    """Yields the policies that each kind of engine serves, with its specification and its share.

    Adapters of one base share engines; each full model has its own.
    """
    for base in policies.bases:
        served, settings = (asked := _asked(base)).served, asked.settings
        # Dtype and device are of the base, so that those of its first policy are those of all.
        first = own_settings(config, served.names[0])
        together = served.lora_rank is not None
        for names in [served.names] if together else [(name,) for name in served.names]:
            share = pools[engine_pool(names)]
            # A version of each for every step that is played at the same time.
            none: Any = None  # engines are given weights with each request
            several = replace(served, names=names * (1 + config.max_staleness), weights=none)
            arguments = partial(_arguments, several, settings, first, share.gpus or 0.0)
            yield names, EngineSpec(base.name, served.end_ids, arguments, settings.folder), share


def _asked(base: Base) -> PublishingEngine:
    assert isinstance(base.engine, PublishingEngine)
    return base.engine


def _arguments(
    served: ServedPolicies, settings: SamplerSettings, first: ResolvedConfig, gpus: float
) -> dict[str, Any]:
    """Makes vLLM's arguments for the machine where this is called."""
    dtype, device = (None if name == "auto" else name for name in (first.dtype, first.device))
    compute, place = ModelSpec(served.names[0]).dtype_and_device(dtype, device)
    defaults: dict[str, Any] = {}
    if place.type == "cuda":
        defaults = {"gpu_memory_utilization": round(ENGINE_SHARE * min(1.0, gpus), 3)}
        if gpus > 1:
            defaults["distributed_executor_backend"] = "mp"  # vLLM would ask Ray for more
    options = {**defaults, **settings.options}
    return engine_options(
        replace(served, dtype=compute), replace(settings, options=options), engines=1
    )
