"""Samples replies with transformers: prompts once, K candidates each, as one batch.

`generate(num_return_sequences=K)` computes every prompt K times and goes on computing rows that
have ended. Here each distinct prompt is computed once, its cache is repeated for its candidates,
and a row leaves the batch with its last token.

Every row draws from its own numbers, set aside before the first token: what a request is
answered does not depend on which rows share its batch, on the order of finishing, or on how the
requests are cut into batches, beyond the rounding of batched matrix products.

Shapes: `_U` distinct prompts, `_R` rows (candidates), `_T` tokens, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from pettingllms.policies.decoding import Decoding, PlainDecoding, SharedDecoding
from pettingllms.policies.shared_prompts import enabled

DEFAULT_TOKENS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Draw:
    """How next tokens are chosen.

    Args:
        max_new_tokens: a reply that has not ended by then is cut.
        temperature: divides the logits, above 0.
        greedy: take the likeliest token; the recorded log-probability is still the model's.
        top_p: keep the likeliest tokens that together reach this probability. For evaluation:
            the recorded log-probabilities are those of the truncated distribution, which the
            update does not recompute.
    """

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    top_p: float = 1.0


class Drawn(NamedTuple):
    """One sampled reply."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class _Row(NamedTuple):
    prompt: int
    """Index of the row's distinct prompt."""
    slot: int
    """Index of the row's result and of its random numbers."""


class TransformersSampler:
    """Samples from any transformers causal model.

    Args:
        end_ids: tokens that end a reply.
        pad_id: fills the left of shorter prompts; any id will do, it is masked.
        tokens_per_batch: bound on the positions in the cache at one time, counting every reply at
            its full length, and a prompt once, or once a reply where the model needs that.
    """

    def __init__(
        self, end_ids: Sequence[int], pad_id: int, tokens_per_batch: int = DEFAULT_TOKENS_PER_BATCH
    ) -> None:
        self._end_ids = tuple(end_ids)
        self._pad_id = pad_id
        self._tokens_per_batch = tokens_per_batch

    @torch.no_grad()
    def sample(
        self,
        model: PreTrainedModel,
        prompts: Sequence[tuple[int, ...]],
        n: int,
        draw: Draw,
        generator: torch.Generator,
    ) -> list[list[Drawn]]:
        """Answers every prompt `n` times: result[prompt][candidate].

        Args:
            model: returns `logits` and fills `past_key_values`; in evaluation mode.
            prompts: token ids, none empty; equal ones are computed once.
            n: candidates for each prompt.
            draw: how tokens are chosen.
            generator: advanced by prompts x n x max_new_tokens numbers, whatever is sampled, and
                not at all when greedy.
        """
        device = model.device
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        rows = [_Row(distinct[prompt], slot) for slot, prompt in enumerate(prompts)]
        noise: torch.Tensor | None = None
        if draw.greedy:
            # Equal prompts have equal greedy replies: one row answers for all of them.
            rows = list({row.prompt: row for row in reversed(rows)}.values())
        else:
            rows = [_Row(row.prompt, row.slot * n + k) for row in rows for k in range(n)]
            noise = _uniform(len(rows), draw.max_new_tokens, generator, device)
        done: dict[int, Drawn] = {}
        by_index = list(distinct)
        for batch in self._batches(rows, by_index, draw.max_new_tokens, enabled(model)):
            done.update(self._decode(model, batch, by_index, draw, noise))
        if draw.greedy:
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
        draw: Draw,
        noise: torch.Tensor | None,
    ) -> dict[int, Drawn]:
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
        for step in range(draw.max_new_tokens):
            uniform_R = None if noise is None else noise[slot_R, step]
            token_R, logprob_R = choose(logits_RV, uniform_R, draw)
            steps.append((slot_R, token_R, logprob_R))
            alive_R = ~torch.isin(token_R, ends)
            remaining = int(alive_R.sum())
            if step + 1 == draw.max_new_tokens or not remaining:
                break
            if remaining < alive_R.shape[0]:
                keep_R = _fill_holes(alive_R, remaining)
                decoding.keep(keep_R)
                slot_R, token_R = slot_R[keep_R], token_R[keep_R]
            logits_RV = decoding.step(token_R)
        return self._collect(steps)

    def _collect(
        self, steps: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> dict[int, Drawn]:
        tokens: dict[int, list[int]] = {slot: [] for slot in steps[0][0].tolist()}
        logprobs: dict[int, list[float]] = {slot: [] for slot in tokens}
        for slots_R, token_R, logprob_R in steps:
            for slot, token, logprob in zip(
                slots_R.tolist(), token_R.tolist(), logprob_R.tolist(), strict=True
            ):
                tokens[slot].append(token)
                logprobs[slot].append(logprob)
        return {
            slot: Drawn(tuple(ids), tuple(logprobs[slot]), finished=ids[-1] in self._end_ids)
            for slot, ids in tokens.items()
        }


def choose(
    logits_RV: torch.Tensor, uniform_R: torch.Tensor | None, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens and their log-probabilities under the distribution they come from.

    Args:
        logits_RV: the model's logits, any float dtype.
        uniform_R: one number in [0, 1) per row, turned into a token by the inverse of the
            cumulative distribution; None takes the likeliest token.
        draw: temperature and truncation.
    """
    logits_RV = logits_RV.float()
    if draw.temperature != 1.0:
        logits_RV = logits_RV / draw.temperature
    if draw.top_p < 1.0 and uniform_R is not None:
        logits_RV = _truncate(logits_RV, draw.top_p)
    logprobs_RV = torch.log_softmax(logits_RV, -1)
    if uniform_R is None:
        token_R1 = logprobs_RV.argmax(-1, keepdim=True)
    else:
        cumulative_RV = logprobs_RV.exp().to(uniform_R.dtype).cumsum(-1)
        target_R1 = uniform_R[:, None] * cumulative_RV[:, -1:]
        token_R1 = torch.searchsorted(cumulative_RV, target_R1, right=True)
        token_R1.clamp_(max=logits_RV.shape[-1] - 1)
    return token_R1[:, 0], logprobs_RV.gather(-1, token_R1)[:, 0]


def _truncate(logits_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    sorted_RV, order_RV = logits_RV.sort(-1, descending=True)
    odds_RV = sorted_RV.softmax(-1)
    # A token stays where those before it have not yet reached top_p, so the first always stays.
    cut_RV = odds_RV.cumsum(-1) - odds_RV >= top_p
    return logits_RV.masked_fill(cut_RV.scatter(-1, order_RV, cut_RV), float("-inf"))


def _uniform(
    rows: int, tokens: int, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Numbers in [0, 1), drawn where the generator lives so that every device sees the same."""
    # float32 has 2**24 such numbers, too few to reach the tail of a large vocabulary.
    dtype = torch.float32 if "mps" in (device.type, generator.device.type) else torch.float64
    drawn = torch.rand(rows, tokens, generator=generator, dtype=dtype, device=generator.device)
    return drawn.to(device)


def _fill_holes(alive_R: torch.Tensor, remaining: int) -> torch.Tensor:
    """Live rows in front, each at its own place unless it fills an ended row's."""
    keep_R = torch.arange(remaining, device=alive_R.device)
    keep_R[~alive_R[:remaining]] = alive_R[remaining:].nonzero()[:, 0] + remaining
    return keep_R
