"""The decoder's computation without what modules add to every call, for sampling and for the update.

A small model's pass is mostly overhead: decorators, hooks, keyword arguments, masks that are not used,
adapters beside their layers. For the decoders in `KNOWN`, which differ in little, the same operations
are called here one after the other on the weights themselves. Other decoders are called as they are.

In float32 on a CPU, small matrices that read the same states are one matrix, adapters are part of the
matrices (`pettingllms.models.adapted`), and sines of positions are computed once for all steps.
Logits differ from the modules' own by rounding.

Shapes: `_R` tokens, one for each row of a step or all of several texts, `_X` hidden size, `_H` query
heads, `_h` key-value heads, `_D` head size, `_L` positions, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
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

from pettingllms.models.adapted import Layers, RootMeanSquareNorm, exact, part_of
from pettingllms.models.head import logits
from pettingllms.models.shared_prompts import Layout

KNOWN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
TRAINED = 1 << 17
"""Weights of a matrix up to which the update calls the decoder itself: for larger ones the products are
what takes time, and `--dry-run` counts what modules keep."""
Apply = Callable[[torch.Tensor], torch.Tensor]
Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def known(model: PreTrainedModel) -> bool:
    """Returns whether `Decoder` computes what the model does: a known type, and no hooks."""
    return type(model) in KNOWN and not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )


def trains(model: PreTrainedModel) -> bool:
    """Returns whether the update should use `Decoder`.

    It pays for small matrices in float32 on a CPU. Where activations are computed again in the
    backward pass, or in another precision, modules know how.
    """
    recomputed = model.training and model.is_gradient_checkpointing
    if recomputed or torch.is_autocast_enabled("cpu") or not known(model):
        return False
    decoder: Any = model.base_model
    # One layer stands for all, which are of one size in these families.
    return all(exact(each) and each.numel() <= TRAINED for each in decoder.layers[0].parameters())


class Decoder:
    """The decoder of a model, for one more token of every row or for whole texts.

    Args:
        model: one of `KNOWN`, in evaluation mode; later changes of its weights may go unnoticed.
        longest: most tokens of a text.
    """

    def __init__(self, model: PreTrainedModel, longest: int) -> None:
        decoder: Any = model.base_model
        self._model, self._embed = model, decoder.embed_tokens
        self._layers = [_Block(layer) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)
        position_1L = torch.arange(longest, device=model.device)[None]
        # Of the states only their type and device count.
        states_1L1 = self._embed.weight.new_empty(1, longest, 1)
        cos_1LD, sin_1LD = decoder.rotary_emb(states_1L1, position_1L)
        # -a * b is a * -b to the last bit, so that the sign of `rotate_half` is given to the sine.
        half = sin_1LD.shape[-1] // 2
        self._cos_L1D = cos_1LD[0, :, None]
        self._sin_L1D = torch.cat((-sin_1LD[0, :, :half], sin_1LD[0, :, half:]), -1)[:, None]

    def step(self, token_R: torch.Tensor, position_R: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Logits `_RV` of what follows one more token a row; `layout` computes the attention."""
        return self._logits(self._norm(self._states(token_R, position_R, layout)))

    def text(
        self,
        token_R: torch.Tensor,
        position_R: torch.Tensor,
        layout: Layout,
        last_U: torch.Tensor,
    ) -> torch.Tensor:
        """Logits `_UV` of what follows the tokens `last_U` of a flat list, which `layout` divides."""
        return self._logits(self.hidden(token_R, position_R, layout, last_U))

    def hidden(
        self,
        token_R: torch.Tensor,
        position_R: torch.Tensor,
        layout: Layout,
        wanted_U: torch.Tensor,
    ) -> torch.Tensor:
        """Last hidden states `_UX` of the tokens `wanted_U` of a flat list, which `layout` divides."""
        return self._norm(self._states(token_R, position_R, layout, wanted_U))

    @cached_property
    def _logits(self) -> Apply:
        """The output layer; not made in advance, since the update does not ask for it."""
        part = part_of(self._model.get_output_embeddings())
        return partial(logits, self._model) if part is None else Layers([part])

    def _states(
        self,
        token_R: torch.Tensor,
        position_R: torch.Tensor,
        layout: Layout,
        wanted_U: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States after the last layer: of one token a row, or `_UX` of those wanted of a flat list."""
        states_RX: torch.Tensor = self._embed(token_R)
        turn = self._cos_L1D[position_R], self._sin_L1D[position_R]
        for number, layer in enumerate(self._layers):
            # Of the last layer's outputs nothing but those wanted is read.
            last = number == len(self._layers) - 1
            states_RX = layer(
                number,
                states_RX,
                turn,
                layout,
                one_text=wanted_U is not None,
                wanted_U=wanted_U if last else None,
            )
        return states_RX


class _Block:
    """One layer of the decoder."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before = _norm(layer.input_layernorm)
        self._between = _norm(layer.post_attention_layernorm)
        self._project = _side_by_side([attention.q_proj, attention.k_proj, attention.v_proj])
        self._out, self._down = _adding(attention.o_proj), _adding(mlp.down_proj)
        self._gate_and_up = _side_by_side([mlp.gate_proj, mlp.up_proj])
        self._act, self._size, self._scale = mlp.act_fn, attention.head_dim, attention.scaling
        heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        # Queries, then keys, are turned by their positions; the values behind them are not.
        self._heads, self._turned = heads[0], sum(heads)
        self._head_norm: Apply | None = None
        if hasattr(attention, "q_norm"):
            self._head_norm = _head_norm(attention.q_norm, attention.k_norm, *heads)

    def __call__(
        self,
        number: int,
        states_RX: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        *,
        one_text: bool,
        wanted_U: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, (cos_R1D, sin_R1D) = states_RX.shape[0], turn
        heads = self._project(self._before(states_RX)).view(rows, -1, self._size)
        turned = heads[:, : self._turned]
        if self._head_norm is not None:
            turned = self._head_norm(turned)
        # A roll by half exchanges the halves, as `rotate_half` does; the sine has its sign.
        turned = (turned * cos_R1D).add_(turned.roll(self._size // 2, -1).mul_(sin_R1D))
        parts = turned[:, : self._heads], turned[:, self._heads :], heads[:, self._turned :]
        # A text is one row of many tokens, and a step has many rows of one token.
        query, key, value = (
            part.transpose(0, 1)[None] if one_text else part[:, :, None] for part in parts
        )
        out = layout.attend(number, query, key, value, self._scale)
        out_RX = out.reshape(rows, -1)
        if wanted_U is not None:
            states_RX, out_RX = states_RX[wanted_U], out_RX[wanted_U]
        states_RX = self._out(out_RX, states_RX)
        gate, up = self._gate_and_up(self._between(states_RX)).chunk(2, -1)
        return self._down(self._act(gate) * up, states_RX)


def _adding(module: nn.Module) -> Add:
    """Returns a function that adds the outputs of a linear layer to its second argument."""
    part = part_of(module)
    if part is not None:
        return Layers([part])
    linear = _linear(module)
    return lambda states, onto: onto + linear(states)


def _linear(module: nn.Module) -> Apply:
    if type(module) is not nn.Linear:
        return module
    weight, bias = module.weight, module.bias
    return lambda states: F.linear(states, weight, bias)


def _side_by_side(modules: Sequence[nn.Module]) -> Apply:
    """Returns a function for the outputs of linear layers in one tensor, one after the other."""
    found = [part_of(module) for module in modules]
    parts = [part for part in found if part is not None]
    if len(parts) == len(modules):
        return Layers(parts)
    several = [_linear(module) for module in modules]
    return lambda states: torch.cat([each(states) for each in several], -1)


def _norm(module: Any) -> Apply:
    """Returns the norm's own module, or something faster where nothing is rounded to less."""
    weight, epsilon = module.weight, module.variance_epsilon
    if not exact(weight) or (weight.requires_grad and torch.is_grad_enabled()):
        return module  # type: ignore[no-any-return]
    return RootMeanSquareNorm(weight, epsilon)


def _head_norm(query: Any, key: Any, heads: int, few: int) -> Apply:
    """Returns a function for the norm of queries and keys that stand behind each other."""
    trained = query.weight.requires_grad and torch.is_grad_enabled()
    if trained or not exact(query.weight) or query.variance_epsilon != key.variance_epsilon:
        return lambda states: torch.cat([query(states[:, :heads]), key(states[:, heads:])], 1)
    weight = torch.cat([query.weight.expand(heads, -1), key.weight.expand(few, -1)])
    return RootMeanSquareNorm(weight, query.variance_epsilon)
