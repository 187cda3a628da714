"""GRPO as the literature counts it: an episode is one member of its group, however long it is.

Shao et al. 2024, https://arxiv.org/abs/2402.03300, for whole episodes as in verl and Dr. MAS.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.estimators.group_relative import centered, with_own_returns
from pettingllms.types import Advantage, Group


class Grpo(Estimator):
    """Compares the K episodes of a task by return; all their decisions get the result.

        A = (R - mean R) / (std R + epsilon)

    Where agents have different returns, an agent's is compared with its own in the task's episodes.

    Args:
        config: resolved settings of the run.
        mean: divide a return by the number of rewards that it sums. A sum pays for going on where
            rewards are positive.
    """

    by_task = True

    def __init__(self, config: ResolvedConfig, *, mean: bool = False) -> None:
        super().__init__(config)
        self.mean, self.compares = mean, "mean" if mean else "return"

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The return above the mean of the task's, exactly 0 where all episodes earned the same."""
        return self.by_episode(groups).tolist()

    def by_episode(self, groups: Sequence[Group]) -> torch.Tensor:
        """The advantage of each candidate's episode, float32 of shape _C."""
        values: dict[tuple[str, int, str], float] = {}
        counts: dict[tuple[str, int, str], int] = {}
        for group in groups:
            member = member_of(group)
            values[member] = group.episode_return
            counts[member] = counts.get(member, 0) + 1
        returns = [values[member] / (counts[member] if self.mean else 1) for member in values]
        own = with_own_returns(groups)
        agents = [agent if task in own else "" for task, _, agent in values]
        keys = [(task, agent) for (task, _, _), agent in zip(values, agents, strict=True)]
        # Not in batches by policy: a team's return is no single policy's.
        returns_N = torch.tensor(returns, dtype=torch.float64)
        compared = centered(returns_N, keys, self.config.scale_rewards, agents)
        found = dict(zip(values, compared, strict=True))
        spread = [found[member_of(group)] for group in groups for _ in group.candidates]
        return torch.stack(spread) if spread else torch.zeros(0)


def member_of(group: Group) -> tuple[str, int, str]:
    """The return that a decision belongs to: the episode's, or the agent's own in the episode."""
    return group.key.task, group.key.episode, "" if group.cooperative else group.key.agent
