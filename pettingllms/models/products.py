"""Attention of padded rows by plain matrix products, for bfloat16 on a CPU.

PyTorch's fused attention is slow there, its backward pass above all, and autograd over rows that are gathered and
padded moves more memory than it computes. Here a few rows at a time, while they are in the cache, go through all steps,
and the scores are computed again for the backward pass.

Shapes: see `shared_prompts`; `_X` heads of tokens, token after token, `_G` = `_H` / `_h` * `_T` queries of a key's head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

_CACHED_SCORES = 1 << 19
"""1 MiB in bfloat16: about what a core keeps at hand."""


class Texts(NamedTuple):
    """Rows of equal length that attend alike."""

    query_BT: torch.Tensor
    """Places of the tokens that see, in the flat list."""
    seen_BS: torch.Tensor
    """Places of those that they see."""
    mask_B1TS: torch.Tensor | None
    """Added to the scores; None for the causal mask, in which the last one sees the last."""


class _Rows(NamedTuple):
    """A few rows, as places of their heads."""

    query_BG: torch.Tensor
    seen_BS: torch.Tensor
    mask_B1TS: torch.Tensor
    used_X: torch.Tensor
    """Where the gradient of each output is; behind the last for an output that nothing uses."""

    def of(self, states_XD: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Queries `(B * h, G, D)`, keys and values `(B * h, S, D)`."""
        places = self.query_BG, self.seen_BS, self.seen_BS
        return [
            states.index_select(0, place.flatten()).view(*place.shape, -1)
            for states, place in zip(states_XD, places, strict=True)
        ]


class Places:
    """Where the heads of padded rows are in states of shape (tokens * heads, size).

    Args:
        texts: the rows.
        order_N: where each token of the flat list stands in them, one row after the other.
        heads: of queries.
        shared: of keys and values.
    """

    def __init__(
        self, texts: Iterable[Texts], order_N: torch.Tensor, heads: int, shared: int
    ) -> None:
        pieces, slots, first = (
            list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]](),
            list[torch.Tensor](),
            0,
        )
        for query_BT, seen_BS, mask in texts:
            (rows, length), seen = query_BT.shape, seen_BS.shape[1]
            if mask is None:
                mask = torch.full((length, seen), float("-inf"), dtype=torch.bfloat16)
                mask = mask.triu(1 + seen - length)
            size = max(1, _CACHED_SCORES // (heads * length * seen))
            pieces += zip(
                _of_heads(query_BT, heads).view(rows * shared, -1).split(size * shared),
                _of_heads(seen_BS, shared).view(rows * shared, -1).split(size * shared),
                mask.expand(rows, 1, -1, -1).split(size),
                strict=True,
            )
            slots_BHT = torch.arange(first, first + rows * heads * length).view(rows, heads, length)
            slots.append(slots_BHT.transpose(1, 2).flatten(0, 1))
            first += slots_BHT.numel()
        self.order_X = torch.cat(slots)[order_N].flatten()
        """Where the output of each head of the flat list stands in those of the rows."""
        used = torch.full((first,), len(self.order_X))
        used[self.order_X] = torch.arange(len(self.order_X))
        parts = used.split([query.numel() for query, _, _ in pieces])
        self.rows = [
            _Rows(query, seen, hidden, part)
            for (query, seen, hidden), part in zip(pieces, parts, strict=True)
        ]


def products(
    places: Places,
    scale: float,
    query_NHD: torch.Tensor,
    key_NhD: torch.Tensor,
    value_NhD: torch.Tensor,
) -> torch.Tensor:
    """Computes attention of a flat list, `_NHD`, whose rows and masks are in `places`."""
    states = query_NHD, key_NhD, value_NhD
    return _Products.apply(places, scale, *states)  # type: ignore[no-untyped-call, no-any-return]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        places: Places,
        scale: float,
        query_NHD: torch.Tensor,
        key_NhD: torch.Tensor,
        value_NhD: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the output."""
        ctx.places, ctx.scale = places, scale
        ctx.save_for_backward(query_NHD, key_NhD, value_NhD)
        states_XD = [states.flatten(0, 1) for states in (query_NHD, key_NhD, value_NhD)]
        outputs = []
        for rows in places.rows:
            query, key, value = rows.of(states_XD)
            weights = _weights(query, key, rows.mask_B1TS, scale)
            outputs.append(torch.bmm(weights, value).flatten(0, 1))
        return torch.cat(outputs).index_select(0, places.order_X).view_as(query_NHD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the three states."""
        states_XD = [states.flatten(0, 1) for states in ctx.saved_tensors]
        key_grad_XD, value_grad_XD = map(torch.zeros_like, states_XD[1:])
        grad_XD = grad_NHD.flatten(0, 1)
        grad_XD = torch.cat([grad_XD, grad_XD.new_zeros(1, grad_XD.shape[1])])
        query_grads = []
        for rows in ctx.places.rows:
            query, key, value = rows.of(states_XD)
            grad = grad_XD.index_select(0, rows.used_X).view_as(query)
            weights = _weights(query, key, rows.mask_B1TS, ctx.scale)
            value_grad = torch.bmm(weights.transpose(1, 2), grad)
            scores_grad = torch._softmax_backward_data(
                torch.bmm(grad, value.transpose(1, 2)), weights, -1, weights.dtype
            )
            query_grads.append(torch.bmm(scores_grad, key).flatten(0, 1))
            key_grad = torch.bmm(scores_grad.transpose(1, 2), query)
            place_X = rows.seen_BS.flatten()
            key_grad_XD.index_add_(0, place_X, key_grad.flatten(0, 1))
            value_grad_XD.index_add_(0, place_X, value_grad.flatten(0, 1))
        query_grad_XD = torch.cat(query_grads).index_select(0, ctx.places.order_X).mul_(ctx.scale)
        grads = query_grad_XD, key_grad_XD.mul_(ctx.scale), value_grad_XD
        return None, None, *(x.view_as(y) for x, y in zip(grads, ctx.saved_tensors, strict=True))


def _of_heads(places_BT: torch.Tensor, heads: int) -> torch.Tensor:
    """Places of the heads of tokens, `_BHT`."""
    return places_BT[:, None] * heads + torch.arange(heads)[:, None]


def _weights(
    query: torch.Tensor, key: torch.Tensor, mask_B1TS: torch.Tensor, scale: float
) -> torch.Tensor:
    """Weights `(B * h, G, S)` of the values; a scaled sum of products, and its softmax."""
    scores = torch.bmm(query, key.transpose(1, 2))
    by_head = scores.view(len(mask_B1TS), -1, *mask_B1TS.shape[2:])
    torch.add(mask_B1TS, by_head, alpha=scale, out=by_head)
    return torch.softmax(scores, -1)
