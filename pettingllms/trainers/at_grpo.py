"""AT-GRPO: agent- and turn-wise grouped policy optimisation, to be read top to bottom.

Zhao et al. 2025, "Stronger-MAS", https://arxiv.org/abs/2510.11062, section 4.

    rollout      at each turn of each role, K replies to ONE prompt; each is scored on its own
                 copy of the environment; one of the copies goes on
    samples      the replies of a policy's groups, with what each earned above its group
    policy_loss  PPO-clip on token ratios, with TRL's loss types
    update       every policy on its own replies only, with its own optimizer
    train_step   all of these, then the new weights are published to the sampler

The environment pays `alpha * team + local` right after a reply. Which replies are compared with
which is a row of `pettingllms.trainers.advantages`. Everything random in step s follows from the
pair (seed, s), so a resumed run needs no generator states.

Shape suffixes: _B replies, _T tokens of a reply (right-padded, mask 0), _C candidates.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import get_scheduler

from pettingllms.policies.mapping import trained_policies
from pettingllms.policies.packing import Batch
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.advantages import advantages, estimator_named
from pettingllms.trainers.budget import advance
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.episodes import AnyEnv, Episode, Scored, score, tasks_of_step
from pettingllms.trainers.metrics import Clock, LossMeter, left_out_metrics, rollout_metrics
from pettingllms.types import Candidate, Group, Reply, Request, Sample, Task


class ATGRPOTrainer:
    """Trains the policies of a team on copies of one environment.

    `config` must be resolved; `env` is a template, copied for every task and never stepped itself.
    """

    def __init__(self, config: ATGRPOConfig, env: AnyEnv, policies: PolicySet) -> None:
        self.config, self.env, self.policies = config, env, policies
        self.tree = estimator_named(config.estimator).tree
        self.trained = trained_policies(config.train_roles, policies.roles_to_policies)
        self.step = self.tokens = 0
        self.optimizers = {
            policy: torch.optim.AdamW(
                policies.parameters(policy),
                lr=config.learning_rate,
                betas=(config.adam_beta1, config.adam_beta2),
                weight_decay=config.weight_decay,
            )
            for policy in self.trained
        }
        updates = config.max_steps * config.num_iterations
        self.schedulers = {
            policy: get_scheduler(config.lr_scheduler_type, optimizer, config.warmup_steps, updates)
            for policy, optimizer in self.optimizers.items()
        }

    def train_step(self) -> tuple[list[Group], dict[str, float]]:
        """Play, compare, update every policy, publish. Returns the groups and what to log.

        Raises:
            NonFiniteError: a loss or gradient is not finite; its policy has not changed.
            SandboxUnavailable: the sandbox failed; nothing has changed.
        """
        clock, count = Clock(), self.config.tasks_per_step
        tasks = tasks_of_step(self.env, self.config.env, self.step, count, self.config.seed)
        groups = self.rollout(tasks, clock)
        metrics = rollout_metrics(groups)
        self.tokens += int(metrics["num_tokens"])
        with clock.time("update"):
            samples, left_out = self.samples(groups)
            metrics |= left_out
            for policy in self.trained:
                metrics |= self.update(policy, samples[policy]) if samples[policy] else {}
            for policy in self.trained:
                self.policies.publish(policy)
        self.step += 1
        return groups, metrics | clock.metrics(groups)

    # ------------------------------------------------------------------------- 1. rollout

    def rollout(self, tasks: Sequence[Task], clock: Clock) -> list[Group]:
        """Play all tasks in lock step, so that every policy samples one large batch a move."""
        generator = torch.Generator(self.policies.device).manual_seed(self._seed("sampling"))
        rng = random.Random(self._seed("branching"))
        width = 1 if self.tree else self.config.num_generations
        episodes = [Episode(self.env, task, index) for task in tasks for index in range(width)]
        groups: list[Group] = []
        with ThreadPoolExecutor(self.config.scoring_threads) as pool:
            while moving := [episode for episode in episodes if episode.agent is not None]:
                with clock.time("sample"):
                    replies = self._sample(moving, generator)
                with clock.time("score"):
                    scored = list(pool.map(score, moving, replies))
                groups += [self._branch(*each, rng) for each in zip(moving, scored, strict=True)]
        return groups

    def _sample(self, moving: list[Episode], generator: torch.Generator) -> list[list[Reply]]:
        """K replies where a tree branches; one where episodes are compared or nothing is trained."""
        policies = self.policies
        requests = [
            Request(policies.policy_for(e.role), policies.prompt_ids(e.role, e.prompt()))
            for e in moving
        ]
        replies: list[list[Reply]] = [[] for _ in moving]
        for k in (1, self.config.num_generations):
            places = [i for i, r in enumerate(requests) if self._width(r.policy) == k]
            answers = policies.sample(
                [requests[i] for i in places],
                k,
                generator=generator,
                temperature=self.config.temperature,
                max_new_tokens=self.config.max_completion_length,
            )
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer
        return replies

    def _width(self, policy: str) -> int:
        return self.config.num_generations if self.tree and policy in self.trained else 1

    def _branch(self, episode: Episode, scored: list[Scored], rng: random.Random) -> Group:
        """Make the group, born with its key and its prompt, and let one candidate go on."""
        rewards = [each.reward for each in scored]
        # Ties are common; always taking the first would bias which states are seen next.
        best = [k for k, reward in enumerate(rewards) if reward == max(rewards)]
        among = {"best": best, "sample": range(len(scored)), "first": [0]}[self.config.branch]
        chosen, prompt_ids = rng.choice(among), scored[0].reply.prompt_ids
        key = episode.key(prompt_ids)
        candidates = tuple(
            Candidate(each.reply, each.reward, each.team, each.local, k == chosen, each.info)
            for k, each in enumerate(scored)
        )
        episode.go_on(scored[chosen].env)
        return Group(key, self.policies.policy_for(key.role), prompt_ids, candidates)

    # ------------------------------------------------------------------------- 2. samples

    def samples(self, groups: Sequence[Group]) -> tuple[dict[str, list[Sample]], dict[str, float]]:
        """For each trained policy its replies with their advantages; and what was left out."""
        # In a tree, a policy that is not trained has groups of one, which compare nothing.
        compared = [g for g in groups if not self.tree or g.policy in self.trained]
        sizes = [len(group.candidates) for group in compared]
        values_C = advantages(compared, self.config.estimator, self.config.scale_rewards)
        samples: dict[str, list[Sample]] = {policy: [] for policy in self.trained}
        counts = {policy: Counter[str]() for policy in self.trained}
        for group, own_C in zip(compared, values_C.split(sizes), strict=True):
            if group.policy not in self.trained:
                continue
            counts[group.policy]["groups"] += 1
            if not own_C.any():
                counts[group.policy]["silent"] += 1
                continue
            # Equal replies earned the same: they are computed once and counted.
            merged: dict[tuple[int, ...], Sample] = {}
            for candidate, advantage in zip(group.candidates, own_C.tolist(), strict=True):
                ids, reply = candidate.reply.token_ids, candidate.reply
                if self.config.mask_truncated_completions and not reply.finished:
                    counts[group.policy]["truncated"] += 1
                    continue
                count = merged[ids].count + 1 if ids in merged else 1
                merged[ids] = Sample(group.prompt_ids, ids, reply.logprobs, advantage, count)
            samples[group.policy] += merged.values()
        return samples, left_out_metrics(counts)

    # ------------------------------------------------------------------------- 3. update

    def update(self, policy: str, samples: list[Sample]) -> dict[str, float]:
        """`num_iterations` optimizer steps on all replies of one policy, in micro-batches."""
        config, meter, optimizer = self.config, LossMeter(policy), self.optimizers[policy]
        batches = self.policies.microbatches(samples, config.tokens_per_batch)
        replies = sum(sample.count for sample in samples)
        tokens = sum(sample.count * len(sample.token_ids) for sample in samples)
        for iteration in range(config.num_iterations):
            meter.on_policy = iteration == 0
            optimizer.zero_grad(set_to_none=True)
            for batch in batches:
                loss = self._batch_loss(policy, batch, replies, tokens, meter)
                meter.check_finite("loss", loss)
                loss.backward()
            parameters = self.policies.parameters(policy)
            norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            meter.check_finite("gradient norm", norm)
            optimizer.step()
            advance(self.schedulers[policy], config, self.tokens)
        return meter.metrics(norm.item(), self.schedulers[policy].get_last_lr()[0])

    def _batch_loss(
        self, policy: str, batch: Batch, replies: int, tokens: int, meter: LossMeter
    ) -> torch.Tensor:
        config, heat, policies = self.config, self.config.temperature, self.policies
        reference_BT = policies.reference_logprobs(batch, temperature=heat) if config.beta else None
        logp_BT, entropy_BT = policies.logprobs(
            policy, batch, temperature=heat, entropy=True, entropy_grad=config.entropy_coef != 0
        )
        return policy_loss(config, batch, logp_BT, entropy_BT, reference_BT, replies, tokens, meter)

    def _seed(self, purpose: str) -> int:
        return random.Random(f"{self.config.seed} {self.step} {purpose}").getrandbits(63)


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Unbiased, never negative estimate of KL: http://joschu.net/blog/kl-approx.html."""
    return torch.exp(log_ratio) - log_ratio - 1


def policy_loss(
    config: ATGRPOConfig,
    batch: Batch,
    logp_BT: torch.Tensor,
    entropy_BT: torch.Tensor | None,
    reference_BT: torch.Tensor | None,
    replies: int,
    tokens: int,
    meter: LossMeter,
) -> torch.Tensor:
    """This micro-batch's part of the loss; the parts of a policy's batch add up to the whole.

    Everything is as in TRL's GRPO, also that the KL term is weighed by the ratio, which makes its
    gradient unbiased (arXiv 2512.02556). `replies` and `tokens` are those of the policy's whole
    batch, equal replies counted as often as drawn; for one process `bnpo` and `dapo` are the same.
    """
    advantage_B1 = batch.advantages_B[:, None]
    ratio_BT = torch.exp(logp_BT - batch.old_logprobs_BT)
    clipped_BT = ratio_BT.clamp(1 - config.epsilon, 1 + config.epsilon_high)
    capped_BT = ratio_BT if config.delta is None else ratio_BT.clamp(max=config.delta)
    loss_BT = -torch.min(capped_BT * advantage_B1, clipped_BT * advantage_B1)
    kl_BT = None if reference_BT is None else ratio_BT * k3(reference_BT - logp_BT)
    if kl_BT is not None:
        loss_BT = loss_BT + config.beta * kl_BT
    weight_BT = batch.mask_BT * batch.counts_B[:, None]
    if config.loss_type == "grpo":
        lengths_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
        loss = (loss_BT * weight_BT / lengths_B1).sum() / replies
    elif config.loss_type == "dr_grpo":
        loss = (loss_BT * weight_BT).sum() / (replies * config.max_completion_length)
    else:
        loss = (loss_BT * weight_BT).sum() / tokens
    if entropy_BT is not None and config.entropy_coef:
        loss = loss - config.entropy_coef * (entropy_BT * weight_BT).sum() / tokens
    meter.add(config, batch, logp_BT, ratio_BT, entropy_BT, kl_BT, loss)
    return loss
