"""Group-relative advantages: which candidates are compared with which, as data.

| name | compared within | reward | rollout |
|---|---|---|---|
| `at_grpo` | task, role, turn, parent | of the decision | tree: K candidates of one prompt, one goes on |
| `grpo` | task | return of the episode | K episodes a task |
| `agent` | task, role | return of the episode | K episodes a task (Dr. MAS, arXiv 2602.08847) |
| `turn` | task, turn | return of the episode | K episodes a task |

The return of an episode is the sum of the very rewards that `at_grpo` compares, of all roles and turns, so
that the estimators differ in grouping alone. A new estimator is one more row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pettingllms.errors import GroupError, UnknownNameError, did_you_mean
from pettingllms.types import Group, GroupKey

EPSILON = 1e-4
"""Added to the standard deviation, as in TRL."""
SAME = 1e-9
"""Rewards closer than this are equal; the rest is rounding."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """How candidates are grouped and what they are compared by."""

    key: tuple[str, ...]
    """Fields of `GroupKey`; candidates that agree in them share a baseline."""
    tree: bool
    """K candidates a node, scored by the decision; else K episodes a task, scored by return."""

    def group_of(self, key: GroupKey) -> tuple[object, ...]:
        """The comparison group that a decision belongs to."""
        return tuple(getattr(key, field) for field in self.key)


ESTIMATORS = {
    "at_grpo": Estimator(("task", "episode", "role", "turn", "parent"), tree=True),
    "grpo": Estimator(("task",), tree=False),
    "agent": Estimator(("task", "role"), tree=False),
    "turn": Estimator(("task", "turn"), tree=False),
}


def estimator_named(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in ESTIMATORS:
        raise UnknownNameError(f"unknown estimator {name!r}; {did_you_mean(name, ESTIMATORS)}")
    return ESTIMATORS[name]


def advantages(groups: Sequence[Group], name: str, scale_rewards: str = "group") -> torch.Tensor:
    """Centre the rewards in each comparison group and, by default, scale them to unit deviation.

    Args:
        groups: what was sampled, of one policy or of several.
        name: a row of `ESTIMATORS`.
        scale_rewards: as in TRL: "group", "batch" (deviation over all rewards given) or "none".
            The deviation is the unbiased one.

    Returns:
        float32 of shape (candidates of all groups, in order); exactly 0 for all members of a
        comparison group that earned the same.

    Raises:
        GroupError: a tree group has one candidate: its advantage would always be zero.
        UnknownNameError: no such estimator.
    """
    estimator = estimator_named(name)
    returns = {} if estimator.tree else episode_returns(groups)
    rewards: list[float] = []
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for group in groups:
        if estimator.tree and len(group.candidates) < 2:
            raise GroupError(
                f"group {group.key} has one candidate, so its advantage is always zero; "
                "sample at least 2 (num_generations)"
            )
        for candidate in group.candidates:
            members[estimator.group_of(group.key)].append(len(rewards))
            rewards.append(
                candidate.reward if estimator.tree else returns[group.key.task, group.key.episode]
            )
    rewards_C = torch.tensor(rewards, dtype=torch.float64)
    values_C = torch.zeros_like(rewards_C)
    for indices in members.values():
        compared = rewards_C[indices]
        # Written so that a reward that is no number is passed on, not taken for no variance.
        if not compared.max() - compared.min() <= SAME:
            divisor = {"group": compared, "batch": rewards_C}.get(scale_rewards)
            scale = 1.0 if divisor is None else divisor.std() + EPSILON
            values_C[indices] = (compared - compared.mean()) / scale
    return values_C.float()


def episode_returns(groups: Sequence[Group]) -> dict[tuple[str, int], float]:
    """Sum of the rewards of the executed candidates of each (task, episode)."""
    returns: dict[tuple[str, int], float] = defaultdict(float)
    for group in groups:
        returns[group.key.task, group.key.episode] += sum(
            c.reward for c in group.candidates if c.chosen
        )
    return dict(returns)
