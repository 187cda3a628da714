"""What runs in other processes: workers that play shards, and a learner for each policy.

Both are made from a run's settings alone; `ready` and `load` do the work of the constructor, so that
what is raised there arrives as it is. A worker remembers nothing but which weights it holds: they are
part of every job, by reference, and are fetched where it holds others.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch

from pettingllms.assembly import EnvSource, build_policies, make_env, with_rewards
from pettingllms.distributed.fleet import Hung
from pettingllms.distributed.pools import Share
from pettingllms.envs.reward_funcs import reward_functions
from pettingllms.errors import ConfigError
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.batch import PolicyBatch
from pettingllms.trainers.casts.base import Cast, Casting
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.metrics import Clock, LossMeter
from pettingllms.trainers.play import Player
from pettingllms.trainers.rewards.base import RewardTransform
from pettingllms.types import Advantage, Group, Sample, Task

Arrays = dict[str, np.ndarray[Any, Any]]
"""A policy's tensors, as Ray shares them between processes without copying."""


@dataclass(frozen=True)
class RunSpec:
    """What all processes of a run are made from."""

    config: ResolvedConfig
    roles_to_policies: Mapping[str, str]
    """Role -> policy."""
    updates: Mapping[str, int]
    """Trained policy -> its optimizer steps in the whole run, which its learning rate falls over."""
    shape: RolloutShape
    source: EnvSource | None
    """The environment, or what makes it, in place of the one that the settings name."""
    bases: Mapping[str, str]
    """Policy -> digest of its base model."""
    threads: int
    """Of PyTorch, in every process: their number changes how sums are rounded."""


class RolloutWorker:
    """Plays shards: environments, sandbox and sampler in one process."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._held: dict[str, int] = {}

    def ready(self) -> None:
        """Loads the model and makes the environment.

        Raises:
            ConfigError: the model here is not the driver's.
        """
        spec = self._spec
        torch.set_num_threads(spec.threads)
        env = make_env(spec.config, "train", spec.source, divide=True)
        env = with_rewards(env, reward_functions(spec.config.reward_funcs))
        self._policies = self._load()
        self._player = Player(spec.config, env, self._policies, spec.shape)

    def play(
        self,
        step: int,
        tasks: Sequence[Task],
        casting: Casting,
        weights: Mapping[str, tuple[int, Any]],
    ) -> tuple[list[Trajectory], float]:
        """The trajectories of one shard of a step, and the seconds that they took.

        Args:
            step: of training.
            tasks: the shard's.
            casting: who plays and learns in this step.
            weights: policy -> version, and a reference to its tensors.
        """
        clock = Clock()
        for policy, (version, reference) in weights.items():
            if self._held.get(policy) != version:
                self._take(policy, version, reference)
                self._held[policy] = version
        found = self._player.play(step, tasks, casting, clock)
        return found, clock.metrics(0)["time/step"]

    def _load(self) -> PolicySet:
        return _policies(self._spec, self._spec.roles_to_policies)

    def _take(self, policy: str, version: int, reference: Any) -> None:
        self._policies.load_state(policy, as_tensors(ray.get(reference)), version=version)


class _Elsewhere(Estimator):
    """Stands for the run's estimator, which the driver alone asks."""

    least = 1
    by_task = True  # the driver has decided

    def shape(self) -> RolloutShape:
        """Of no use: a learner plays nothing."""
        return RolloutShape()

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """Never asked."""
        raise NotImplementedError


class _SameCast(Cast):
    """Stands for the run's cast, of which a learner needs the number of its updates."""

    def __init__(self, updates: Mapping[str, int]) -> None:
        self._updates = updates

    def updates(self, policy: str, players: Mapping[str, str], trained: Sequence[str]) -> int:
        """As the driver has counted them."""
        del players, trained
        return self._updates[policy]


class Learner:
    """Updates one policy, with the trainer's own update on the trainer's own optimizer.

    One of several ranks computes the gradients of every so manieth shard; their sums are added, and
    each rank takes the same step. The first one has started the others, which end with it.
    """

    def __init__(self, spec: RunSpec, policy: str, share: Share) -> None:
        self._spec, self._policy, self._share = spec, policy, share
        self._others: list[Any] = []
        self._adding: list[Any] = []
        """What the other ranks are at work on."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Becomes the learner that `state` is of: weights, optimizer and schedule."""
        if self._share.ranks > 1:
            one = self._share._replace(ranks=1)
            maker: Any = ray.remote(**one.options)(Rank)
            self._others = [
                maker.remote(self._spec, self._policy, one) for _ in range(self._share.ranks - 1)
            ]
            given = ray.put(state)
            loading = [other.load.remote(given) for other in self._others]
        self._load(state)
        if self._others:
            ray.get(loading)
            with socket.socket() as found:
                found.bind(("", 0))
                place = f"tcp://{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"
            count = self._share.ranks
            joining = [
                other.join.remote(place, rank, count) for rank, other in enumerate(self._others, 1)
            ]
            self.join(place, 0, count)
            ray.get(joining)

    def join(self, place: str, rank: int, ranks: int) -> None:
        """Meets the other ranks.

        Args:
            place: address of the first one.
            rank: this one's number.
            ranks: how many there are.
        """
        torch.distributed.init_process_group(
            "nccl" if self._policies.device.type == "cuda" else "gloo",
            init_method=place,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=self._spec.config.worker_timeout),
        )

    def _load(self, state: Mapping[str, Any]) -> None:
        spec, policy = self._spec, self._policy
        torch.set_num_threads(spec.threads)
        roles = {role: name for role, name in spec.roles_to_policies.items() if name == policy}
        self._policies = _policies(spec, roles)
        config = dataclasses.replace(spec.config, train_roles=None)  # its own roles are all it has
        env: Any = None  # a learner never plays
        self._trainer = ATGRPO(
            config,
            env,
            self._policies,
            _Elsewhere(config),
            reward_transform=RewardTransform(config),
            cast=_SameCast(spec.updates),
        )
        self._policies.load_state(policy, as_tensors(state["weights"]))
        self._trainer.load_optimizers({policy: state})

    def add(self, shards: Mapping[int, Sequence[Sample]]) -> dict[int, LossMeter]:
        """Adds the gradients of shards to those of the step, see `pettingllms.trainers.streamed`.

        Args:
            shards: number -> the policy's samples.

        Returns:
            What was seen of the shards that this rank has added itself.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
        """
        ranks = [self, *self._others]
        for number, samples in shards.items():
            rank, shard = ranks[number % len(ranks)], {number: samples}
            if rank is self:
                self._trainer.add(self._policy, shard)
            else:
                self._adding.append(rank.add.remote(shard))
        seen = self._trainer.sums[self._policy].meters
        return {number: seen[number] for number in shards if number in seen}

    def update(
        self, tokens: int, batch: PolicyBatch, meters: Mapping[int, LossMeter] | None = None
    ) -> tuple[dict[str, float], Arrays]:
        """Updates the policy; what to log, and the new weights.

        Args:
            tokens: generated so far in the run, which schedules may follow.
            batch: what to train on; without samples if they were added before.
            meters: of all shards, if this is another rank than the first.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
            Hung: another rank is lost.
        """
        updating: list[Any] = []
        if self._others:
            own = self._trainer.sums[self._policy].meters
            meters = {n: m for seen in (own, *ray.get(self._adding)) for n, m in seen.items()}
            self._adding.clear()
            updating = [other.update.remote(tokens, batch, meters) for other in self._others]
        if meters:
            self._merge(meters)
        result = self._update(tokens, batch)
        ray.get(updating)
        return result

    def _merge(self, meters: Mapping[int, LossMeter]) -> None:
        parameters = self._policies.parameters(self._policy)
        try:
            sums = self._trainer.sums[self._policy]
            sums.merge(parameters, torch.distributed.all_reduce, meters)
        except RuntimeError as error:  # what PyTorch raises where a connection ends
            raise Hung(f"a rank of learner {self._policy} is lost: {error}") from error

    def _update(self, tokens: int, batch: PolicyBatch) -> tuple[dict[str, float], Arrays]:
        self._trainer.tokens = tokens
        metrics = self._trainer.update({self._policy: batch})
        return metrics, as_arrays(self._policies.state(self._policy))

    def state(self) -> dict[str, Any]:
        """The states of optimizer and schedule."""
        return self._trainer.optimizer_states()[self._policy]


class Rank(Learner):
    """Another rank of a learner, which the first one tells what to do."""


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """The tensors as NumPy's arrays of the same bytes; all are float32, or 16 bits wide."""
    return {name: _plain(tensor).numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The inverse of `as_arrays`; copies, because what Ray shares is read-only."""
    found = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return {
        name: each.view(torch.bfloat16) if each.dtype == torch.int16 else each
        for name, each in found.items()
    }


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    # NumPy has no bfloat16.
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _policies(spec: RunSpec, roles: Mapping[str, str]) -> PolicySet:
    policies = build_policies(spec.config, roles)
    for policy, digest in policies.digests.items():
        if digest != spec.bases[policy]:
            raise ConfigError(
                f"the base model {policies.base_of(policy).name!r} of {policy} on "
                f"{ray.util.get_node_ip_address()} is not the one of the driver (digest {digest}, "
                f"there {spec.bases[policy]}); bring the same files to every node"
            )
    return policies
