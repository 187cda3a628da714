"""`RoleGradients`: each role's part of the gradient of a policy that several roles share.

The parts come from the update's own forward passes. The policy's gradient stays what it is without them, bit for bit: the
parts of all roles of a micro-batch but the last are computed before its backward pass, and the last one is what that pass
adds to the gradient, less the others. So a micro-batch of one role costs no additional backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pettingllms.policies.packing import Batch


class RoleGradients:
    """Adds up the roles' parts over the micro-batches of a step.

    Args:
        parameters: of the policy.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.sums: dict[str, torch.Tensor] = {}
        """Role -> its part of the gradient: flat, float32, on the CPU."""

    def backward(
        self, loss: torch.Tensor, batch: Batch, loss_of: Callable[..., torch.Tensor], *outputs: Any
    ) -> None:
        """Takes the backward pass of a micro-batch, and its roles' parts.

        Args:
            loss: of the whole micro-batch.
            batch: the micro-batch.
            loss_of: makes the loss of it and of `outputs`, also where some completions count 0 times.
            outputs: what the forward pass left.
        """
        rest = self._flat([parameter.grad for parameter in self._parameters])
        *others, last = dict.fromkeys(sample.role for sample in batch.samples)
        for role in others:
            own_B = torch.tensor([float(sample.role == role) for sample in batch.samples])
            counts_B = batch.counts_B * own_B.to(batch.counts_B.device)
            role_loss = loss_of(replace(batch, counts_B=counts_B), *outputs)
            gradient = torch.autograd.grad(
                role_loss, self._parameters, retain_graph=True, allow_unused=True
            )
            rest = rest + self._add(role, self._flat(gradient))
        loss.backward()
        self._add(last, self._flat([parameter.grad for parameter in self._parameters]) - rest)

    def _add(self, role: str, part: torch.Tensor) -> torch.Tensor:
        self.sums[role] = self.sums[role] + part if role in self.sums else part
        return part

    def _flat(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """One vector of all parameters; a copy."""
        pairs = zip(self._parameters, gradients, strict=True)
        pieces = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]
        return torch.cat([piece.detach().flatten().float().cpu() for piece in pieces])
