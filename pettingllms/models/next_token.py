"""The decoder's computation for one more token a row, without what modules add to every call.

A small model's step of decoding is mostly Python: decorators, hooks, keyword arguments, masks that are
not used. For the decoders in `KNOWN`, which differ in little, the same operations are called here one
after the other on the weights themselves. Other decoders are called as they are.

In float32 on a CPU, matrices that read the same states are one matrix if they are small, and norms are
PyTorch's own function. Neither changed a bit of the logits where it was tried.

Shapes: `_R` rows, `_X` hidden size, `_H` query heads, `_h` key-value heads, `_D` head size, `_V`
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from pettingllms.models.head import logits
from pettingllms.models.shared_prompts import Layout

KNOWN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_SMALL = 1 << 20
"""Weights of a matrix that is copied to become a part of a larger one."""
Apply = Callable[[torch.Tensor], torch.Tensor]


def known(model: PreTrainedModel) -> bool:
    """Whether `NextToken` computes what the model does: its type is known, and nothing listens in."""
    return type(model) in KNOWN and not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )


class NextToken:
    """One more token of every row.

    Args:
        model: one of `KNOWN`, in evaluation mode; later changes of its weights may go unnoticed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.base_model
        self._model, self._embed, self._rotary = model, decoder.embed_tokens, decoder.rotary_emb
        self._layers = [_Block(layer) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)

    def __call__(
        self, token_R: torch.Tensor, position_R: torch.Tensor, layout: Layout
    ) -> torch.Tensor:
        """Logits `_RV` of what follows `token_R`; `layout` computes the attention."""
        states_RX = self._embed(token_R)
        cos_R1D, sin_R1D = self._rotary(states_RX[:, None], position_R[:, None])
        # -a * b is a * -b to the last bit, so that the sign of `rotate_half` is given to the sine.
        half = sin_R1D.shape[-1] // 2
        sin_R1D = torch.cat((-sin_R1D[..., :half], sin_R1D[..., half:]), -1)
        for number, layer in enumerate(self._layers):
            states_RX = layer(number, states_RX, cos_R1D, sin_R1D, layout)
        return logits(self._model, self._norm(states_RX))


class _Block:
    """One layer of the decoder."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before = _norm(layer.input_layernorm)
        self._between = _norm(layer.post_attention_layernorm)
        self._project = _side_by_side([attention.q_proj, attention.k_proj, attention.v_proj])
        self._out, self._down = _linear(attention.o_proj), _linear(mlp.down_proj)
        self._gate_and_up = _side_by_side([mlp.gate_proj, mlp.up_proj])
        self._act, self._size, self._scale = mlp.act_fn, attention.head_dim, attention.scaling
        heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        self._heads, self._turned = heads[0], sum(heads)
        self._head_norm: Apply | None = None
        if hasattr(attention, "q_norm"):
            self._head_norm = _head_norm(attention.q_norm, attention.k_norm, *heads)

    def __call__(
        self,
        number: int,
        states_RX: torch.Tensor,
        cos_R1D: torch.Tensor,
        sin_R1D: torch.Tensor,
        layout: Layout,
    ) -> torch.Tensor:
        rows = states_RX.shape[0]
        heads = self._project(self._before(states_RX)).view(rows, -1, self._size)
        turned = heads[:, : self._turned]
        if self._head_norm is not None:
            turned = self._head_norm(turned)
        turned = (turned * cos_R1D).add_(turned.roll(self._size // 2, -1).mul_(sin_R1D))[:, :, None]
        value_Rh1D = heads[:, self._turned :, None]
        query_RH1D, key_Rh1D = turned[:, : self._heads], turned[:, self._heads :]
        out_R1HD = layout.attend(number, query_RH1D, key_Rh1D, value_Rh1D, self._scale)
        states_RX = states_RX + self._out(out_R1HD.reshape(rows, -1))
        gate, up = self._gate_and_up(self._between(states_RX)).chunk(2, -1)
        return states_RX + self._down(self._act(gate) * up)


def _linear(module: nn.Module) -> Apply:
    if type(module) is not nn.Linear:
        return module
    weight, bias = module.weight, module.bias
    return lambda states: F.linear(states, weight, bias)


def _side_by_side(modules: Sequence[nn.Module]) -> Apply:
    """Returns a function for the outputs of linear layers in one tensor, one after the other."""
    plain = [module for module in modules if type(module) is nn.Linear]
    if len(plain) == len(modules) and all(
        _exact(each.weight) and each.weight.numel() <= _SMALL and each.bias is None
        for each in plain
    ):
        weight = torch.cat([each.weight for each in plain])
        return lambda states: F.linear(states, weight)
    parts = [_linear(module) for module in modules]
    return lambda states: torch.cat([part(states) for part in parts], -1)


def _norm(module: Any) -> Apply:
    """Returns the norm's own module, or PyTorch's function where that rounds alike."""
    if not _exact(module.weight):
        return module  # type: ignore[no-any-return]
    weight, epsilon = module.weight, module.variance_epsilon
    shape = tuple(weight.shape)
    return lambda states: F.rms_norm(states, shape, weight, epsilon)


def _head_norm(query: Any, key: Any, heads: int, few: int) -> Apply:
    """Returns a function for the norm of queries and keys that stand behind each other."""
    if not _exact(query.weight) or query.variance_epsilon != key.variance_epsilon:
        return lambda states: torch.cat([query(states[:, :heads]), key(states[:, heads:])], 1)
    weight = torch.cat([query.weight.expand(heads, -1), key.weight.expand(few, -1)])
    shape, epsilon = tuple(query.weight.shape), query.variance_epsilon
    return lambda states: F.rms_norm(states, shape, None, epsilon).mul_(weight)


def _exact(weight: torch.Tensor) -> bool:
    """Whether this is where other functions round as the modules do."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu"
