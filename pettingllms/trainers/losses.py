"""What a policy trains on in a step, and its loss: a token's part, and what the parts are averaged over.

`policy_batches` sorts the completions of a step by policy, `policy_loss` computes on them.

| `loss_type` | a token's part | average |
|---|---|---|
| `grpo` (arXiv 2402.03300) | `-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)` | over the tokens of a completion, then over completions |
| `dapo`, `bnpo` (arXiv 2503.14476) | the same | over tokens; the two are one for a single process |
| `dr_grpo` (arXiv 2503.20783) | the same | over completions, each by the limit of its length |
| `cispo` (arXiv 2506.13585) | `-stopgrad(min(r, epsilon_high)) A log p` | over tokens |
| `sapo` (arXiv 2511.20347) | `-(4 / t) sigmoid(t (r - 1)) A`, `t` by the sign of A | as `grpo` |

`r` is the ratio of a token's probability to the one that it was sampled with. With
`importance_sampling_level="sequence"` it is one for all tokens of a completion, the geometric mean
of theirs: with `grpo`, that is GSPO (arXiv 2507.18071).

Samplers that drift: with `vllm_importance_sampling_correction`, `r` compares with the
trainer's own log-probabilities, and a token's part is weighed by the ratio of those to the sampler's, which is bounded
(`..._truncate`) or replaced by 0 outside of the bounds (`..._mask`).

Values and gradients are those of TRL's `GRPOTrainer`, also that the KL term is weighed by the ratio,
which makes its gradient unbiased (arXiv 2512.02556).

Shape suffixes: _B completions, _T tokens of a completion (right-padded, mask 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pettingllms.policies.packing import Batch
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Advantage, Candidate, Group, Sample


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """Completions of one policy, equal ones of a prompt once, with their advantages."""

    samples: tuple[Sample, ...]
    """What the update computes."""
    replies: int
    """What a mean over completions is divided by: completions, or with `loss_norm` roots episodes."""
    tokens: int
    """What a mean over tokens is divided by."""
    groups: int = 0
    silent: int = 0
    """Groups in which all advantages are 0."""
    truncated: int = 0
    """Completions that were cut at the limit and left out."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> PolicyBatch:
        """A batch in which every completion counts."""
        replies = sum(sample.count for sample in samples)
        tokens = sum(sample.count * len(sample.token_ids) for sample in samples)
        return cls(tuple(samples), replies, tokens)

    @staticmethod
    def silent_share(batches: Collection[PolicyBatch]) -> float:
        """Share of groups without variance; 1 without any group: there is nothing to learn from either."""
        groups = sum(batch.groups for batch in batches)
        return sum(batch.silent for batch in batches) / groups if groups else 1.0

    @property
    def metrics(self) -> dict[str, float]:
        """The logged numbers of groups compared and completions left out."""
        return {
            "groups": float(self.groups),
            "frac_reward_zero_std": self.silent_share([self]),
            "dropped_truncated": float(self.truncated),
        }


def policy_batches(
    config: ResolvedConfig, learners: Mapping[str, ResolvedConfig], groups: Sequence[Group]
) -> dict[str, PolicyBatch]:
    """Sorts completions with advantages by policy; `learners` are the policies that learn, with their settings.

    A group whose advantages are all 0 moves nothing by itself. With `silent_groups="drop"` it is
    left out, also of what the loss is divided by. With "count" it counts as it does in TRL: in the
    means, and in the KL and entropy terms if there are any; only then is it computed.

    A completion left out because it was cut at the limit has no tokens in the means over tokens; in
    means over completions it counts with "count", as in TRL, and not with "drop".

    With `loss_norm` roots a mean over completions is divided by the step's episodes instead: one
    with more calls weighs more, and one without any counts for the workers as well.
    """
    keep = config.silent_groups == "count"
    roots = len({(g.key.task, g.key.episode) for g in groups if keep or not _quiet(g)})
    batches = {}
    for policy, settings in learners.items():
        needed = keep and (settings.beta != 0 or settings.entropy_coef != 0)
        batches[policy] = _batch(config, policy, groups, keep, needed, roots)
    return batches


def _batch(
    config: ResolvedConfig,
    policy: str,
    groups: Sequence[Group],
    keep: bool,
    needed: bool,
    roots: int,
) -> PolicyBatch:
    samples: list[Sample] = []
    replies = tokens = silent = cut = 0
    masked = config.mask_truncated_completions
    turns = config.turns
    played = [g for g in groups if g.policy == policy and (turns is None or g.key.turn in turns)]
    for group in played:
        quiet = _quiet(group)
        silent += quiet
        if quiet and not keep:
            continue
        counted = [c for c in group.candidates if not (masked and c.completion.truncated)]
        left_out = len(group.candidates) - len(counted)
        cut += left_out
        # Candidates are counted before equal ones are merged: each was drawn, and each is in the
        # mean.
        replies += len(counted) + (left_out if keep else 0)
        tokens += sum(len(candidate.completion.token_ids) for candidate in counted)
        if needed or not quiet:
            samples += _merged(group, counted)
    if config.loss_norm == "roots":
        replies = roots
    return PolicyBatch(tuple(samples), replies, tokens, len(played), silent, cut)


def _quiet(group: Group) -> bool:
    # An advantage may be a number or one for each token, and `np.any` reads both.
    return not any(np.any(candidate.advantage or 0.0) for candidate in group.candidates)


def _merged(group: Group, candidates: Sequence[Candidate]) -> Iterable[Sample]:
    """One sample for equal completions, which earned the same: computed once, and counted."""
    merged: dict[tuple[tuple[int, ...], Advantage], Sample] = {}
    for candidate in candidates:
        completion, advantage = candidate.completion, candidate.advantage or 0.0
        ids = completion.token_ids
        # In a forest the same text is continued several times, and each time may earn something
        # else.
        same = (ids, advantage)
        count = merged[same].count + 1 if same in merged else 1
        merged[same] = Sample(
            group.prompt_ids, ids, completion.logprobs, advantage, count, group.key.role
        )
    return merged.values()


SAPO_TEMPERATURES = 1.0, 1.05
"""For completions that are better and worse than their group, as the paper and TRL have them."""


def policy_loss(
    config: ResolvedConfig,
    own: PolicyBatch,
    batch: Batch,
    logp_BT: torch.Tensor,
    entropy_BT: torch.Tensor | None,
    reference_BT: torch.Tensor | None,
    meter: LossMeter,
) -> torch.Tensor:
    """This micro-batch's part of the loss; the parts of `own`, the policy's batch, add up to the whole.

    Which completions the means are over: `policy_batches`.
    """
    own_batch = batch
    if config.vllm_importance_sampling_correction:
        # The weights are those that sampled: what is left of the ratio is 1, with a gradient.
        own_batch = replace(batch, old_logprobs_BT=logp_BT.detach())
    ratio_BT = importance_ratio(config, own_batch, logp_BT)
    loss_BT = token_loss(config, ratio_BT, batch.advantages_BT, logp_BT)
    if own_batch is not batch:
        loss_BT = loss_BT * sampling_correction(config, batch, logp_BT.detach())
    # `k3` of the log of reference over policy has KL(policy, base) as its mean under the policy,
    # and the ratio makes that the policy of now.
    kl_BT = None if reference_BT is None else ratio_BT * k3(reference_BT - logp_BT)
    if kl_BT is not None:
        loss_BT = loss_BT + config.beta * kl_BT
    # Equal completions of a prompt are one sample with a count, and each of them has to weigh once.
    weight_BT = batch.mask_BT * batch.counts_B[:, None]
    if config.loss_type in ("grpo", "sapo"):
        lengths_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
        loss = (loss_BT * weight_BT / lengths_B1).sum() / own.replies
    elif config.loss_type == "dr_grpo":
        loss = (loss_BT * weight_BT).sum() / (own.replies * config.max_completion_length)
    else:
        loss = (loss_BT * weight_BT).sum() / own.tokens
    if entropy_BT is not None and config.entropy_coef:
        # A mean over tokens, whatever the loss is divided by.
        loss = loss - config.entropy_coef * (entropy_BT * weight_BT).sum() / own.tokens
    meter.add(clip_bounds(config), batch, logp_BT, ratio_BT, entropy_BT, kl_BT, loss)
    return loss


def importance_ratio(config: ResolvedConfig, batch: Batch, logp_BT: torch.Tensor) -> torch.Tensor:
    """Each token's probability over the one that it was sampled with; see the module docstring."""
    log_ratio_BT = logp_BT - batch.old_logprobs_BT
    if config.importance_sampling_level == "sequence":
        lengths_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
        # The mean of logs is the log of the geometric mean, which does not shrink with a
        # completion's length as the product would.
        mean_B1 = (log_ratio_BT * batch.mask_BT).sum(-1, keepdim=True) / lengths_B1
        log_ratio_BT = mean_B1.expand_as(log_ratio_BT)
    return torch.exp(log_ratio_BT)


def sampling_correction(
    config: ResolvedConfig, batch: Batch, logp_BT: torch.Tensor
) -> torch.Tensor:
    """Each token's, or completion's, ratio of trainer to sampler, bounded or masked as in TRL."""
    level, _, how = config.vllm_importance_sampling_mode.partition("_")
    log_ratio = (logp_BT - batch.old_logprobs_BT) * batch.mask_BT
    ratio = torch.exp(log_ratio.sum(-1, keepdim=True) if level == "sequence" else log_ratio)
    low = config.vllm_importance_sampling_clip_min or 0.0
    high = config.vllm_importance_sampling_clip_max or math.inf
    if how == "truncate":
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def token_loss(
    config: ResolvedConfig,
    ratio_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    logp_BT: torch.Tensor,
) -> torch.Tensor:
    """Returns the contribution of each token to the loss, without KL and entropy."""
    if config.loss_type == "cispo":
        # The weight is detached, so that a token beyond the bound still has a gradient, through its
        # log-probability.
        return -ratio_BT.clamp(max=config.clip_above).detach() * advantages_BT * logp_BT
    if config.loss_type == "sapo":
        better, worse = (torch.full_like(ratio_BT, value) for value in SAPO_TEMPERATURES)
        heat_BT = torch.where(advantages_BT > 0, better, worse)
        return -4 / heat_BT * torch.sigmoid(heat_BT * (ratio_BT - 1)) * advantages_BT
    clipped_BT = ratio_BT.clamp(1 - config.epsilon, 1 + config.clip_above)
    # With delta above 1 + epsilon_high the cap matters for negative advantages only: for positive
    # ones the minimum below is the clipped side already.
    capped_BT = ratio_BT if config.delta is None else ratio_BT.clamp(max=config.delta)
    return -torch.min(capped_BT * advantages_BT, clipped_BT * advantages_BT)


def clip_bounds(config: ResolvedConfig) -> tuple[float, float]:
    """The ratios below and above which a token's gradient is cut, for the metrics."""
    if config.loss_type == "cispo":
        return 0.0, config.clip_above
    if config.loss_type == "sapo":
        return 0.0, math.inf
    return 1 - config.epsilon, 1 + config.clip_above


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Unbiased, never negative estimate of KL: http://joschu.net/blog/kl-approx.html."""
    return torch.exp(log_ratio) - log_ratio - 1


# ---------------------------------------------------------------------------- gradients by role
# `RoleGradients`: each role's part of the gradient of a policy that several roles share.
#
# The parts come from the update's own forward passes. The policy's gradient stays what it is without them, bit for bit: the
# parts of all roles of a micro-batch but the last are computed before its backward pass, and the last one is what that pass
# adds to the gradient, less the others. So a micro-batch of one role costs no additional backward pass.


class RoleGradients:
    """Adds up the roles' parts over the micro-batches of a step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.sums: dict[str, torch.Tensor] = {}
        """Role -> its part of the gradient: flat, float32, on the CPU."""

    def backward(
        self, loss: torch.Tensor, batch: Batch, loss_of: Callable[..., torch.Tensor], *outputs: Any
    ) -> None:
        """Takes the backward pass of a micro-batch, and its roles' parts.

        Args:
            loss: of the whole micro-batch.
            batch: the micro-batch.
            loss_of: makes the loss of it and of `outputs`, also where some completions count 0 times.
            outputs: what the forward pass left.
        """
        rest = self._flat([parameter.grad for parameter in self._parameters])
        *others, last = dict.fromkeys(sample.role for sample in batch.samples)
        for role in others:
            own_B = torch.tensor([float(sample.role == role) for sample in batch.samples])
            counts_B = batch.counts_B * own_B.to(batch.counts_B.device)
            role_loss = loss_of(replace(batch, counts_B=counts_B), *outputs)
            gradient = torch.autograd.grad(
                role_loss, self._parameters, retain_graph=True, allow_unused=True
            )
            rest = rest + self._add(role, self._flat(gradient))
        loss.backward()
        self._add(last, self._flat([parameter.grad for parameter in self._parameters]) - rest)

    def _add(self, role: str, part: torch.Tensor) -> torch.Tensor:
        self.sums[role] = self.sums[role] + part if role in self.sums else part
        return part

    def _flat(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """One vector of all parameters; a copy."""
        pairs = zip(self._parameters, gradients, strict=True)
        pieces = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]
        return torch.cat([piece.detach().flatten().float().cpu() for piece in pieces])
