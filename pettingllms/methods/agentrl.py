"""AgentRL: the advantages of each environment have one scale, whatever is trained beside it.

https://arxiv.org/abs/2510.04206, after descriptions of the paper; its code was not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from pettingllms.envs.several import environment_of
from pettingllms.trainers.at_grpo import EPSILON, SAME, AtGrpo
from pettingllms.types import Advantage, Group


class AgentRl(AtGrpo):
    """Advantages of `at_grpo` are scaled once more over all tokens of an environment, for several of them.

        A = (a - mean a) / (std a + epsilon)    over the tokens of an environment's candidates of a policy

    Here `a` is the advantage by `at_grpo`, which counts once for each token of its completion. An
    environment with long replies, or one in which few groups differ, so weighs as much as the others. A group
    that earned the same counts nowhere, and its advantages stay 0.
    """

    source = "arXiv 2510.04206"

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The scaled advantages.

        Raises:
            GroupError: a prompt has one candidate, so its advantage would always be zero.
        """
        values_C = torch.tensor(super().advantages(groups), dtype=torch.float64)
        members: dict[tuple[str, str], list[int]] = defaultdict(list)
        counts, start = list[int](), 0
        for group in groups:
            counts += [len(candidate.completion.token_ids) for candidate in group.candidates]
            places, start = range(start, len(counts)), len(counts)
            if values_C[places.start : places.stop].any():
                kind = environment_of(self.config.env, group.key.task)
                members[kind, group.policy] += places
        scaled_C = torch.zeros_like(values_C)
        for indices in members.values():
            by_token = values_C[indices].repeat_interleave(torch.tensor(counts)[indices])
            # Written as in `centered`, so that NaN is not taken for no difference.
            if not by_token.max() - by_token.min() <= SAME:
                scaled_C[indices] = (values_C[indices] - by_token.mean()) / (
                    by_token.std() + EPSILON
                )
        return [*scaled_C.tolist()]
