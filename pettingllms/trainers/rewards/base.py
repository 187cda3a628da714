"""`RewardTransform`: the interface of what changes rewards between environment and estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.plugins import Plugin
from pettingllms.trainers.rewards import REWARD_TRANSFORMS
from pettingllms.types import Candidate, Group


class RewardTransform(Plugin):
    """Leaves rewards as the environment paid them.

    Args:
        config: resolved settings of the run.
    """

    setting, registry = "reward_transform", REWARD_TRANSFORMS
    by_task, own = True, ("__call__",)

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records as the estimator shall see them, in the same order; called once a step.

        Args:
            trajectories: of the step, as they were played. Candidates have what the environment says
                of them in `info`.
        """
        return list(trajectories)


def repaid(trajectory: Trajectory, reward: Callable[[Group, Candidate], float]) -> Trajectory:
    """The record with `reward(group, candidate)` in place of every reward, and returns to match.

    What an agent was paid at other agents' steps stays.
    """
    groups = [
        replace(
            group, candidates=tuple(replace(c, reward=reward(group, c)) for c in group.candidates)
        )
        for group in trajectory.groups
    ]
    return Trajectory.of(
        trajectory.task,
        trajectory.episode,
        groups,
        early=trajectory.early,
        cooperative=trajectory.cooperative,
        overlong=trajectory.overlong,
        came_from=trajectory.came_from,
    )
