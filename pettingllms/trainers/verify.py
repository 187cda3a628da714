"""`--verify`: proof, in the first steps, that what was configured was trained.

Each policy is checked once, in the first step in which it has a group with signal and a learning rate
above 0 (of a warm-up, the first step has the rate 0):

* its adapter changed, and the gradient that changed it is that of its own role's completions alone,
  computed again from the records of the step;
* the sampler answers with the new weights: its log-probabilities are those of the trainer's forward pass;
* all candidates of a group answered the same prompt;
* end-of-turn tokens are part of the loss;
* completions with an advantage became more likely.

A line that begins with ✗ names a fault, one with ? what cannot be told. Training goes on: only its user knows whether the run is still wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from pettingllms.names import role_of
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.losses import PolicyBatch, policy_batches
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Group, Request, Sample

LATEST = 10
"""The step after which a policy that was never checked is reported."""
SAME_DIRECTION = 0.98
"""Least cosine of two gradients that count as one; sums in another order differ by rounding."""
ROUNDING = 1e-4
"""Nats of a token by which sampler and trainer may differ in any case."""


class Proof(NamedTuple):
    """One checked property."""

    holds: bool | None
    """None where it cannot be told."""
    what: str

    def __str__(self) -> str:
        """A line of the block."""
        return f"  {'?' if self.holds is None else '✓' if self.holds else '✗'} {self.what}"


class Verifier:
    """Checks each trained policy once; `begin`, `learned` and `report` belong around a step."""

    def __init__(self, trainer: ATGRPO) -> None:
        self.trainer, self.policies = trainer, trainer.policies
        self.pending = list(trainer.trained)
        """Policies that are still to be checked."""
        self._before: dict[str, dict[str, torch.Tensor]] = {}
        self._players = dict(trainer.policies.roles_to_policies)
        self._found: dict[str, list[Proof]] = {}
        self._noise: dict[str, float] = {}
        self._own: dict[str, list[Group]] = {}

    def begin(self) -> None:
        """Keeps the weights of the policies to check; before the step."""
        rates = {name: self.trainer.schedulers[name].get_last_lr()[0] for name in self.pending}
        learning = [name for name, rate in rates.items() if rate > 0]
        self._before = {name: self.policies.state(name) for name in learning}
        self._players = dict(self.trainer.casting.players)

    def learned(self, trajectories: Sequence[Trajectory]) -> None:
        """Checks the update; after it, and before its weights are published."""
        groups = in_order(trajectories)
        for policy in self._before:
            # By the role that acted, not by the policy that the record names.
            played = [group for group in groups if self._plays(group) == policy]
            learner = {policy: self.trainer.settings[policy]}
            batch = policy_batches(self.trainer.config, learner, played)[policy]
            if any(sample.advantage for sample in batch.samples):
                self._found[policy] = list(self._update(policy, played, batch))
                self._own[policy] = played

    def report(self) -> str:
        """Checks the sampler, after the weights were published; the block to show, or nothing."""
        step, blocks = self.trainer.step, list[str]()
        for policy, proofs in self._found.items():
            self.pending.remove(policy)
            proofs.insert(1, self._sampler(policy, self._own[policy]))
            blocks.append("\n".join([f"verified {policy} in step {step}:", *map(str, proofs)]))
        if step >= LATEST:
            for policy in self.pending:
                why = f"no group of {policy} had a signal in {step} steps: it has learned nothing"
                blocks.append(str(Proof(False, f"{why}; --probe 64 says why")))
            self.pending.clear()
        self._found.clear()
        self._own.clear()
        return "\n".join(blocks)

    def _plays(self, group: Group) -> str | None:
        agent = group.key.agent
        return self._players.get(agent) or self._players.get(role_of(agent))

    def _update(self, policy: str, groups: Sequence[Group], batch: PolicyBatch) -> Iterator[Proof]:
        """Yields what the weights before and after the step say."""
        parameters, after = self.policies.parameters(policy), self.policies.state(policy)
        used = [None if p.grad is None else p.grad.clone() for p in parameters]
        before_BT, noise = self._at_weights(policy, self._before[policy], batch)
        again = [p.grad for p in parameters]
        self.policies.overwrite(policy, after)
        after_BT = self._logprobs(policy, batch)
        largest = max(
            float((after[name] - tensor).abs().max())
            for name, tensor in self._before[policy].items()
        )
        several = self.trainer.settings[policy].num_iterations > 1
        alike = cosine(used, again)
        count = sum(sample.count for sample in batch.samples)
        alone = "" if several else f", by the gradient of its own {count} completions ({alike:.3f})"
        yield Proof(
            largest > 0 and (several or alike > SAME_DIRECTION),
            f"the weights changed by up to {largest:.1e}{alone}",
        )
        yield prompts(groups)
        yield self._endings(policy, groups, batch)
        silent = sum(1 for group in groups if not any(c.advantage for c in group.candidates))
        yield Proof(
            silent < len(groups), f"{len(groups) - silent} of {len(groups)} groups have a signal"
        )
        yield _rise(batch, before_BT, after_BT, noise)
        for parameter, gradient in zip(parameters, used, strict=True):
            parameter.grad = gradient
        self._noise[policy] = noise

    def _at_weights(
        self, policy: str, state: dict[str, torch.Tensor], batch: PolicyBatch
    ) -> tuple[dict[Sample, torch.Tensor], float]:
        """Log-probabilities and gradient at these weights; how far the sampler's were from them."""
        # Not `load_state`, which would hand the weights to the sampler.
        self.policies.overwrite(policy, state)
        for parameter in self.policies.parameters(policy):
            parameter.grad = None
        self.trainer._backward(policy, batch, LossMeter(policy))
        logprobs = self._logprobs(policy, batch)
        return logprobs, _gap(logprobs)

    def _logprobs(self, policy: str, own: PolicyBatch) -> dict[Sample, torch.Tensor]:
        """Sample -> log-probabilities of its tokens in the trainer's forward pass."""
        says = self.policies.sample_logprobs(
            ((policy, sample) for sample in own.samples),
            self.trainer.settings[policy].tokens_per_batch,
            self.trainer.config.temperature,
        )
        return {sample: logp_T for (_, sample), logp_T in says.items()}

    def _endings(self, policy: str, groups: Sequence[Group], batch: PolicyBatch) -> Proof:
        """Whether the last token of completions that ended by themselves counts in the loss."""
        ends = self.policies.chat_for(policy).end_ids
        config = self.trainer.settings[policy]
        cut = self.policies.microbatches(policy, batch.samples, config.tokens_per_batch)
        rows = [(micro, row, s.token_ids) for micro in cut for row, s in enumerate(micro.samples)]
        masked = [bool(micro.mask_BT[row, len(ids) - 1]) for micro, row, ids in rows]
        ended = [ids[-1] in ends for *_, ids in rows]
        lost = sum(1 for end, counts in zip(ended, masked, strict=True) if end and not counts)
        whole = [c.completion for group in groups for c in group.candidates]
        # A completion that was not cut has to end with such a token.
        open_ = sum(1 for c in whole if not c.truncated and c.token_ids[-1] not in ends)
        truncated = sum(1 for c in whole if c.truncated)
        what = f"end-of-turn tokens are in the loss ({len(whole) - truncated} of {len(whole)} completions ended)"
        if lost or open_:
            what = f"{lost + open_} completions ended without an end-of-turn token in the loss"
        return Proof(not lost and not open_, what)

    def _sampler(self, policy: str, groups: Sequence[Group]) -> Proof:
        """Whether new completions of the sampler are those of the trainer's new weights."""
        config, version = self.trainer.config, self.policies.versions[policy]
        prompts = list(dict.fromkeys(group.prompt_ids for group in groups))[:4]
        replies = self.policies.sample(
            [Request(policy, ids, seed=place) for place, ids in enumerate(prompts)],
            2,
            max_new_tokens=config.max_completion_length,
            temperature=config.temperature,
        )
        samples = [
            Sample(ids, reply.token_ids, reply.logprobs, 1.0)
            for ids, answers in zip(prompts, replies, strict=True)
            for reply in answers
        ]
        logprobs = self._logprobs(policy, PolicyBatch.of(list(dict.fromkeys(samples))))
        gap, noise = _gap(logprobs), self._noise[policy]
        return Proof(
            gap <= max(3 * noise, ROUNDING),
            f"the sampler answers with version {version} (log-probabilities differ by {gap:.1e} from the "
            f"trainer's; before the update by {noise:.1e})",
        )


def _gap(logprobs: dict[Sample, torch.Tensor]) -> float:
    """How far the sampler's log-probabilities are from these, a mean over samples."""
    gaps = [
        (logp - torch.tensor(sample.logprobs)).abs().mean() for sample, logp in logprobs.items()
    ]
    return float(torch.stack(gaps).mean())


def _rise(
    batch: PolicyBatch,
    before: dict[Sample, torch.Tensor],
    after: dict[Sample, torch.Tensor],
    noise: float,
) -> Proof:
    """Whether the update made what was better than its group more likely, and the rest less.

    `noise` is the mean rounding of a token's log-probability, which in bfloat16 may hide a first step.
    """
    change = {sample: float((after[sample] - before[sample]).sum()) for sample in batch.samples}
    weight = {
        s: s.count * float(torch.as_tensor(s.advantage, dtype=torch.float64).mean()) for s in change
    }
    total = sum(weight[sample] * moved for sample, moved in change.items())
    # Two standard deviations of a sum of rounded numbers, each 1.25 times as wide as its mean size.
    spread = sum(weight[sample] ** 2 * len(sample.token_ids) for sample in change)
    bound = 2 * 1.25 * noise * math.sqrt(spread)
    good = [moved for sample, moved in change.items() if weight[sample] > 0]
    shown = f"mean change {math.fsum(good) / max(1, len(good)):+.3f}"
    what = "the log-probability of rewarded completions"
    if abs(total) <= bound:
        return Proof(None, f"{what} changed by no more than rounding may ({shown})")
    return Proof(total > 0, f"{what} {'rose' if total > 0 else 'did not rise'} ({shown})")


def prompts(own: Sequence[Group]) -> Proof:
    """Whether the candidates of each group answered the same prompt."""
    odd = sum(
        1
        for group in own
        if {c.completion.prompt_ids for c in group.candidates} != {group.prompt_ids}
    )
    sizes = sorted({len(group.candidates) for group in own})
    shown = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    if odd:
        return Proof(False, f"{odd} of {len(own)} groups have candidates of another prompt")
    return Proof(
        True, f"the candidates of each group share a prompt ({len(own)} groups of {shown})"
    )


def cosine(one: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> float:
    """The cosine of two gradients; 0 where one of them is missing."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return 0.0
    product = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
    norms = [
        math.sqrt(sum(float(x.double().square().sum()) for x in side if x is not None))
        for side in (one, other)
    ]
    return product / (norms[0] * norms[1]) if min(norms) > 0 else 0.0
