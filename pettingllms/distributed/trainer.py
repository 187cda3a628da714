"""`RayATGRPO`: the trainer of one process, with rollout and update in others.

The driver keeps what must survive: the policies after the last step, the estimator, the records, and
for each learner a state and the updates since. It evaluates, compares and writes as one process does.

With `max_staleness` 1, a step is played with the weights of one update before, always, while the step
before it is still being updated on; with 0, with the newest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import torch

from pettingllms.assembly import EnvSource
from pettingllms.distributed.actors import Job, Learner, Worker, as_arrays, as_tensors
from pettingllms.distributed.cluster import sent
from pettingllms.distributed.fleet import Fleet, Seat
from pettingllms.rollout.room import check_room
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.batch import PolicyBatch
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import shards
from pettingllms.types import Task


class RayATGRPO(ATGRPO):
    """Trains with workers and learners on Ray.

    Args:
        ray: connected.
        source: the environment, or what makes it, in place of the one that the settings name.
        arguments, parts: of `ATGRPO`.

    Raises:
        ConfigError: the environment cannot be sent to another process.
    """

    def __init__(self, ray: Any, source: EnvSource | None, *arguments: Any, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        self._ray, config, policies = ray, self.config, self.policies
        job = Job(
            config,
            policies.roles_to_policies,
            self.updates,
            self.estimator.shape(),
            source,
            policies.base_digest,
            torch.get_num_threads(),
        )
        timeout = config.worker_timeout
        given = sent(ray, job)
        worker, learner = ray.remote(num_cpus=1)(Worker), ray.remote(num_cpus=1)(Learner)
        self.fleet = Fleet(lambda: worker.remote(given), config.workers, timeout=timeout)
        bases = self._bases()
        self.seats = {
            name: Seat(lambda name=name: learner.remote(given, name), bases[name], timeout=timeout)  # type: ignore[misc]
            for name in self.trained
        }
        self._weights = self._references()

    def close(self) -> None:
        """Ends workers and learners."""
        self.fleet.close()
        for seat in self.seats.values():
            seat.close()

    # ------------------------------------------------------------------------- 1. rollout
    def rollout(self, tasks: Sequence[Task], clock: Clock) -> list[Trajectory]:
        """Has the shards of the step played by whichever workers are free."""
        with clock.time("play"):
            jobs = [
                self.fleet.submit("play", self.step, shard, self.casting, self._weights)
                for shard in shards(self.config, tasks)
            ]
            done = [result for result, _ in _results(jobs)]
        found = [trajectory for shard in done for trajectory in shard]
        check_room(found, self.config.max_completion_length)
        return found

    # ------------------------------------------------------------------------- 3. update
    def update(self, batches: Mapping[str, PolicyBatch]) -> dict[str, float]:
        """Updates all policies at the same time; if one cannot be, none is."""
        jobs = {
            name: self.seats[name].do("update", self.tokens, self._ray.put(own))
            for name, own in batches.items()
        }
        wait(jobs.values())
        try:
            done = {name: job.result() for name, job in jobs.items()}
        except BaseException:
            for name, job in jobs.items():
                if job.exception() is None:
                    self.seats[name].undo().result()
            raise
        for name, (_, arrays) in done.items():
            self._take_over(name, as_tensors(arrays))
        return {key: value for metrics, _ in done.values() for key, value in metrics.items()}

    @torch.no_grad()
    def _take_over(self, policy: str, tensors: Mapping[str, torch.Tensor]) -> None:
        # Not `load_state`, which would publish them.
        own = self.policies.parameters(policy)
        for parameter, tensor in zip(own, tensors.values(), strict=True):
            parameter.copy_(tensor)

    def publish(self) -> None:
        """Hands the trained weights to the sampler here, and to the workers with their next job."""
        super().publish()
        self._weights = self._references()

    # ------------------------------------------------------------------------------- state
    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Fetches the learners' states, from which a lost learner is made again from now on."""
        found = _results([seat.ask("state") for seat in self.seats.values()])
        states = dict(zip(self.seats, found, strict=True))
        for name, state in states.items():
            self.seats[name].rebase(self._base(name, state), same=True)
        return states

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes the learners again from these states and the policies' own tensors."""
        for name, state in states.items():
            self.seats[name].rebase(self._base(name, state), same=False)
        self._weights = self._references()

    def _bases(self) -> dict[str, Any]:
        states = super().optimizer_states()
        return {name: self._base(name, states[name]) for name in self.trained}

    def _base(self, policy: str, state: Mapping[str, Any]) -> Any:
        return self._ray.put({"weights": as_arrays(self.policies.state(policy)), **state})

    def _references(self) -> dict[str, tuple[int, Any]]:
        """The weights as they are now: policy -> version and reference, owned by this process."""
        policies = self.policies
        return {
            name: (policies.versions[name], self._ray.put(as_arrays(policies.state(name))))
            for name in policies.names
        }


def _results(jobs: Sequence[Future[Any]]) -> list[Any]:
    """What the jobs return; after an error the others are given up."""
    try:
        return [job.result() for job in jobs]
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


@contextlib.contextmanager
def ray_trainer(
    ray: Any, source: EnvSource | None, *arguments: Any, **parts: Any
) -> Iterator[RayATGRPO]:
    """The trainer of a run with workers; see `RayATGRPO`."""
    with contextlib.closing(RayATGRPO(ray, source, *arguments, **parts)) as trainer:
        yield trainer
