"""A tree with a critic: a candidate is worth what it earned and what a critic expects to follow.

From ArCHer (Zhou et al. 2024, https://arxiv.org/abs/2402.19446). Its second critic, of prompts alone, is
not needed where a prompt has K completions: their mean takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import fmean

import torch

from pettingllms.methods.critic import CriticMethod, Critics
from pettingllms.methods.grpo import member_of
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import argument
from pettingllms.types import Advantage, Group, GroupKey


class QTree(CriticMethod, AtGrpo):
    """AT-GRPO for outcomes that are paid later, without playing them: a critic learns what completions lead to.

        A_k = Q(o, a_k) - mean_j Q(o, a_j),   Q(o, a) = r + C(o, a)
        C(o, a) -> late r + gamma * (mean_j r'_j + what followed a')

    The primes are the team's next decision (the agent's own, where agents have returns of their own) and a' the
    candidate that the episode continues from; nothing follows the last one. Each policy has a critic, which
    begins with C = 0 and learns from the candidates that episodes continue from. It reads the base model's hidden
    states at the last token of the prompt and at the last but one of the completion, whose last ends the turn.
    ArCHer's target is Q itself at the next decision (TD); outcomes have no delay, and stay right for later steps.

    Args:
        config: resolved settings of the run.
        gamma: discount of each decision.
        learning_rate: of the critics.
        epochs: of the critics over what they learn in a step.
        memory: steps from which they learn, the current one counted.
    """

    source = "arXiv 2402.19446"
    # The best of K would lead into states that a policy rarely reaches by itself.
    settings = {"branch": "sample", "scale_rewards": "none"}
    shapes = ("tree",)
    needs = ()
    compares = "return"
    frozen_base = True
    gamma: float = argument(1.0, above=0, at_most=1)
    learning_rate: float = argument(3e-3, above=0)
    epochs: int = argument(10, at_least=1, whole=True)
    memory: int = argument(8, at_least=1, whole=True)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        self.critics = Critics(
            config,
            by_policy=True,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            memory=self.memory,
        )
        self._worth: dict[GroupKey, list[float]] = {}
        """Q of the candidates of each decision."""

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each candidate, by the critics as they were before the step.

        Raises:
            GroupError: a prompt has one candidate, so its advantage would always be zero.
            NonFiniteError: a critic predicts a value that is not finite.
        """
        self.check_tree(groups)
        texts = [
            [(group.policy, group.prompt_ids, c.completion.token_ids) for c in group.candidates]
            for group in groups
        ]
        # Each text once, so that equal completions have exactly equal values.
        rows = {text: row for row, text in enumerate(dict.fromkeys(chain.from_iterable(texts)))}
        features = self.critics.features(
            self.policies, [(policy, [prompt, prompt + ids[:-1]]) for policy, prompt, ids in rows]
        )
        expected = self.critics.values(len(rows), features).tolist()
        chosen = list[int]()
        for group, candidates in zip(groups, texts, strict=True):
            self._worth[group.key] = [
                candidate.reward + expected[rows[text]]
                for candidate, text in zip(group.candidates, candidates, strict=True)
            ]
            chosen.append(rows[candidates[group.candidates.index(group.chosen)]])
        advantages = super().advantages(groups)
        self._worth.clear()
        self.critics.fit(features, followed(groups, self.gamma), chosen)
        return advantages

    def values(self, group: Group) -> list[float]:
        """Q of the candidates."""
        return self._worth[group.key]


def followed(groups: Sequence[Group], gamma: float) -> torch.Tensor:
    """What followed the chosen candidate of each decision: the target of C, float64 `_N`."""
    targets_N = torch.zeros(len(groups), dtype=torch.float64)
    after: dict[tuple[str, int, str], float] = {}
    # Later decisions first, because a target needs the one that follows it.
    for row in sorted(range(len(groups)), key=lambda n: groups[n].key.parent, reverse=True):
        group, of = groups[row], member_of(groups[row])
        targets_N[row] = group.late_reward + gamma * after.get(of, 0.0)
        after[of] = fmean(candidate.reward for candidate in group.candidates) + float(
            targets_N[row]
        )
    return targets_N
