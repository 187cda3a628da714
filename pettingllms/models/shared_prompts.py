"""Attention that computes a prompt once for all its completions, for transformers' models.

transformers registers attention functions by name and passes them any extra keyword that a model is
called with. Ours takes the keyword `layout` and leaves the attention to that object; without one it
is transformers' own scaled dot-product attention, so a model set to it still works everywhere else.
All other layers see a plain list of tokens, without padding and without a repeated prompt.

Used by the sampler and by the update.

Shapes: `_N` tokens in a flat list, `_U` prompts, `_P` prompt tokens, `_B` completions, `_T` completion
tokens, `_S` = `_P` + `_T` positions that a completion sees, `_H` query heads, `_h` key-value heads,
`_D` head size.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

logger = logging.getLogger(__name__)

NAME = "pettingllms_shared_prompts"


class Layout(Protocol):
    """Computes the attention of one forward pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Computes attention, from `query` (rows, heads, tokens, size) to (rows, tokens, heads, size)."""


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    layout: Layout | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return layout.attend(module.layer_idx, query, key, value, scale), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def enabled(model: PreTrainedModel) -> bool:
    """Returns whether the model uses this attention."""
    return bool(model.config._attn_implementation == NAME)


def forward(
    model: PreTrainedModel,
    layout: Layout,
    ids: torch.Tensor,
    positions: torch.Tensor,
    keep: torch.Tensor | int,
) -> torch.Tensor:
    """Computes logits with a model that uses this attention, as `layout` lays it out.

    Args:
        model: the model.
        layout: decides which token sees which.
        ids: tokens.
        positions: the position of each token in its own prompt and completion.
        keep: indices of the tokens to return logits for, or a number of last ones.
    """
    # A mask of four dimensions is passed through untouched; any other would be built and ignored.
    untouched = torch.zeros(1, 1, 1, 1, device=ids.device)
    logits: torch.Tensor = model(
        input_ids=ids,
        attention_mask=untouched,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=keep,
        layout=layout,
    ).logits
    return logits


class PackedLayout:
    """Prompts and completions in one flat list: prompt 1, its completions, prompt 2, its completions...

    A prompt's tokens see those before them in the prompt. A completion's tokens see the whole
    prompt and those before them in the completion.

    Args:
        prompts: length of each prompt.
        completions: lengths of the completions of each prompt.
        device: where the model is.
        keep_prompts: keep the prompts' keys and values of each layer in `prompt_states`.
    """

    def __init__(
        self,
        prompts: Sequence[int],
        completions: Sequence[Sequence[int]],
        device: torch.device,
        *,
        keep_prompts: bool = False,
    ) -> None:
        owners = [u for u, lengths in enumerate(completions) for _ in lengths]
        longest = max((max(lengths, default=0) for lengths in completions), default=0)
        prompt_rows: list[range] = []
        reply_rows: list[range] = []
        order: list[torch.Tensor] = []
        end, width = 0, max(prompts)
        for u, (length, lengths) in enumerate(zip(prompts, completions, strict=True)):
            prompt_rows.append(range(end, end + length))
            order.append(torch.arange(length) + u * width)
            end += length
            for completion in lengths:
                first = len(prompts) * width + len(reply_rows) * longest
                order.append(torch.arange(completion) + first)
                reply_rows.append(range(end, end + completion))
                end += completion
        self._prompt_UP = _padded(prompt_rows, width).to(device)
        self._reply_BT = _padded(reply_rows, longest).to(device)
        self._owner_B = torch.tensor(owners, dtype=torch.long, device=device)
        self._order_N = torch.cat(order).to(device)
        self._lengths_U = torch.tensor(prompts, device=device)
        self._mask_B1TS: torch.Tensor | None = None
        self._keep_prompts = keep_prompts
        self.prompt_states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of the flat list, `_1HND` and `_1hND` to `_1NHD`."""
        query_NHD, key_NhD, value_NhD = (
            states[0].transpose(0, 1) for states in (query, key, value)
        )
        key_UhPD = _take(key_NhD, self._prompt_UP)
        value_UhPD = _take(value_NhD, self._prompt_UP)
        if self._keep_prompts:
            self.prompt_states[layer] = (key_UhPD, value_UhPD)
        groups = query_NHD.shape[1] // key_NhD.shape[1]
        out_UHPD = nn.functional.scaled_dot_product_attention(
            _take(query_NHD, self._prompt_UP),
            _repeat(key_UhPD, groups),
            _repeat(value_UhPD, groups),
            is_causal=True,  # padding is on the right, so no prompt token sees any
            scale=scale,
        )
        parts = [out_UHPD.transpose(1, 2).flatten(0, 1)]
        if len(self._owner_B):
            own_BhTD = _take(key_NhD, self._reply_BT)
            key_BhSD = torch.cat([key_UhPD.index_select(0, self._owner_B), own_BhTD], 2)
            own_BhTD = _take(value_NhD, self._reply_BT)
            value_BhSD = torch.cat([value_UhPD.index_select(0, self._owner_B), own_BhTD], 2)
            out_BHTD = nn.functional.scaled_dot_product_attention(
                _take(query_NHD, self._reply_BT),
                _repeat(key_BhSD, groups),
                _repeat(value_BhSD, groups),
                attn_mask=self._mask(query.dtype),
                scale=scale,
            )
            parts.append(out_BHTD.transpose(1, 2).flatten(0, 1))
        return torch.cat(parts).index_select(0, self._order_N)[None]

    def _mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Mask added to the scores of completion tokens, `_B1TS`: -inf at what they must not see."""
        if self._mask_B1TS is None:
            width, longest = self._prompt_UP.shape[1], self._reply_BT.shape[1]
            device = self._owner_B.device
            column_P = torch.arange(width, device=device)
            prompt_BP = column_P >= self._lengths_U[self._owner_B, None]
            later_TT = torch.ones(longest, longest, dtype=torch.bool, device=device).triu(1)
            hidden_BTS = torch.cat(
                [
                    prompt_BP[:, None].expand(-1, longest, -1),
                    later_TT[None].expand(len(self._owner_B), -1, -1),
                ],
                -1,
            )
            mask_BTS = torch.zeros(hidden_BTS.shape, dtype=dtype, device=device)
            self._mask_B1TS = mask_BTS.masked_fill_(hidden_BTS, float("-inf"))[:, None]
        return self._mask_B1TS


def _padded(rows: Sequence[range], width: int) -> torch.Tensor:
    """Pads indices to rows of equal length with 0; those entries are never read."""
    full = [[*row, *([0] * (width - len(row)))] for row in rows]
    return torch.tensor(full, dtype=torch.long).view(len(rows), width)


def _take(states_NHD: torch.Tensor, index_XY: torch.Tensor) -> torch.Tensor:
    """Gathers tokens in rows, `_XHYD`. `index_select` is faster than indexing, backward as well."""
    flat = states_NHD.index_select(0, index_XY.flatten())
    return flat.view(*index_XY.shape, *states_NHD.shape[1:]).transpose(1, 2)


def _repeat(states_BhSD: torch.Tensor, groups: int) -> torch.Tensor:
    return states_BhSD if groups == 1 else states_BhSD.repeat_interleave(groups, 1)
