"""Role-conditioned advantages: a running mean of each role's return is its baseline.

SPIRAL, Liu et al. 2025, https://arxiv.org/abs/2506.24119.
"""

from __future__ import annotations

from collections.abc import Sequence

from pettingllms.envs.aec import entries_of
from pettingllms.methods.grpo import member_of
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Method, argument
from pettingllms.types import Advantage, Group


class Rae(Method):
    """A running mean of each role's return is its baseline: one episode a task, for self-play.

        A = R - b[role],  then  b[role] <- decay * b[role] + (1 - decay) * R

    In self-play the seats of one game earn different returns whatever they do, so that a common
    baseline would pay the better seat. Returns are taken up in the order of tasks, episodes, and of
    who acted first. Advantages are not scaled. A constant return never gives exactly 0, so no
    group is silent.

    Args:
        decay: share of the old mean that is kept at each return.
    """

    source = "SPIRAL, arXiv 2506.24119"
    keeps = ("baseline",)
    settings = {"num_generations": 1}
    least = 1
    decay: float = argument(0.95, at_least=0, below=1)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        self.baseline: dict[str, float] = {}
        """Environment and role -> mean return so far, 0 at first."""

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The return of each decision's role above the baseline as it was before that return."""
        tasks = {group.key.task: None for group in groups}
        # By the place of a task: as texts, ids would be sorted with 10 before 9.
        order = {task: number for number, task in enumerate(tasks)}
        surplus: dict[tuple[object, ...], float] = {}
        ahead = sorted(groups, key=lambda g: (order[g.key.task], g.key.episode, g.key.parent))
        for group in ahead:
            member = (*member_of(group), group.key.role)
            if member not in surplus:
                env, task = self.config.env, group.key.task
                game = task.partition(":")[0] if entries_of(env) else env
                key = f"{game}/{group.key.role}"
                base, value = self.baseline.get(key, 0.0), group.episode_return
                surplus[member] = value - base
                self.baseline[key] = self.decay * base + (1 - self.decay) * value
        return [surplus[*member_of(g), g.key.role] for g in groups for _ in g.candidates]
