"""MARSHAL: every turn is worth what followed it, compared with the turns of the same agent.

Yuan et al. 2025, https://arxiv.org/abs/2510.15414, and the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pettingllms.methods.gigpo import rewards_to_go
from pettingllms.trainers.at_grpo import centered
from pettingllms.trainers.method import Method, argument
from pettingllms.types import Advantage, Group


class Marshal(Method):
    """Each turn is worth the rewards that followed it, compared with all turns of the same agent.

        R_{i,k} = sum of gamma^(t - k) r_{i,t} over t >= k         the return from turn k of episode i
        A_{i,k} = R_{i,k} - mean R                                 over the turns of the agent

    The mean is over the agent's turns in the K episodes of a task, so seats of a game with unequal chances have baselines
    of their own. The authors' code takes the mean over the different values of a whole batch, whose games all begin alike.
    `--scale-rewards group` divides by the deviation.

    Args:
        gamma: discount of one decision: of the team's, or of the agent's where returns are its own.
    """

    source = "arXiv 2510.15414"
    settings = {"scale_rewards": "none"}
    compares = "to_go"
    gamma: float = argument(1.0, above=0, at_most=1)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The return from each turn above the agent's mean, exactly 0 where all are the same."""
        returns_N = torch.tensor(rewards_to_go(groups, self.gamma), dtype=torch.float64)
        keys = [(group.key.task, group.key.agent) for group in groups]
        policies = [group.policy for group in groups]
        return [*centered(returns_N, keys, self.config.scale_rewards, policies).tolist()]
