"""MARFT: agents learn one after the other, with advantages along the chain of the team's decisions.

Liao et al. 2025, https://arxiv.org/abs/2504.16129; GAE is Schulman et al. 2016,
https://arxiv.org/abs/1506.02438.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from pettingllms.methods.critic import CriticMethod
from pettingllms.methods.dr_mas import DrMas
from pettingllms.methods.grpo import member_of
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.trainers.method import Casting, Method, argument
from pettingllms.types import Advantage, Group


class Alternate(Method):
    """One policy learns at a time; the others play, with one completion a prompt.

    Args:
        steps: that a policy learns before it is the next one's turn.
    """

    steps: int = argument(1, at_least=1, whole=True)

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """The policies take turns in the order of their roles."""
        return Casting(players, (trained[step // self.steps % len(trained)],))


class Gae(CriticMethod):
    """What followed a decision is compared with what a critic expected there.

        delta_i = r_i + gamma V(o_i+1) - V(o_i),   A_i = delta_i + gamma lambda A_i+1

    `i + 1` is the next decision of the team, mostly another agent's, which sees what `i` wrote; where
    agents have returns of their own, it is the agent's own next one. V after the last decision is 0;
    where only the limit on turns ended the episode, it is V of the prompt that would have come next. A is then centered and divided by
    its deviation over the step, unless `scale_rewards` is none. The critic learns `A_i + V(o_i)`
    after it was asked. One episode of a task is enough. Policies on different base models have a
    critic for each; at the decisions of partners behind an API, V is 0.

    Args:
        gamma: discount of the formula.
        lam: lambda of the formula.
        learning_rate: of the critic, which reads the base model's hidden state at the last token
            of a prompt.
        epochs: of the critic over the prompts of a step.
        warmup: steps in which the critic alone learns.
    """

    source = "arXiv 2504.16129"
    least = 1
    compares = "to_go"
    gamma: float = argument(0.99, at_least=0, at_most=1)
    lam: float = argument(0.95, at_least=0, at_most=1)
    learning_rate: float = argument(1e-3, above=0)
    epochs: int = argument(4, at_least=1, whole=True)
    warmup: int = argument(0, at_least=0, whole=True)

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """As without a critic, and nobody learns during its warmup."""
        casting = super().players(step, players, trained)
        return casting._replace(learners=()) if step < self.warmup else casting

    def shape(self) -> RolloutShape:
        """Also asks for the prompts after episodes that the limit on turns ended."""
        return dataclasses.replace(super().shape(), bootstraps=True)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each decision, by the critics as they were before the step.

        Raises:
            NonFiniteError: a critic predicts a value that is not finite.
        """
        if not groups:
            return []
        features = self.critics.features(
            self.policies, [(group.policy, [group.prompt_ids]) for group in groups]
        )
        values_N = self.critics.values(features)
        cut = {row: group.unplayed for row, group in enumerate(groups) if group.unplayed}
        ends = [(unplayed.policy, [unplayed.prompt_ids]) for unplayed in cut.values()]
        ends_N = torch.zeros_like(values_N)
        ends_N[[*cut]] = self.critics.values(self.critics.features(self.policies, ends))
        advantages_N = chained(groups, values_N, self.gamma, self.lam, ends_N)
        # Before the advantages are standardized: the target A + V is in units of reward.
        self.critics.fit(features, advantages_N + values_N)
        if self.config.scale_rewards != "none":
            advantages_N = standardized(advantages_N)
        return [*advantages_N.tolist()]


class Marft(Alternate, DrMas):
    """Whole episodes are compared, and the agents learn one after the other, a step each.

    Without the paper's critic.
    """

    source = "arXiv 2504.16129"


class MarftGae(Gae, Alternate):
    """MARFT with the paper's critic: advantages run along the chain of the team's decisions."""


def chained(
    groups: Sequence[Group],
    values_N: torch.Tensor,
    gamma: float,
    lam: float,
    ends_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """The advantages A of `Gae`, before they are scaled, float64 `_N`.

    Args:
        groups: decisions with one candidate each.
        values_N: V of each.
        gamma: weight of what comes a decision later.
        lam: lambda, weight of later surprises.
        ends_N: V of what would have come after each, where the limit on turns cut its chain there,
            else 0; None for 0 everywhere.
    """
    advantages_N = torch.zeros_like(values_N)
    after: dict[tuple[str, int, str], tuple[float, float]] = {}
    # Later decisions first, because an advantage needs the one that follows it in its chain.
    for at in sorted(range(len(groups)), key=lambda n: groups[n].key.parent, reverse=True):
        group, value, chain = groups[at], float(values_N[at]), member_of(groups[at])
        end = 0.0 if ends_N is None else float(ends_N[at])
        next_advantage, next_value = after.get(chain, (0.0, end))
        delta = group.chosen.reward + group.late_reward + gamma * next_value - value
        advantage = delta + gamma * lam * next_advantage
        advantages_N[at] = advantage
        after[chain] = advantage, value
    return advantages_N


def standardized(values_N: torch.Tensor) -> torch.Tensor:
    """Centered values over their deviation (1 / n); 0 where all are the same."""
    centered_N = values_N - values_N.mean()
    return centered_N / (values_N.std(correction=0) + 1e-8)
