"""Shared rewards: agents that act in a round are all paid what the round earned.

CORY, Ma et al. 2024, https://arxiv.org/abs/2410.06101.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.rewards.base import RewardTransform, repaid
from pettingllms.types import Candidate, Group


class SharedRewards(RewardTransform):
    """Pays every completion its own reward and those of the other agents in the same round.

        r = r_pioneer + r_observer

    A round is one turn of each agent. The others' rewards are those of the completions that the
    episode continued from. Agents with returns of their own are paid for each other in this way; a
    team that shares one return has it already, and only its trees see a difference.

    Args:
        config: resolved settings of the run.
    """

    by_task = True
    needs: ClassVar[tuple[str, ...]] = ("rounds",)
    compared = "whole"

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with the sums."""
        return [self._shared(trajectory) for trajectory in trajectories]

    def _shared(self, trajectory: Trajectory) -> Trajectory:
        rounds: dict[int, float] = defaultdict(float)
        for group in trajectory.groups:
            rounds[group.key.turn] += group.chosen.reward

        def reward(group: Group, candidate: Candidate) -> float:
            # The sum of the round has the reward of the chosen candidate, which this one takes the
            # place of.
            return candidate.reward + rounds[group.key.turn] - group.chosen.reward

        return repaid(trajectory, reward)
