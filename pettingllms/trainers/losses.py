"""Losses of a policy: what a token contributes, and what the contributions are averaged over.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pettingllms.policies.packing import Batch
from pettingllms.trainers.batch import PolicyBatch
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.metrics import LossMeter

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
    """Adds up the roles' parts over the micro-batches of a step.

    Args:
        parameters: of the policy.
    """

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
