"""The rollout of AT-GRPO with baselines of larger groups: what remains of the method without its grouping.

AT-GRPO compares the K completions of one prompt. These sample the same trees and pay the same rewards,
decision by decision, but subtract the mean of more of them. Whatever differs in success is the grouping's.
"""

from __future__ import annotations

from pettingllms.trainers.at_grpo import AtGrpo


class TreeByTask(AtGrpo):
    """All completions of a task share a baseline, whoever wrote them and when."""

    key = ("task",)


class TreeByRole(AtGrpo):
    """A role's completions share a baseline over all turns of a task."""

    key = ("task", "role")


class TreeByTurn(AtGrpo):
    """All roles' completions of a turn share a baseline."""

    key = ("task", "turn")
