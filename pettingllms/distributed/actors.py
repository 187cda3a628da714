"""The actors of a run, in other processes: workers that play shards, and a learner per policy.

Both are made from a run's settings alone; `ready` and `load` do the work of the constructor, so that
what is raised there arrives as it is. A worker remembers nothing but which weights it holds: they are
part of every job, by reference, and are fetched where it holds others.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh

from pettingllms.assembly import EnvSource, build_policies, training_env
from pettingllms.distributed.cluster import check_same, on_node, versions
from pettingllms.distributed.ranks import ShardedATGRPO, loaded_on_cpu
from pettingllms.envs.reward_funcs import reward_functions
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.sharded import ShardedPolicies
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.losses import PolicyBatch
from pettingllms.trainers.method import Casting, Method
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import Player
from pettingllms.trainers.settings import own_settings
from pettingllms.types import Task

Arrays = dict[str, np.ndarray[Any, Any]]
"""A policy's tensors, as Ray shares them between processes without copying."""


@dataclass(frozen=True)
class RunSpec:
    """The specification that all processes of a run are made from."""

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
    versions: Mapping[str, str]
    """What the driver has and every node must have (`pettingllms.distributed.cluster.versions`)."""
    threads: int
    """Of PyTorch, in every process: their number changes how sums are rounded."""


class RolloutWorker:
    """Plays shards: environments, sandbox and sampler in one process."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._held: dict[str, int] = {}

    @on_node()
    def ready(self) -> None:
        """Loads the model and makes the environment.

        Raises:
            ConfigError: the model, the data or a version here is not the driver's.
        """
        spec = self._spec
        torch.set_num_threads(spec.threads)
        check_same(spec.versions, versions(spec.config.dataset, spec.config.env_args))
        functions = reward_functions(spec.config.reward_funcs)
        env = training_env(spec.config, spec.source, functions)
        self._policies = self._load()
        self._player = Player(spec.config, env, self._policies, spec.shape)

    def play(
        self,
        step: int,
        tasks: Sequence[Task],
        casting: Casting,
        weights: Mapping[str, tuple[int, Any]],
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Plays one shard of a step; its trajectories, and the seconds of their parts.

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
        trajectories = self._player.play(step, tasks, casting, clock)
        return trajectories, clock.metrics(0)

    def _load(self) -> PolicySet:
        return _policies(self._spec, self._spec.roles_to_policies)

    def _take(self, policy: str, version: int, reference: Any) -> None:
        self._policies.load_state(policy, as_tensors(ray.get(reference)), version=version)


class _Settled(Method):
    """Stands for the run's method, of which a learner needs the number of its updates."""

    least = 1

    def __init__(self, config: ResolvedConfig, updates: Mapping[str, int]) -> None:
        self.config, self._updates = config, updates

    def shape(self) -> RolloutShape:
        """Returns the default shape, which is never used: a learner plays nothing."""
        return RolloutShape()

    def updates(self, policy: str, players: Mapping[str, str], trained: Sequence[str]) -> int:
        """Returns the number of a policy's updates."""
        del players, trained
        return self._updates[policy]


class Learner:
    """Updates one policy, with the trainer's own update on the trainer's own optimizer.

    A full model may be divided between several ranks, which are given the same jobs
    (`pettingllms.policies.sharded`).
    """

    def __init__(self, spec: RunSpec, policy: str, ranks: int) -> None:
        self._spec, self._policy = spec, policy
        self._divided = ranks > 1 and own_settings(spec.config, policy).full
        self._trainer: ATGRPO | None = None

    @on_node()
    def ready(self) -> None:
        """Loads the model.

        Raises:
            ConfigError: it cannot be loaded, or it, the data or a version is not the driver's.
        """
        spec, policy = self._spec, self._policy
        torch.set_num_threads(spec.threads)
        check_same(spec.versions, versions(spec.config.dataset, spec.config.env_args))
        roles = {role: name for role, name in spec.roles_to_policies.items() if name == policy}
        # For a divided model, which is loaded on the CPU because no single device may hold all of
        # it.
        config, self._device = loaded_on_cpu(spec.config)
        if self._divided:
            spec = dataclasses.replace(spec, config=config)
        self._policies = _policies(spec, roles)

    def address(self) -> tuple[str, int]:
        """Opens the place where the ranks meet, in this process, and returns its address."""
        host = ray.util.get_node_ip_address()
        # The listening socket is handed over, so that no other process can take the port in
        # between.
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
            self._meeting = TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
            )
        return host, port

    def join(self, place: tuple[str, int], rank: int, ranks: int) -> None:
        """Meets the other ranks."""
        if place[0].startswith("127."):
            # gloo looks up the address of the host's name, which need not be one where the others
            # are met.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = self._meeting if rank == 0 else TCPStore(*place)
        torch.distributed.init_process_group(
            "nccl" if self._device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            # Whoever hangs is found by the driver, before the others give up.
            timeout=timedelta(seconds=2 * self._spec.config.worker_timeout),
        )
        if self._divided:
            mesh = init_device_mesh(self._device, (ranks,))
            self._policies = ShardedPolicies(self._policies, mesh)

    def load(self, state: Mapping[str, Any]) -> None:
        """Becomes the learner that `state` is of: weights, optimizer and schedule."""
        if self._trainer is None:
            # Its own roles are all it has.
            config = dataclasses.replace(self._spec.config, train_roles=None)
            env: Any = None  # a learner never plays
            self._trainer = (ShardedATGRPO if self._divided else ATGRPO)(
                config, env, self._policies, _Settled(config, self._spec.updates)
            )
        self._policies.load_state(self._policy, as_tensors(state["weights"]))
        self._trainer.load_optimizers({self._policy: state})

    def update(self, tokens: int, batch: PolicyBatch) -> tuple[dict[str, float], Arrays, float]:
        """Updates the policy; what to log, in the first rank the new weights, and the seconds that it computed.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
        """
        trainer, policy = self._loaded, self._policy
        began = time.perf_counter()
        # A learner generates nothing, but its schedule may follow the tokens of the run.
        trainer.tokens = tokens
        metrics = trainer.update({policy: batch})
        # All ranks of a divided model have to ask for its state, which gathers it.
        weights = as_arrays(self._policies.state(policy))
        return metrics, weights, time.perf_counter() - began

    def state(self) -> dict[str, Any]:
        """The states of optimizer and schedule."""
        return self._loaded.optimizer_states()[self._policy]

    @property
    def _loaded(self) -> ATGRPO:
        assert self._trainer is not None
        return self._trainer


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """The tensors as NumPy's arrays of the same bytes; all are float32, or 16 bits wide."""
    return {
        # NumPy has no bfloat16.
        name: (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }


def as_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The inverse of `as_arrays`; copies, because what Ray shares is read-only."""
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return {
        name: tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor
        for name, tensor in tensors.items()
    }


def _policies(spec: RunSpec, roles: Mapping[str, str]) -> PolicySet:
    policies = build_policies(spec.config, roles)
    for policy, digest in policies.digests.items():
        what = f"the base model {policies.base_of(policy).name!r} of {policy}"
        check_same({what: spec.bases[policy]}, {what: digest})
    return policies
