"""Samples with transformers, in this process: every prompt once, K candidates each, as one batch.

`generate(num_return_sequences=K)` computes every prompt K times and keeps computing rows that have
ended. Here a row is a distinct text: each prompt is one, which candidates draw their next tokens
from, and it branches where they draw different ones. Of a trained policy's candidates most are
alike, at first or to their ends. A row leaves the batch with its last token.

Next tokens are computed in two ways. `SharedDecoding` keeps each prompt's keys and values once and lets all its
rows attend to them together; it needs a model whose attention can be replaced. `PlainDecoding` repeats
transformers' own cache for every row and works for any model.

Every candidate draws its own random numbers, which follow from its request's seed alone: a
completion does not depend on which others share its batch, on the order of finishing, or on how the
requests are cut into batches, beyond the rounding of batched matrix products.

Shapes: `_U` distinct prompts, `_P` prompt tokens, `_C` candidates that go on, `_R` rows (their distinct
texts), `_M` tokens of all candidates, `_T` new tokens so far, `_K` most rows of a prompt, `_H` query heads, `_h`
key-value heads, `_G` query heads per key-value head, `_W` prompts x key-value heads, `_N` rows x key-value heads,
`_S` positions of a prompt and the new tokens behind it, `_D` head size, `_V` vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from pettingllms.models.shared_prompts import (
    ContinuedLayout,
    PackedLayout,
    States,
    enabled,
    forward,
)
from pettingllms.samplers.base import (
    DEFAULT_TOKENS_PER_BATCH,
    Memory,
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.types import Request

Prompts = Sequence[tuple[int, ...]]
"""Token ids of each prompt."""
# Room for so many new tokens before a buffer has to be copied for the first time.
_SPARE = 32
_AT_ONCE = 1 << 19
"""Probabilities that tokens are drawn from at the same time: 2 MiB, which stay in a core's cache."""
_BLOCK = 256
"""Tokens of a large vocabulary whose probabilities are added first."""


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
        prompts: Prompts,
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
        mask_UP = torch.zeros(hidden_UP.shape, dtype=model.dtype, device=device)
        self._mask_U11P = mask_UP.masked_fill_(hidden_UP, float("-inf"))[:, None, None]
        self._states: States = {}
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
        for cache in chain.from_iterable(self._caches.values()):
            cache.keep(index_R, moved, most)
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
        self._mask_U11P = self._mask_U11P[live_U]
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
        own_WKT = self._to_grid(query_NGD.bmm(key_NTD.mT), few)
        # A prompt's scores are by far the most: they are moved once, where the row's own join them.
        score_WKS = own_WKT.new_empty(*own_WKT.shape[:2], width + own_WKT.shape[2])
        score_WKS[..., width:] = own_WKT
        score_UhKP, joined_UhKP = (x.unflatten(0, (-1, few)) for x in (score_WKP, score_WKS))
        torch.add(score_UhKP, self._mask_U11P, out=joined_UhKP[..., :width])
        # One softmax over the prompt's and the row's own positions; its sums are in float32.
        weight_WKS = score_WKS.softmax(-1)
        prompt_WKD = weight_WKS[..., :width].bmm(value_UhPD.flatten(0, 1))
        weight_NGT = self._to_rows(weight_WKS[..., width:], few, heads // few)
        out_NGD = self._to_rows(prompt_WKD, few, heads // few) + weight_NGT.bmm(value_NTD)
        return out_NGD.view(rows, 1, heads, size)

    def _arrange(self) -> None:
        """Lays the rows out as prompts x their rows, so that a prompt's rows are one matrix."""
        owners = self._owner_R.tolist()
        rows: list[list[int]] = [[] for _ in self._prompts]
        for row, owner in enumerate(owners):
            rows[owner].append(row)
        most = max(map(len, rows))
        # An empty place repeats row 0; its output is not read.
        grid = [of_prompt + [0] * (most - len(of_prompt)) for of_prompt in rows]
        places = {row: u * most + k for u, of_u in enumerate(rows) for k, row in enumerate(of_u)}
        device = self._owner_R.device
        self._grid_UK = torch.tensor(grid, device=device)
        self._place_R = torch.tensor([places[row] for row in range(len(owners))], device=device)

    def _to_grid(self, states_NGX: torch.Tensor, heads: int) -> torch.Tensor:
        """Rows to `_WKX`, where K counts rows x query heads."""
        states_UKhGX = states_NGX.view(-1, heads, *states_NGX.shape[1:])[self._grid_UK]
        return states_UKhGX.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _to_rows(self, states_WKX: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
        prompts, most = self._grid_UK.shape
        states_UKhGX = states_WKX.view(prompts, heads, most, groups, -1).transpose(1, 2)
        return states_UKhGX.flatten(0, 1)[self._place_R].flatten(0, 1)


class PlainDecoding:
    """Repeats transformers' own cache for every row."""

    def __init__(self, model: PreTrainedModel, prompts: Prompts, pad_id: int) -> None:
        self._model = model
        device = model.device
        rows = [torch.tensor(prompt) for prompt in prompts]
        # Padded on the left, so that the last position of every row is its latest token.
        self._ids_UP = pad_sequence(rows, True, pad_id, "left").to(device)
        ones = [torch.ones_like(row) for row in rows]
        self._mask_RS = pad_sequence(ones, True, 0, "left").to(device)
        self._position_R = self._mask_RS.sum(1)
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


Memories = Mapping[tuple[int, ...], list[Memory]]


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> TransformersEngine:
    """The engine that samples from the trainer's own models."""
    generator = BatchGenerator(served.end_ids, served.pad_id, settings.tokens_per_batch)
    return TransformersEngine(served.weights, generator)


class TransformersEngine:
    """Samples from the models that are trained, or from modules beside them that share their base."""

    continuous = False

    def __init__(self, weights: Weights, generator: BatchGenerator) -> None:
        self._weights, self.generator = weights, generator
        self.versions: dict[str, int] = {}
        """The version of each policy's weights that is sampled from."""

    def publish(self, policy: str, version: int) -> None:
        """Brings what the policy is sampled from up to date."""
        self._weights.refresh(policy)
        self.versions[policy] = version

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times, one batch per policy."""
        completions: list[list[SampledTokens]] = [[] for _ in requests]
        for policy in dict.fromkeys(request.policy for request in requests):
            places = [i for i, request in enumerate(requests) if request.policy == policy]
            asked = [requests[i] for i in places]
            prompts = [request.prompt_ids for request in asked]
            seeds = [request.seed for request in asked]
            model = self._weights.sampling_module(policy)
            if model.training:
                model.train(False)
            owner = policy, self.versions.get(policy)
            memories = defaultdict[tuple[int, ...], list[Memory]](list)
            for request in asked:
                if request.memory is not None:
                    memories[request.prompt_ids].append(request.memory.of(owner))
            sampled = self.generator.generate(model, prompts, n, params, seeds, memories)
            for i, candidates in zip(places, sampled, strict=True):
                completions[i] = candidates
        return completions

    def close(self) -> None:
        """Does nothing: the models belong to the trainer."""


class _Candidate(NamedTuple):
    prompt: int
    """Index of its distinct prompt."""
    slot: int
    """Index of its result and of its random numbers."""


class BatchGenerator:
    """Generates with any transformers causal model.

    Args:
        end_ids: tokens that end a completion.
        pad_id: fills the left of shorter prompts; any id will do, because it is masked.
        tokens_per_batch: bound on the positions in the cache at one time. Every completion counts
            with its greatest length, a prompt once, or once per completion if the model repeats it.
    """

    def __init__(
        self, end_ids: Sequence[int], pad_id: int, tokens_per_batch: int = DEFAULT_TOKENS_PER_BATCH
    ) -> None:
        self._end_ids = tuple(end_ids)
        self._pad_id = pad_id
        self._tokens_per_batch = tokens_per_batch

    @torch.no_grad()
    def generate(
        self,
        model: PreTrainedModel,
        prompts: Prompts,
        n: int,
        params: SamplingParams,
        seeds: Sequence[int],
        memories: Memories | None = None,
    ) -> list[list[SampledTokens]]:
        """Completes every prompt `n` times: result[prompt][candidate].

        Args:
            model: returns `logits` and fills `past_key_values`; in evaluation mode.
            prompts: token ids, none empty; equal ones are computed once.
            n: candidates for each prompt.
            params: how tokens are chosen.
            seeds: one for each prompt; its candidates follow from it. Unused when greedy.
            memories: of the conversations of each prompt; unused by models that repeat prompts.
        """
        device = model.device
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        noise: torch.Tensor | None = None
        if params.greedy:
            # Equal prompts have equal greedy completions: one candidate stands for all of them.
            candidates = [_Candidate(index, index) for index in distinct.values()]
        else:
            candidates = [
                _Candidate(distinct[prompt], place * n + k)
                for place, prompt in enumerate(prompts)
                for k in range(n)
            ]
            noise = uniform(seeds, n, params.max_new_tokens)
            # MPS has no float64.
            noise = noise.to(device, torch.float32 if device.type == "mps" else noise.dtype)
        done: dict[int, SampledTokens] = {}
        by_index = list(distinct)
        for batch in self._batches(candidates, by_index, params.max_new_tokens, enabled(model)):
            done.update(self._decode(model, batch, by_index, params, noise, memories or {}))
        if params.greedy:
            return [[done[distinct[prompt]]] * n for prompt in prompts]
        return [[done[index * n + k] for k in range(n)] for index in range(len(prompts))]

    def _batches(
        self,
        candidates: Sequence[_Candidate],
        prompts: Prompts,
        max_new_tokens: int,
        shared: bool,
    ) -> Iterator[list[_Candidate]]:
        """Cuts the candidates, shortest prompts first, into batches that fit the cache's bound."""
        batch: list[_Candidate] = []
        used, last = 0, -1
        # By length, so that a batch pads little, and then by prompt, so that candidates of one
        # prompt stay together and it is computed once.
        for candidate in sorted(
            candidates, key=lambda candidate: (len(prompts[candidate.prompt]), candidate)
        ):
            length = len(prompts[candidate.prompt])
            new = max_new_tokens + (length if candidate.prompt != last or not shared else 0)
            # A candidate that alone exceeds the bound still gets a batch.
            if batch and used + new > self._tokens_per_batch:
                yield batch
                batch, used = [], 0
                new = max_new_tokens + length
            batch.append(candidate)
            used, last = used + new, candidate.prompt
        if batch:
            yield batch

    def _decode(
        self,
        model: PreTrainedModel,
        candidates: Sequence[_Candidate],
        prompts: Prompts,
        params: SamplingParams,
        noise: torch.Tensor | None,
        memories: Memories,
    ) -> dict[int, SampledTokens]:
        asked = dict.fromkeys(candidate.prompt for candidate in candidates)
        used = {prompt: index for index, prompt in enumerate(asked)}
        texts, device = [prompts[index] for index in used], model.device
        slot_C = torch.tensor([candidate.slot for candidate in candidates], device=device)
        uniform_CT = None if noise is None else noise[slot_C]
        # None where every candidate has a row of its own, in the same order.
        row_C: torch.Tensor | None = None
        if len(candidates) > len(texts):
            row_C = torch.tensor(
                [used[candidate.prompt] for candidate in candidates], device=device
            )
        ends = torch.tensor(self._end_ids, dtype=torch.long, device=device)
        steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        decoding, logits_RV = self._begin(model, texts, memories)
        for step in range(params.max_new_tokens):
            uniform_C = None if uniform_CT is None else uniform_CT[:, step]
            token_C, logprob_C = _next_tokens(logits_RV, params, uniform_C, row_C)
            steps.append((slot_C, token_C, logprob_C))
            live_C = torch.isin(token_C, ends, invert=True).nonzero()[:, 0]
            left = live_C.shape[0]
            if step + 1 == params.max_new_tokens or not left:
                break
            if left < token_C.shape[0]:
                slot_C, token_C = slot_C[live_C], token_C[live_C]
                uniform_CT = None if uniform_CT is None else uniform_CT[live_C]
                row_C = None if row_C is None else row_C[live_C]
            if row_C is None:
                if left < logits_RV.shape[0]:
                    decoding.keep(live_C, left)
                logits_RV = decoding.step(token_C)
                continue
            row_C, from_R, token_R = branch(row_C, token_C)
            # Mostly every row keeps its place, and a copy of the whole cache is saved.
            if from_R.shape != logits_RV.shape[:1] or bool((from_R.diff() != 1).any()):
                decoding.keep(from_R, left)
            logits_RV = decoding.step(token_R)
            if from_R.shape[0] == left:
                # No text branches any more.
                order_C = row_C.argsort()
                slot_C, row_C = slot_C[order_C], None
                uniform_CT = None if uniform_CT is None else uniform_CT[order_C]
        return self._collect(steps)

    def _begin(
        self, model: PreTrainedModel, texts: Prompts, memories: Memories
    ) -> tuple[PlainDecoding | SharedDecoding, torch.Tensor]:
        """Computes the prompts as far as their memories do not know them; logits `_UV` of what follows each."""
        if not enabled(model):
            plain = PlainDecoding(model, texts, self._pad_id)
            return plain, plain.start()
        memories_U = [memories.get(text, ()) for text in texts]
        begun = [
            next(filter(None, (memory.beginning(text) for memory in of_text)), None)
            for text, of_text in zip(texts, memories_U, strict=True)
        ]
        shared = SharedDecoding(model, texts, begun)
        logits_UV = shared.start()
        for u, of_text in enumerate(memories_U):
            states = shared.states(u) if of_text else None
            for memory in of_text:
                memory.keep(texts[u], states)
        return shared, logits_UV

    def _collect(
        self, steps: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> dict[int, SampledTokens]:
        slot_M, token_M, logprob_M = (torch.cat(values) for values in zip(*steps, strict=True))
        # Stable, so that a candidate's tokens stay in the order of their steps.
        slot_M, order_M = slot_M.sort(stable=True)
        slots, counts = slot_M.unique_consecutive(return_counts=True)
        tokens, logprobs = token_M[order_M].tolist(), logprob_M[order_M].tolist()
        completions: dict[int, SampledTokens] = {}
        end = 0
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            start, end = end, end + count
            ids = tuple(tokens[start:end])
            truncated = ids[-1] not in self._end_ids
            completions[slot] = SampledTokens(ids, tuple(logprobs[start:end]), truncated=truncated)
        return completions


def distribution(logits_RV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log-probabilities `_RV` of what tokens are drawn from: with temperature and truncation."""
    # A softmax in 16 bits rounds away the tail of the distribution, and digits of the
    # log-probabilities that the update compares with its own.
    logits_RV = logits_RV.to(torch.float32, copy=True).div_(params.temperature)
    if params.top_p < 1.0 and not params.greedy:
        logits_RV = _truncate(logits_RV, params.top_p)
    return torch.log_softmax(logits_RV, -1)


def draw(
    logprobs_RV: torch.Tensor, uniform_C: torch.Tensor | None, row_C: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws next tokens `_C`; also returns their log-probabilities `_C`.

    Args:
        logprobs_RV: distributions that sum to 1.
        uniform_C: a number in [0, 1) for each candidate, turned into a token by the inverse of the
            cumulative distribution; None takes the likeliest token.
        row_C: the row that each candidate draws from; None for one candidate a row, in order.
    """
    if uniform_C is None:
        token_C = logprobs_RV.argmax(-1)
        token_C = token_C if row_C is None else token_C[row_C]
    else:
        token_C = _where_sum_exceeds(uniform_C, logprobs_RV.exp(), row_C)
    if row_C is None:
        return token_C, logprobs_RV.gather(-1, token_C[:, None])[:, 0]
    return token_C, logprobs_RV[row_C, token_C]


def _next_tokens(
    logits_RV: torch.Tensor,
    params: SamplingParams,
    uniform_C: torch.Tensor | None,
    row_C: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws next tokens `_C` as `draw` does, on a CPU from a few rows at a time."""
    rows, few = len(logits_RV), max(1, _AT_ONCE // logits_RV.shape[1])
    if logits_RV.device.type != "cpu" or rows <= few:
        return draw(distribution(logits_RV, params), uniform_C, row_C)
    row_C = torch.arange(rows) if row_C is None else row_C
    token_C, logprob_C = torch.empty_like(row_C), torch.empty(row_C.shape)
    for first in range(0, rows, few):
        here_C = ((row_C >= first) & (row_C < first + few)).nonzero()[:, 0]
        logprobs_RV = distribution(logits_RV[first : first + few], params)
        numbers_C = None if uniform_C is None else uniform_C[here_C]
        token_C[here_C], logprob_C[here_C] = draw(logprobs_RV, numbers_C, row_C[here_C] - first)
    return token_C, logprob_C


def _where_sum_exceeds(
    uniform_C: torch.Tensor, odds_RV: torch.Tensor, row_C: torch.Tensor | None
) -> torch.Tensor:
    """The first token `_C` at which the running sum of probabilities exceeds a number's share of their total.

    Of a large vocabulary, the sum runs over blocks of tokens (`_B` blocks of `_X` tokens), then within one: running
    over 49k tokens takes as long as SmolLM2's layers.
    """
    # In the precision of the drawn number: a running sum in float32 would lose the tail of a large vocabulary.
    precise = uniform_C.dtype
    if odds_RV.shape[1] <= 8 * _BLOCK:
        sums_CV = odds_RV.cumsum(-1, dtype=precise)
        sums_CV = sums_CV if row_C is None else sums_CV[row_C]
        return _place(sums_CV, uniform_C[:, None] * sums_CV[:, -1:])[:, 0]
    row_C = torch.arange(len(odds_RV), device=odds_RV.device) if row_C is None else row_C
    padded_RV = nn.functional.pad(odds_RV, (0, -odds_RV.shape[1] % _BLOCK))
    odds_RBX = padded_RV.view(len(odds_RV), -1, _BLOCK)
    ends_CB = odds_RBX.sum(-1).cumsum(-1, dtype=precise)[row_C]
    target_C1 = uniform_C[:, None] * ends_CB[:, -1:]
    block_C1 = _place(ends_CB, target_C1)
    end_C1 = ends_CB.gather(1, block_C1)
    start_C1 = nn.functional.pad(ends_CB, (1, 0)).gather(1, block_C1)
    sums_CX = odds_RBX[row_C, block_C1[:, 0]].cumsum(-1, dtype=precise)
    place_C1 = _place(sums_CX, (target_C1 - start_C1) / (end_C1 - start_C1) * sums_CX[:, -1:])
    # Behind the last token is padding, which only NaN finds.
    return (block_C1 * _BLOCK + place_C1)[:, 0].clamp_(max=odds_RV.shape[1] - 1)


def _place(sums_CX: torch.Tensor, target_C1: torch.Tensor) -> torch.Tensor:
    """The first place `_C1` whose running sum exceeds the target; the last one for NaN."""
    place_C1 = torch.searchsorted(sums_CX, target_C1, right=True)
    return place_C1.clamp_(max=sums_CX.shape[1] - 1)


def branch(
    row_C: torch.Tensor, token_C: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds the distinct texts after the next token.

    Args:
        row_C: the row that each candidate has followed so far.
        token_C: the token that it continues with.

    Returns:
        The row `_C` of each candidate from now on; for each new row `_R` the row that it continues,
        and its token. A row keeps its place where it can, so that little has to be copied.
    """
    width = int(token_C.max()) + 1
    code_R, new_C = (row_C * width + token_C).unique(return_inverse=True)
    from_R, token_R = code_R // width, code_R % width
    rows = torch.arange(from_R.shape[0], device=from_R.device)
    # Of the rows that continue one, the first stays where that one was.
    stays_R = (from_R != from_R.roll(1)) & (from_R < rows.shape[0])
    stays_R[0] = from_R[0] < rows.shape[0]
    place_R = torch.empty_like(rows)
    place_R[stays_R] = from_R[stays_R]
    free_R = torch.ones_like(stays_R)
    free_R[from_R[stays_R]] = False
    place_R[~stays_R] = rows[free_R]
    order_R = torch.empty_like(rows).index_copy_(0, place_R, rows)
    return place_R[new_C], from_R[order_R], token_R[order_R]


def _truncate(logits_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    sorted_RV, order_RV = logits_RV.sort(-1, descending=True)
    odds_RV = sorted_RV.softmax(-1)
    # A token stays where those before it have not yet reached top_p, so the first always stays.
    cut_RV = odds_RV.cumsum(-1) - odds_RV >= top_p
    return logits_RV.masked_fill(cut_RV.scatter(-1, order_RV, cut_RV), float("-inf"))


def uniform(seeds: Sequence[int], n: int, tokens: int) -> torch.Tensor:
    """Draws numbers in [0, 1) of shape (seeds x n, tokens), a block of n rows for each seed.

    They are drawn on the CPU, so that they are the same on every device.
    """
    # float32 has 2**24 such numbers, too few to reach the tail of a large vocabulary.
    drawn = torch.empty(len(seeds), n, tokens, dtype=torch.float64)
    generator = torch.Generator()
    # A generator reset for each seed, so that a request's numbers do not depend on the others of
    # its batch.
    for block, seed in zip(drawn, seeds, strict=True):
        torch.rand(n, tokens, generator=generator.manual_seed(seed), out=block)
    return drawn.flatten(0, 1)
