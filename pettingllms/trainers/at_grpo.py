"""AT-GRPO: agent- and turn-wise grouped policy optimisation, to be read top to bottom.

Zhao et al. 2025, "Stronger-MAS", https://arxiv.org/abs/2510.11062, section 4.

    AtGrpo          the method: groups of K completions of ONE prompt, and their advantages
    ATGRPO          the trainer, of this and every other method:
      rollout         at each turn of each role, the completions are sampled; each is scored on its own
                      copy of the environment; the episode continues from one of the copies
      credited        the same records with advantages: what each earned above its group
      update          every policy on its own completions only, with its own optimizer, by
                      PPO-clip on token ratios (`pettingllms.trainers.losses`)
      train_step      all of these, then the new weights are published to the sampler

The environment pays `alpha * team + local` right after a completion. Other methods
(`pettingllms.methods`) sample, credit, or compare in another way. Everything random about a decision
follows from its key (seed, step, task, episode, depth): a resumed run needs no generator states, and
the order in which decisions are made changes nothing.

Shape suffixes: _B replies, _T tokens of a reply (right-padded, mask 0), _C candidates.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.trajectory import Trajectory, in_order, with_advantages
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.difficulty import Pools
from pettingllms.trainers.losses import PolicyBatch, RoleGradients, policy_batches, policy_loss
from pettingllms.trainers.method import Casting, Method
from pettingllms.trainers.metrics import Clock, LossMeter, rollout_metrics
from pettingllms.trainers.play import Player, sampled
from pettingllms.trainers.settings import trained_settings
from pettingllms.types import Advantage, Group, Task

EPSILON = 1e-4
"""Added to the standard deviation, as in TRL."""
SAME = 1e-9
"""Rewards within this tolerance count as equal (float noise)."""


Step = tuple[list[Trajectory], dict[str, float]]
"""The records of a step, and what to log."""


class AtGrpo(Method):
    """K completions of one prompt are compared; the episode continues from one of them.

        A = (r - mean r) / (std r + epsilon)     among equal (task, episode, role, turn, parent)

    The rollout shape `tree` samples the K completions, and `branch` chooses the one that the
    episode continues from (`pettingllms.rollout.shapes`).
    """

    source = "arXiv 2510.11062"
    tree = True
    compares = "reward"
    shapes: ClassVar[tuple[str, ...]] = ("tree", "full")
    needs: ClassVar[tuple[str, ...]] = ("early_rewards",)
    key: ClassVar[tuple[str, ...]] = ("task", "episode", "role", "turn", "parent")
    """Fields of `GroupKey`; candidates that agree in them share a baseline."""

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The reward above its group's mean, divided as `scale_rewards` says; 0 where all earned the same.

        Raises:
            GroupError: a prompt has one candidate, so its advantage would always be zero.
        """
        self.check_tree(groups)
        return [*self.compared(groups, [v for group in groups for v in self.values(group)])]

    def compared(self, groups: Sequence[Group], values: Sequence[float]) -> list[float]:
        """A value of each candidate above its group's mean, divided as `scale_rewards` says."""
        group_of = [group for group in groups for _ in group.candidates]
        keys = [tuple(getattr(group.key, field) for field in self.key) for group in group_of]
        policies, values_C = [g.policy for g in group_of], torch.tensor(values, dtype=torch.float64)
        compared: list[float] = centered(
            values_C, keys, self.config.scale_rewards, policies
        ).tolist()
        return compared

    def values(self, group: Group) -> list[float]:
        """Returns what is compared: the candidates' rewards."""
        return [candidate.reward for candidate in group.candidates]


def centered(
    rewards_C: torch.Tensor,
    keys: Sequence[Hashable],
    scale_rewards: str = "group",
    batches: Sequence[Hashable] | None = None,
) -> torch.Tensor:
    """Rewards above the mean of those with an equal key.

    Args:
        rewards_C: float64, one a candidate.
        keys: of the comparison groups.
        scale_rewards: as in TRL: "group", "batch" (deviation over its whole batch) or "none".
            The deviation is the unbiased one.
        batches: the batch of each; all rewards are one by default. Policies have batches of their
            own, because roles may be paid on scales of their own.

    Returns:
        float32 of shape _C; exactly 0 for all members of a group that earned the same. A reward that
        is not finite gives advantages that are not.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    together: dict[Hashable, list[int]] = defaultdict(list)
    for index, batch in enumerate(batches or [None] * len(keys)):
        together[batch].append(index)
    values_C = torch.zeros_like(rewards_C)
    for indices in members.values():
        compared = rewards_C[indices]
        batch = None if batches is None else batches[indices[0]]
        # `not (... <= SAME)` lets NaN propagate instead of treating it as zero variance.
        if not compared.max() - compared.min() <= SAME:
            # The mean is the group's own in every case; only the deviation may be of the batch.
            divisor = {"group": compared, "batch": rewards_C[together[batch]]}.get(scale_rewards)
            scale = 1.0 if divisor is None else divisor.std() + EPSILON
            values_C[indices] = (compared - compared.mean()) / scale
    return values_C.float()


class ATGRPO:
    """Trains the policies of a team on copies of one environment.

    Args:
        config: settings; None stands for defaults of the model and the environment.
        env: a template that is copied for every task and never stepped itself.
        policies: the policies of the roles, from `load_policies`.
        method: a class or an instance, in place of `config.method`.
        callbacks: callbacks of the run (`pettingllms.trainers.callbacks`).
    """

    def __init__(
        self,
        config: ATGRPOConfig,
        env: AnyEnv,
        policies: PolicySet,
        method: type[Method] | Method | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.config = config = resolve(config, env)
        self.env, self.policies, self.callbacks = env, policies, callbacks
        self.method = Method.of(config, method)
        self.method.attach(env, policies)
        self.shape = self.method.shape()
        # A learner on Ray has no environment.
        self.pools = Pools(config, env) if config.difficulty_pools and env is not None else None
        self.step = self.tokens = self.batch = 0
        self.intact = True
        """False while optimizers step: an error then leaves policies that do not belong together."""
        self.settings, self.updates, self.optimizers, self.schedulers = optimization(
            config, policies, self.method
        )
        self.trained = tuple(self.settings)

    def train_step(self) -> Step:
        """Takes a step and publishes its weights. Returns the records and the metrics.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
            SandboxUnavailable, SamplerUnavailable: the sandbox or the sampler failed.
            ConfigError: no prompt of the step leaves room for a completion in the context.
        """
        trajectories, metrics = self.take_step()
        self.publish()
        return trajectories, metrics

    def take_step(self) -> Step:
        """Runs rollouts and updates every policy; the sampler keeps the old weights until `publish`.

        If it raises and `intact` is true, nothing has changed.
        """
        clock, tokens = Clock(), self.tokens
        learned = {
            name: copy.deepcopy(plugin.state_dict()) for name, plugin in self.stateful.items()
        }
        try:
            trajectories = sampled(self, clock)
            metrics = rollout_metrics(trajectories)
            self.tokens += int(metrics["num_tokens"])
            with clock.time("update"):
                trajectories = self.credited(trajectories)
                learners = {policy: self.settings[policy] for policy in self.casting.learners}
                batches = policy_batches(self.config, learners, in_order(trajectories))
                metrics |= self.update(batches)
                metrics["frac_reward_zero_std"] = PolicyBatch.silent_share(batches.values())
                if self.pools is not None:
                    metrics |= self.pools.learn(trajectories)
        except BaseException:
            self.tokens = tokens
            for name, plugin in self.stateful.items():
                plugin.load_state_dict(learned[name])
            raise
        self.step += 1
        return trajectories, metrics | clock.metrics(self.tokens - tokens)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Returns the states of each trained policy's optimizer and schedule, not copied."""
        return {
            name: {
                "optimizer": optimizer.state_dict(),
                "scheduler": self.schedulers[name].state_dict(),
            }
            for name, optimizer in self.optimizers.items()
        }

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Loads the result of `optimizer_states`, after the tensors of the policies."""
        for name, state in states.items():
            self.optimizers[name].load_state_dict(state["optimizer"])
            self.schedulers[name].load_state_dict(state["scheduler"])

    @property
    def stateful(self) -> dict[str, Any]:
        """Name -> object with a state of its own in checkpoints, in addition to the policies."""
        kept = {callback.kept_as: callback for callback in self.callbacks if callback.kept_as}
        pools = {} if self.pools is None else {"pools": self.pools}
        return {"method": self.method, **pools, **kept}

    @property
    def casting(self) -> Casting:
        """Roles of the policies in the next step, and which of them learn."""
        return self.method.players(self.step, self.policies.roles_to_policies, self.trained)

    def publish(self) -> None:
        """Hands the trained weights to the sampler."""
        for policy in self.trained:
            self.policies.publish(policy)

    # ------------------------------------------------------------------------- 1. rollout
    def rollout(self, tasks: Sequence[Task], clock: Clock) -> list[Trajectory]:
        """Runs the rollouts of all tasks (`pettingllms.trainers.play`)."""
        player = Player(self.config, self.env, self.policies, self.shape)
        return player.play(self.step, tasks, self.casting, clock)

    # ---------------------------------------------------------------------- 2. advantages
    def credited(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the records with the advantage of each candidate."""
        groups = in_order(self.method.credit(trajectories))
        # In a tree, a policy that does not learn has groups of one, which compare nothing.
        tree, learners = self.method.tree, self.casting.learners
        compared = [group for group in groups if not tree or group.policy in learners]
        return with_advantages(trajectories, compared, self.method.checked(compared))

    # ------------------------------------------------------------------------- 3. update
    def update(self, batches: Mapping[str, PolicyBatch]) -> dict[str, float]:
        """Takes `num_iterations` optimizer steps of each policy on its own completions.

        All gradients are computed before any policy changes, so if a loss is not finite or memory runs
        out, every policy stays as it was.
        """
        config, norms, rates = self.config, dict[str, float](), dict[str, float]()
        moved = [policy for policy, batch in batches.items() if batch.samples]
        meters = {policy: LossMeter(policy) for policy in moved if config.num_iterations}
        for _ in range(config.num_iterations):
            for policy in batches:
                self.optimizers[policy].zero_grad(set_to_none=True)
            for policy, meter in meters.items():
                norms[policy] = self._gradient(policy, batches[policy], meter)
                meter.stepped()
            self.intact = False
            # A policy without a gradient stays as it is; its learning rate falls with the others'.
            for policy in batches:
                rates[policy] = self.schedulers[policy].get_last_lr()[0]
                self.optimizers[policy].step()
                advance(self.schedulers[policy], config, self.tokens, self.updates[policy])
        self.intact = True
        losses = {name: meter.metrics(norms[name], rates[name]) for name, meter in meters.items()}
        return {
            f"{policy}/{name}": value
            for policy, batch in batches.items()
            for name, value in (batch.metrics | losses.get(policy, {})).items()
        }

    def _gradient(self, policy: str, batch: PolicyBatch, meter: LossMeter) -> float:
        """Accumulates the clipped gradient of the step; returns its norm before that."""
        parameters = self.policies.parameters(policy)
        # In later iterations the weights are no longer those that sampled.
        watching = [c for c in self.callbacks if c.wants_gradients and meter.on_policy]
        roles = RoleGradients(parameters)
        self._backward(policy, batch, meter, roles if watching else None)
        for callback in watching:
            callback.on_gradients(self, policy, roles.sums, batch.samples)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings[policy].max_grad_norm)
        meter.check_finite("gradient norm", norm)
        return norm.item()

    def _backward(
        self, policy: str, whole: PolicyBatch, meter: LossMeter, roles: RoleGradients | None = None
    ) -> None:
        """Accumulates the gradients of all micro-batches of a policy's batch, and in `roles` each role's."""
        config, temperature = self.settings[policy], self.config.temperature
        policies, entropic = self.policies, config.entropy_coef != 0
        for batch in policies.microbatches(policy, whole.samples, config.tokens_per_batch):
            base_BT = None
            if config.beta:
                base_BT = policies.reference_logprobs(policy, batch, temperature=temperature)
            logp_BT, entropy_BT = policies.logprobs(
                policy, batch, temperature=temperature, entropy=True, entropy_grad=entropic
            )
            loss_of = partial(policy_loss, config, whole)
            outputs = logp_BT, entropy_BT, base_BT
            loss = loss_of(batch, *outputs, meter)
            meter.check_finite("loss", loss)
            if roles is None:
                loss.backward()
            else:
                roles.backward(loss, batch, loss_of, *outputs, LossMeter(policy))


# -------------------------------------------------------------------- optimizers and schedules
# Generated tokens are what methods are compared at, and a step of one may cost three times that of another. With a
# budget of tokens the learning rate therefore follows the tokens, so that it has fallen as far at the end, however
# many steps that took.


def optimization(
    run: ResolvedConfig, policies: PolicySet, method: Method
) -> tuple[dict[str, ResolvedConfig], dict[str, int], dict[str, torch.optim.AdamW], dict[str, Any]]:
    """What an update needs of each trained policy.

    Returns:
        The policies' settings, their optimizer steps in the whole run (over which the learning rate falls), their
        optimizers, and their schedules.
    """
    roles = policies.roles_to_policies
    settings = trained_settings(run, roles)
    updates = {policy: method.updates(policy, roles, tuple(settings)) for policy in settings}
    optimizers = {
        policy: torch.optim.AdamW(
            policies.parameters(policy),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
        )
        for policy, config in settings.items()
    }
    schedulers = {
        policy: get_scheduler(
            config.lr_scheduler_type,
            optimizers[policy],
            config.warmup_steps,
            # Some schedules divide by the difference.
            max(updates[policy], config.warmup_steps + 1),
        )
        for policy, config in settings.items()
    }
    return settings, updates, optimizers, schedulers


def last_step(config: ResolvedConfig, step: int, tokens: int) -> int:
    """The step that training ends after; a forecast from the steps so far where tokens decide."""
    if config.max_tokens is None or not tokens:
        return config.max_steps
    if tokens >= config.max_tokens:
        return min(step, config.max_steps)
    forecast = math.ceil(config.max_tokens * step / tokens)
    # At least one more step, because the tokens so far have not used the budget up.
    return min(config.max_steps, max(forecast, step + 1))


def advance(scheduler: LRScheduler, config: ResolvedConfig, tokens: int, updates: int) -> None:
    """Moves a schedule on by one of its updates; after the warmup to where the tokens are if that is further."""
    if config.max_tokens is not None and scheduler.last_epoch + 1 >= config.warmup_steps:
        reached = int(updates * min(1.0, tokens / config.max_tokens))
        # All schedules here are functions of `last_epoch`, and `step` adds 1 to it. It never falls
        # back, so that a step without tokens still counts as one.
        scheduler.last_epoch = max(scheduler.last_epoch, reached - 1)
    scheduler.step()
