"""MaxRL: rare successes weigh more, as in the gradient of a likelihood.

Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning", https://arxiv.org/abs/2602.02710.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import EpisodeCredit, repaid_once, solved
from pettingllms.types import Advantage, Group


class MaxRl(EpisodeCredit):
    """K episodes of a task are compared by success, and rare successes weigh more.

        A = (r - mean r) / mean r,    0 where none of the K succeeded

    r is 1 for a success of the team and 0 otherwise: the mean of negative or graded rewards says nothing about a likelihood. As K
    grows, the gradient becomes that of log p, the log-probability of success, in place of p. `scale_rewards` has no effect.
    """

    source = "arXiv 2602.02710"
    needs = ("success",)
    credits = "return"
    credit_shapes = ("episodes",)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with r at the last decision, as the return of all agents."""
        return repaid_once(trajectory, float(solved(trajectory, self.config)))

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """(r - mean r) / mean r of each decision's episode; an episode counts once."""
        tasks: dict[str, dict[int, float]] = defaultdict(dict)
        for group in groups:
            tasks[group.key.task][group.key.episode] = group.episode_return
        means = {task: sum(returns.values()) / len(returns) for task, returns in tasks.items()}
        pairs = [(g.episode_return, means[g.key.task]) for g in groups for _ in g.candidates]
        return [(success - mean) / mean if mean else 0.0 for success, mean in pairs]
