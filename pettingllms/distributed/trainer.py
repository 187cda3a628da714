"""`RayATGRPO`: the trainer of one process, with rollout and update in others.

The driver keeps what must survive: the policies after the last step, the method, the records, and
for each learner a state and the updates since. It evaluates, compares and writes as one process does.

With `max_staleness` 1, a step is played with the weights of one update before, always, while the step
before it is still being updated on; with 0, with the newest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import torch

from pettingllms.assembly import EnvSource
from pettingllms.distributed.actors import Learner, RolloutWorker, RunSpec, as_arrays, as_tensors
from pettingllms.distributed.cluster import sent, versions
from pettingllms.distributed.engines import Engines, EngineWorker
from pettingllms.distributed.fleet import Fleet, JournaledActor
from pettingllms.distributed.heart import blamed
from pettingllms.distributed.pools import WORKERS, placed, pools_of
from pettingllms.distributed.ranks import Ranks
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.losses import PolicyBatch
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import shards, tasks_of_batch
from pettingllms.types import Task

References = dict[str, tuple[int, Any]]
"""Policy -> version, and a reference to its tensors."""


class RayATGRPO(ATGRPO):
    """Trains with workers and learners on Ray.

    Args:
        source: the environment, or what makes it, in place of the one that the settings name.
        arguments, parts: of `ATGRPO`.

    Raises:
        ConfigError: the environment cannot be sent to another process.
    """

    def __init__(self, source: EnvSource | None, *arguments: Any, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        config, policies = self.config, self.policies
        on_engines = config.sampler == "vllm"
        # Learners open no engine, and workers ask those that there are.
        here: dict[str, Any] = {"sampler": "transformers", "vllm": None} if on_engines else {}
        spec = RunSpec(
            replace(config, **here),
            policies.roles_to_policies,
            self.updates,
            self.method.shape(),
            source,
            policies.digests,
            versions(config.dataset, config.env_args),
            # Sums that are split among another number of threads round otherwise.
            torch.get_num_threads(),
        )
        timeout = config.worker_timeout
        sent_spec = sent(spec)
        pools = pools_of(config, self.trained, policies.names)
        pools = placed(pools, config.workers, config.device, ray.cluster_resources())
        self.engines = Engines(policies, config, pools) if on_engines else None
        actor, *extra = (EngineWorker, self.engines.asking) if self.engines else (RolloutWorker,)
        worker: Any = ray.remote(**pools[WORKERS].options)(actor)
        states = super().optimizer_states()

        def learner(name: str) -> Ranks:
            return Ranks(Learner, pools[name], sent_spec, name, pools[name].ranks)

        self.learners = {
            name: JournaledActor(
                partial(learner, name),
                self._base(name, states[name]),
                timeout=timeout,
                room=self._make_room,
            )
            for name in self.trained
        }
        # After the learners: workers that do not fit wait, and learners must not wait for them.
        self.fleet = Fleet(
            lambda: worker.remote(sent_spec, *extra), config.workers, timeout=timeout
        )
        self._weights = self._references()
        self._former = _Former(self._weights, kept=config.max_staleness > 0)
        self._playing: dict[int, list[Future[Any]]] = {}
        """Step -> the jobs that play its shards, in order."""
        self._played = self._updated = time.perf_counter()
        self._load: dict[str, float] = {}

    def _make_room(self, *, needed: bool) -> None:
        if hasattr(self, "fleet"):  # learners are started first
            self.fleet.spare(needed=needed)

    def play_ahead(self) -> None:
        """Has workers play the next step, before it is asked for."""
        self._begin(self.step, self._former.weights)

    def close(self) -> None:
        """Ends workers and learners."""
        self.fleet.close()
        for learner in self.learners.values():
            learner.close()
        if self.engines is not None:
            self.engines.close()

    # ------------------------------------------------------------------------- 1. rollout
    def rollout(self, tasks: Sequence[Task], clock: Clock) -> list[Trajectory]:
        """Has the shards of the step played by whichever workers are free."""
        del tasks  # they follow from the step, and may have been given out with the one before
        with clock.time("play"):
            self.play_ahead()
            if self.config.max_staleness:
                # With the weights before this step's update, whether or not the update would be
                # done in time: what is sampled must not depend on the speed of a machine.
                self._begin(self.step + 1, self._weights)
            done = _results(self._playing.pop(self.step))
        self._load = self._load_of([seconds for _, seconds in done])
        return [trajectory for shard, _ in done for trajectory in shard]

    def _load_of(self, seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Shares of the time since the last rollout; how many were lost.

        Workers are busy while they play, and scoring while they have nothing to do but wait for scores.
        """
        before, self._played = self._played, time.perf_counter()
        spent = (self._played - before) * self.config.workers
        busy, scoring = (
            sum(timings.get(name, 0.0) for timings in seconds) / spent
            for name in ("time/step", "time/score")
        )
        lost = self.fleet.lost + sum(learner.lost for learner in self.learners.values())
        engines = {} if self.engines is None else self.engines.metrics()
        shares = {"workers/busy": busy, "workers/scoring": scoring}
        return {**shares, "workers/lost": float(lost), **engines}

    def _begin(self, step: int, weights: References) -> None:
        """Gives out the shards of a step, once."""
        config = self.config
        if step in self._playing or step >= config.max_steps:
            return
        tasks = tasks_of_batch(self, step, self.batch)
        casting = self.method.players(step, self.policies.roles_to_policies, self.trained)
        self._playing[step] = [
            self.fleet.submit("play", step, shard, casting, weights)
            for shard in shards(config, tasks)
        ]

    # ------------------------------------------------------------------------- 3. update
    @blamed()
    def take_step(self) -> tuple[list[Trajectory], dict[str, float]]:
        """Takes a step as in one process; if it raises, learners forget what they did in it."""
        marks = {name: learner.mark() for name, learner in self.learners.items()}
        try:
            return super().take_step()
        except BaseException:
            for name, mark in marks.items():
                self.learners[name].back(mark.result())
            raise

    def update(self, batches: Mapping[str, PolicyBatch]) -> dict[str, float]:
        """Updates all policies at the same time; if one cannot be, none is."""
        jobs = {
            name: self.learners[name].do("update", self.tokens, ray.put(batch))
            for name, batch in batches.items()
        }
        # All have to end before any result is taken over: if one fails, no policy here has changed.
        wait(jobs.values())
        done = {name: job.result() for name, job in jobs.items()}
        for name, (_, arrays, _) in done.items():
            # Not `load_state`, which would publish them.
            self.policies.overwrite(name, as_tensors(arrays))
        logged = {key: value for metrics, _, _ in done.values() for key, value in metrics.items()}
        return logged | self._load | self._idle([seconds for *_, seconds in done.values()])

    def _idle(self, seconds: Sequence[float]) -> dict[str, float]:
        """The share of the time since the last update in which learners computed nothing."""
        before, self._updated = self._updated, time.perf_counter()
        spent = (self._updated - before) * max(1, len(seconds))
        return {"learners/idle": max(0.0, 1.0 - sum(seconds) / spent)}

    @blamed()
    def publish(self) -> None:
        """Hands the trained weights to the sampler here, and to the workers with their next job."""
        super().publish()
        before, self._weights = self._weights, self._references()
        self._former.weights = before if self.config.max_staleness else self._weights

    # ------------------------------------------------------------------------------- state
    @blamed()
    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Fetches the learners' states, from which a lost learner is made again from now on."""
        fetched = _results([learner.ask("state") for learner in self.learners.values()])
        states = dict(zip(self.learners, fetched, strict=True))
        for name, state in states.items():
            # The journal would otherwise grow with the run, and so would the time to make a lost
            # learner again.
            self.learners[name].rebase(self._base(name, state), same=True)
        return states

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes the learners again from these states and the policies' own tensors."""
        for name, state in states.items():
            self.learners[name].rebase(self._base(name, state), same=False)
        self._weights = self._former.weights = self._references()
        # What was given out belongs to the weights before the load.
        for jobs in self._playing.values():
            for job in jobs:
                job.cancel()
        self._playing.clear()

    @property
    def stateful(self) -> dict[str, Any]:
        """The method, and the weights of the step before."""
        return {**super().stateful, "former": self._former}

    def _base(self, policy: str, state: Mapping[str, Any]) -> Any:
        return ray.put({"weights": as_arrays(self.policies.state(policy)), **state})

    def _references(self) -> References:
        """The weights as they are now: policy -> version and reference, owned by this process."""
        policies = self.policies
        if self.engines is not None:
            return self.engines.held()
        return {
            name: (policies.versions[name], ray.put(as_arrays(policies.state(name))))
            for name in policies.names
        }


class _Former:
    """The weights that the next step is played with; with staleness those of one update before.

    Args:
        weights: policy -> version and reference.
        kept: whether checkpoints need them, because they are not the newest.
    """

    def __init__(self, weights: References, *, kept: bool) -> None:
        self.weights, self._kept = weights, kept

    def state_dict(self) -> dict[str, Any]:
        """Policy -> version and tensors."""
        if not self._kept:
            # The newest weights are in the checkpoint anyway.
            return {}
        return {
            name: {"version": version, "tensors": as_tensors(ray.get(reference))}
            for name, (version, reference) in self.weights.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Plays the next step with these weights; without any, with the newest."""
        if state:
            self.weights = {
                name: (saved["version"], ray.put(as_arrays(saved["tensors"])))
                for name, saved in state.items()
            }


def _results(jobs: Sequence[Future[Any]]) -> list[Any]:
    """Returns the results of the jobs; after an error the others are given up."""
    try:
        return [job.result() for job in jobs]
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


@contextlib.contextmanager
def ray_trainer(
    source: EnvSource | None, *arguments: Any, fresh: bool, **parts: Any
) -> Iterator[RayATGRPO]:
    """The trainer of a run with workers, once this process is connected; see `RayATGRPO`.

    Args:
        source: of `RayATGRPO`.
        arguments: of `ATGRPO`.
        fresh: whether training starts with the weights that policies have now; workers then play its
            first step while learners start, and while the base is evaluated.
        parts: of `ATGRPO`.

    Raises:
        ConfigError, WorkersLost: a learner cannot be started.
    """
    with contextlib.closing(RayATGRPO(source, *arguments, **parts)) as trainer:
        if trainer.engines is not None:
            trainer.engines.wait()  # a worker that asks takes an engine that is not there for lost
        if fresh:
            trainer.play_ahead()
        for learner in trainer.learners.values():
            learner.started.result()
        yield trainer
