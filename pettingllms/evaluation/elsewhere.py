"""Evaluation by workers on Ray: the chunks of an evaluation, each a pure function of its plan.

Chunks share no batch, and everything random follows from the place of a decision, so results are those
of one process, to the bit. Chunks are begun in order and written in order; a worker that is lost is
replaced, and its chunk is rolled out again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from pettingllms.assembly import make_env
from pettingllms.distributed.cluster import connected, sent
from pettingllms.distributed.fleet import Fleet
from pettingllms.distributed.pools import WORKERS, placed, pools_of
from pettingllms.evaluation.chunks import Chunk
from pettingllms.evaluation.playing import Playing
from pettingllms.evaluation.rollouts import Lineup, Play, Verdicts
from pettingllms.evaluation.run import EvalPlan
from pettingllms.rollout.trajectory import Trajectory


class EvalWorker:
    """Rolls out chunks: environment, sandbox and sampler in one process."""

    def __init__(self, plan: EvalPlan, threads: int) -> None:
        self._plan, self._threads = plan, threads

    def ready(self) -> None:
        """Makes the environment; a model is loaded with the first chunk."""
        plan = self._plan
        torch.set_num_threads(self._threads)
        env = make_env(plan.config, plan.split, plan.source, divide=plan.divide)
        pool = ThreadPoolExecutor(plan.config.scoring_threads)
        self._playing = Playing(env, plan.sampling, plan.load, pool)

    def play(self, lineup: Lineup, chunk: Chunk) -> list[Trajectory]:
        """The episodes of one chunk."""
        return next(self._playing(lineup, [chunk], lambda _verdicts: None))


@contextlib.contextmanager
def playing_elsewhere(plan: EvalPlan) -> Iterator[Play]:
    """Workers as the settings of the plan ask for.

    Raises:
        ConfigError: Ray or the cluster cannot be used, or the environment cannot be sent.
    """
    config = plan.config
    with connected(config) as ray:
        pools = placed(pools_of(config), config.workers, config.device, ray.cluster_resources())
        worker: Any = ray.remote(**pools[WORKERS].options)(EvalWorker)
        env: Any = None  # every worker makes its own
        given = sent(dataclasses.replace(plan, env=env))
        fleet = Fleet(
            lambda: worker.remote(given, torch.get_num_threads()),
            config.workers,
            timeout=config.worker_timeout,
        )

        def play(
            lineup: Lineup, missing: Sequence[Chunk], on_batch: Callable[[Verdicts], None]
        ) -> Iterator[list[Trajectory]]:
            jobs = [fleet.submit("play", lineup, chunk) for chunk in missing]
            for job in jobs:
                on_batch([])
                yield job.result()

        with contextlib.closing(fleet):
            yield play
