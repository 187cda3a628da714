"""Group-relative advantages: a reward is compared with the others of its comparison group.

Every decision is a member of its group. `grpo` compares episodes, each of which counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch

from pettingllms.errors import ConfigError, GroupError, did_you_mean
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.rewards import REWARD_TRANSFORMS
from pettingllms.types import Advantage, Candidate, Group

EPSILON = 1e-4
"""Added to the standard deviation, as in TRL."""
SAME = 1e-9
"""Rewards within this tolerance count as equal (float noise)."""


class GroupRelative(Estimator):
    """Centres rewards in each comparison group and, by default, scales them to unit deviation.

    Subclasses say which candidates share a group; `tree` decides what is compared, the reward of
    the decision or the return of the episode.
    """

    by_task = True
    key: ClassVar[tuple[str, ...]]
    """Fields of `GroupKey`; candidates that agree in them share a baseline."""

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The reward above its group's mean, exactly 0 where a whole group earned the same.

        Raises:
            GroupError: a tree group has one candidate, so its advantage would always be zero.
        """
        rewards: list[float] = []
        keys: list[Hashable] = []
        policies: list[str] = []
        if self.tree:
            check_tree(groups)
        own = set() if self.tree else with_own_returns(groups)
        for group in groups:
            key = tuple(getattr(group.key, field) for field in self.key)
            key += (group.key.agent,) if group.key.task in own else ()
            for candidate in group.candidates:
                rewards.append(self.value(group, candidate))
                keys.append(key)
                policies.append(group.policy)
        rewards_C = torch.tensor(rewards, dtype=torch.float64)
        return [*centered(rewards_C, keys, self.config.scale_rewards, policies).tolist()]

    def value(self, group: Group, candidate: Candidate) -> float:
        """Returns what is compared: the reward in a tree, else the return by the candidate."""
        return candidate.reward if self.tree else group.return_by(candidate)


def with_own_returns(groups: Sequence[Group]) -> set[str]:
    """Returns the tasks in whose episodes agents have different returns.

    Each agent is compared with itself there: the sign of its advantage must not depend on the scale of
    what another one is paid.
    """
    returns: dict[tuple[str, int], float] = {}
    return {
        group.key.task
        for group in groups
        if group.episode_return
        != returns.setdefault((group.key.task, group.key.episode), group.episode_return)
    }


def check_tree(groups: Sequence[Group]) -> None:
    """Checks that every prompt has candidates to compare.

    Raises:
        GroupError: a prompt has one.
    """
    for group in groups:
        if len(group.candidates) < 2:
            raise GroupError(
                f"group {group.key} has one candidate, so its advantage is always zero; "
                "sample at least 2 (num_generations)"
            )


class AtGrpo(GroupRelative):
    """AT-GRPO: the candidates of one prompt share a baseline."""

    key: ClassVar[tuple[str, ...]] = ("task", "episode", "role", "turn", "parent")
    tree = by_decision = True
    compares = "reward"
    shapes = ("tree", "full")
    needs: ClassVar[tuple[str, ...]] = ("early_rewards",)


class OfEpisodes(GroupRelative):
    """Compares decisions of K episodes of a task, and an agent's with its own where returns differ by agent.

    Args:
        config: resolved settings of the run.
        by: "return" of the episode, or "reward" of the decision alone; by default the reward for reward
            transforms that say what a single decision is worth, else the return.

    Raises:
        ConfigError: another word.
    """

    shapes = ("episodes", "fork_on_first", "round_robin", "full")

    def __init__(self, config: ResolvedConfig, *, by: str | None = None) -> None:
        super().__init__(config)
        if by is None:
            own = config.reward_transform in REWARD_TRANSFORMS.own
            alone = own and REWARD_TRANSFORMS.load(config.reward_transform).compared == "reward"
            by = "reward" if alone else "return"
        if by not in ("return", "reward"):
            hint = did_you_mean(str(by), ("return", "reward"))
            raise ConfigError(f"estimator_args: by must be return or reward, got {by!r}; {hint}")
        self.by = self.compares = by

    def value(self, group: Group, candidate: Candidate) -> float:
        """The return of the episode that continues from the candidate, or the candidate's own reward."""
        return candidate.reward if self.by == "reward" else group.return_by(candidate)


class PerDecision(OfEpisodes):
    """All decisions of a task's episodes share a baseline, so that long episodes weigh more in it."""

    key = ("task",)


class PerAgent(OfEpisodes):
    """An agent's decisions in a task's episodes share a baseline: Dr. MAS, arXiv 2602.08847."""

    key = ("task", "agent")


class PerTurn(OfEpisodes):
    """The decisions of one turn in a task's episodes share a baseline."""

    key = ("task", "turn")


class PerAgentTurn(OfEpisodes):
    """An agent's decisions of one turn in a task's episodes share a baseline."""

    key = ("task", "agent", "turn")


def centered(
    rewards_C: torch.Tensor,
    keys: Sequence[Hashable],
    scale_rewards: str = "group",
    batches: Sequence[Hashable] | None = None,
) -> torch.Tensor:
    """Rewards above the mean of those with an equal key.

    Args:
        rewards_C: float64, one a candidate.
        keys: of the comparison groups.
        scale_rewards: as in TRL: "group", "batch" (deviation over its whole batch) or "none".
            The deviation is the unbiased one.
        batches: the batch of each; all rewards are one by default. Policies have batches of their
            own, because roles may be paid on scales of their own.

    Returns:
        float32 of shape _C; exactly 0 for all members of a group that earned the same. A reward that
        is not finite gives advantages that are not.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    together: dict[Hashable, list[int]] = defaultdict(list)
    for index, batch in enumerate(batches or [None] * len(keys)):
        together[batch].append(index)
    values_C = torch.zeros_like(rewards_C)
    for indices in members.values():
        compared = rewards_C[indices]
        batch = None if batches is None else batches[indices[0]]
        # `not (... <= SAME)` lets NaN propagate instead of treating it as zero variance.
        if not compared.max() - compared.min() <= SAME:
            # The mean is the group's own in every case; only the deviation may be of the batch.
            divisor = {"group": compared, "batch": rewards_C[together[batch]]}.get(scale_rewards)
            scale = 1.0 if divisor is None else divisor.std() + EPSILON
            values_C[indices] = (compared - compared.mean()) / scale
    return values_C.float()
