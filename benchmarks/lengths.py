"""Replies of given lengths, for measuring a trainer with the lengths that training has.

Lengths are log-normal (deviation 1 of the logarithm), cut at a limit, which the first one reaches. A
reply ends exactly where it is to end, whatever the model says: elsewhere the token that ends it is
never drawn. So that two trainers generate the same, both are given the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from pettingllms.samplers import transformers as sampler
from pettingllms.samplers.base import SampledTokens
from pettingllms.samplers.transformers import BatchGenerator, draw

_LAST = 2.0
"""In place of a random number: the reply ends here."""


def log_normal(count: int, mean: int, longest: int, generator: torch.Generator) -> list[int]:
    """Draws lengths; the first is `longest`, as some completions run into the limit in training."""
    drawn = torch.randn(count, generator=generator).sub(0.5).exp().mul(mean)
    return [longest, *drawn.round().clamp(1, longest).int().tolist()[1:]]


class Lengths(LogitsProcessor):
    """Ends replies of `generate` where they are to end.

    Args:
        lengths: of the rows, in the order in which they are generated, again and again.
        end_id: the token that ends a reply.
        longest: replies of this length are cut, and have no end.
    """

    def __init__(self, lengths: Sequence[int], end_id: int, longest: int) -> None:
        self._lengths = torch.tensor(lengths)
        self._end, self._longest = end_id, longest
        self._first = self._prompt = self._seen = self._rows = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Forces or forbids the end of every row."""
        if input_ids.shape[1] != self._seen + 1:  # another call of `generate`
            self._first, self._rows = self._first + self._rows, input_ids.shape[0]
            self._prompt = input_ids.shape[1]
        self._seen = input_ids.shape[1]
        places = (self._first + torch.arange(input_ids.shape[0])) % len(self._lengths)
        wanted = self._lengths[places].to(scores.device)
        step = input_ids.shape[1] - self._prompt + 1
        ends = (wanted == step) & (wanted < self._longest)
        masked = scores.clone()
        masked[:, self._end] = float("-inf")
        masked[ends] = float("-inf")
        masked[ends, self._end] = 0.0
        return masked  # type: ignore[return-value]  # a FloatTensor it is


class LengthGenerator(BatchGenerator):
    """The generator of this package, whose replies end where they are to end.

    Args:
        lengths: of the candidates, in the order of the requests.
        end_id: the token that ends a reply.
        longest: replies of this length are cut.
    """

    def __init__(self, lengths: Sequence[int], end_id: int, longest: int) -> None:
        super().__init__((end_id,), 0)
        draw_numbers = sampler.uniform

        def numbers(seeds: Sequence[int], n: int, tokens: int) -> torch.Tensor:
            draws = draw_numbers(seeds, n, tokens)
            for row, length in enumerate(lengths):
                if length < longest:
                    draws[row, length - 1] = _LAST
            return draws

        def ending(
            logprobs_RV: torch.Tensor, uniform_C: torch.Tensor | None, row_C: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            assert uniform_C is not None, "nothing is greedy here"
            masked_RV = logprobs_RV.clone()
            masked_RV[:, end_id] = float("-inf")
            token_C, _ = draw(masked_RV, uniform_C.clamp(max=1 - 1e-9), row_C)
            token_C = torch.where(uniform_C == _LAST, end_id, token_C)
            # The log-probability is the model's, so that the update finds the same.
            rows = torch.arange(token_C.shape[0], device=token_C.device)
            return token_C, logprobs_RV[rows if row_C is None else row_C, token_C]

        # A reply's end is no matter of the sampler's; these two see every one of its tokens.
        self._parts = {"uniform": numbers, "draw": ending}

    def generate(self, *arguments: Any, **settings: Any) -> list[list[SampledTokens]]:
        """Samples with these lengths; another generator of the process has none of them."""
        before = {name: vars(sampler)[name] for name in self._parts}
        vars(sampler).update(self._parts)
        try:
            return super().generate(*arguments, **settings)
        finally:
            vars(sampler).update(before)
