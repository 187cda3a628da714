"""A batch that never ends: rows are added and removed between steps, in this process.

`BatchGenerator` (`samplers/transformers.py`) decodes a fixed set of rows to its end, so that its
batches get smaller and smaller, and who comes late waits. Here a row may join at any step and leaves
with its last token, so that one batch can serve whoever asks, or be refilled.

A row's tokens follow from its own prompt, settings and seed: beyond the rounding of batched matrix
products they do not depend on which rows share its steps, nor on when it joined.

The cache is transformers' own. All rows end in its last column; shorter rows have unused columns on their
left, which the mask hides:

    row 0      . . . p p p p t t t
    row 1      p p p p p p p p t t     p: prompt, t: sampled, . : hidden
    row 2      . . . . . . . p p p

Nothing is queued and no thread is started here; `ContinuousBatch` belongs to one thread.

Shapes: `_U` distinct prompts, `_P` prompt tokens, `_R` rows, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from pettingllms.errors import ConfigError
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.transformers import distribution, draw, uniform

Likely = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities, likeliest first."""
_KEPT = ("keys", "values")
"""Of a layer with attention."""
_SCORED_AT_ONCE = 256
"""Positions of a prompt whose log-probabilities are in memory at the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A completion to sample.

    Args:
        key: names the row in what `add` and `step` return; hashable.
        prompt_ids: at least one token.
        params: how tokens are chosen; with `max_new_tokens` 0 the prompt is only scored.
        noise: a number in [0, 1) for each token, as from `rows_of`; unused when greedy.
        likeliest: how many of the likeliest tokens to report beside each one.
        score_prompt: report the log-probabilities of the prompt's tokens as well.
    """

    key: Any
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    noise: torch.Tensor = field(repr=False)
    likeliest: int = 0
    score_prompt: bool = False


class Token(NamedTuple):
    """A token of a row, or of its prompt."""

    key: Any
    id: int
    logprob: float
    """Natural log, under the distribution that was drawn from; of a prompt's token, the model's."""
    likeliest: Likely
    end: Literal["stop", "length"] | None = None
    """Why the row has left the batch with this token; None if it has not."""


class Added(NamedTuple):
    """The tokens that rows get when they join a batch."""

    drawn: list[Token]
    """The first token of each row, except those with `max_new_tokens` 0."""
    prompts: dict[Any, list[Token]]
    """Of each row with `score_prompt`: the prompt's tokens from the second on."""


def rows_of(
    prompt_ids: tuple[int, ...],
    n: int,
    params: SamplingParams,
    seed: int,
    *,
    key: Callable[[int], Any],
    likeliest: int = 0,
    score_prompt: bool = False,
) -> list[Row]:
    """Rows of `n` completions of one prompt, with the random numbers that `BatchGenerator` draws.

    Args:
        prompt_ids: the prompt.
        n: completions.
        params: as in `Row`.
        seed: all their randomness, between -2**63 and 2**63 - 1.
        key: key of the row of each completion, given its number.
        likeliest: as in `Row`.
        score_prompt: as in `Row`, for the first of them.
    """
    drawn = 0 if params.greedy else params.max_new_tokens
    # All numbers at once, in the order in which `BatchGenerator` draws them, so that both complete
    # a prompt alike.
    noise = uniform([seed], n, drawn)
    return [
        Row(key(k), prompt_ids, params, noise[k], likeliest, score_prompt and k == 0)
        for k in range(n)
    ]


class ContinuousBatch:
    """Decodes rows that come and go, with one model.

    Args:
        model: returns the model, in evaluation mode; asked before every forward pass, so that
            several batches may share one with different adapters.
        end_ids: tokens that end a completion.
        pad_id: fills the left of shorter prompts; any id will do, because it is masked.
    """

    def __init__(
        self, model: Callable[[], PreTrainedModel], end_ids: Sequence[int], pad_id: int
    ) -> None:
        self._model, self._end_ids, self._pad_id = model, frozenset(end_ids), pad_id
        self._rows: list[Row] = []
        self._last: list[int] = []
        """The token of each row that is not in the cache yet."""
        self._cache: DynamicCache | None = None
        """Of the rows; None without any."""
        self._lengths: list[int] = []
        """Tokens of each row that are in the cache."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> list[Any]:
        """The rows in the batch."""
        return [row.key for row in self._rows]

    @property
    def longest(self) -> int:
        """Tokens of the longest row at its end, prompt included, if it is sampled to its limit."""
        return max((len(r.prompt_ids) + r.params.max_new_tokens for r in self._rows), default=0)

    @torch.no_grad()
    def add(self, rows: Sequence[Row]) -> Added:
        """Computes the rows' prompts, equal ones once, draws a token for each row, and takes them in."""
        distinct = {prompt: u for u, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in rows))}
        owners = [distinct[row.prompt_ids] for row in rows]
        model = self._model()
        cache = prompt_cache(model)
        whole = any(row.score_prompt for row in rows)
        logits_UPV = self._prefill(model, list(distinct), cache, whole=whole)
        prompts = {
            row.key: self._scores(row, logits_UPV[owner])
            for row, owner in zip(rows, owners, strict=True)
            if row.score_prompt
        }
        sampled = [k for k, row in enumerate(rows) if row.params.max_new_tokens]
        if not sampled:
            return Added([], prompts)
        index_R = torch.tensor([owners[k] for k in sampled], device=logits_UPV.device)
        drawn = self._draw([(rows[k], 0) for k in sampled], logits_UPV[index_R, -1])
        staying = [(k, token) for k, token in zip(sampled, drawn, strict=True) if token.end is None]
        if staying:
            _select(cache, [owners[k] for k, _ in staying])
            if self._cache is not None:
                _join(self._cache, cache)
            else:
                self._cache = cache
            self._rows += [rows[k] for k, _ in staying]
            self._last += [token.id for _, token in staying]
            self._lengths += [len(rows[k].prompt_ids) for k, _ in staying]
            _trim(self._cache, max(self._lengths))
        return Added(drawn, prompts)

    @torch.no_grad()
    def step(self) -> list[Token]:
        """Draws a token for every row; rows that it ends leave the batch."""
        if not self._rows:
            return []
        model, lengths = self._model(), self._lengths
        position_R1 = torch.tensor(lengths, device=model.device)[:, None]
        width = max(lengths)
        column_R = torch.arange(width + 1, device=model.device)
        logits_RV = model(
            input_ids=torch.tensor(self._last, device=model.device)[:, None],
            # Of each row its own tokens and the new one, which is in the last column.
            attention_mask=column_R >= width - position_R1,
            position_ids=position_R1,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self._lengths = [length + 1 for length in lengths]
        places = zip(self._rows, self._lengths, strict=True)
        drawn = self._draw([(row, n - len(row.prompt_ids)) for row, n in places], logits_RV)
        self._last = [token.id for token in drawn]
        self._keep(token.end is None for token in drawn)
        return drawn

    def remove(self, keys: Collection[Any]) -> None:
        """Takes rows out of the batch; keys that are not in it are ignored."""
        self._keep(row.key not in keys for row in self._rows)

    # ------------------------------------------------------------------------------ the parts

    def _prefill(
        self,
        model: PreTrainedModel,
        prompts: Sequence[tuple[int, ...]],
        cache: DynamicCache,
        *,
        whole: bool,
    ) -> torch.Tensor:
        """Logits `_UPV` at every position, or at the last one alone; fills the cache."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        ids_UP = pad_sequence(rows, True, self._pad_id, "left").to(model.device)
        width = ids_UP.shape[1]
        pads = torch.tensor([width - len(prompt) for prompt in prompts], device=model.device)
        position_UP = torch.arange(width, device=model.device) - pads[:, None]
        logits_UPV: torch.Tensor = model(
            input_ids=ids_UP,
            attention_mask=position_UP >= 0,
            position_ids=position_UP.clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0 if whole else 1,
        ).logits
        return logits_UPV

    def _draw(self, places: Sequence[tuple[Row, int]], logits_RV: torch.Tensor) -> list[Token]:
        """A token for each row, whose number in its completion stands beside it."""
        tokens: dict[int, Token] = {}
        alike: dict[SamplingParams, list[int]] = {}
        for place, (row, _) in enumerate(places):
            # Rows that differ in nothing but their length are drawn together.
            params = SamplingParams(1, row.params.temperature, row.params.greedy, row.params.top_p)
            alike.setdefault(params, []).append(place)
        for params, index in alike.items():
            index_R = torch.tensor(index, device=logits_RV.device)
            mine_RV = logits_RV if len(alike) == 1 else logits_RV[index_R]
            logprobs_RV = distribution(mine_RV, params)
            noise_R = None
            if not params.greedy:
                numbers = torch.stack([places[i][0].noise[places[i][1]] for i in index])
                # MPS has no float64.
                noise_type = torch.float32 if logits_RV.device.type == "mps" else numbers.dtype
                noise_R = numbers.to(logits_RV.device, noise_type)
            token_R, logprob_R = draw(logprobs_RV, noise_R)
            likeliest = _likeliest(logprobs_RV, [places[i][0].likeliest for i in index])
            for i, token, logprob, likely in zip(
                index, token_R.tolist(), logprob_R.tolist(), likeliest, strict=True
            ):
                row, number = places[i]
                tokens[i] = Token(row.key, token, logprob, likely, self._end(row, number, token))
        return [tokens[place] for place in range(len(places))]

    def _end(self, row: Row, number: int, token: int) -> Literal["stop", "length"] | None:
        if token in self._end_ids:
            return "stop"
        return "length" if number + 1 == row.params.max_new_tokens else None

    def _scores(self, row: Row, logits_PV: torch.Tensor) -> list[Token]:
        """The prompt's tokens from the second on, under the model's own distribution."""
        ids = row.prompt_ids
        first = logits_PV.shape[0] - len(ids)
        tokens: list[Token] = []
        for start in range(0, len(ids) - 1, _SCORED_AT_ONCE):
            stop = min(start + _SCORED_AT_ONCE, len(ids) - 1)
            logprobs_PV = logits_PV[first + start : first + stop].float().log_softmax(-1)
            next_P1 = torch.tensor(ids[start + 1 : stop + 1], device=logits_PV.device)[:, None]
            logprobs = logprobs_PV.gather(-1, next_P1)[:, 0].tolist()
            likeliest = _likeliest(logprobs_PV, [row.likeliest] * (stop - start))
            tokens += [
                Token(row.key, token, logprob, likely)
                for token, logprob, likely in zip(
                    ids[start + 1 : stop + 1], logprobs, likeliest, strict=True
                )
            ]
        return tokens

    def _keep(self, staying: Iterable[bool]) -> None:
        """Keeps the rows named."""
        index = [place for place, stays in enumerate(staying) if stays]
        if len(index) == len(self._rows):
            return
        self._rows = [self._rows[place] for place in index]
        self._last = [self._last[place] for place in index]
        self._lengths = [self._lengths[place] for place in index]
        if self._cache is not None and index:
            _select(self._cache, index)
            _trim(self._cache, max(self._lengths))
        else:
            self._cache = None


def prompt_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for prompts of a model, which can join that of other rows.

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
                f"requests that come and go cannot share a {type(layer).__name__}; use --sampler "
                "vllm"
            )
    # The mask is made for columns of keys, which states alone do not have.
    if not any(isinstance(layer, DynamicLayer) for layer in cache.layers):
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be served in this process: no layer "
            "keeps keys and values; use --sampler vllm"
        )
    return cache


def _select(cache: DynamicCache, index: Sequence[int]) -> None:
    """Keeps row `index[i]` as row i."""
    cache.reorder_cache(torch.tensor(index))  # type: ignore[arg-type]


def _join(ours: DynamicCache, theirs: DynamicCache) -> None:
    """Appends the rows of another cache of the same model."""
    layers: Any = zip(ours.layers, theirs.layers, strict=True)
    for mine, new in layers:
        if isinstance(mine, DynamicLayer) and mine.is_initialized:
            for name in _KEPT:
                setattr(mine, name, _below(getattr(mine, name), getattr(new, name)))
        if isinstance(mine, LinearAttentionLayer):
            for name in ("conv_states", "recurrent_states"):
                states = getattr(mine, name)
                for number, state in getattr(new, name).items():
                    if state is not None:
                        states[number] = torch.cat([states[number], state])


def _below(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Two tensors (rows, heads, columns, size) below each other, with zeros on the left of the shorter."""
    width = max(first.shape[2], second.shape[2])
    # Zeros: hidden columns are multiplied with 0, which does not help against NaN.
    return torch.cat([functional.pad(t, (0, 0, width - t.shape[2], 0)) for t in (first, second)])


def _trim(cache: DynamicCache, width: int) -> None:
    """Drops the columns on the left that no row uses."""
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            for name in _KEPT:
                setattr(layer, name, getattr(layer, name)[:, :, -width:])


def _likeliest(logprobs_RV: torch.Tensor, counts: Sequence[int]) -> list[Likely]:
    """The likeliest tokens of each row, as many as are asked for."""
    likely: list[Likely] = [()] * len(counts)
    asking = [index for index, count in enumerate(counts) if count]
    if not asking:
        return likely
    some_RV = logprobs_RV[torch.tensor(asking, device=logprobs_RV.device)]
    values, ids = some_RV.topk(min(max(counts), some_RV.shape[-1]), -1)
    for index, row_ids, row_values in zip(asking, ids.tolist(), values.tolist(), strict=True):
        pairs = list(zip(row_ids, row_values, strict=True))[: counts[index]]
        # Tokens that truncation has removed are not among those that could have been drawn.
        likely[index] = tuple((token, value) for token, value in pairs if value > float("-inf"))
    return likely
