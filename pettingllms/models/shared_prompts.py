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
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, count
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
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


def hidden_states(
    model: PreTrainedModel, layout: Layout, ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Computes the decoder's last hidden states, one for each token; see `forward`."""
    untouched = torch.zeros(1, 1, 1, 1, device=ids.device)
    states: torch.Tensor = model.base_model(
        input_ids=ids,
        attention_mask=untouched,
        position_ids=positions,
        use_cache=False,
        layout=layout,
    ).last_hidden_state
    return states


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
        keep_prompts: pad all prompts to one length, and keep their keys and values of each layer in
            `prompt_states`.
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
        # A completion of one token has none that anything follows.
        owned = [(reply, u) for u, rest in enumerate(completions) for reply in rest if reply.places]
        self._replies, self._owners = [reply for reply, _ in owned], [u for _, u in owned]
        self._keep_prompts = keep_prompts
        self.prompt_states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of the flat list, `_1HND` and `_1hND` to `_1NHD`."""
        query_NHD, key_NhD, value_NhD = (
            states[0].transpose(0, 1) for states in (query, key, value)
        )
        if not self._keep_prompts and _flash(query_NHD):
            return self._unpadded.attend(query_NHD, key_NhD, value_NhD, scale)[None]
        parts, order_N = self._padded
        rows: list[torch.Tensor] = []
        for padded_rows in parts:
            key_UhPD = _take(key_NhD, padded_rows.prompt_UP)
            value_UhPD = _take(value_NhD, padded_rows.prompt_UP)
            if self._keep_prompts:
                self.prompt_states[layer] = (key_UhPD, value_UhPD)
            rows += padded_rows.attend(query_NHD, key_NhD, value_NhD, key_UhPD, value_UhPD, scale)
        return torch.cat(rows).index_select(0, order_N)[None]

    @cached_property
    def _padded(self) -> tuple[list[_Part], torch.Tensor]:
        """The padded rows, and where each token of the flat list stands in them."""
        lengths = [len(prompt) for prompt in self._prompts]
        parts = [
            _Part(self._prompts, self._replies, self._owners, members, self._device)
            for members in ([[*range(len(lengths))]] if self._keep_prompts else alike(lengths))
        ]
        # One that is in several rows has the same value in all of them.
        places: dict[int, int] = {}
        first = 0
        for padded_rows in parts:
            for row in padded_rows.rows:
                places.update(zip(row.tokens, count(first + row.skipped), strict=False))
                first += row.width
        return parts, _in_order(places, self._device)

    @cached_property
    def _unpadded(self) -> _Unpadded:
        seen = [
            self._prompts[u][: r.behind] for r, u in zip(self._replies, self._owners, strict=True)
        ]
        replies = [reply.places for reply in self._replies]
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
    """Texts of any length in one call of FlashAttention, which only GPUs have.

    Args:
        seen: the places of the tokens that each text follows.
        own: the places of its own.
        device: where the model is.
    """

    def __init__(
        self, seen: Sequence[Sequence[int]], own: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        texts = [[*before, *text] for before, text in zip(seen, own, strict=True)]
        queries = [token for text in own for token in text]
        self._query_Q = torch.tensor(queries, device=device)
        self._key_K = torch.tensor([token for text in texts for token in text], device=device)
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
        begun: Sequence[Mapping[int, tuple[torch.Tensor, torch.Tensor]] | None],
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
        self.prompt_states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
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
    """One row of padded attention."""

    tokens: Sequence[int]
    """Places in the flat list that it computes."""
    skipped: int
    """Tokens before these whose results are not used."""
    width: int
    """Its length with padding."""


class _Part:
    """Prompts of similar length with their completions, in groups of similar length.

    Args:
        prompts: places of each prompt in the flat list.
        replies: completions, none empty.
        owners: the prompt of each completion.
        members: the prompts of this part.
        device: where the model is.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        replies: Sequence[Reply],
        owners: Sequence[int],
        members: Sequence[int],
        device: torch.device,
    ) -> None:
        width = max(len(prompts[u]) for u in members)
        self.prompt_UP = _padded([prompts[u] for u in members], width).to(device)
        self.rows = [_Row(prompts[u], 0, width) for u in members]
        """In the order in which `attend` returns them."""
        place = {u: index for index, u in enumerate(members)}
        indices = [index for index, owner in enumerate(owners) if owner in place]
        ends = [index for index in indices if replies[index].behind == len(prompts[owners[index]])]
        inner = [index for index in indices if replies[index].behind < len(prompts[owners[index]])]
        self._groups: list[_Behind | _Whole] = []
        self._add([(replies[i], prompts[owners[i]], place[owners[i]]) for i in ends], width)
        # Behind beginnings of similar length, so that little of the rest is hidden and computed.
        for group in alike([replies[index].behind for index in inner]):
            mine = [inner[index] for index in group]
            seen = max(replies[index].behind for index in mine)
            self._add([(replies[i], prompts[owners[i]], place[owners[i]]) for i in mine], seen)

    def _add(self, replies: Sequence[tuple[Reply, Sequence[int], int]], width: int) -> None:
        """Adds completions, with each its prompt and that prompt's row; they see `width` tokens of it at most."""
        device = self.prompt_UP.device
        for group in alike([len(reply.places) for reply, _, _ in replies]):
            mine = [replies[index][0] for index in group]
            longest = max(len(reply.places) for reply in mine)
            whole = max(reply.behind + len(reply.places) for reply in mine)
            # A causal square of prompt and completion costs half of its scores and needs no mask.
            if whole * whole / 2 < longest * (width + longest):
                both = [
                    [*prompt[: reply.behind], *reply.places]
                    for reply, prompt, _ in (replies[index] for index in group)
                ]
                self._groups.append(_Whole(_padded(both, whole).to(device)))
                self.rows += [_Row(reply.places, reply.behind, whole) for reply in mine]
            else:
                owner_B = torch.tensor([replies[index][2] for index in group])
                lengths_B = torch.tensor([reply.behind for reply in mine])
                index_BT = _padded([reply.places for reply in mine], longest)
                self._groups.append(
                    _Behind(index_BT.to(device), owner_B.to(device), lengths_B.to(device), width)
                )
                self.rows += [_Row(reply.places, 0, longest) for reply in mine]

    def attend(
        self,
        query_NHD: torch.Tensor,
        key_NhD: torch.Tensor,
        value_NhD: torch.Tensor,
        key_UhPD: torch.Tensor,
        value_UhPD: torch.Tensor,
        scale: float,
    ) -> list[torch.Tensor]:
        """Attention of the prompts, then of each group of completions; padded rows end to end."""
        out_UHPD = _attend(_take(query_NHD, self.prompt_UP), key_UhPD, value_UhPD, None, scale)
        rows = [out_UHPD.transpose(1, 2).flatten(0, 1)]
        for group in self._groups:
            if isinstance(group, _Whole):
                own_BHSD, key_BhSD, value_BhSD = (
                    _take(states, group.index_BS) for states in (query_NHD, key_NhD, value_NhD)
                )
                out_BHTD = _attend(own_BHSD, key_BhSD, value_BhSD, None, scale)
            else:
                out_BHTD = group.attend(query_NHD, key_NhD, value_NhD, key_UhPD, value_UhPD, scale)
            rows.append(out_BHTD.transpose(1, 2).flatten(0, 1))
        return rows


class _Whole(NamedTuple):
    """Completions that are long beside their prompts: each attends as one text with its prompt."""

    index_BS: torch.Tensor


class _Behind:
    """Completions that are short beside their prompts, whose own attention is not repeated.

    Args:
        index_BT: their tokens in the flat list.
        owner_B: the prompt of each, in its part.
        lengths_B: how many tokens of it each one sees.
        width: how many of them are computed, the rest hidden by a mask.
    """

    def __init__(
        self,
        index_BT: torch.Tensor,
        owner_B: torch.Tensor,
        lengths_B: torch.Tensor,
        width: int,
    ) -> None:
        self._index_BT, self._owner_B = index_BT, owner_B
        self._lengths_B, self._width = lengths_B, width
        self._mask_B1TS: torch.Tensor | None = None

    def attend(
        self,
        query_NHD: torch.Tensor,
        key_NhD: torch.Tensor,
        value_NhD: torch.Tensor,
        key_UhPD: torch.Tensor,
        value_UhPD: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attention of the completions, `_BHTD`."""
        return _attend(
            _take(query_NHD, self._index_BT),
            self._seen(key_UhPD, key_NhD),
            self._seen(value_UhPD, value_NhD),
            self._mask(query_NHD.dtype),
            scale,
        )

    def _seen(self, prompts_UhPD: torch.Tensor, states_NhD: torch.Tensor) -> torch.Tensor:
        """The beginning of each completion's prompt, then its own tokens."""
        if self._width < prompts_UhPD.shape[2]:
            prompts_UhPD = prompts_UhPD[:, :, : self._width]
        prompts_BhPD = prompts_UhPD.index_select(0, self._owner_B)
        return torch.cat([prompts_BhPD, _take(states_NhD, self._index_BT)], 2)

    def _mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Mask added to the scores, `_B1TS`: -inf at the prompt's padding and at later tokens."""
        if self._mask_B1TS is None:
            rows, longest = self._index_BT.shape
            device = self._index_BT.device
            prompt_BP = torch.arange(self._width, device=device) >= self._lengths_B[:, None]
            later_TT = torch.ones(longest, longest, dtype=torch.bool, device=device).triu(1)
            hidden_BTS = torch.cat(
                [prompt_BP[:, None].expand(-1, longest, -1), later_TT[None].expand(rows, -1, -1)],
                -1,
            )
            mask_BTS = torch.zeros(hidden_BTS.shape, dtype=dtype, device=device)
            # The same in all layers.
            self._mask_B1TS = mask_BTS.masked_fill_(hidden_BTS, float("-inf"))[:, None]
        return self._mask_B1TS


def _attend(
    query_BHTD: torch.Tensor,
    key_BhSD: torch.Tensor,
    value_BhSD: torch.Tensor,
    mask_B1TS: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention with a mask that is added to the scores; None for the causal mask of rows padded on the right."""
    if _products_are_faster(query_BHTD, key_BhSD):
        return checkpoint(  # type: ignore[no-any-return]
            _products,
            query_BHTD,
            key_BhSD,
            value_BhSD,
            mask_B1TS,
            scale,
            use_reentrant=False,
            preserve_rng_state=False,
        )
    groups = query_BHTD.shape[1] // key_BhSD.shape[1]
    return nn.functional.scaled_dot_product_attention(
        query_BHTD,
        _repeat(key_BhSD, groups),
        _repeat(value_BhSD, groups),
        attn_mask=mask_B1TS,
        is_causal=mask_B1TS is None,
        scale=scale,
    )


def _products_are_faster(query_BHTD: torch.Tensor, key_BhSD: torch.Tensor) -> bool:
    """Returns whether plain matrix products beat PyTorch's fused attention, whose backward pass in bfloat16 is slow on CPUs.

    With 60 tokens behind 100 three times as fast, with 200 behind 300 no faster (SmolLM2, AMX).
    """
    return (
        query_BHTD.requires_grad
        and query_BHTD.device.type == "cpu"
        and query_BHTD.dtype == torch.bfloat16
        and query_BHTD.shape[2] * key_BhSD.shape[2] <= 256**2
    )


def _products(
    query_BHTD: torch.Tensor,
    key_BhSD: torch.Tensor,
    value_BhSD: torch.Tensor,
    mask_B1TS: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """The same as two products, with the query heads of a key head as further tokens."""
    rows, heads, tokens, size = query_BHTD.shape
    shared, seen = key_BhSD.shape[1:3]
    if mask_B1TS is None:
        mask_B1TS = query_BHTD.new_full((1, 1, tokens, seen), float("-inf")).triu(1)
    query = (query_BHTD * scale).reshape(rows * shared, -1, size)
    scores = torch.bmm(query, key_BhSD.reshape(rows * shared, seen, size).transpose(1, 2))
    scores.view(rows, heads, tokens, seen).add_(mask_B1TS)
    weights = torch.softmax(scores, -1)
    value = value_BhSD.reshape(rows * shared, seen, size)
    return torch.bmm(weights, value).view(rows, heads, tokens, size)


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Cuts rows into groups of similar length, longest first; the order within a group stays.

    A group ends where its next row is a fifth shorter than its longest, if padding this row and
    all shorter ones would add more than `_WORTH_A_GROUP` positions, or more than there are without
    padding: one more call for each layer is cheaper than these, and not cheaper than less.
    """
    most = min(_WORTH_A_GROUP, sum(lengths))
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


_WORTH_A_GROUP = 2048


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
