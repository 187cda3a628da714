"""Samples with transformers, in this process: every prompt once, K candidates each, as one batch.

`generate(num_return_sequences=K)` computes every prompt K times and keeps computing rows that have
ended. Here each distinct prompt is computed once, its cache is repeated for its candidates, and a
row leaves the batch with its last token.

Every row draws its own random numbers, which follow from its request's seed alone: a completion
does not depend on which rows share its batch, on the order of finishing, or on how the requests
are cut into batches, beyond the rounding of batched matrix products.

Shapes: `_U` distinct prompts, `_R` rows (candidates), `_T` tokens, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from pettingllms.models.shared_prompts import enabled
from pettingllms.samplers.base import (
    DEFAULT_TOKENS_PER_BATCH,
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.samplers.decoding import Decoding, PlainDecoding, SharedDecoding
from pettingllms.types import Request


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> TransformersEngine:
    """The engine that samples from the trainer's own models."""
    generator = BatchGenerator(served.end_ids, served.pad_id, settings.tokens_per_batch)
    return TransformersEngine(served.weights, generator)


class TransformersEngine:
    """Samples from the models that are trained, or from their merged copies.

    Args:
        weights: the policies.
        generator: generates with one model.
    """

    continuous = False

    def __init__(self, weights: Weights, generator: BatchGenerator) -> None:
        self._weights, self.generator = weights, generator
        self._versions: dict[str, int] = {}

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""
        return self._versions

    def publish(self, policy: str, version: int) -> None:
        """Brings the policy's merged copy up to date, if it has one."""
        self._weights.refresh(policy)
        self._versions[policy] = version

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times, one batch per policy."""
        found: list[list[SampledTokens]] = [[] for _ in requests]
        for policy in dict.fromkeys(request.policy for request in requests):
            mine = [i for i, request in enumerate(requests) if request.policy == policy]
            prompts = [requests[i].prompt_ids for i in mine]
            seeds = [requests[i].seed for i in mine]
            model = self._weights.sampling_module(policy)
            if model.training:
                model.train(False)
            sampled = self.generator.generate(model, prompts, n, params, seeds)
            for i, candidates in zip(mine, sampled, strict=True):
                found[i] = candidates
        return found

    def close(self) -> None:
        """Does nothing: the models belong to the trainer."""


class _Row(NamedTuple):
    prompt: int
    """Index of the row's distinct prompt."""
    slot: int
    """Index of the row's result and of its random numbers."""


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
        prompts: Sequence[tuple[int, ...]],
        n: int,
        params: SamplingParams,
        seeds: Sequence[int],
    ) -> list[list[SampledTokens]]:
        """Completes every prompt `n` times: result[prompt][candidate].

        Args:
            model: returns `logits` and fills `past_key_values`; in evaluation mode.
            prompts: token ids, none empty; equal ones are computed once.
            n: candidates for each prompt.
            params: how tokens are chosen.
            seeds: one for each prompt; its candidates follow from it. Unused when greedy.
        """
        device = model.device
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        rows = [_Row(distinct[prompt], slot) for slot, prompt in enumerate(prompts)]
        noise: torch.Tensor | None = None
        if params.greedy:
            # Equal prompts have equal greedy completions: one row stands for all of them.
            rows = list({row.prompt: row for row in reversed(rows)}.values())
        else:
            rows = [_Row(row.prompt, row.slot * n + k) for row in rows for k in range(n)]
            noise = uniform(seeds, n, params.max_new_tokens)
            # MPS has no float64.
            noise = noise.to(device, torch.float32 if device.type == "mps" else noise.dtype)
        done: dict[int, SampledTokens] = {}
        by_index = list(distinct)
        for batch in self._batches(rows, by_index, params.max_new_tokens, enabled(model)):
            done.update(self._decode(model, batch, by_index, params, noise))
        if params.greedy:
            first = {row.prompt: done[row.slot] for row in rows}
            return [[first[distinct[prompt]]] * n for prompt in prompts]
        return [[done[index * n + k] for k in range(n)] for index in range(len(prompts))]

    def _batches(
        self,
        rows: Sequence[_Row],
        prompts: Sequence[tuple[int, ...]],
        max_new_tokens: int,
        shared: bool,
    ) -> Iterator[list[_Row]]:
        """Cuts the rows, shortest prompts first, into batches that fit the cache's bound."""
        batch: list[_Row] = []
        used, last = 0, -1
        for row in sorted(rows, key=lambda row: (len(prompts[row.prompt]), row)):
            length = len(prompts[row.prompt])
            new = max_new_tokens + (length if row.prompt != last or not shared else 0)
            if batch and used + new > self._tokens_per_batch:
                yield batch
                batch, used = [], 0
                new = max_new_tokens + length
            batch.append(row)
            used, last = used + new, row.prompt
        if batch:
            yield batch

    def _decode(
        self,
        model: PreTrainedModel,
        rows: Sequence[_Row],
        prompts: Sequence[tuple[int, ...]],
        params: SamplingParams,
        noise: torch.Tensor | None,
    ) -> dict[int, SampledTokens]:
        used = {prompt: index for index, prompt in enumerate(dict.fromkeys(r.prompt for r in rows))}
        texts, owners = [prompts[index] for index in used], [used[row.prompt] for row in rows]
        decoding: Decoding
        if enabled(model):
            decoding = SharedDecoding(model, texts, owners)
        else:
            decoding = PlainDecoding(model, texts, owners, self._pad_id)
        slot_R = torch.tensor([row.slot for row in rows], device=model.device)
        ends = torch.tensor(self._end_ids, dtype=torch.long, device=model.device)
        steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        logits_RV = decoding.start()
        for step in range(params.max_new_tokens):
            uniform_R = None if noise is None else noise[slot_R, step]
            token_R, logprob_R = choose(logits_RV, uniform_R, params)
            steps.append((slot_R, token_R, logprob_R))
            alive_R = ~torch.isin(token_R, ends)
            remaining = int(alive_R.sum())
            if step + 1 == params.max_new_tokens or not remaining:
                break
            if remaining < alive_R.shape[0]:
                keep_R = _fill_holes(alive_R, remaining)
                decoding.keep(keep_R)
                slot_R, token_R = slot_R[keep_R], token_R[keep_R]
            logits_RV = decoding.step(token_R)
        return self._collect(steps)

    def _collect(
        self, steps: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> dict[int, SampledTokens]:
        tokens: dict[int, list[int]] = {slot: [] for slot in steps[0][0].tolist()}
        logprobs: dict[int, list[float]] = {slot: [] for slot in tokens}
        for slots_R, token_R, logprob_R in steps:
            for slot, token, logprob in zip(
                slots_R.tolist(), token_R.tolist(), logprob_R.tolist(), strict=True
            ):
                tokens[slot].append(token)
                logprobs[slot].append(logprob)
        return {
            slot: SampledTokens(
                tuple(ids), tuple(logprobs[slot]), truncated=ids[-1] not in self._end_ids
            )
            for slot, ids in tokens.items()
        }


def choose(
    logits_RV: torch.Tensor, uniform_R: torch.Tensor | None, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses next tokens; also returns their log-probabilities under what they are drawn from.

    Args:
        logits_RV: the model's logits, any float dtype.
        uniform_R: one number in [0, 1) per row, turned into a token by the inverse of the
            cumulative distribution; None takes the likeliest token.
        params: temperature and truncation.
    """
    return draw(distribution(logits_RV, params), uniform_R)


def distribution(logits_RV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log-probabilities `_RV` of what tokens are drawn from: with temperature and truncation."""
    logits_RV = logits_RV.float()
    if params.temperature != 1.0:
        logits_RV = logits_RV / params.temperature
    if params.top_p < 1.0 and not params.greedy:
        logits_RV = _truncate(logits_RV, params.top_p)
    return torch.log_softmax(logits_RV, -1)


def draw(
    logprobs_RV: torch.Tensor, uniform_R: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `_R` and their log-probabilities `_R`; `uniform_R` is as in `choose`."""
    if uniform_R is None:
        token_R1 = logprobs_RV.argmax(-1, keepdim=True)
    else:
        cumulative_RV = logprobs_RV.exp().to(uniform_R.dtype).cumsum(-1)
        target_R1 = uniform_R[:, None] * cumulative_RV[:, -1:]
        token_R1 = torch.searchsorted(cumulative_RV, target_R1, right=True)
        token_R1.clamp_(max=logprobs_RV.shape[-1] - 1)
    return token_R1[:, 0], logprobs_RV.gather(-1, token_R1)[:, 0]


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
    for block, seed in zip(drawn, seeds, strict=True):
        torch.rand(n, tokens, generator=generator.manual_seed(seed), out=block)
    return drawn.flatten(0, 1)


def _fill_holes(alive_R: torch.Tensor, remaining: int) -> torch.Tensor:
    """Indices of the live rows; those behind the new end of the batch fill the ended rows' places."""
    keep_R = torch.arange(remaining, device=alive_R.device)
    keep_R[~alive_R[:remaining]] = alive_R[remaining:].nonzero()[:, 0] + remaining
    return keep_R
