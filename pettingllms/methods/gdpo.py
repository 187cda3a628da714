"""GDPO: the parts of a reward are compared one by one before they are added.

https://arxiv.org/abs/2601.05242, and TRL's `normalize_then_sum`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from pettingllms.trainers.at_grpo import EPSILON, SAME, centered
from pettingllms.trainers.method import Method
from pettingllms.types import Advantage, Candidate, Group


class Gdpo(Method):
    """Team and local reward are scaled apart before they are added.

        Z_p = (r_p - mean r_p) / (std r_p + epsilon)    among the K candidates of a prompt
        S   = alpha * Z_team + Z_local
        A   = (S - mean S) / (std S + epsilon)          over the step's candidates of a policy

    A small or rare part is not drowned by a large one. `alpha` here weighs scaled parts, and
    `scale_rewards` has no effect. An environment may pay further parts, by name, in `info["parts"]`.
    """

    source = "arXiv 2601.05242"
    tree = True
    compares = "parts"
    shapes = ("tree", "full")
    needs = ("early_rewards", "reward_parts")

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The scaled sums; exactly 0 for a prompt whose candidates differ in no part.

        Raises:
            GroupError: a prompt has one candidate.
        """
        self.check_tree(groups)
        pairs = [(at, c) for at, group in enumerate(groups) for c in group.candidates]
        keys = [at for at, _ in pairs]
        sums_C = torch.zeros(len(pairs), dtype=torch.float64)
        # In the order in which they are met: sums of floats in the order of a set would differ
        # between processes.
        names = dict.fromkeys(name for _, candidate in pairs for name in parts_of(candidate))
        for name in names:
            part_C = [parts_of(candidate).get(name, 0.0) for _, candidate in pairs]
            weight = self.config.alpha if name == "team" else 1.0
            sums_C += weight * centered(torch.tensor(part_C, dtype=torch.float64), keys).double()
        return self._over_batches(groups, keys, sums_C)

    def _over_batches(
        self, groups: Sequence[Group], keys: Sequence[int], sums_C: torch.Tensor
    ) -> list[Advantage]:
        by_policy: dict[str, list[int]] = defaultdict(list)
        for place, at in enumerate(keys):
            by_policy[groups[at].policy].append(place)
        values_C = torch.zeros_like(sums_C)
        for places in by_policy.values():
            batch = sums_C[places]
            # Written as in `centered`, so that NaN is not taken for no difference.
            if not batch.max() - batch.min() <= SAME:
                values_C[places] = (batch - batch.mean()) / (batch.std() + EPSILON)
        # A group without a difference has nothing to learn from the batch.
        differ = {at for at, total in zip(keys, sums_C.tolist(), strict=True) if total != 0}
        return [values_C[p].item() if at in differ else 0.0 for p, at in enumerate(keys)]


def parts_of(candidate: Candidate) -> dict[str, float]:
    """The parts of a reward by name."""
    parts = {"team": candidate.team_reward, "local": candidate.local_reward}
    return parts | {str(k): float(v) for k, v in (candidate.info.get("parts") or {}).items()}
