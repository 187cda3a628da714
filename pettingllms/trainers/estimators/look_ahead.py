"""A tree that looks ahead: a candidate is worth what it earned and what it led to.

AT-GRPO's groups, with values as in VinePPO (Kazemnejad et al. 2024, https://arxiv.org/abs/2410.01679) and
MALT (https://arxiv.org/abs/2412.01928).
"""

from __future__ import annotations

from typing import ClassVar

from pettingllms.errors import ConfigError
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.group_relative import AtGrpo
from pettingllms.types import Candidate, Group


class LookAhead(AtGrpo):
    """Compares the candidates of one prompt by their rewards and what came after them.

        A = (V - mean V) / (std V + epsilon),   V = r + gamma * mean V' over what can follow

    so that a reward counts gamma^n where it is paid n decisions later, by any agent. Each candidate
    that the episode does not continue from is played to the end once, with single completions that
    are not trained on (shape `look_ahead`), or all are continued from (`full`); where the episode
    continues, V' is of all candidates of the next node, where a probe does, of its one. This is the tree for outcomes that are paid at the end. It
    is not for outcomes that are rare: where none of K continuations succeeds, nothing is compared.

    Args:
        config: resolved settings of the run. `branch=sample` keeps later states those that the
            policies reach by themselves.
        gamma: discount of each decision.

    Raises:
        ConfigError: gamma is not in (0, 1].
    """

    shapes = ("look_ahead", "full")
    needs: ClassVar[tuple[str, ...]] = ()
    compares = "return"

    def __init__(self, config: ResolvedConfig, *, gamma: float = 1.0) -> None:
        super().__init__(config)
        if not 0 < gamma <= 1:
            raise ConfigError(f"estimator_args: gamma must be above 0 and at most 1, got {gamma}")
        self.gamma = gamma

    def value(self, group: Group, candidate: Candidate) -> float:
        """The candidate's reward and, discounted, what followed."""
        del group
        later = candidate.later.worth(self.gamma) if candidate.later else 0.0
        return candidate.reward + self.gamma * later
