"""GRPO as the literature counts it: an episode is one member of its group, however long it is.

Shao et al. 2024, https://arxiv.org/abs/2402.03300, for whole episodes as in verl and Dr. MAS.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pettingllms.trainers.at_grpo import centered
from pettingllms.trainers.method import Method, argument
from pettingllms.types import Advantage, Group


class Grpo(Method):
    """K episodes of a task are compared by return.

        A = (R - mean R) / (std R + epsilon)

    All decisions of an episode get the result. Where agents have different returns, an agent's is
    compared with its own in the task's episodes.

    Args:
        mean: divide a return by the number of rewards that it sums. A sum pays for going on where
            rewards are positive.
    """

    source = "arXiv 2402.03300"
    mean: bool = argument(default=False)
    by_agent = False
    """Whether an agent is compared with its own also where all agents have equal returns."""

    @property
    def compares(self) -> str:  # type: ignore[override]
        """The sum of an episode's rewards, or their mean."""
        return "mean" if self.mean else "return"

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
        differing = with_own_returns(groups)
        apart = [self.by_agent or task in differing for task, _, _ in values]
        agents = [agent * separate for (_, _, agent), separate in zip(values, apart, strict=True)]
        keys = [(task, agent) for (task, _, _), agent in zip(values, agents, strict=True)]
        # Not in batches by policy: a team's return is no single policy's.
        returns_N = torch.tensor(returns, dtype=torch.float64)
        compared = centered(returns_N, keys, self.config.scale_rewards, agents)
        by_member = dict(zip(values, compared, strict=True))
        spread = [by_member[member_of(group)] for group in groups for _ in group.candidates]
        return torch.stack(spread) if spread else torch.zeros(0)


class DrGrpo(Grpo):
    """GRPO without the deviation and with one divisor for all lengths."""

    source = "arXiv 2503.20783"
    settings = {"loss_type": "dr_grpo", "scale_rewards": "none"}


class Gspo(Grpo):
    """GRPO with one ratio for a whole completion."""

    source = "arXiv 2507.18071"
    # The ratio needs a loss over completions, and the default averages over tokens.
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence"}


class Cispo(Grpo):
    """GRPO in which a clipped ratio weighs a token instead of silencing it."""

    source = "arXiv 2506.13585"
    settings = {"loss_type": "cispo"}


class Sapo(Grpo):
    """GRPO with a soft gate in place of the clip."""

    source = "arXiv 2511.20347"
    settings = {"loss_type": "sapo"}


def member_of(group: Group) -> tuple[str, int, str]:
    """The return that a decision belongs to: the episode's, or the agent's own in the episode."""
    return group.key.task, group.key.episode, "" if group.cooperative else group.key.agent


def with_own_returns(groups: Sequence[Group]) -> set[str]:
    """Returns the tasks in whose episodes agents have different returns.

    Each agent is compared with itself there: the sign of its advantage must not depend on the scale
    of another agent's rewards.
    """
    returns: dict[tuple[str, int], float] = {}
    return {
        group.key.task
        for group in groups
        if group.episode_return
        != returns.setdefault((group.key.task, group.key.episode), group.episode_return)
    }
