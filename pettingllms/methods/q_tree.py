"""A tree with a critic: a candidate is worth what it earned and what a critic expects to follow.

From ArCHer (Zhou et al. 2024, https://arxiv.org/abs/2402.19446). Its second critic, of prompts alone, is
not needed where a prompt has K completions: their mean takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch

from pettingllms.methods.critic import CriticMethod
from pettingllms.methods.grpo import member_of
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.method import argument
from pettingllms.types import Advantage, Group


class QTree(CriticMethod, AtGrpo):
    """AT-GRPO for outcomes that are paid later, without playing them: a critic learns what completions lead to.

        A_k = Q(o, a_k) - mean_j Q(o, a_j),   Q(o, a) = r + C(o, a)
        C(o, a) -> late r + gamma * (mean_j r'_j + what followed a')

    The primes are the team's next decision (the agent's own, where agents have returns of their own) and a' the candidate that
    the episode continues from. Each policy has a critic, which begins with C = 0 and learns from the candidates that episodes
    continue from. It reads the base model's hidden states at the last token of the prompt and at the last but one of the completion.
    ArCHer's target is Q itself at the next decision (TD); outcomes have no delay, and stay right for later steps.

    Args:
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
    by_policy = True
    gamma: float = argument(1.0, above=0, at_most=1)
    memory: int = argument(4, at_least=1, whole=True)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each candidate, by the critics as they were before the step."""
        self.check_tree(groups)
        pairs = [(group, candidate) for group in groups for candidate in group.candidates]
        texts = [(group.policy, group.prompt_ids, c.completion.token_ids) for group, c in pairs]
        # Each text once, so that equal completions have exactly equal values.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        features = self.critics.features(
            self.policies, [(policy, [prompt, prompt + ids[:-1]]) for policy, prompt, ids in rows]
        )
        expected = self.critics.values(features).tolist()
        values = [
            c.reward + expected[rows[text]] for (_, c), text in zip(pairs, texts, strict=True)
        ]
        chosen = [rows[g.policy, g.prompt_ids, g.chosen.completion.token_ids] for g in groups]
        self.critics.fit([features[row] for row in chosen], followed(groups, self.gamma))
        return [*self.compared(groups, values)]


def followed(groups: Sequence[Group], gamma: float) -> torch.Tensor:
    """What followed the chosen candidate of each decision: the target of C, float64 `_N`."""
    targets_N = torch.zeros(len(groups), dtype=torch.float64)
    after: dict[tuple[str, int, str], float] = {}
    # Later decisions first, because a target needs the one that follows it.
    for row in sorted(range(len(groups)), key=lambda n: groups[n].key.parent, reverse=True):
        group, member = groups[row], member_of(groups[row])
        targets_N[row] = group.late_reward + gamma * after.get(member, 0.0)
        after[member] = fmean(c.reward for c in group.candidates) + targets_N[row].item()
    return targets_N
