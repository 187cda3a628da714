"""Linear layers with adapters, and norms, in few passes over memory; for small models in float32 on a CPU.

PEFT computes an adapter beside its layer, which for a small model costs more than the layer: three
products, a scaling, and a sum in place of one product, and as much again backward. Here the weight
with its adapter is one matrix for each pass, and layers that read the same states are one product.
Gradients are those of the adapter's own matrices, computed from the low-rank factors, so that no
gradient of a whole weight is made. Values differ from PEFT's by rounding.

Shapes: `_N` tokens, `_I` inputs, `_O` outputs of all layers side by side, `_R` ranks of all adapters
one after the other, `_r` of one adapter, `_X` any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import nn
from torch.autograd.function import once_differentiable

SMALL = 1 << 20
"""Weights of a matrix that is copied in order to become a part of a larger one."""


class Part(NamedTuple):
    """A linear layer without a bias."""

    weight: torch.Tensor
    """Of the layer itself, `_OI`."""
    down: torch.Tensor | None = None
    """Of the adapter, `_rI`; None without one."""
    up: torch.Tensor | None = None
    """Of the adapter, `_Or`."""
    scale: float = 1.0

    @property
    def whole(self) -> torch.Tensor:
        """The weight with its adapter."""
        if self.down is None or self.up is None:
            return self.weight
        return torch.addmm(self.weight, self.up, self.down, alpha=self.scale)


def part_of(module: nn.Module) -> Part | None:
    """Returns what a linear layer computes; None where that is more, or where it would not pay here."""
    # Types have to match exactly: a subclass may compute something else, as for 4-bit weights.
    layer = module.get_base_layer() if type(module) is LoraLinear else module
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    if not exact(layer.weight) or layer.weight.numel() > SMALL:
        return None
    if type(module) is not LoraLinear or module.disable_adapters:
        return Part(layer.weight)
    if module.merged or module.fan_in_fan_out or len(module.active_adapters) != 1:
        return None
    (name,) = module.active_adapters
    if name not in module.lora_A:
        return Part(layer.weight)
    up, down = module.lora_B[name], module.lora_A[name]
    if (
        name in module.lora_variant
        or type(module.lora_dropout[name]) is not nn.Identity
        or not (exact(up.weight) and exact(down.weight))
    ):
        return None
    return Part(layer.weight, down.weight, up.weight, module.scaling[name])


def exact(weight: torch.Tensor) -> bool:
    """Returns whether other functions are as exact as the module of this weight, and save time."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


class Layers:
    """Computes linear layers that read the same states, with their outputs in one tensor.

    Args:
        parts: the layers; their weights are read here, and later changes go unnoticed.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._adapted = torch.is_grad_enabled() and any(part.down is not None for part in parts)
        if not self._adapted:
            # Weights that are trained themselves get their gradients through the concatenation.
            # Products of few rows with a matrix read it faster in this order (0.7x for one row).
            self._weight_IO = torch.cat([part.whole.T for part in parts], 1).contiguous()
            return
        with torch.no_grad():
            self._weight_OI = torch.cat([part.whole for part in parts])
        # Zero marks a layer without an adapter: no adapter has it, as `lora_alpha` is positive.
        self._scales = [0.0 if part.down is None else part.scale for part in parts]
        self._outputs = [part.weight.shape[0] for part in parts]
        self._factors = [
            factor for part in parts if part.down is not None for factor in (part.down, part.up)
        ]

    def __call__(
        self, states_NI: torch.Tensor, onto_NO: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Outputs `_NO` of all layers, one after the other, added to `onto_NO`."""
        if not self._adapted:
            if onto_NO is None:
                return states_NI @ self._weight_IO
            return torch.addmm(onto_NO, states_NI, self._weight_IO)
        found: torch.Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
            states_NI, self._weight_OI, self._outputs, self._scales, *self._factors
        )
        return found if onto_NO is None else onto_NO + found


class _Adapted(torch.autograd.Function):
    """A product with a weight whose adapters are trained, and which itself is not."""

    @staticmethod
    def forward(
        ctx: Any,
        states_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        outputs: Sequence[int],
        scales: Sequence[float],
        *factors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(states_NI, weight_OI, *factors)
        ctx.outputs, ctx.scales = outputs, scales
        return states_NI @ weight_OI.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states_NI, weight_OI, *factors = ctx.saved_tensors
        downs, ups = factors[::2], factors[1::2]
        own = [
            (each, scale)
            for each, scale in zip(grad_NO.split(ctx.outputs, 1), ctx.scales, strict=True)
            if scale
        ]
        low_NR = states_NI @ torch.cat(downs).T
        lows = low_NR.split([down.shape[0] for down in downs], 1)
        # The factor is scaled and not the product, which has a row for each token.
        back = [each @ (up * scale) for (each, scale), up in zip(own, ups, strict=True)]
        down_grads = (torch.cat(back, 1).T @ states_NI).split([d.shape[0] for d in downs])
        found: list[torch.Tensor] = []
        for (each, scale), low_Nr, down_grad in zip(own, lows, down_grads, strict=True):
            found += [down_grad, (each.T @ low_Nr).mul_(scale)]
        states_grad = grad_NO @ weight_OI if ctx.needs_input_grad[0] else None
        return states_grad, None, None, None, *found


class RootMeanSquareNorm:
    """Computes x / sqrt(mean x^2 + epsilon) * weight over the last axis.

    On a CPU PyTorch's `rms_norm` is six operations forward, one after the other; these are four.

    Args:
        weight: not trained; of the shape of the last axis, or of the last axes.
        epsilon: added to the mean.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        count = weight.shape[-1]
        # |x| / sqrt(count) is the root of the mean.
        self._weight = weight * count**0.5
        self._least = torch.tensor((count * epsilon) ** 0.5)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """The norm of states of any shape."""
        if states.requires_grad and torch.is_grad_enabled():
            found: torch.Tensor = _Norm.apply(  # type: ignore[no-untyped-call]
                states, self._weight, self._least
            )
            return found
        return _divided(states, self._least)[0].mul_(self._weight)


def _divided(states: torch.Tensor, least: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # That is sqrt(count) * sqrt(mean x^2 + epsilon); `_weight` has the factor sqrt(count), too.
    length = torch.hypot(torch.linalg.vector_norm(states, dim=-1, keepdim=True), least)
    return states / length, length


class _Norm(torch.autograd.Function):
    """The norm with a gradient for the states alone."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, least: torch.Tensor
    ) -> torch.Tensor:
        unit, length = _divided(states, least)
        ctx.save_for_backward(unit, length, weight)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, length, weight = ctx.saved_tensors
        grad = grad * weight
        # Of u = x / L with L^2 = |x|^2 + least^2, the gradient is (g - u (g . u)) / L.
        along = (grad * unit).sum(-1, keepdim=True)
        return grad.addcmul_(unit, along, value=-1).div_(length), None, None
