"""Tokens per second of the sampler, against transformers' `generate` with K returned sequences.

    python -m benchmarks.sampling

The same model, the same adapter, the same number of tokens (no reply ends early, which is the
worst case for the sampler: it drops rows that have ended, `generate` computes them to the end).
Prompts vary in length as they do in training; `--spread 0` makes them equal.
`generate` runs twice: with the adapter as PEFT runs it, and with the adapter merged into the
weights, which plain PEFT can do as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.measure import POLICY, alternate, parser, random_texts, report, weights
from pettingllms.policies.sampler import Draw, TransformersSampler


def main() -> None:
    """Prints the table."""
    options = parser(__doc__).parse_args()
    policies = weights(options)
    adapted, sampled = policies.module(POLICY), policies.sampling_module(POLICY)
    prompts = random_texts(options, adapted, options.prompts, options.prompt_tokens, seed=0)
    rows = [
        _row(options, adapted, sampled, prompts, k, length)
        for k, length in zip(options.k, options.reply_tokens, strict=True)
    ]
    report("sampling", options, adapted, rows)


def _row(
    options: argparse.Namespace,
    adapted: PreTrainedModel,
    sampled: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    k: int,
    length: int,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(options.seed)
    sampler = TransformersSampler((), 0)
    contestants: dict[str, Callable[[], object]] = {
        "sampler": lambda: sampler.sample(sampled, prompts, k, Draw(length), generator),
        "generate": lambda: _generate(adapted, prompts, k, length),
    }
    if sampled is not adapted:
        contestants["generate, merged"] = lambda: _generate(sampled, prompts, k, length)
    seconds = alternate(contestants, options.rounds, options.device)
    tokens = options.prompts * k * length
    row: dict[str, Any] = {"K": k, "reply tokens": length}
    row |= {name: tokens / each for name, each in seconds.items()}
    for name in list(contestants)[1:]:
        row[f"over {name}"] = seconds[name] / seconds["sampler"]
    return row


def _generate(model: PreTrainedModel, prompts: list[tuple[int, ...]], k: int, length: int) -> None:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    own = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    generate: Any = model.generate  # its decorator is not typed
    try:
        generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            num_return_sequences=k,
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            eos_token_id=1,
        )
    finally:
        model.config._attn_implementation = own


if __name__ == "__main__":
    main()
