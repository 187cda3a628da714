"""Reply tokens per second of the update (forward and backward), packed against flat rows.

    python -m benchmarks.update

The same adapter, the same samples. Replies have lengths spread evenly around a mean, or log-normal
ones with one at the limit (`--longest`), as in training. Packed: every prompt once, its replies
behind it, no padding.
Flat: prompt and reply in a row of its own. Both are run with several sizes of micro-batches; `best
over best` compares the fastest of each; `products` is the share of the fastest packed update's time that its matrix
products take by themselves; `memory` the most that a micro-batch keeps for its backward
pass, packed over flat, at the largest size; on a GPU, `GiB` is the most that is allocated. `gradient difference` is the largest one between the two,
to be seen beside the largest gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.measure import (
    POLICY,
    alternate,
    parser,
    product_seconds,
    random_texts,
    report,
    saved_bytes,
    weights,
)
from pettingllms.policies.packing import Batch, batch_logprobs, microbatches
from pettingllms.policies.weights import LoraWeights
from pettingllms.types import Sample


def main() -> None:
    """Prints the table."""
    options = parser(__doc__)
    options.add_argument("--tokens-per-batch", type=int, nargs="+", default=[2048, 4096, 8192])
    options.add_argument("--longest", type=int, default=2048, help="tokens of the longest reply")
    options.add_argument("--gradient-checkpointing", action="store_true")
    settings = options.parse_args()
    policies = weights(settings)
    model = policies.module(POLICY)
    if settings.gradient_checkpointing:
        model.train()  # transformers computes activations again in this mode only
        model.gradient_checkpointing_enable({"use_reentrant": False})
    rows = [
        _row(settings, policies, k, length, longest)
        for k, length in zip(settings.k, settings.reply_tokens, strict=True)
        for longest in (None, settings.longest)
    ]
    report("update", settings, model, rows)


def _row(
    settings: argparse.Namespace,
    policies: LoraWeights,
    k: int,
    length: int,
    longest: int | None,
) -> dict[str, Any]:
    model = policies.module(POLICY)
    prompts = random_texts(settings, model, settings.prompts, settings.prompt_tokens, seed=0)
    replies = random_texts(settings, model, k * len(prompts), length, seed=1, longest=longest)
    samples = [
        Sample(prompts[number // k], reply, (-1.0,) * len(reply), 1.0)
        for number, reply in enumerate(replies)
    ]

    def contestant(packed: bool, limit: int) -> Callable[[], list[torch.Tensor]]:
        return lambda: _update(policies, samples, limit, packed, settings.device)

    limits = settings.tokens_per_batch
    contestants = {
        f"{layout} {limit}": contestant(layout == "packed", limit)
        for limit in limits
        for layout in ("packed", "flat")
    }
    seconds = alternate(contestants, settings.rounds, settings.device)
    tokens = sum(map(len, replies))
    row: dict[str, Any] = {
        "K": k,
        "reply tokens": length,
        "lengths": "log-normal" if longest else "even",
    }
    row |= {name: tokens / duration for name, duration in seconds.items()}
    packed, flat = (
        min(seconds[f"{layout} {limit}"] for limit in limits) for layout in ("packed", "flat")
    )
    row["best over best"] = flat / packed
    if settings.device.startswith("cuda"):
        for layout in ("packed", "flat"):
            torch.cuda.reset_peak_memory_stats()
            contestants[f"{layout} {max(limits)}"]()
            row[f"{layout} GiB"] = torch.cuda.max_memory_allocated() / 2**30
    fastest = min(limits, key=lambda limit: seconds[f"packed {limit}"])
    products = product_seconds(contestant(True, fastest), settings.device)
    row["products"] = products / seconds[f"packed {fastest}"]
    kept = [_kept(policies, samples, settings, packed) for packed in (True, False)]
    row["memory"] = kept[0] / kept[1]
    one, two = (contestant(packed, max(limits))() for packed in (True, False))
    row["gradient difference"] = max(
        float((x - y).abs().max()) for x, y in zip(one, two, strict=True)
    )
    row["largest gradient"] = max(float(gradient.abs().max()) for gradient in two)
    return row


def _update(
    policies: LoraWeights, samples: list[Sample], limit: int, packed: bool, device: str
) -> list[torch.Tensor]:
    """Gradients of the mean probability ratio; equal for packed and flat rows."""
    parameters = policies.tensors(POLICY).values()
    for parameter in parameters:
        parameter.grad = None
    for batch in microbatches(samples, limit, packed=packed, device=device):
        _loss(policies, batch).div(len(samples)).backward()
    return [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


def _loss(policies: LoraWeights, batch: Batch) -> torch.Tensor:
    logprobs, _ = batch_logprobs(policies.module(POLICY), batch)
    ratio = torch.exp(logprobs - logprobs.detach()) * batch.advantages_BT
    return (ratio * batch.mask_BT).sum()


def _kept(
    policies: LoraWeights, samples: list[Sample], settings: argparse.Namespace, packed: bool
) -> int:
    limit, device = max(settings.tokens_per_batch), settings.device
    return max(
        saved_bytes(partial(_loss, policies, batch))
        for batch in microbatches(samples, limit, packed=packed, device=device)
    )


if __name__ == "__main__":
    main()
