"""A tree that looks ahead: a candidate is worth what it earned and what it led to.

AT-GRPO's groups, with values as in VinePPO (Kazemnejad et al. 2024, https://arxiv.org/abs/2410.01679),
MALT (https://arxiv.org/abs/2412.01928), and C3 (Chen et al. 2026, https://arxiv.org/abs/2603.06859).
"""

from __future__ import annotations

from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.method import argument
from pettingllms.types import Group


class LookAhead(AtGrpo):
    """AT-GRPO with candidates compared by what they lead to, for outcomes paid at the end.

        A = (V - mean V) / (std V + epsilon),   V = r + gamma * mean V' over what can follow

    so that a reward counts gamma^n where it is paid n decisions later, by any agent. Each candidate
    that the episode does not continue from is played to the end once, with single completions that
    are not trained on (shape `look_ahead`), or all are continued from (`full`); where the episode
    continues, V' is of all candidates of the next node, where a probe does, of its one. It is not
    for outcomes that are rare: where none of K continuations succeeds, nothing is compared.
    C3 has such a tree for a chain of two agents; here the team may be any.

    Args:
        gamma: discount of each decision.
    """

    source = "arXiv 2410.01679, 2412.01928, 2603.06859"
    # The best of K would lead into states that a policy rarely reaches by itself.
    settings = {"branch": "sample"}
    shapes = ("look_ahead", "full")
    needs = ()
    compares = "return"
    gamma: float = argument(1.0, above=0, at_most=1)

    def values(self, group: Group) -> list[float]:
        """The candidates' rewards and, discounted, what followed."""
        return [
            candidate.reward
            + self.gamma * (candidate.later.worth(self.gamma) if candidate.later else 0.0)
            for candidate in group.candidates
        ]


class Malt(LookAhead):
    """Records full trees and trains nothing.

    `pettingllms-data pairs` writes what is better among siblings for TRL's SFTTrainer and DPOTrainer.
    """

    source = "arXiv 2412.01928"
    settings = {"num_generations": 3, "num_iterations": 0}
    shapes = ("full", "look_ahead")


class C3(LookAhead):
    """Each completion is compared with its siblings in a full tree, by the mean outcome below them.

        A_j = Q_j - 1 / (K - 1) * sum of Q_k over the K - 1 siblings k != j

    Q is V of `look_ahead`: the mean over the leaves below a completion. The paper has a reasoner and an
    actor; a tree has K + K^2 + ... completions, so longer teams need a small K.

    Args:
        gamma: discount of each decision; 1 in the paper.
    """

    source = "arXiv 2603.06859"
    settings = {"branch": "sample", "num_generations": 3, "scale_rewards": "none"}
    shapes = ("full", "look_ahead")

    def values(self, group: Group) -> list[float]:
        """Q, times K / (K - 1): the mean of all K that it is compared with has Q itself in it."""
        size = len(group.candidates)
        return [value * size / (size - 1) for value in super().values(group)]
