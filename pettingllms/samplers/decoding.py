"""Next-token computation for the texts that continue few prompts, in two ways.

Rows start as the prompts and branch where candidates first differ, so that each prompt, and each
beginning that candidates have in common, is computed once. `SharedDecoding` also keeps each
prompt's keys and values once and lets all its rows attend to them together; it needs a model whose
attention can be replaced.
`PlainDecoding` repeats transformers' own cache for every row and works for any model.

Shapes: `_U` prompts, `_P` prompt tokens, `_R` rows (different texts that go on), `_T` new tokens so
far, `_K` most rows of a prompt, `_H` query heads, `_h` key-value heads, `_G` query heads per
key-value head, `_W` prompts x key-value heads, `_N` rows x key-value heads, `_S` positions of a prompt
and the new tokens behind it, `_D` head size, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from pettingllms.models.shared_prompts import ContinuedLayout, PackedLayout, forward

if TYPE_CHECKING:
    from pettingllms.samplers.memory import States

# Room for so many new tokens before a buffer has to be copied for the first time.
_SPARE = 32


class _Cache:
    """Keys or values of all rows, `_RhTD`, in a buffer with spare rows and positions at its ends."""

    def __init__(self, new_RhTD: torch.Tensor) -> None:
        rows, heads, length, size = new_RhTD.shape
        self._buffer_RhTD = new_RhTD.new_empty(rows, heads, length + _SPARE, size)
        self._rows_RhTD, self._length = self._buffer_RhTD, 0
        self.append(new_RhTD)

    @property
    def used_RhTD(self) -> torch.Tensor:
        """Everything so far, as a view."""
        return self._rows_RhTD.narrow(2, 0, self._length)

    def append(self, new_RhTD: torch.Tensor) -> torch.Tensor:
        """Writes positions behind the last one; returns everything so far as a view."""
        start, count = self._length, new_RhTD.shape[2]
        end = start + count
        if end > self._buffer_RhTD.shape[2]:
            # Twice as much, so that all copies of a long text together cost about its length.
            self._resize(self._rows_RhTD.shape[0], 2 * end)
        self._rows_RhTD.narrow(2, start, count).copy_(new_RhTD)
        self._length = end
        return self.used_RhTD

    def keep(self, index_R: torch.Tensor, moved: torch.Tensor, most: int) -> None:
        """Copies rows to their new places; there will never be more than `most`."""
        rows = index_R.shape[0]
        if rows > self._buffer_RhTD.shape[0]:
            # Rows branch again and again at first, so that the buffer grows by more than they need.
            self._resize(min(2 * rows, most), self._buffer_RhTD.shape[2])
        used_RhTD = self._buffer_RhTD.narrow(2, 0, self._length)
        # Indexing copies: all rows are read before the first of them is overwritten.
        used_RhTD[moved] = used_RhTD[index_R[moved]]
        self._rows_RhTD = self._buffer_RhTD[:rows]

    def _resize(self, rows: int, length: int) -> None:
        old_RhTD = self.used_RhTD
        buffer_RhTD = old_RhTD.new_empty(rows, old_RhTD.shape[1], length, old_RhTD.shape[3])
        buffer_RhTD[: old_RhTD.shape[0], :, : self._length] = old_RhTD
        self._buffer_RhTD, self._rows_RhTD = buffer_RhTD, buffer_RhTD[: old_RhTD.shape[0]]


class SharedDecoding:
    """Keeps each prompt's keys and values once; all its rows attend to them together.

    Args:
        model: one that `share_prompts` accepted.
        prompts: token ids.
        begun: keys and values of the beginnings of prompts, shorter than these; None for none.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[tuple[int, ...]],
        begun: Sequence[States | None] = (),
    ) -> None:
        self._model, self._prompts = model, prompts
        self._begun = begun or [None] * len(prompts)
        device = model.device
        self._owner_R = torch.arange(len(prompts), device=device)
        lengths_U = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._position_R = lengths_U
        column_P = torch.arange(int(lengths_U.max()), device=device)
        hidden_UP = column_P >= lengths_U[:, None]
        # None where all prompts are as long, because a mask costs a pass over all scores.
        self._hidden_U11P = hidden_UP[:, None, None] if bool(hidden_UP.any()) else None
        self._states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._caches: dict[int, tuple[_Cache, _Cache]] = {}
        self._arrange()

    def start(self) -> torch.Tensor:
        """Computes the prompts, which are the first rows; logits `_RV` of what follows each."""
        device = self._model.device
        cached = [next(iter(begun.values()))[0].shape[2] if begun else 0 for begun in self._begun]
        new = [ids[count:] for count, ids in zip(cached, self._prompts, strict=True)]
        ends = list(accumulate(map(len, new)))
        layout: ContinuedLayout | PackedLayout
        if any(cached):
            layout = ContinuedLayout(self._begun, cached, [*map(len, new)], device)
        else:
            places = [range(end - len(ids), end) for end, ids in zip(ends, new, strict=True)]
            layout = PackedLayout(places, [()] * len(places), device, keep_prompts=True)
        ids_N = torch.tensor([token for ids in new for token in ids], device=device)
        ranges = zip(cached, map(len, self._prompts), strict=True)
        position_N = torch.cat([torch.arange(*place) for place in ranges]).to(device)
        last_U = torch.tensor(ends, device=device) - 1
        logits_UV = forward(self._model, layout, ids_N[None], position_N[None], last_U)[0]
        self._states = {
            layer: (key.contiguous(), value.contiguous())
            for layer, (key, value) in layout.prompt_states.items()
        }
        self._begun = ()
        return logits_UV

    def states(self, u: int) -> States:
        """Keys and values of a prompt, after `start`."""
        length = len(self._prompts[u])
        # Copied: a view would keep the other prompts.
        return {
            layer: (key_UhPD[u, None, :, :length].clone(), value_UhPD[u, None, :, :length].clone())
            for layer, (key_UhPD, value_UhPD) in self._states.items()
        }

    def step(self, token_R: torch.Tensor) -> torch.Tensor:
        """Appends a token to every row; logits `_RV` of the next."""
        position_R, self._position_R = self._position_R, self._position_R + 1
        return forward(self._model, self, token_R[:, None], position_R[:, None], 1)[:, -1]

    def keep(self, index_R: torch.Tensor, most: int) -> None:
        """Makes row `index_R[i]` row i: one named twice branches, one not named is dropped.

        There will never be more than `most` rows again.
        """
        # A row that stays in its place need not be copied.
        moved = (index_R != torch.arange(index_R.shape[0], device=index_R.device)).nonzero()[:, 0]
        for keys, values in self._caches.values():
            keys.keep(index_R, moved, most)
            values.keep(index_R, moved, most)
        self._position_R = self._position_R[index_R]
        self._owner_R = self._owner_R[index_R]
        live_U = self._owner_R.unique()
        # Not for every prompt that ends, because those that stay have to be copied.
        if 2 * live_U.shape[0] <= len(self._prompts):
            self._forget(live_U)
        self._arrange()

    def _forget(self, live_U: torch.Tensor) -> None:
        """Drops the prompts that no row continues."""
        self._prompts = [self._prompts[u] for u in live_U.tolist()]
        # `unique` has sorted them, so that a prompt's new place is found by bisection.
        self._owner_R = torch.searchsorted(live_U, self._owner_R)
        if self._hidden_U11P is not None:
            self._hidden_U11P = self._hidden_U11P[live_U]
        for layer, (key_UhPD, value_UhPD) in self._states.items():
            self._states[layer] = key_UhPD[live_U], value_UhPD[live_U]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of one new token per row, `_RH1D` and `_Rh1D` to `_R1HD`.

        Each prompt is one matrix for all its rows.
        """
        if layer in self._caches:
            keys, values = self._caches[layer]
            key, value = keys.append(key), values.append(value)
        else:
            self._caches[layer] = _Cache(key), _Cache(value)
        key_NTD, value_NTD = key.flatten(0, 1), value.flatten(0, 1)
        key_UhPD, value_UhPD = self._states[layer]
        rows, heads, _, size = query.shape
        few, width = key_UhPD.shape[1:3]
        query_NGD = (query * scale).reshape(rows * few, heads // few, size)
        score_WKP = self._to_grid(query_NGD, few).bmm(key_UhPD.flatten(0, 1).mT)
        if self._hidden_U11P is not None:
            # `unflatten` gives a view, so that this changes the scores themselves.
            score_WKP.unflatten(0, (-1, few)).masked_fill_(self._hidden_U11P, float("-inf"))
        scores = self._to_rows(score_WKP, few, heads // few), query_NGD.bmm(key_NTD.mT)
        # One softmax over the prompt's and the row's own positions, in float32 as in transformers.
        weight_NGS = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(value_NTD.dtype)
        out_WKD = self._to_grid(weight_NGS[..., :width], few).bmm(value_UhPD.flatten(0, 1))
        out_NGD = self._to_rows(out_WKD, few, heads // few)
        out_NGD = out_NGD + weight_NGS[..., width:].bmm(value_NTD)
        return out_NGD.view(rows, 1, heads, size)

    def _arrange(self) -> None:
        """Lays the rows out as prompts x their rows, so that a prompt's rows are one matrix."""
        owners = self._owner_R.tolist()
        rows: list[list[int]] = [[] for _ in self._prompts]
        for row, owner in enumerate(owners):
            rows[owner].append(row)
        most = max(map(len, rows))
        # An empty place repeats row 0; its output is not read.
        grid = [mine + [0] * (most - len(mine)) for mine in rows]
        places = {row: u * most + k for u, mine in enumerate(rows) for k, row in enumerate(mine)}
        device = self._owner_R.device
        self._grid_UK = torch.tensor(grid, device=device)
        self._place_R = torch.tensor([places[row] for row in range(len(owners))], device=device)
        # Rows in the order of the grid need no gathering, only views.
        self._regular = [row for mine in grid for row in mine] == list(range(len(owners)))

    def _to_grid(self, states_NGX: torch.Tensor, heads: int) -> torch.Tensor:
        """Rows to `_WKX`, where K counts rows x query heads."""
        prompts, most = self._grid_UK.shape
        _, groups, size = states_NGX.shape
        if self._regular:
            states = states_NGX.reshape(prompts, most, heads, groups, size)
        else:
            states = states_NGX.view(-1, heads, groups, size)[self._grid_UK]
        return states.transpose(1, 2).reshape(prompts * heads, most * groups, size)

    def _to_rows(self, states_WKX: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
        prompts, most = self._grid_UK.shape
        size = states_WKX.shape[2]
        states = states_WKX.view(prompts, heads, most, groups, size).transpose(1, 2)
        if not self._regular:
            states = states.reshape(-1, heads, groups, size)[self._place_R]
        return states.reshape(-1, groups, size)


class PlainDecoding:
    """Repeats transformers' own cache for every row.

    Args:
        model: any causal model.
        prompts: token ids.
        pad_id: fills the left of shorter prompts, masked.
    """

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], pad_id: int
    ) -> None:
        self._model = model
        device = model.device
        width = max(len(prompt) for prompt in prompts)
        # Padded on the left, so that the last position of every row is its latest token.
        ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._ids_UP = torch.tensor(ids, device=device)
        self._mask_RS = torch.tensor(mask, device=device)
        self._position_R = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._cache = DynamicCache(config=model.config)

    def start(self) -> torch.Tensor:
        """Computes the prompts, which are the first rows; logits `_RV` of what follows each."""
        # Padding would be at position -1, which a table of positions does not have.
        position_UP = (self._mask_RS.cumsum(-1) - 1).clamp(min=0)
        return self._logits(self._ids_UP, position_UP)

    def step(self, token_R: torch.Tensor) -> torch.Tensor:
        """Appends a token to every row; logits `_RV` of the next."""
        self._mask_RS = nn.functional.pad(self._mask_RS, (0, 1), value=1)
        logits_RV = self._logits(token_R[:, None], self._position_R[:, None])
        self._position_R = self._position_R + 1
        return logits_RV

    def keep(self, index_R: torch.Tensor, most: int) -> None:  # noqa: ARG002 - keeps no spare rows
        """Makes row `index_R[i]` row i: one named twice branches, one not named is dropped."""
        # Made for beam search, it takes any index, also of more or fewer rows than there are.
        self._cache.reorder_cache(index_R)  # type: ignore[arg-type]
        self._mask_RS = self._mask_RS[index_R]
        self._position_R = self._position_R[index_R]

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask_RS,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            # Those of a whole prompt would be as many numbers as positions x vocabulary.
            logits_to_keep=1,
        )
        logits_RV: torch.Tensor = output.logits[:, -1]
        return logits_RV
