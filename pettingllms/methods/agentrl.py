"""AgentRL: the advantages of each environment have one scale, whatever is trained beside it.

https://arxiv.org/abs/2510.04206, after descriptions of the paper; its code was not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import torch

from pettingllms.errors import ConfigError
from pettingllms.trainers.at_grpo import EPSILON, SAME, AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Casting, argument
from pettingllms.types import Advantage, Group


class AgentRl(AtGrpo):
    """Advantages of `at_grpo` are scaled once more over all tokens of an environment, for several of them.

        A = (a - mean a) / (std a + epsilon)    over the tokens of an environment's candidates of a policy

    Here `a` is the advantage by `at_grpo`. An environment with long replies, or one in which few groups differ,
    so weighs as much as the others. A group that earned the same counts nowhere, and its advantages stay 0.

    With `stale`, half of the prompts, by chance, are answered by a copy of the policy (cross-policy sampling), whose
    log-probabilities the loss has.

    Args:
        stale: updates after which the copy is renewed; 0 for none. Needs the sampler transformers.
    """

    source = "arXiv 2510.04206"
    keeps = ("copies",)
    stale: int = argument(0, at_least=0, whole=True)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        if self.stale and (config.max_staleness or config.sampler == "vllm"):
            raise ConfigError("method_args: stale needs sampler transformers and max_staleness 0")
        self.copies: dict[str, tuple[int, dict[str, torch.Tensor]]] = {}
        """Policy -> version and weights of its copy; none before the first update."""

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """As in the settings, with the copies."""
        return super().players(step, players, trained)._replace(earlier=self.copies or None)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The scaled advantages."""
        for name in dict.fromkeys(group.policy for group in groups if self.stale):
            version = self.policies.versions[name]
            # Before the update: these weights have sampled the step.
            if name not in self.copies or version - self.copies[name][0] >= self.stale:
                self.copies[name] = version, self.policies.state(name)
        values_C = torch.tensor(super().advantages(groups), dtype=torch.float64)
        tokens_C = torch.tensor([len(c.completion.token_ids) for g in groups for c in g.candidates])
        members, places = defaultdict[tuple[str, str], list[int]](list), iter(range(len(tokens_C)))
        for group in groups:
            indices = [*islice(places, len(group.candidates))]
            if values_C[indices].any():
                # The id of a task begins with the name of its environment.
                members[group.key.task.partition(":")[0], group.policy] += indices
        scaled_C = torch.zeros_like(values_C)
        for indices in members.values():
            compared = values_C[indices]
            by_token = compared.repeat_interleave(tokens_C[indices])
            # Written as in `centered`, so that NaN is not taken for no difference.
            if not by_token.max() - by_token.min() <= SAME:
                scaled_C[indices] = (compared - by_token.mean()) / (by_token.std() + EPSILON)
        return [*scaled_C.tolist()]
