"""GiGPO: whole episodes are compared, and so are the steps that they took from the same state.

Feng et al. 2025, https://arxiv.org/abs/2505.10978.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch

from pettingllms.methods.grpo import Grpo, member_of
from pettingllms.trainers.at_grpo import centered
from pettingllms.trainers.method import argument
from pettingllms.types import Advantage, Group


class Gigpo(Grpo):
    """Episodes are compared, and so are the steps that they took from equal states.

        A = A_episode + omega * (G - mean G) / (std G + epsilon)    among equal (task, agent, anchor)
        G = sum of gamma^k r_k over the decisions from here to the episode's end

    An anchor is the prompt, or `info["anchor"]` where the environment names what matters in it
    without turn numbers and history. States that recur are the rule on boards and the exception
    in coding and math, where this is GRPO. `scale_rewards` applies to both terms.

    Args:
        gamma: discount of one decision, of any agent: with n agents a turn, `gamma ** (1 / n)` is
            the paper's discount of an environment's step.
        omega: weight of the second term.
    """

    source = "arXiv 2505.10978"
    needs = ("recurring_states",)
    compares = "to_go"
    gamma: float = argument(0.95, above=0, at_most=1)
    omega: float = argument(1.0, at_least=0)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """Both terms added; the second is 0 where an anchor was met once."""
        keys: list[Hashable] = [
            (group.key.task, group.key.agent, group.chosen.info.get("anchor", group.key.state_hash))
            for group in groups
        ]
        to_go = torch.tensor(self.to_go(groups), dtype=torch.float64)
        policies = [group.policy for group in groups]
        steps = centered(to_go, keys, self.config.scale_rewards, policies)
        sizes = torch.tensor([len(group.candidates) for group in groups])
        steps_C = steps.repeat_interleave(sizes)
        return [*(self.by_episode(groups) + self.omega * steps_C).tolist()]

    def to_go(self, groups: Sequence[Group]) -> list[float]:
        """The discounted rewards from each decision to the end of its episode."""
        return rewards_to_go(groups, self.gamma)


def rewards_to_go(groups: Sequence[Group], gamma: float) -> list[float]:
    """The rewards from each decision to the end of its episode, times `gamma` for each on the way."""
    episodes: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        episodes[member_of(group)].append(index)
    values = [0.0] * len(groups)
    for indices in episodes.values():
        following = 0.0
        # From the end, because each decision needs the rewards that followed it.
        for index in sorted(indices, key=lambda at: -groups[at].key.parent):
            reward = groups[index].chosen.reward + groups[index].late_reward
            following = values[index] = reward + gamma * following
    return values
