"""Keys and values of rows that join and leave a batch while others are decoded.

A cache for any transformers model whose layers attend to keys and values, keep states of a fixed size
(linear attention, convolutions), or both. All rows end in one column, so that a step writes a single
column for all of them; shorter rows have unused columns on their left, which the mask hides:

    columns    start .......... end
    row 0      . . . p p p p t t t|
    row 1      p p p p p p p p t t|     p: prompt, t: sampled, |: where the next token goes
    row 2      . . . . . . . p p p|     . : hidden

Rows move to fill the place of one that left, and the buffer is laid out anew when it is full, which
happens at most once in as many steps as the longest row has tokens. Layers that see a window keep all
columns, because rows of other lengths need other ones; their mask hides the rest.

Shapes: `_R` rows, `_U` prompts, `_P` columns of the prompts, `_S` columns in use, `_h` key-value
heads, `_D` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from pettingllms.errors import ConfigError

_SPARE_COLUMNS = 64
_SPARE_ROWS = 8


def prompt_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for prompts of a model, from which rows can join a `RowCache`.

    Raises:
        ConfigError: a layer keeps something that rows cannot take along.
    """
    cache = DynamicCache(config=model.config)
    for place, layer in enumerate(cache.layers):
        # Such a layer drops columns, which rows of other lengths still need; the mask hides them
        # instead.
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
        elif type(layer) not in (
            DynamicLayer,
            LinearAttentionLayer,
            LinearAttentionAndFullAttentionLayer,
        ):
            raise ConfigError(
                f"models of type {model.config.model_type!r} cannot be served in this process: "
                f"requests that come and go cannot share a {type(layer).__name__}; use --backend "
                "vllm"
            )
    # Rows are found by the columns of their keys, which states alone do not have.
    if not any(isinstance(layer, DynamicLayer) for layer in cache.layers):
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be served in this process: no layer "
            "keeps keys and values; use --backend vllm"
        )
    return cache


class _Layer(DynamicLayer):
    """Keys and values of one layer, in buffers with spare rows and columns."""

    def __init__(self, cache: RowCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self.dtype, self.device = keys.dtype, keys.device
        self.buffers = [keys, values]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes one column, `_Rh1D`; returns all columns in use, `_RhSD`."""
        del args, kwargs
        cache = self._cache
        rows, start, end = cache.rows, cache.start, cache.end
        keys, values = self.buffers
        keys[:rows, :, end : end + 1] = key_states
        values[:rows, :, end : end + 1] = value_states
        return keys[:rows, :, start : end + 1], values[:rows, :, start : end + 1]

    def get_seq_length(self) -> int:
        """Columns in use before the step."""
        return self._cache.end - self._cache.start


class _MixedLayer(_Layer, LinearAttentionLayer):  # type: ignore[misc]
    """A layer that has keys and values as well as states."""

    def __init__(self, cache: RowCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        LinearAttentionLayer.__init__(self)
        _Layer.__init__(self, cache, keys, values)


_STATES = ("conv_states", "recurrent_states")
_MARKS = (
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)


def _join(mine: LinearAttentionLayer, theirs: LinearAttentionLayer, owner_R: torch.Tensor) -> None:
    """Appends rows to the states of a layer: those of the prompts that the rows continue."""
    # The class is named, because a mixed layer's own method would move its keys and values as well.
    LinearAttentionLayer.reorder_cache(theirs, owner_R)  # type: ignore[arg-type]
    for kind in _STATES:
        old, new = getattr(mine, kind), getattr(theirs, kind)
        for number, state in new.items():
            if state is not None:
                held = old.get(number)
                old[number] = state if held is None else torch.cat([held, state])
    # A fresh layer would take its next input for the first one, and overwrite the states.
    for mark in _MARKS:
        setattr(mine, mark, getattr(theirs, mark))


class RowCache(Cache):
    """The cache of a batch; `add` and `keep` change its rows, a forward pass appends a token to each."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._mine: list[_Layer] = []
        """The layers with keys and values."""
        self._states: list[LinearAttentionLayer] = []
        """The layers with states, which may be among the others as well."""
        self.start = self.end = 0
        self.lengths: list[int] = []
        """Tokens of each row."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def mask(self, device: torch.device) -> torch.Tensor:
        """The columns that each row sees in the next step, its new token included, `_RS`."""
        width = self.end - self.start + 1
        first_R = torch.tensor([width - 1 - length for length in self.lengths], device=device)
        return torch.arange(width, device=device) >= first_R[:, None]

    def add(self, prompts: DynamicCache, lengths: Sequence[int], owners: Sequence[int]) -> None:
        """Appends rows that continue prompts.

        Args:
            prompts: from `prompt_cache`, filled with prompts that are padded on the left.
            lengths: tokens of each prompt.
            owners: index of the prompt of each new row.
        """
        width, new, old = max(lengths), len(owners), self.rows
        if not self.layers:
            self._begin(prompts)
        self._make_room(old + new, width)
        place = (slice(old, old + new), slice(None), slice(self.end - width, self.end))
        found: list[Any] = prompts.layers
        for layer, theirs in zip(self.layers, found, strict=True):
            owner_R = torch.tensor(owners, device=getattr(theirs, "device", None))
            if isinstance(layer, _Layer):
                for buffer, states in zip(layer.buffers, (theirs.keys, theirs.values), strict=True):
                    buffer[place] = states.index_select(0, owner_R)
            if isinstance(layer, LinearAttentionLayer):
                _join(layer, theirs, owner_R)
        self.lengths += [lengths[owner] for owner in owners]
        self.start = self.end - max(self.lengths)

    def _begin(self, prompts: DynamicCache) -> None:
        """Makes empty layers of the kinds that the prompts have."""
        found: list[Any] = prompts.layers
        for theirs in found:
            kind = _MixedLayer if isinstance(theirs, LinearAttentionLayer) else _Layer
            if isinstance(theirs, DynamicLayer) and theirs.is_initialized:
                pair: tuple[Any, Any] = (theirs.keys, theirs.values)
                self.layers.append(kind(self, *(each[:0, :, :0] for each in pair)))
            else:  # states alone, or a layer that keeps nothing
                self.layers.append(type(theirs)())
        self._mine = [layer for layer in self.layers if isinstance(layer, _Layer)]
        self._states = [layer for layer in self.layers if isinstance(layer, LinearAttentionLayer)]

    def before_step(self) -> None:
        """Makes sure that there is a column for the tokens of the next step."""
        self._make_room(self.rows, 0)

    def after_step(self) -> None:
        """Counts the column that the step has written."""
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def keep(self, index: Sequence[int]) -> None:
        """Moves row `index[i]` to row i; rows not named are dropped."""
        moved = [(to, source) for to, source in enumerate(index) if to != source]
        self.lengths = [self.lengths[source] for source in index]
        # An empty batch frees its memory, and the next rows may begin with buffers of their own
        # size.
        if not index:
            self._mine, self._states, self.layers, self.start, self.end = [], [], [], 0, 0
            return
        for each in self._states:
            index_R = torch.tensor(index, device=each.device)
            LinearAttentionLayer.reorder_cache(each, index_R)  # type: ignore[arg-type]
        # Through tensors of all moves at once: a row may be both read and written, and the right
        # side is copied first.
        if moved:
            to, source = zip(*moved, strict=True)
            window = slice(self.start, self.end)
            for layer in self._mine:
                to_R = torch.tensor(to, device=layer.device)
                source_R = torch.tensor(source, device=layer.device)
                for buffer in layer.buffers:
                    buffer[to_R, :, window] = buffer[source_R, :, window]
        self.start = self.end - max(self.lengths)

    def _make_room(self, rows: int, width: int) -> None:
        """Lays the buffers out anew where rows, columns of a prompt or the next column do not fit."""
        capacity, _, columns, _ = self._mine[0].buffers[0].shape
        if rows <= capacity and width <= self.end < columns:
            return
        held, old = self.end - self.start, self.rows
        end = max(held, width)
        # Twice the columns in use: the larger the buffer, the more steps until it is copied again.
        capacity, columns = max(rows + _SPARE_ROWS, capacity), 2 * end + _SPARE_COLUMNS
        window = slice(self.start, self.end)
        for layer in self._mine:
            for number, buffer in enumerate(layer.buffers):
                # Zeros: hidden columns are multiplied with 0, which does not help against NaN.
                fresh = buffer.new_zeros(capacity, buffer.shape[1], columns, buffer.shape[3])
                fresh[:old, :, end - held : end] = buffer[:old, :, window]
                layer.buffers[number] = fresh
        self.start, self.end = end - held, end
