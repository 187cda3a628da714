"""CURE's comparison: the candidates of one prompt, by the deviation of the population.

Wang et al. 2025, https://arxiv.org/abs/2506.03136, and the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.estimators.group_relative import EPSILON, SAME, check_tree
from pettingllms.types import Advantage, Group


class Cure(Estimator):
    """Compares the K programs of a prompt with each other, and so the K tests.

        A = (r - mean r) / (std r + epsilon)     with the deviation of the population (1 / n)

    A side whose rewards are all the same is left out. It differs from `at_grpo` by a constant factor; the
    rewards are those of the transform `cure`.
    """

    tree = True
    compares = "reward"
    needs: ClassVar[tuple[str, ...]] = ("early_rewards",)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The reward above the mean of the prompt's, exactly 0 where all earned the same.

        Raises:
            GroupError: a prompt has one candidate.
        """
        check_tree(groups)
        found: list[Advantage] = []
        for group in groups:
            rewards = [candidate.reward for candidate in group.candidates]
            rewards_C = torch.tensor(rewards, dtype=torch.float64)
            if rewards_C.max() - rewards_C.min() <= SAME:
                found += [0.0] * len(rewards)
                continue
            scale = rewards_C.std(correction=0) + EPSILON
            divisor = 1.0 if self.config.scale_rewards == "none" else scale
            found += ((rewards_C - rewards_C.mean()) / divisor).tolist()
        return found
