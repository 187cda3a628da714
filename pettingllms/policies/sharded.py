"""A full model that is divided between processes, by FSDP2 (`torch.distributed.fsdp.fully_shard`).

Each of R ranks keeps about 1/R of every tensor, of its gradient and of its optimizer's states. A layer's
weights are gathered while it is computed, forward and backward, and the ranks' gradients are added.
Each rank computes every Rth micro-batch. All have to make the same calls in the same order, because
each of them waits for the others in every layer.

fully_shard is called as it is, and not through accelerate: that would wrap the optimizer, and find
the model's weights by calling `forward`, where an update calls the decoder and the output layer apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from pettingllms.policies.packing import Batch
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.weights import FullWeights
from pettingllms.types import Sample

_METHOD = "pettingllms_logprobs"
"""Attribute of a model that computes log-probabilities, as FSDP's forward method."""


class ShardedPolicies(PolicySet):
    """A policy that is a full model, of which this process has a part; it cannot be sampled from.

    Args:
        whole: holds this policy and no other, loaded on the CPU. Its model is divided in place.
        mesh: the ranks, and the devices that their parts are moved to.
    """

    def __init__(self, whole: PolicySet, mesh: DeviceMesh) -> None:
        super().__init__(whole.bases, whole.roles_to_policies)
        # Nothing is sampled from a part of a model.
        self.close()
        (policy,), (base,) = self.names, self.bases
        assert isinstance(base.weights, FullWeights)
        self._rank, self._ranks = mesh.get_local_rank(), mesh.size()
        base.weights.divide(partial(_divide, mesh=mesh))
        # Dividing has replaced the parameters that were listed when the model was loaded.
        base.parameters[policy] = list(base.weights.tensors(policy).values())
        _compute_by(base.weights.module(policy), partial(super().logprobs, policy))
        if base.weights.has_reference:
            with base.weights.reference() as model:
                _compute_by(model, partial(super().reference_logprobs, policy))

    def microbatches(
        self, policy: str, samples: Sequence[Sample], tokens_per_batch: int
    ) -> list[Batch]:
        """This rank's micro-batches: as many as every other rank has.

        Where there are fewer than ranks, they are cut smaller. A rank that would have fewer than
        another one computes a micro-batch again, in which no completion counts.
        """
        cut = super().microbatches(policy, samples, tokens_per_batch)
        if len(cut) < self._ranks:
            smaller = sum(batch.tokens for batch in cut) // self._ranks
            cut = super().microbatches(policy, samples, max(1, smaller))
        while len(cut) % self._ranks:
            least = min(cut, key=lambda batch: batch.tokens)
            # Counts of 0 make its loss 0, while the rank takes part in every exchange of weights.
            cut.append(replace(least, counts_B=torch.zeros_like(least.counts_B)))
        return cut[self._rank :: self._ranks]

    def logprobs(
        self, policy: str, batch: Batch, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the same as for a whole model; gathers the weights on the way."""
        model: Any = self.base_of(policy).weights.module(policy)
        logps: tuple[torch.Tensor, torch.Tensor | None] = getattr(model, _METHOD)(batch, **options)
        return logps

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, batch: Batch, *, temperature: float = 1.0
    ) -> torch.Tensor:
        """Returns the same as for a whole model; gathers the weights on the way."""
        with self.base_of(policy).weights.reference() as model:
            logprobs: torch.Tensor = getattr(model, _METHOD)(batch, temperature=temperature)
        return logprobs

    def state(self, policy: str) -> dict[str, torch.Tensor]:
        """The whole tensors on the CPU of the first rank, and nothing in others; all have to ask."""
        return gathered(self.base_of(policy).weights.tensors(policy))

    @torch.no_grad()
    def load_state(
        self, policy: str, state: Mapping[str, torch.Tensor], *, version: int | None = None
    ) -> None:
        """Takes this rank's part of whole tensors; nothing is published."""
        del version
        for name, tensor in self.base_of(policy).weights.tensors(policy).items():
            tensor.copy_(_part(state[name], tensor))


def gathered(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU of the first rank, and nothing in others; all have to ask."""
    collected = {}
    for name, tensor in tensors.items():
        whole = tensor.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        # All ranks have to gather, but only one needs the memory.
        if not torch.distributed.get_rank():
            collected[name] = whole.to("cpu", copy=True)
    return collected


def gathered_optimizer(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's `state_dict` with whole tensors, in the first rank; all have to ask."""
    return {**state, "state": {at: gathered(tensors) for at, tensors in state["state"].items()}}


def divided_optimizer(
    state: Mapping[str, Any], parameters: Sequence[nn.Parameter]
) -> dict[str, Any]:
    """This rank's part of what `gathered_optimizer` returned to the first one."""
    return {
        **state,
        "state": {
            at: {
                # A copy, because a part alone would keep the whole in memory.
                name: _part(tensor, parameters[at]).clone() if tensor.ndim else tensor
                for name, tensor in tensors.items()
            }
            for at, tensors in state["state"].items()
        },
    }


def _part(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    assert isinstance(like, DTensor)
    place = like.device_mesh, like.placements
    # Every rank has the whole tensor, and takes its part of it; nothing is sent.
    return distribute_tensor(whole.to(like.device), *place, src_data_rank=None)


def _divide(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Divides each block, and then what is left: embeddings, the last norm, the output layer.

    Gradients are added, not averaged: each rank's loss is a part of the whole.
    """
    blocks = set(model._no_split_modules or ())
    for module in [block for block in model.modules() if type(block).__name__ in blocks]:
        fully_shard(module, mesh=mesh)
    # Frozen models have no backward pass that would give the last gathered weights back.
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    fully_shard(model, mesh=mesh, reshard_after_forward=True if frozen else None)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def _compute_by(model: Any, compute: Any) -> None:
    setattr(model, _METHOD, compute)
    register_fsdp_forward_method(model, _METHOD)
