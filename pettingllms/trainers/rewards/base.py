"""`RewardTransform`: the interface of what changes rewards between environment and estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from pettingllms.errors import ConfigError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.plugins import Plugin
from pettingllms.trainers.rewards import REWARD_TRANSFORMS
from pettingllms.types import Candidate, Group


class RewardTransform(Plugin):
    """Leaves rewards as the environment paid them.

    Args:
        config: resolved settings of the run.
    """

    setting, registry = "reward_transform", REWARD_TRANSFORMS
    by_task, by_decision, own = True, True, ("__call__",)
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs of an environment: words of `pettingllms.trainers.estimators.needs`."""
    compared: ClassVar[str] = "any"
    """What an estimator may compare: "return" of an episode, "reward" of each decision, "whole" for these two, or "any"."""
    shapes: ClassVar[tuple[str, ...]] = ()
    """Rollout shapes whose candidates it can tell apart; all if empty."""

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


def solved(trajectory: Trajectory, config: ResolvedConfig) -> bool:
    """Returns whether the team had solved the task at the end of the episode.

    Raises:
        ConfigError: the environment does not say.
    """
    if trajectory.success is None:
        raise ConfigError(
            f"reward_transform {config.reward_transform} pays for success, and {config.env} does not "
            "say whether a task was solved: infos need `success`"
        )
    return trajectory.success


def readable(group: Group) -> bool:
    """Returns whether the reply that the episode continued from could be read."""
    return group.chosen.info.get("parse_error") is None
