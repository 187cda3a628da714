"""The processes of one learner: all have their place at the same time, or none has.

A placement group holds the places, so that a learner whose processes only take long to start is
distinguished from one that has no room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pettingllms.distributed.heart import check
from pettingllms.distributed.pools import Share
from pettingllms.errors import WorkersLost
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.sharded import divided_optimizer, gathered_optimizer
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.losses import PolicyBatch
from pettingllms.trainers.metrics import LossMeter

LEAST_CPUS = 0.001
"""Of a place that may have none: Ray holds no empty ones."""


class Ranks:
    """Actors that are given the same jobs, one beside the other.

    Args:
        kind: class of the actors. `ready` prepares one; where there are several, the first one has
            an `address`, and all `join` there.
        share: of one process, and how many there are.
        arguments: of the class.
    """

    def __init__(self, kind: type, share: Share, *arguments: Any) -> None:
        resources = {"CPU": max(share.cpus, LEAST_CPUS), "GPU": share.gpus or 0.0}
        place = {name: amount for name, amount in resources.items() if amount}
        # PACK puts the ranks on one node where there is room, since they exchange every gradient.
        self._places = placement_group([place] * share.ranks, strategy="PACK")
        maker: Any = ray.remote(**share.options)(kind)
        self._actors = [
            maker.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._places, rank)
            ).remote(*arguments)
            for rank in range(share.ranks)
        ]

    def placed(self, seconds: int) -> bool:
        """Returns whether all get a place within `seconds`, a whole number: Ray drops fractions."""
        return bool(self._places.wait(seconds))

    def do(self, method: str, *arguments: Any) -> list[Any]:
        """References to what each returns."""
        return [getattr(actor, method).remote(*arguments) for actor in self._actors]

    def join(self) -> list[Any]:
        """Has them meet; references to what `join` returns."""
        if len(self._actors) == 1:
            return []
        place, count = self._actors[0].address.remote(), len(self._actors)
        return [actor.join.remote(place, rank, count) for rank, actor in enumerate(self._actors)]

    def kill(self) -> None:
        """Ends all of them."""
        for actor in self._actors:
            ray.kill(actor)
        with contextlib.suppress(WorkersLost):
            check()  # a head that is dead would be waited for
            remove_placement_group(self._places)


# -------------------------------------------------------------------------------------- trainer
# The update of a full model that is divided between ranks; see `pettingllms.policies.sharded`.
#
# It is the update of one process, in which each rank computes its own micro-batches: the gradients are
# added while they are computed, and what was seen of them here.


class ShardedATGRPO(ATGRPO):
    """One rank's trainer, on `ShardedPolicies`. All ranks have to make the same calls."""

    def _gradient(self, policy: str, own: PolicyBatch, meter: LossMeter) -> float:
        # A rank sees its own micro-batches alone. Every rank then takes over all of their meters in
        # the order of the ranks, so that all log the same numbers.
        mine = LossMeter(policy)
        mine.on_policy = meter.on_policy
        norm = super()._gradient(policy, own, mine)
        meters: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(meters, mine)
        for other in meters:
            meter.take_over(other)
        return norm

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Returns, in the first rank, the states as one process has them; all ranks must ask."""
        return {
            name: {**state, "optimizer": gathered_optimizer(state["optimizer"])}
            for name, state in super().optimizer_states().items()
        }

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes this rank's part of states of one process."""
        divided = {
            name: {
                **state,
                "optimizer": divided_optimizer(state["optimizer"], self.policies.parameters(name)),
            }
            for name, state in states.items()
        }
        super().load_optimizers(divided)


def loaded_on_cpu(config: ResolvedConfig) -> tuple[ResolvedConfig, str]:
    """Settings to load a model with that is divided afterwards, and the kind of device of its parts."""
    # Resolved before the device becomes the CPU, where an open dtype would mean float32.
    names = (None if name == "auto" else name for name in (config.dtype, config.device))
    dtype, device = ModelSpec("").dtype_and_device(*names)
    return replace(config, device="cpu", dtype=str(dtype).removeprefix("torch.")), device.type
