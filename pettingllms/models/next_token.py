"""The decoder's computation for one more token a row, without what modules add to every call.

A small model's step of decoding is mostly Python: decorators, hooks, keyword arguments, masks that are
not used. For the decoders in `KNOWN`, which differ in little, the same operations are called here one
after the other, in the same order and on the same shapes, so that the logits are the same bit for bit
(`tests/test_next_token.py`). Other decoders are called as they are.

Shapes: `_R` rows, `_X` hidden size, `_H` query heads, `_h` key-value heads, `_D` head size, `_V`
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
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
Apply = Callable[[torch.Tensor], torch.Tensor]


def known(model: PreTrainedModel) -> bool:
    """Whether `NextToken` computes what the model does: its type is known, and nothing listens in."""
    return type(model) in KNOWN and not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )


class NextToken:
    """One more token of every row.

    Args:
        model: one of `KNOWN`, in evaluation mode; its weights may change in place.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.base_model
        self._model, self._embed, self._rotary = model, decoder.embed_tokens, decoder.rotary_emb
        self._layers = [_Layer(layer) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)

    def __call__(
        self, token_R: torch.Tensor, position_R: torch.Tensor, layout: Layout
    ) -> torch.Tensor:
        """Logits `_RV` of what follows `token_R`; `layout` computes the attention."""
        states_R1X = self._embed(token_R[:, None])
        cos_R1D, sin_R1D = self._rotary(states_R1X, position_R[:, None])
        # -a * b is a * -b to the last bit, so that the sign of `rotate_half` is given to the sine.
        half = sin_R1D.shape[-1] // 2
        sin_R1D = torch.cat((-sin_R1D[..., :half], sin_R1D[..., half:]), -1)
        turn = cos_R1D[:, None], sin_R1D[:, None]
        for number, layer in enumerate(self._layers):
            states_R1X = layer(number, states_R1X, turn, layout)
        return logits(self._model, self._norm(states_R1X))[:, -1]


class _Layer:
    """One layer of the decoder."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._between = (
            _norm(layer.input_layernorm),
            _norm(layer.post_attention_layernorm),
        )
        self._query, self._key, self._value, self._out = (
            _linear(getattr(attention, f"{name}_proj")) for name in "qkvo"
        )
        self._query_norm, self._key_norm = (
            _norm(getattr(attention, name)) if hasattr(attention, name) else None
            for name in ("q_norm", "k_norm")
        )
        self._gate, self._up, self._down = (
            _linear(each) for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self._act, self._size, self._scale = mlp.act_fn, attention.head_dim, attention.scaling

    def __call__(
        self,
        number: int,
        states_R1X: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
    ) -> torch.Tensor:
        shape = (states_R1X.shape[0], 1, -1, self._size)
        own_R1X = self._before(states_R1X)
        query_R1HD, key_R1hD = self._query(own_R1X).view(shape), self._key(own_R1X).view(shape)
        if self._query_norm is not None and self._key_norm is not None:
            query_R1HD, key_R1hD = self._query_norm(query_R1HD), self._key_norm(key_R1hD)
        out_R1HD = layout.attend(
            number,
            _turned(query_R1HD.transpose(1, 2), *turn),
            _turned(key_R1hD.transpose(1, 2), *turn),
            self._value(own_R1X).view(shape).transpose(1, 2),
            self._scale,
        )
        states_R1X = states_R1X + self._out(out_R1HD.reshape(*shape[:2], -1))
        own_R1X = self._between(states_R1X)
        return states_R1X + self._down(self._act(self._gate(own_R1X)) * self._up(own_R1X))


def _turned(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions; the first half of `sin` has its sign changed."""
    return (states * cos).add_(states.roll(states.shape[-1] // 2, -1).mul_(sin))


def _linear(module: nn.Module) -> Apply:
    if type(module) is not nn.Linear:
        return module
    weight, bias = module.weight, module.bias
    return lambda states: F.linear(states, weight, bias)


def _norm(module: Any) -> Apply:
    """The module, or PyTorch's function for it, which rounds alike in float32 on a CPU alone."""
    weight: torch.Tensor = module.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return module
    shape, epsilon = tuple(weight.shape), module.variance_epsilon
    return lambda states: F.rms_norm(states, shape, weight, epsilon)
