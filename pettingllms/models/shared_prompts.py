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

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, count
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pettingllms.models.products import Places, Texts, products

NAME = "pettingllms_shared_prompts"
States = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Layer -> keys and values of a text, `_1hPD`."""


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
# transformers makes no mask for a name without a mask function: padding would be seen.
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
    return _outputs(model, layout, ids, positions, logits_to_keep=keep).logits  # type: ignore[no-any-return]


def hidden_states(
    model: PreTrainedModel, layout: Layout, ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Computes the decoder's last hidden states, one for each token; see `forward`."""
    return _outputs(model.base_model, layout, ids, positions).last_hidden_state  # type: ignore[no-any-return]


def _outputs(
    model: Any, layout: Layout, ids: torch.Tensor, positions: torch.Tensor, **settings: Any
) -> Any:
    # A mask of four dimensions is passed through untouched; any other would be built and ignored.
    mask = torch.zeros(1, 1, 1, 1, device=ids.device)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return model(**inputs, use_cache=False, layout=layout, **settings)


class Reply(NamedTuple):
    """A completion in a flat list of tokens, behind a prompt or behind the beginning of one."""

    places: Sequence[int]
    """Of its tokens."""
    behind: int
    """How many of the prompt's tokens it follows, and sees."""


class PackedLayout:
    """Prompts and completions in one flat list of tokens, in which each distinct text stands once.

    A prompt's tokens see those before them in the prompt. A completion's tokens see the tokens of the
    prompt that it follows and those before them in the completion. Completions of a prompt may have
    their first tokens in common, and so may prompts: what these see is the same. A prompt that is a long
    conversation stands for its shorter prompts as well: their completions follow its beginnings.

    Attention needs rows of equal length. Rows of similar length are padded together (`alike`), so
    that one long completion does not make all others as long as itself. On a GPU, in half precision,
    rows of any length attend in one call.

    Args:
        prompts: the places of each prompt's tokens in the list.
        completions: for each prompt those that follow it.
        device: where the model is.
        keep_prompts: keep the prompts' keys and values of each layer in `prompt_states`, padded to one length.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Reply]],
        device: torch.device,
        *,
        keep_prompts: bool = False,
    ) -> None:
        self._prompts, self._device = prompts, device
        # With its prompt. A completion of one token has none that anything follows.
        self._replies = [
            (reply, u) for u, rest in enumerate(completions) for reply in rest if reply.places
        ]
        width = max(map(len, prompts), default=0)
        self._kept_UP = _padded(prompts, width).to(device) if keep_prompts else None
        whole = [reply.behind + len(reply.places) for reply, _ in self._replies]
        self._longest = max(*map(len, prompts), *whole, 0)
        self._padded: dict[bool, tuple[list[Texts], torch.Tensor]] = {}
        self._places: Places | None = None
        self.prompt_states: States = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of the flat list, `_1HND` and `_1hND` to `_1NHD`."""
        query_NHD, key_NhD, value_NhD = (
            states[0].transpose(0, 1) for states in (query, key, value)
        )
        if self._kept_UP is not None:
            self.prompt_states[layer] = (
                _take(key_NhD, self._kept_UP),
                _take(value_NhD, self._kept_UP),
            )
        elif _flash(query_NHD):
            return self._unpadded.attend(query_NHD, key_NhD, value_NhD, scale)[None]
        fused = not _products_are_faster(query_NHD, self._longest)
        if fused not in self._padded:  # the same in all layers
            self._padded[fused] = self._rows(query.dtype, fused)
        texts, order_N = self._padded[fused]
        if not fused:
            if self._places is None:
                self._places = Places(texts, order_N, query.shape[1], key.shape[1])
            return products(self._places, scale, query_NHD, key_NhD, value_NhD)[None]
        outputs = list[torch.Tensor]()
        for text in texts:
            key_BhSD, value_BhSD = (_take(states, text.seen_BS) for states in (key_NhD, value_NhD))
            query_BHTD = _take(query_NHD, text.query_BT)
            out_BHTD = _attend(query_BHTD, key_BhSD, value_BhSD, text.mask_B1TS, scale)
            outputs.append(out_BHTD.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, order_N)[None]

    def _rows(self, dtype: torch.dtype, fused: bool) -> tuple[list[Texts], torch.Tensor]:
        """The padded rows, and where each token of the flat list stands in them."""
        lengths = [*map(len, self._prompts)]
        texts, places, first = list[Texts](), dict[int, int](), 0
        for members in alike(lengths, fused):
            prompts = {u: self._prompts[u] for u in members}
            replies = [(reply, prompts[u]) for reply, u in self._replies if u in prompts]
            for text, rows in _padded_texts([*prompts.values()], replies, dtype, fused):
                places_of = (part if part is None else part.to(self._device) for part in text)
                texts.append(Texts(*places_of))  # type: ignore[arg-type]
                # A token that is in several rows has the same value in all of them.
                for row in rows:
                    places.update(zip(row.tokens, count(first + row.skipped), strict=False))
                    first += text.query_BT.shape[1]
        return texts, _in_order(places, self._device)

    @cached_property
    def _unpadded(self) -> _Unpadded:
        seen = [self._prompts[u][: reply.behind] for reply, u in self._replies]
        replies = [reply.places for reply, _ in self._replies]
        return _Unpadded([()] * len(self._prompts) + seen, [*self._prompts, *replies], self._device)


def _flash(states: torch.Tensor) -> bool:
    """Returns whether FlashAttention takes these states."""
    return (
        states.is_cuda
        and states.dtype in (torch.bfloat16, torch.float16)
        and states.shape[-1] <= 256
        and torch.cuda.get_device_capability(states.device) >= (8, 0)
    )


class _Unpadded:
    """Texts of any length in one call of FlashAttention, which only GPUs have."""

    def __init__(
        self, seen: Sequence[Sequence[int]], own: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        texts = [[*before, *text] for before, text in zip(seen, own, strict=True)]
        queries = [*chain(*own)]
        self._query_Q = torch.tensor(queries, device=device)
        self._key_K = torch.tensor([*chain(*texts)], device=device)
        lengths = [[*map(len, own)], [*map(len, texts)]]
        self._longest = [*map(max, lengths)]
        self._ends = [
            torch.tensor([0, *accumulate(row_lengths)], dtype=torch.int32, device=device)
            for row_lengths in lengths
        ]
        self._order_N = _in_order(dict(zip(queries, count(), strict=False)), device)

    def attend(
        self, query_NHD: torch.Tensor, key_NhD: torch.Tensor, value_NhD: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of the flat list, `_NHD`."""
        out_QHD: torch.Tensor = torch.ops.aten._flash_attention_forward(
            query_NHD.index_select(0, self._query_Q),
            key_NhD.index_select(0, self._key_K),
            value_NhD.index_select(0, self._key_K),
            *self._ends,
            *self._longest,
            dropout_p=0.0,
            is_causal=True,  # the last query sees the last key
            return_debug_mask=False,
            scale=scale,
        )[0]
        return out_QHD.index_select(0, self._order_N)


def _in_order(places: Mapping[int, int], device: torch.device) -> torch.Tensor:
    """Where each token of the flat list stands."""
    return torch.tensor([places[token] for token in range(len(places))], device=device)


class ContinuedLayout:
    """Prompts in one flat list of tokens, without their beginnings, whose keys and values are known.

    Each prompt attends by itself, so that none is padded to the length of another.

    Args:
        begun: for each prompt, layer -> keys and values of its beginning, `_1hPD`; None for none.
        known: how many tokens each beginning has.
        new: how many tokens of each prompt are in the list.
        device: where the model is.
    """

    def __init__(
        self,
        begun: Sequence[States | None],
        known: Sequence[int],
        new: Sequence[int],
        device: torch.device,
    ) -> None:
        self._begun, self._new = begun, list(new)
        # The new tokens of a prompt are its last ones.
        self._seen_TP = [
            torch.ones(n, k + n, dtype=torch.bool, device=device).tril(k)
            for k, n in zip(known, new, strict=True)
        ]
        self.prompt_states: States = {}
        """Layer -> keys and values of the whole prompts, `_UhPD`, padded on the right."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of the flat list, `_1HND` and `_1hND` to `_1NHD`."""
        new = [states.split(self._new, 2) for states in (query, key, value)]
        groups, rows = query.shape[1] // key.shape[1], list[torch.Tensor]()
        keys, values = list[torch.Tensor](), list[torch.Tensor]()
        for query, key, value, begun, seen_TP in zip(*new, self._begun, self._seen_TP, strict=True):
            if begun:
                key = torch.cat([begun[layer][0], key], 2)
                value = torch.cat([begun[layer][1], value], 2)
            keys.append(key)
            values.append(value)
            key, value = _repeat(key, groups), _repeat(value, groups)
            rows.append(
                nn.functional.scaled_dot_product_attention(
                    query, key, value, attn_mask=seen_TP, scale=scale
                )
            )
        width = max(key.shape[2] for key in keys)
        self.prompt_states[layer] = _stacked(keys, width), _stacked(values, width)
        return torch.cat(rows, 2).transpose(1, 2)


def _stacked(states: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Rows `_1hPD` as one tensor `_UhPD`."""
    # Zeros: hidden positions are multiplied with 0, which does not help against NaN.
    return torch.cat([nn.functional.pad(s, (0, 0, 0, width - s.shape[2])) for s in states])


class _Row(NamedTuple):
    """What one row of padded attention is for."""

    tokens: Sequence[int]
    """Places in the flat list that it computes."""
    skipped: int
    """Tokens before these whose results are not used."""


_Prompted = tuple[Reply, Sequence[int]]
"""A completion, and the places of its prompt."""


def _padded_texts(
    prompts: Sequence[Sequence[int]], replies: Sequence[_Prompted], dtype: torch.dtype, fused: bool
) -> Iterator[tuple[Texts, list[_Row]]]:
    """Prompts of similar length, then their completions, in groups of similar length, with what each row is for."""
    width = max(map(len, prompts))
    prompt_UP, step = _padded(prompts, width), width if fused else _BLOCK
    for start in range(0, width, step):
        end = min(start + step, width)
        rows = [_Row(prompt[start:end], 0) for prompt in prompts]
        yield Texts(prompt_UP[:, start:end], prompt_UP[:, :end], None), rows
    ends = [(reply, prompt) for reply, prompt in replies if reply.behind == len(prompt)]
    inner = [(reply, prompt) for reply, prompt in replies if reply.behind < len(prompt)]
    groups = [(ends, width)]
    # Behind beginnings of similar length, so that little of the rest is hidden and computed.
    for group in alike([reply.behind for reply, _ in inner], fused):
        groups.append(([inner[i] for i in group], max(inner[i][0].behind for i in group)))
    for members, seen in groups:
        for group in alike([len(reply.places) for reply, _ in members], fused):
            yield _padded_replies([members[i] for i in group], seen, dtype, fused)


def _padded_replies(
    replies: Sequence[_Prompted], width: int, dtype: torch.dtype, fused: bool
) -> tuple[Texts, list[_Row]]:
    """Completions of similar length, which see `width` tokens of their prompts at most."""
    before = [prompt[: reply.behind] for reply, prompt in replies]
    own = [reply.places for reply, _ in replies]
    both = [[*prompt, *tokens] for prompt, tokens in zip(before, own, strict=True)]
    longest, whole = (max(map(len, texts)) for texts in (own, both))
    # Long beside its prompt, a completion attends as one text with it: fused, a causal square costs half of its scores
    # and needs no mask. Otherwise the prompt's own attention is not repeated.
    if fused and whole * whole / 2 < longest * (width + longest):
        both_BS = _padded(both, whole)
        rows = [_Row(reply.places, reply.behind) for reply, _ in replies]
        return Texts(both_BS, both_BS, None), rows
    own_BT = _padded(own, longest)
    seen_BS = torch.cat([_padded(before, width), own_BT], 1)
    # Hidden: padding of the prompt, and later tokens.
    lengths_B = torch.tensor([*map(len, before)])
    padding_BP = torch.arange(width) >= lengths_B[:, None]
    later_TT = torch.ones(longest, longest, dtype=torch.bool).triu(1)
    shape = len(replies), longest, -1
    hidden_BTS = torch.cat([padding_BP[:, None].expand(shape), later_TT.expand(shape)], -1)
    mask_BTS = torch.zeros(hidden_BTS.shape, dtype=dtype).masked_fill_(hidden_BTS, float("-inf"))
    return Texts(own_BT, seen_BS, mask_BTS[:, None]), [_Row(tokens, 0) for tokens in own]


def _attend(
    query_BHTD: torch.Tensor,
    key_BhSD: torch.Tensor,
    value_BhSD: torch.Tensor,
    mask_B1TS: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention with a mask that is added to the scores; None for the causal mask of rows padded on the right."""
    groups = query_BHTD.shape[1] // key_BhSD.shape[1]
    return nn.functional.scaled_dot_product_attention(
        query_BHTD,
        _repeat(key_BhSD, groups),
        _repeat(value_BhSD, groups),
        attn_mask=mask_B1TS,
        is_causal=mask_B1TS is None,
        scale=scale,
    )


def _products_are_faster(states: torch.Tensor, longest: int) -> bool:
    """Returns whether plain products beat PyTorch's fused attention, which is slow in bfloat16 on CPUs.

    Prompts of 240 to 540 tokens take a quarter of the time (AVX-512). With the backward pass, 60 tokens behind 100 are
    three times as fast, 400 behind 600 as fast, and 800 behind 1200 half as fast (AMX). SmolLM2's heads.
    """
    return states.is_cpu and states.dtype == torch.bfloat16 and longest <= 1024


def alike(lengths: Sequence[int], fused: bool) -> list[list[int]]:
    """Cuts rows into groups of similar length, longest first; the order within a group stays.

    A group ends where its next row is a fifth shorter than its longest, if padding this row and
    all shorter ones would add more than `_WORTH_A_GROUP` positions, or more than there are without
    padding: one more call for each layer is cheaper than these, and not cheaper than less.
    """
    most = min(_WORTH_A_GROUP[fused], sum(lengths))
    groups: list[list[int]] = []
    longest = 0
    by_length = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for place, index in enumerate(by_length):
        saved = (longest - lengths[index]) * (len(lengths) - place)
        if not groups or (lengths[index] <= 0.8 * longest and saved > most):
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return [sorted(group) for group in groups]


_BLOCK = 128
"""Tokens of a prompt that are seen by those behind them in plain products, which otherwise compute all of a square."""
_WORTH_A_GROUP = {True: 2048, False: 128}
"""By `fused`: plain products take longer for each score, and their rows are cut into small pieces anyway."""


def _padded(rows: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """Pads indices to rows of equal length with 0; those entries are never read."""
    full = [[*row, *([0] * (width - len(row)))] for row in rows]
    return torch.tensor(full, dtype=torch.long).view(len(rows), width)


def _take(states_NHD: torch.Tensor, index_XY: torch.Tensor) -> torch.Tensor:
    """Gathers tokens in rows, `_XHYD`. `index_select` is faster than indexing, backward as well."""
    flat = states_NHD.index_select(0, index_XY.flatten())
    return flat.view(*index_XY.shape, *states_NHD.shape[1:]).transpose(1, 2)


def _repeat(states_BhSD: torch.Tensor, groups: int) -> torch.Tensor:
    return states_BhSD if groups == 1 else states_BhSD.repeat_interleave(groups, 1)
