"""The update of a full model that is divided between ranks; see `pettingllms.policies.sharded`.

It is the update of one process, in which each rank computes its own micro-batches: the gradients are
added while they are computed, and what was seen of them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.sharded import divided_optimizer, gathered_optimizer
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.batch import PolicyBatch
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.metrics import LossMeter


class ShardedATGRPO(ATGRPO):
    """One rank's trainer, on `ShardedPolicies`. All ranks have to make the same calls."""

    def _gradient(self, policy: str, own: PolicyBatch, meter: LossMeter) -> float:
        # A rank sees its own micro-batches alone. Every rank then takes over all of their meters in
        # the order of the ranks, so that all log the same numbers.
        mine = LossMeter(policy)
        mine.on_policy = meter.on_policy
        norm = super()._gradient(policy, own, mine)
        for other in from_all(mine):
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


def from_all(value: Any) -> list[Any]:
    """Returns the value of each rank, in the order of the ranks."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values
