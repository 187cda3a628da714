"""The forward pass of the update: every prompt once, its replies behind it, nothing else.

The replies of a group answer the same prompt, so computing it once for all of them saves most of
the work where prompts are long and replies short. A packed micro-batch is one flat list of
tokens, prompt 1, its replies, prompt 2, its replies, and so on, without padding; which token sees
which is left to `PackedLayout`. The numbers are those of separate rows. A model whose attention
cannot be replaced gets separate ("flat") rows: prompt and reply each, padded, with an ordinary
mask.

Shapes: `_B` replies, `_T` reply tokens, `_N` tokens of the flat list, `_M` reply tokens of all
replies in a row, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from trl.trainer.utils import pad, selective_log_softmax, selective_log_softmax_and_entropy

from pettingllms.errors import GroupError
from pettingllms.policies.shared_prompts import PackedLayout, forward
from pettingllms.types import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: replies of one policy and what the loss needs of them."""

    samples: tuple[Sample, ...]
    """Replies to the same prompt stand side by side."""
    index: tuple[int, ...]
    """Position of each reply in the list that was cut into micro-batches."""
    packed: bool
    tokens: int
    """Positions that the forward pass computes, padding included."""
    mask_BT: torch.Tensor
    """True on reply tokens."""
    token_ids_BT: torch.Tensor
    old_logprobs_BT: torch.Tensor
    advantages_B: torch.Tensor
    counts_B: torch.Tensor
    """How many identical replies each one stands for, float32."""


def microbatches(
    samples: Sequence[Sample],
    tokens_per_batch: int,
    *,
    packed: bool,
    device: torch.device | str = "cpu",
) -> list[Batch]:
    """Cuts samples into micro-batches of at most `tokens_per_batch` positions.

    A group that does not fit into one is cut between replies. A reply that is too long even
    alone, with its prompt, is a micro-batch of its own: nothing is ever left out.

    Args:
        samples: replies of one policy, each of at least one token; those with equal prompt ids
            form a group, wherever they stand.
        tokens_per_batch: counts padding where rows are flat.
        packed: True for packed lists, False for flat rows.
        device: where the tensors are put.

    Raises:
        GroupError: a sample without prompt or reply tokens.
    """
    for number, sample in enumerate(samples):
        if not sample.prompt_ids or not sample.token_ids:
            raise GroupError(f"sample {number} has no prompt or no reply tokens")
    parts = (
        _packed_parts(samples, tokens_per_batch)
        if packed
        else _flat_parts(samples, tokens_per_batch)
    )
    return [_batch(samples, part, packed, device) for part in parts]


def _packed_parts(samples: Sequence[Sample], limit: int) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt_ids, []).append(index)
    parts: list[list[int]] = [[]]
    used = 0
    # Attention pads prompts to the longest of a micro-batch: similar ones go together.
    for prompt, members in sorted(groups.items(), key=lambda item: len(item[0])):
        whole = len(prompt) + sum(len(samples[index].token_ids) for index in members)
        if used and used + whole > limit:
            parts.append([])
            used = 0
        for index in members:
            reply = len(samples[index].token_ids)
            opened = bool(parts[-1]) and samples[parts[-1][-1]].prompt_ids == prompt
            if used and used + reply > limit:
                parts.append([])
                used, opened = 0, False
            used += reply if opened else reply + len(prompt)
            parts[-1].append(index)
    return [part for part in parts if part]


def _flat_parts(samples: Sequence[Sample], limit: int) -> list[list[int]]:
    def lengths(index: int) -> tuple[int, int]:
        return len(samples[index].prompt_ids), len(samples[index].token_ids)

    parts: list[list[int]] = [[]]
    left = right = 0
    for index in sorted(range(len(samples)), key=lambda index: (sum(lengths(index)), index)):
        prompt, reply = lengths(index)
        left, right = max(left, prompt), max(right, reply)
        if parts[-1] and (len(parts[-1]) + 1) * (left + right) > limit:
            parts.append([])
            left, right = prompt, reply
        parts[-1].append(index)
    return [part for part in parts if part]


def _batch(
    samples: Sequence[Sample], part: Sequence[int], packed: bool, device: torch.device | str
) -> Batch:
    chosen = tuple(samples[index] for index in part)
    if packed:
        prompts = {sample.prompt_ids for sample in chosen}
        tokens = sum(map(len, prompts)) + sum(len(sample.token_ids) for sample in chosen)
    else:
        left, right = _flat_widths(chosen)
        tokens = len(chosen) * (left + right)
    return Batch(
        samples=chosen,
        index=tuple(part),
        packed=packed,
        tokens=tokens,
        mask_BT=pad([torch.ones(len(sample.token_ids)) for sample in chosen]).bool().to(device),
        token_ids_BT=pad([torch.tensor(sample.token_ids) for sample in chosen]).to(device),
        old_logprobs_BT=pad([torch.tensor(sample.logprobs) for sample in chosen]).to(device),
        advantages_B=torch.tensor([float(sample.advantage) for sample in chosen], device=device),
        counts_B=torch.tensor([float(sample.count) for sample in chosen], device=device),
    )


def batch_logprobs(
    model: PreTrainedModel,
    batch: Batch,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of the batch's reply tokens, in float32, 0 where `mask_BT` is False.

    Args:
        model: a causal model on the batch's device.
        batch: from `microbatches`.
        temperature: divides the logits, as it did when the replies were sampled.
        entropy: also return the entropy, in nats, of each token's distribution.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        Log-probabilities `_BT`, and entropies `_BT` or None.
    """
    logits = _packed_logits(model, batch) if batch.packed else _flat_logits(model, batch)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    # Packed: one row of all reply tokens, `_1MV`; flat: a row per reply, `_BTV`.
    ids = batch.token_ids_BT[batch.mask_BT][None] if batch.packed else batch.token_ids_BT
    if not entropy:
        logprobs = selective_log_softmax(logits, ids)
        return _by_reply(batch, logprobs), None
    logprobs, entropies = selective_log_softmax_and_entropy(
        logits, ids, entropy_requires_grad=entropy_grad
    )
    return _by_reply(batch, logprobs), _by_reply(batch, entropies)


def _by_reply(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    if not batch.packed:
        return values.masked_fill(~batch.mask_BT, 0.0)
    return values.new_zeros(batch.mask_BT.shape).masked_scatter(batch.mask_BT, values)


def _packed_logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Logits `_1MV` of every reply token, one reply after the other."""
    prompts: list[int] = []
    replies: list[list[int]] = []
    ids: list[int] = []
    positions: list[int] = []
    predicting: list[int] = []
    last = -1
    current: tuple[int, ...] = ()
    for sample in batch.samples:
        prompt, reply = sample.prompt_ids, sample.token_ids
        if prompt != current:
            current = prompt
            prompts.append(len(prompt))
            replies.append([])
            ids += prompt
            positions += range(len(prompt))
            last = len(ids) - 1
        # The prompt's last token predicts the first one of every reply.
        predicting += [last, *range(len(ids), len(ids) + len(reply) - 1)]
        replies[-1].append(len(reply))
        ids += reply
        positions += range(len(prompt), len(prompt) + len(reply))
    device = batch.mask_BT.device
    layout = PackedLayout(prompts, replies, device)
    return forward(
        model,
        layout,
        torch.tensor([ids], device=device),
        torch.tensor([positions], device=device),
        torch.tensor(predicting, device=device),
    )


def _flat_widths(samples: Sequence[Sample]) -> tuple[int, int]:
    return (
        max(len(sample.prompt_ids) for sample in samples),
        max(len(sample.token_ids) for sample in samples),
    )


def _flat_logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Logits `_BTV` of every reply token, one row per reply."""
    left, right = _flat_widths(batch.samples)
    ids: list[list[int]] = []
    mask: list[list[int]] = []
    for sample in batch.samples:
        before, after = left - len(sample.prompt_ids), right - len(sample.token_ids)
        ids.append([0] * before + [*sample.prompt_ids, *sample.token_ids] + [0] * after)
        mask.append([0] * before + [1] * (left + right - before - after) + [0] * after)
    device = batch.mask_BT.device
    mask_BS = torch.tensor(mask, device=device)
    logits: torch.Tensor = model(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=mask_BS,
        position_ids=(mask_BS.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=right + 1,
    ).logits
    return logits[:, :-1]
