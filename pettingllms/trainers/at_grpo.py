"""AT-GRPO: agent- and turn-wise grouped policy optimisation, to be read top to bottom.

Zhao et al. 2025, "Stronger-MAS", https://arxiv.org/abs/2510.11062, section 4.

    rollout         at each turn of each role, K completions of ONE prompt; each is scored on its
                    own copy of the environment; the episode continues from one of the copies
    credited        the same records with advantages: what each earned above its group
    policy_batches  for each policy the completions to train on
    policy_loss     PPO-clip on token ratios, or another of TRL's losses (`pettingllms.trainers.losses`)
    update          every policy on its own completions only, with its own optimizer
    train_step      all of these, then the new weights are published to the sampler

The environment pays `alpha * team + local` right after a completion. Which completions are compared
with which is the estimator's (`pettingllms.trainers.estimators`), what it sees of the rewards the
reward transform's (`.rewards`), and who plays and learns in a step the cast's (`.casts`). Everything
random about a decision follows from its key (seed, step, task, episode, depth): a resumed run needs
no generator states, and the order in which decisions are made changes nothing.

Shape suffixes: _B replies, _T tokens of a reply (right-padded, mask 0), _C candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from pettingllms.policies.packing import Batch
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.roles import trained_policies
from pettingllms.rollout.episode import AnyEnv, tasks_of_step
from pettingllms.rollout.room import check_room
from pettingllms.rollout.trajectory import Trajectory, in_order, with_advantages
from pettingllms.trainers.batch import PolicyBatch, silent_share, step_batches
from pettingllms.trainers.callbacks import Callback, called
from pettingllms.trainers.casts.base import Cast, Casting
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.estimators.base import Estimator, estimator_of
from pettingllms.trainers.gradients import add_gradients, batches_at_once
from pettingllms.trainers.losses import policy_loss
from pettingllms.trainers.metrics import Clock, LossMeter, by_policy, rollout_metrics
from pettingllms.trainers.per_policy import own_settings
from pettingllms.trainers.play import Player, by_unit
from pettingllms.trainers.plugins import Plugin, plugin_of
from pettingllms.trainers.rewards.base import RewardTransform
from pettingllms.trainers.schedule import advance, last_step, optimization
from pettingllms.trainers.streamed import GradientSum, Number, divisor, unit_of
from pettingllms.types import Sample, Task


class ATGRPO:
    """Trains the policies of a team on copies of one environment.

    Args:
        config: settings; those that follow from the model and the environment may be open.
        env: a template, copied for every task and never stepped itself.
        policies: of the roles; `load_policies` makes them.
        estimator: a class or an instance, in place of the one that `config` names.
        callbacks: called after every step of `train`.
        reward_transform: as `estimator`.
        cast: as `estimator`.
    """

    def __init__(
        self,
        config: ATGRPOConfig,
        env: AnyEnv,
        policies: PolicySet,
        estimator: type[Estimator] | Estimator | None = None,
        callbacks: Sequence[Callback] = (),
        *,
        reward_transform: type[RewardTransform] | RewardTransform | None = None,
        cast: type[Cast] | Cast | None = None,
    ) -> None:
        self.config = config = resolve(config, env)
        self.env, self.policies, self.callbacks = env, policies, callbacks
        self.estimator = estimator_of(config, estimator, env)
        self.reward_transform = plugin_of(RewardTransform, config, reward_transform)
        self.cast = plugin_of(Cast, config, cast)
        for part in (self.estimator, self.reward_transform):
            part.attach(env, policies)
        self.trained = trained_policies(config.train_roles, policies.roles_to_policies)
        self.step = self.tokens = 0
        self.intact = True
        """False while optimizers step: an error then leaves policies that do not belong together."""
        self.settings = {name: own_settings(config, name) for name in self.trained}
        trainable = {name: policies.parameters(name) for name in self.trained}
        team = policies.roles_to_policies, self.trained
        self.updates = {name: self.cast.updates(name, *team) for name in self.trained}
        self.optimizers, self.schedulers = optimization(self.settings, trainable, self.updates)
        parts = self.estimator, self.reward_transform
        self.unit = unit_of(config, self.settings.values(), parts)
        added = self.trained if self.unit else ()
        self.sums = {name: GradientSum(name) for name in added}
        """Trained policy -> its gradients of the units so far, where they are added unit by unit."""

    def take_steps(self) -> None:
        """Takes steps until `max_steps`, `max_tokens`, or until a callback ends it."""
        while self.step < last_step(self.config, self.step, self.tokens):
            if called(self.callbacks, "on_step", self, self.train_step()[1]):
                break

    def train_step(self) -> tuple[list[Trajectory], dict[str, float]]:
        """Takes a step and publishes its weights. Returns the records and what to log.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
            SandboxUnavailable, SamplerUnavailable: the sandbox or the sampler failed.
            ConfigError: no prompt of the step leaves room for a completion in the context.
        """
        trajectories, metrics = self.take_step()
        self.publish()
        return trajectories, metrics

    def take_step(self) -> tuple[list[Trajectory], dict[str, float]]:
        """Plays, compares, updates every policy; the sampler keeps the old weights until `publish`.

        Where it raises and `intact` is true, it has changed nothing.
        """
        clock, count, tokens = Clock(), self.config.tasks_per_step, self.tokens
        learned = {name: copy.deepcopy(each.state_dict()) for name, each in self.plugins.items()}
        try:
            tasks = tasks_of_step(self.env, self.config.env, self.step, count, self.config.seed)
            trajectories = self.rollout(tasks, clock)
            metrics = rollout_metrics(trajectories)
            self.tokens += int(metrics["num_tokens"])
            with clock.time("update"):
                trajectories = self.credited(trajectories)
                groups = by_unit(self.config, self.unit, trajectories)
                batches = step_batches(self.config, self.casting.learners, groups)
                metrics |= self.update(batches)
                metrics["frac_reward_zero_std"] = silent_share(batches.values())
        except BaseException:
            self.tokens = tokens
            for own in self.sums.values():
                own.clear()
            for name, each in self.plugins.items():
                each.load_state_dict(learned[name])
            raise
        self.step += 1
        return trajectories, metrics | clock.metrics(self.tokens - tokens)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Returns the states of each trained policy's optimizer and schedule, not copied."""
        return {
            name: {"optimizer": own.state_dict(), "scheduler": self.schedulers[name].state_dict()}
            for name, own in self.optimizers.items()
        }

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Continues from what `optimizer_states` returned, after the policies' own tensors."""
        for name, own in states.items():
            self.optimizers[name].load_state_dict(own["optimizer"])
            self.schedulers[name].load_state_dict(own["scheduler"])

    @property
    def plugins(self) -> dict[str, Plugin]:
        """Setting -> the part of the method that it names, of those that may learn something."""
        return {each.setting: each for each in (self.estimator, self.reward_transform)}

    @property
    def casting(self) -> Casting:
        """The casting of the next step: who plays and who learns."""
        return self.cast.at(self.step, self.policies.roles_to_policies, self.trained)

    def publish(self) -> None:
        """Hands the trained weights to the sampler."""
        for policy in self.trained:
            self.policies.publish(policy)

    # ------------------------------------------------------------------------- 1. rollout
    def rollout(self, tasks: Sequence[Task], clock: Clock) -> list[Trajectory]:
        """Rolls out all tasks; `pettingllms.trainers.play` says what that depends on."""
        player = Player(self.config, self.env, self.policies, self.estimator.shape())
        found = player.play(self.step, tasks, self.casting, clock)
        check_room(found, self.config.max_completion_length)
        return found

    # ---------------------------------------------------------------------- 2. advantages
    def credited(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with each candidate's advantage."""
        groups = in_order(self.reward_transform(trajectories))
        # In a tree, a policy that does not learn has groups of one, which compare nothing.
        tree, learners = self.estimator.tree, self.casting.learners
        compared = [g for g in groups if not tree or g.policy in learners]
        return with_advantages(trajectories, compared, self.estimator.checked(compared))

    # ------------------------------------------------------------------------- 3. update
    def update(self, batches: Mapping[str, PolicyBatch]) -> dict[str, float]:
        """`num_iterations` optimizer steps of each policy on its own completions.

        All gradients are there before any policy changes: a loss that is not finite, or memory
        that runs out, leaves every policy as it was, without a copy to go back to.
        """
        config, norms = self.config, dict[str, float]()
        for policy in (name for name in batches if name in self.sums):
            self.add(policy, batches[policy].units)
        added = {policy for policy, own in self.sums.items() if own.meters}
        moved = [policy for policy, own in batches.items() if own.samples or policy in added]
        moved = moved if config.num_iterations else []
        meters = {policy: LossMeter(policy) for policy in moved}
        for _ in range(config.num_iterations):
            for policy in batches:
                self.optimizers[policy].zero_grad(set_to_none=True)
            for policy, meter in meters.items():
                norms[policy] = self._gradient(policy, batches[policy], meter)
                meter.stepped()
            self.intact = False
            # A policy without a gradient stays as it is; its learning rate falls with the others'.
            for policy in batches:
                self.optimizers[policy].step()
                advance(self.schedulers[policy], config, self.tokens, self.updates[policy])
        self.intact = True
        rates = {policy: self.schedulers[policy].get_last_lr()[0] for policy in batches}
        found = {name: meter.metrics(norms[name], rates[name]) for name, meter in meters.items()}
        return by_policy({name: own.metrics | found.get(name, {}) for name, own in batches.items()})

    def add(self, policy: str, units: Mapping[Number, Sequence[Sample]]) -> None:
        """Adds the gradients of whole units to the policy's sum, see `streamed`."""
        parameters = self.policies.parameters(policy)
        self.sums[policy].add(units, parameters, partial(self._backward, policy))

    def _gradient(self, policy: str, own: PolicyBatch, meter: LossMeter) -> float:
        """Accumulates the clipped gradient of the step; returns its norm before that."""
        config, parameters = self.settings[policy], self.policies.parameters(policy)
        if policy in self.sums:
            self.sums[policy].give(parameters, divisor(config, own), meter)
        else:
            self._backward(policy, own, meter)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        meter.check_finite("gradient norm", norm)
        return norm.item()

    def _backward(self, policy: str, own: PolicyBatch, meter: LossMeter) -> None:
        """Accumulates the gradients of all micro-batches."""
        config, heat, policies = self.settings[policy], self.config.temperature, self.policies

        def loss_of(batch: Batch, meter: LossMeter) -> torch.Tensor:
            base_BT = None
            if config.beta:
                base_BT = policies.reference_logprobs(policy, batch, temperature=heat)
            logp_BT, entropy_BT = policies.logprobs(
                policy, batch, temperature=heat, entropy=True, entropy_grad=config.entropy_coef != 0
            )
            loss = policy_loss(config, own, batch, logp_BT, entropy_BT, base_BT, meter)
            meter.check_finite("loss", loss)
            return loss

        parameters = policies.parameters(policy)
        batches = policies.microbatches(policy, own.samples, config.tokens_per_batch)
        add_gradients(batches, loss_of, parameters, meter, batches_at_once(config, parameters))
