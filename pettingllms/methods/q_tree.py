"""A tree with a critic: a candidate is worth what it earned and what a critic expects to follow.

From ArCHer (Zhou et al. 2024, https://arxiv.org/abs/2402.19446). Its second critic, of prompts alone, is
not needed where a prompt has K completions: their mean takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from pettingllms.methods.critic import Critics
from pettingllms.methods.grpo import member_of
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import argument
from pettingllms.types import Advantage, Group, GroupKey


class QTree(AtGrpo):
    """AT-GRPO for outcomes paid later, without playing them: a critic learns what candidates lead to.

        A_k = Q(o, a_k) - mean_j Q(o, a_j),   Q(o, a) = r + C(o, a)
        C(o, a) -> late r + gamma * mean_j Q(o', a'_j)

    `o'` is the next decision of the team, or of the agent where agents have returns of their own, and C after the
    last one is 0. C learns from the candidates that episodes continue from, by its own values before the step, and
    reads the base model's hidden state at the last token of prompt and completion. It begins with 0, so that
    agents who are never paid at once learn from the second step on at the earliest. Equal completions are equal.

    Args:
        config: resolved settings of the run.
        gamma: discount of each decision.
        learning_rate: of the critic.
        epochs: of the critic over the decisions of a step.
    """

    source = "arXiv 2402.19446"
    # The best of K would lead into states that a policy rarely reaches by itself.
    settings = {"branch": "sample", "scale_rewards": "none"}
    shapes = ("tree",)
    needs = ()
    compares = "return"
    frozen_base = True
    gamma: float = argument(1.0, above=0, at_most=1)
    learning_rate: float = argument(1e-3, above=0)
    epochs: int = argument(4, at_least=1, whole=True)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        self.critics = Critics(config, learning_rate=self.learning_rate, epochs=self.epochs)
        self._worth: dict[GroupKey, list[float]] = {}
        """Q of the candidates of each decision."""

    def attach(self, env: Any, policies: PolicySet) -> None:
        """Takes the base models, whose features the critics read."""
        del env
        self.critics.policies = policies

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each candidate, by the critics as they were before the step.

        Raises:
            GroupError: a prompt has one candidate, so its advantage would always be zero.
            NonFiniteError: a critic predicts a value that is not finite.
        """
        self.check_tree(groups)
        texts = [
            [
                (group.policy, group.prompt_ids + one.completion.token_ids)
                for one in group.candidates
            ]
            for group in groups
        ]
        # Each text once, so that equal completions have exactly equal values.
        rows = {text: row for row, text in enumerate(dict.fromkeys(chain.from_iterable(texts)))}
        features = self.critics.features([*rows])
        follows = self.critics.values(len(rows), features).tolist()
        self._worth = {
            group.key: [
                candidate.reward + follows[rows[text]]
                for candidate, text in zip(group.candidates, mine, strict=True)
            ]
            for group, mine in zip(groups, texts, strict=True)
        }
        advantages = super().advantages(groups)
        chosen = [
            rows[mine[group.candidates.index(group.chosen)]]
            for group, mine in zip(groups, texts, strict=True)
        ]
        self.critics.fit(features, self.targets(groups), chosen)
        return advantages

    def targets(self, groups: Sequence[Group]) -> torch.Tensor:
        """What followed each chosen candidate, by the Q of the next decision: float64, one for each group."""
        targets_N = torch.zeros(len(groups), dtype=torch.float64)
        following: dict[tuple[str, int, str], float] = {}
        for row in sorted(range(len(groups)), key=lambda n: groups[n].key.parent, reverse=True):
            group, team = groups[row], member_of(groups[row])
            targets_N[row] = group.late_reward + self.gamma * following.get(team, 0.0)
            following[team] = fmean(self._worth[group.key])
        return targets_N

    def values(self, group: Group) -> list[float]:
        """Q of the candidates."""
        return self._worth[group.key]

    def state_dict(self) -> dict[str, Any]:
        """The critics; empty before the first step."""
        return self.critics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the critics of an earlier step, or without any."""
        self.critics.load_state_dict(state)
