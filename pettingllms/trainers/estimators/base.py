"""`Estimator`: the interface of everything that turns rewards into advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pettingllms.rollout.engine import RolloutShape
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.types import Advantage, Group


class Estimator(ABC):
    """Turns the rewards of a rollout into advantages.

    Args:
        config: resolved settings of the run.
    """

    tree: ClassVar[bool] = False
    """The rollout it needs: K candidates of one prompt (a tree), or else K episodes a task."""

    def __init__(self, config: ResolvedConfig) -> None:
        self.config = config

    def shape(self) -> RolloutShape:
        """What the rollout samples of each task."""
        width, branch = self.config.num_generations, self.config.branch
        return (
            RolloutShape(width=width, branch=branch) if self.tree else RolloutShape(episodes=width)
        )

    @abstractmethod
    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One advantage for each candidate, called once a step.

        Args:
            groups: the decisions of all episodes by depth, of all policies; in a tree, those of
                trained policies alone, because the others have one candidate.

        Returns:
            In the order of the groups and their candidates. A number counts for every token of the
            completion; a tuple has one number for each. Candidates of a group whose advantages
            are all 0 are left out of the loss.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the estimator learned in earlier steps: numbers, strings, tensors and containers.

        It is part of every checkpoint.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")
