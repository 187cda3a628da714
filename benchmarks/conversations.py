"""What the update of a conversation costs: its turns in one packed row, each in a row of its own, and one row as long.

    python -m benchmarks.conversations
    python -m benchmarks.conversations --rounds 1 --turns 3
    python -m benchmarks.conversations --parts sampling --together 8

Every prompt is the one before, the reply to it, and some new tokens. With `--candidates` above 1 the conversation goes
on from the first of several replies, as in a tree. Times are CPU-seconds with one thread.

Of the update (forward and backward pass), `one row` has the tokens of the last prompt and its first reply, of which as
many are scored as there are in the first replies of all turns; `packed` has the other replies as well, and computes
`tokens of the update`, each of them once.

`sampling` draws all replies of as many conversations at once as `--together` says, and `remembered` the same with the
keys and values of each prompt kept for the next. `its prompts` is the part of `sampling` that goes to the prompts and
the first token of each reply: the most that could be saved.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.measure import POLICY, alternate, parser, publish, random_texts, weights
from pettingllms.policies.packing import batch_logprobs, microbatches
from pettingllms.policies.weights import LoraWeights
from pettingllms.samplers.base import Memory, SamplingParams
from pettingllms.samplers.transformers import BatchGenerator
from pettingllms.types import Sample

Samples = list[Sample]
PARTS = ["update", "sampling"]
RATIOS = ("packed", "one row"), ("packed", "separate"), ("sampling", "remembered")


def main() -> None:
    """Prints the table."""
    options = parser(__doc__)
    options.add_argument("--turns", type=int, default=10, help="of a conversation")
    options.add_argument("--candidates", type=int, nargs="+", default=[1, 4], help="per turn")
    options.add_argument("--new-tokens", type=int, nargs="+", default=[40, 150], help="of a prompt")
    options.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options.add_argument("--together", type=int, default=1, help="conversations in a batch")
    settings = options.parse_args()
    policies = weights(settings)
    publish(
        "conversations",
        settings,
        [
            _row(settings, policies, candidates, new)
            for new in settings.new_tokens
            for candidates in settings.candidates
        ],
    )


def conversation(settings: argparse.Namespace, model: Any, candidates: int, new: int) -> Samples:
    """The turns of a conversation."""
    count = settings.turns
    prompts = random_texts(settings, model, count, new, seed=0)
    replies = random_texts(settings, model, count * candidates, settings.reply_tokens[0], seed=1)
    samples: Samples = []
    prompt: tuple[int, ...] = ()
    for turn in range(count):
        prompt += prompts[turn]
        turn_replies = replies[turn * candidates : (turn + 1) * candidates]
        samples += [Sample(prompt, reply, (-1.0,) * len(reply), 1.0) for reply in turn_replies]
        prompt += turn_replies[0]
    return samples


def _row(
    settings: argparse.Namespace, policies: LoraWeights, candidates: int, new: int
) -> dict[str, Any]:
    samples = conversation(settings, policies.module(POLICY), candidates, new)
    last = samples[-candidates]
    whole = last.prompt_ids + last.token_ids
    replies = sum(len(sample.token_ids) for sample in samples[::candidates])
    one_row = Sample(whole[:-replies], whole[-replies:], (-1.0,) * replies, 1.0)
    # Each prompt with its candidates apart: as if no prompt continued another.
    turns = [samples[start : start + candidates] for start in range(0, len(samples), candidates)]
    contestants: dict[str, Callable[[], None]] = {}
    if "update" in settings.parts:
        for name, cut in ("packed", [samples]), ("one row", [[one_row]]), ("separate", turns):
            contestants[name] = partial(_update, policies, cut, settings.device)
    if "sampling" in settings.parts:
        sample = partial(_sample, policies, turns, settings.together)
        contestants["sampling"] = sample
        contestants["remembered"] = partial(sample, remember=True)
        contestants["its prompts"] = partial(sample, most=1)
    seconds = alternate(contestants, settings.rounds, settings.device)
    return {
        "candidates": candidates,
        "tokens": len(whole),
        "tokens of the update": len(whole) + sum(len(s.token_ids) for s in samples) - replies,
        "reply tokens": replies,
        **seconds,
        **{
            f"{name} over {other}": seconds[name] / seconds[other]
            for name, other in RATIOS
            if name in seconds
        },
    }


def _update(policies: LoraWeights, cut: Sequence[Samples], device: str) -> None:
    for samples in cut:
        [batch] = microbatches(samples, 10**9, packed=True, device=device)
        logprobs, _ = batch_logprobs(policies.module(POLICY), batch)
        ratio = torch.exp(logprobs - logprobs.detach()) * batch.advantages_BT
        (ratio * batch.mask_BT).sum().backward()


def _sample(
    policies: LoraWeights,
    turns: Sequence[Samples],
    together: int,
    *,
    most: int | None = None,
    remember: bool = False,
) -> None:
    """Samples the replies of each turn; they are as long as they were, or have `most` tokens."""
    generator, kept = BatchGenerator((), 0), [Memory() for _ in range(together)]
    model = policies.sampling_module(POLICY)
    for number, samples in enumerate(turns):
        length = most or max(len(sample.token_ids) for sample in samples)
        # Conversations differ from their first token on.
        prompts = [(5 + k, *samples[0].prompt_ids[1:]) for k in range(together)]
        memories = {p: [m] for p, m in zip(prompts, kept, strict=True)} if remember else {}
        seeds = [number * together + k for k in range(together)]
        generator.generate(model, prompts, len(samples), SamplingParams(length), seeds, memories)


if __name__ == "__main__":
    main()
