"""Dr. MAS and its neighbors: every decision of a task's episodes is a member of a group.

https://arxiv.org/abs/2602.08847. `grpo` compares episodes instead, each of which counts once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch

from pettingllms.methods.grpo import with_own_returns
from pettingllms.trainers.at_grpo import centered
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Method, argument
from pettingllms.types import Advantage, Candidate, Group


class OfEpisodes(Method):
    """Compares decisions of K episodes of a task.

        A = (R - mean R) / (std R + epsilon)    among decisions with equal `key`

    An agent's decisions are compared with its own where returns differ by agent.

    Args:
        by: "return" of the episode, or "reward" of the decision alone; by default the reward where
            `credit` says what a single decision is worth, else the return.
    """

    shapes = ("episodes", "fork_on_first", "round_robin", "full")
    key: ClassVar[tuple[str, ...]]
    """Fields of `GroupKey`; candidates that agree in them share a baseline."""
    by: str = argument("", one_of=("", "return", "reward"))

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        self.by = self.by or ("reward" if self.credits == "reward" else "return")
        self.compares = self.by

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The value above its group's mean, exactly 0 where a whole group earned the same."""
        rewards: list[float] = []
        keys: list[Hashable] = []
        policies: list[str] = []
        differing = with_own_returns(groups)
        for group in groups:
            key = tuple(getattr(group.key, field) for field in self.key)
            key += (group.key.agent,) if group.key.task in differing else ()
            for candidate in group.candidates:
                rewards.append(self.value(group, candidate))
                keys.append(key)
                policies.append(group.policy)
        rewards_C = torch.tensor(rewards, dtype=torch.float64)
        return [*centered(rewards_C, keys, self.config.scale_rewards, policies).tolist()]

    def value(self, group: Group, candidate: Candidate) -> float:
        """The return of the episode that continues from the candidate, or the candidate's own reward."""
        return candidate.reward if self.by == "reward" else group.return_by(candidate)


class DrMas(OfEpisodes):
    """Each agent's decisions are compared with its own, over all of its calls in the K episodes.

    In a team that acts in a fixed cycle every agent has equally many decisions, so that this and
    `decision` differ by a constant factor only: Dr. MAS needs a team whose calls vary.
    """

    source = "arXiv 2602.08847"
    key = ("task", "agent")


class PerDecision(OfEpisodes):
    """All decisions of a task's episodes share a baseline, so that long episodes weigh more in it."""

    key = ("task",)


class PerTurn(OfEpisodes):
    """The decisions of one turn in a task's episodes share a baseline."""

    key = ("task", "turn")


class PerAgentTurn(OfEpisodes):
    """An agent's decisions of one turn in a task's episodes share a baseline."""

    key = ("task", "agent", "turn")
