"""Rolls out the chunks of an evaluation, in this process or with workers on Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pettingllms.evaluation.chunks import Chunk, Sampling
from pettingllms.evaluation.rollouts import (
    ClosableSampler,
    Lineup,
    Play,
    Verdicts,
    policies_by_seat,
    roll_out,
)
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from pettingllms.evaluation.run import EvalPlan


@contextlib.contextmanager
def playing(plan: EvalPlan, folder: Path | None = None) -> Iterator[Play]:
    """Yields what rolls out the chunks of a plan: this process, or the workers of its settings."""
    if plan.config.workers:
        # Here and not above: Ray is an extra, and takes long to import.
        from pettingllms.distributed.cluster import require_ray

        require_ray()
        from pettingllms.evaluation.elsewhere import playing_elsewhere

        with playing_elsewhere(plan) as elsewhere:
            yield elsewhere
        return

    def load(adapters: bool) -> ClosableSampler:
        return plan.load(adapters, folder)

    with (
        ThreadPoolExecutor(plan.config.scoring_threads) as pool,
        contextlib.closing(Playing(plan.env, plan.sampling, load, pool)) as here,
    ):
        yield here


class Playing:
    """Rolls out chunks in this process, with at most one set of policies in memory.

    Args:
        env: a template, copied for every episode.
        sampling: how completions are drawn.
        load: makes the policies, with adapters or those of the base model; only when they are needed.
        pool: scores completions at the same time.
    """

    def __init__(
        self,
        env: AnyEnv,
        sampling: Sampling,
        load: Callable[[bool], ClosableSampler],
        pool: Executor,
    ) -> None:
        self._env, self._sampling, self._pool = env, sampling, pool
        self._load, self._adapters = load, False
        self._policies: ClosableSampler | None = None

    def __call__(
        self, lineup: Lineup, missing: Sequence[Chunk], on_batch: Callable[[Verdicts], None]
    ) -> Iterator[list[Trajectory]]:
        """The episodes of each chunk, one chunk after the other; see `roll_out`."""
        for chunk in missing:
            policies = self._with(lineup.adapters)
            seats_to_policies = policies_by_seat(policies, self._env, lineup.swap)
            yield roll_out(
                self._env,
                policies,
                seats_to_policies,
                self._pool,
                chunk,
                self._sampling,
                on_batch,
                lineup.ensemble,
            )

    def _with(self, adapters: bool) -> ClosableSampler:
        """The set asked for; any other is closed before this one is loaded."""
        if self._policies is None or self._adapters != adapters:
            self.close()
            self._policies, self._adapters = self._load(adapters), adapters
        return self._policies

    def close(self) -> None:
        """Closes the policies."""
        if self._policies is not None:
            self._policies.close()
            self._policies = None
