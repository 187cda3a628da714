"""MAPoRL: an answer in a debate is paid for its own score and for those of all rounds after it.

Park et al. 2025, https://arxiv.org/abs/2502.18439, sections 3.2 and 3.3. The signs of what is paid for the
influence on others follow the text; in the released code, where they are off by default, they are reversed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pettingllms.errors import ConfigError
from pettingllms.methods.dr_mas import PerAgentTurn
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import EpisodeCredit, argument, repaid
from pettingllms.types import Candidate, Group

Scores = Sequence[Mapping[str, float]]
"""For each round agent -> score of its answer, V."""


class Debate(EpisodeCredit):
    """An answer in a debate is worth its own score and those of later rounds.

        R[t][a] = (V[t][a] + sum_u>t gamma^(u-t) mean_b V[u][b]) / sum_u>=t gamma^(u-t)

    V is 1 for a right answer (`info["right"]`) and 0 for any other. Rounds end where the episode does, and an agent
    that did not speak in one is no part of its mean. Changes of mind may earn more, by default nothing:
    an agent that changes to a right answer gets `a1` where most others were right in the round before
    (it was persuaded) and `a0` where they were wrong; one that changes to a wrong answer loses the same.
    Where most others change to right in the round after, it gets `b1` if it was right and `b0` if
    not; where they change to wrong, it loses `b0` if it was right and `b1` if not. A tie of the
    others is no state that they could change from or to.

    Args:
        gamma: weight of a round against the one before it.
        a0: weight of a change against wrong neighbors.
        a1: weight of a change with right neighbors.
        b0: weight of neighbors that change after a wrong answer.
        b1: weight of neighbors that change after a right answer.
    """

    needs = ("judged_replies",)
    credits = "reward"
    gamma: float = argument(0.3, at_least=0, at_most=1)
    a0: float = argument(0.0, at_least=0)
    a1: float = argument(0.0, at_least=0)
    b0: float = argument(0.0, at_least=0)
    b1: float = argument(0.0, at_least=0)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with R in place of every reward; needs to know which answers are right."""
        rounds = self._rounds(trajectory)

        def reward(group: Group, candidate: Candidate) -> float:
            t, agent = group.key.turn, group.key.agent
            # Of several candidates one is continued from; the others are scored as if the debate
            # had followed them in the same way.
            now = {**rounds[t], agent: self._score(candidate)}
            debate = [*rounds[:t], now, *rounds[t + 1 :]]
            return discounted(debate, t, agent, self.gamma) + self._incentive(debate, t, agent)

        return repaid(trajectory, reward)

    def _rounds(self, trajectory: Trajectory) -> list[dict[str, float]]:
        rounds: dict[int, dict[str, float]] = defaultdict(dict)
        for group in trajectory.groups:
            rounds[group.key.turn][group.key.agent] = self._score(group.chosen)
        # A round in which no agent spoke stays, empty, so that the others keep their distance in
        # `gamma`.
        return [rounds[t] for t in range(max(rounds, default=-1) + 1)]

    def _score(self, candidate: Candidate) -> float:
        if "right" not in candidate.info:
            raise ConfigError(
                f"method {self.config.method} pays for right answers, and {self.config.env} does not say "
                "of every reply whether it is one: infos need `right`"
            )
        return float(candidate.info["right"])

    def _incentive(self, debate: Scores, t: int, agent: str) -> float:
        now = debate[t][agent] == 1
        others = [_majority(debate, u, agent) for u in range(len(debate))]
        bonus = 0.0
        if t > 0 and agent in debate[t - 1]:
            bonus += own_change(debate[t - 1][agent] == 1, now, others[t - 1], (self.a0, self.a1))
        if t + 1 < len(debate):
            bonus += others_change(now, others[t], others[t + 1], (self.b0, self.b1))
        return bonus


class Maporl(Debate, PerAgentTurn):
    """A debate pays an answer for its own score and for those of later rounds.

    For teams of several reasoners in math.
    """

    source = "arXiv 2502.18439"


def discounted(debate: Scores, t: int, agent: str, gamma: float) -> float:
    """The score of an answer and, by gamma, the mean scores of all rounds after it; see `Debate`."""
    total, norm = debate[t][agent], 1.0
    for u in range(t + 1, len(debate)):
        if debate[u]:
            total += gamma ** (u - t) * sum(debate[u].values()) / len(debate[u])
            norm += gamma ** (u - t)
    return total / norm


def own_change(before: bool, after: bool, others: bool | None, a: tuple[float, float]) -> float:
    """Returns what a change of one's own mind earns.

    `others` is whether most others were right, or None for a tie.
    """
    if before == after:
        return 0.0
    size = a[0] if others is False else a[1]
    return size if after else -size


def others_change(
    own: bool, before: bool | None, after: bool | None, b: tuple[float, float]
) -> float:
    """Returns what an answer earns where most others change their minds after it. None: a tie."""
    if before is None or after is None or before == after:
        return 0.0
    if after:
        return b[1] if own else b[0]
    return -b[0] if own else -b[1]


def _majority(debate: Scores, t: int, agent: str) -> bool | None:
    """Returns whether most others are right in a round; None for a tie or without others."""
    scores = [score for other, score in debate[t].items() if other != agent]
    right = sum(scores)
    return None if 2 * right == len(scores) else 2 * right > len(scores)
