"""Evaluation by workers on Ray: the chunks of an evaluation, each a pure function of its plan.

Chunks share no batch, and everything random follows from the place of a decision, so results are those
of one process, to the bit. Chunks are begun in order and written in order; a worker that is lost is
replaced, and its chunk is rolled out again.

With sampler vllm, engines in processes of their own sample for all workers, as in training. What they
answer is drawn in the same way, and rounded as their batches happen to be.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
import torch

from pettingllms.assembly import make_env
from pettingllms.data.rows import digest
from pettingllms.distributed.cluster import check_same, connected, on_node, sent, versions
from pettingllms.distributed.engines import Asking, Engines
from pettingllms.distributed.fleet import Fleet
from pettingllms.distributed.heart import blamed
from pettingllms.distributed.pools import WORKERS, Share, placed, pools_of
from pettingllms.evaluation.chunks import Chunk
from pettingllms.evaluation.playing import Playing
from pettingllms.evaluation.rollouts import ClosableSampler, Lineup, Play, Verdicts
from pettingllms.evaluation.run import EvalPlan
from pettingllms.names import own_names
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.trajectory import Trajectory


class EvalWorker:
    """Rolls out chunks: environment, sandbox and sampler in one process, or engines that sample elsewhere.

    Args:
        given: the evaluation, what the driver has and every node must have, and the threads of PyTorch.
        asking: how to ask the engines; None to load a model here.
        weights: policy -> a reference to what the engines sample from.
    """

    def __init__(
        self, given: tuple[EvalPlan, Any, int], asking: Asking | None, weights: Mapping[str, Any]
    ) -> None:
        self._plan, self._versions, self._threads = given
        self._asking, self._weights = asking, weights

    @on_node()
    def ready(self) -> None:
        """Makes the environment, where all is as on the driver; a model is loaded with the first chunk."""
        plan = self._plan
        torch.set_num_threads(self._threads)
        check_same(self._versions, _versions(plan))
        env = make_env(plan.config, plan.split, plan.source, divide=plan.divide)
        pool = ThreadPoolExecutor(plan.config.scoring_threads)
        self._playing = Playing(env, plan.sampling, self._load, pool)

    def play(self, lineup: Lineup, chunk: Chunk) -> list[Trajectory]:
        """The episodes of one chunk."""
        # Progress is shown by the driver, as chunks come back.
        return next(self._playing(lineup, [chunk], lambda _verdicts: None))

    @on_node()
    def _load(self, adapters: bool) -> ClosableSampler:
        if self._asking is None:
            return self._plan.load(adapters)
        return self._asking.policies(self._weights.get, self._plan.roles_to_policies)


class _Processes:
    """The workers of an evaluation, and the engines that they ask, if its settings want some.

    Engines hold the policies of a line-up: those with adapters, or those of the base model. They are started
    before the workers, who would otherwise take their places on a full cluster, and both are started again
    for the other policies.
    """

    def __init__(self, plan: EvalPlan, pools: Mapping[str, Share]) -> None:
        self._plan, self._pools = plan, pools
        env: Any = None  # every worker makes its own
        here = dataclasses.replace(plan, env=env), _versions(plan), torch.get_num_threads()
        self._given = sent(here)
        self._adapters: bool | None = None
        self._open = contextlib.ExitStack()

    def fleet(self, adapters: bool) -> Fleet:
        """Workers that play with these policies.

        Raises:
            ConfigError: vLLM cannot run a model.
            WorkersLost: an engine cannot be started.
        """
        config, sampled = self._plan.config, own_names(self._plan.roles_to_policies)
        on_engines = config.sampler == "vllm" and bool(sampled)
        # Without engines, each worker loads what a line-up needs.
        if self._adapters is None or (on_engines and self._adapters != adapters):
            self.close()
            self._adapters, self._fleet = adapters, self._start(adapters, on_engines=on_engines)
        return self._fleet

    def _start(self, adapters: bool, *, on_engines: bool) -> Fleet:
        config, open_ = self._plan.config, self._open
        asking, weights = None, dict[str, Any]()
        if on_engines:
            policies = open_.enter_context(contextlib.closing(self._plan.load(adapters)))
            assert isinstance(policies, PolicySet)  # workers do not ask models behind an API
            engines = Engines(policies, config, self._pools)
            open_.callback(engines.close)
            engines.wait()
            asking = engines.asking
            weights = {name: reference for name, (_, reference) in engines.held().items()}
        worker: Any = ray.remote(**self._pools[WORKERS].options)(EvalWorker)
        fleet = Fleet(
            lambda: worker.remote(self._given, asking, weights),
            config.workers,
            timeout=config.worker_timeout,
        )
        open_.callback(fleet.close)
        return fleet

    def close(self) -> None:
        """Ends workers and engines."""
        self._open.close()


@contextlib.contextmanager
def playing_elsewhere(plan: EvalPlan) -> Iterator[Play]:
    """Workers as the settings of the plan ask for.

    Raises:
        ConfigError: Ray, vLLM or the cluster cannot be used, or the environment cannot be sent.
    """
    config, sampled = plan.config, own_names(plan.roles_to_policies)
    with connected(config, (), sampled) as module:
        pools = pools_of(config, (), sampled)
        pools = placed(pools, config.workers, config.device, module.cluster_resources())
        with contextlib.closing(_Processes(plan, pools)) as processes:

            def play(
                lineup: Lineup, missing: Sequence[Chunk], on_batch: Callable[[Verdicts], None]
            ) -> Iterator[list[Trajectory]]:
                if not missing:
                    return
                fleet = processes.fleet(lineup.adapters)
                # All are given out before the first is waited for, and yielded in order, so that
                # the log is that of one process.
                jobs = [fleet.submit("play", lineup, chunk) for chunk in missing]
                for job in jobs:
                    # Before each wait, because the caller may raise here to stop.
                    on_batch([])
                    with blamed():
                        done = job.result()
                    yield done

            yield play


def _versions(plan: EvalPlan) -> dict[str, str]:
    """What must be equal on all nodes: as in training, and the adapters."""
    adapters = {f"adapter of {name}": digest(folder) for name, folder in plan.adapters.items()}
    return versions(plan.config.dataset, plan.config.env_args) | adapters
