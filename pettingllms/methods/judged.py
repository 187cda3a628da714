"""A judge that learns: replies are paid for the outcome and for verdicts, and verdicts for agreeing with both.

RLAnything, 2026, https://arxiv.org/abs/2602.02488, and the authors' code. Its tasks that a model rewrites are
not part of this; `--difficulty-pools` draws tasks by success.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

from pettingllms.envs.judged import JUDGE
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import EPSILON, SAME
from pettingllms.trainers.method import EpisodeCredit, argument, repaid, solved
from pettingllms.types import Advantage, Candidate, Group

UNREADABLE = -2.0
"""Reward of a verdict that cannot be read: the least that any can earn."""


class LearnedJudge(EpisodeCredit):
    """Replies are worth the outcome and what a judge says of them; for `--env judged:NAME`.

        reply:    r   = R + mean_l v_l             v: 1 (right), -1 (wrong), 0 (cannot be read)
        verdict:  r_l = (R + mean v) * v_l         -2 where it cannot be read
        A = (r - mean r) / (std r + epsilon)       with the deviation of the population (1 / n)

    R is the outcome of the episode, 1 for a success. A reply is compared with those of its agent in the same turn of the task's K
    episodes, a verdict with the others on the same reply. As in the authors' code, replies learn from tasks of which 1/8 to 7/8 of the
    episodes succeed, and verdicts from 0.2 to 0.8: where all outcomes are equal, judges would learn to agree with themselves. A judge
    that does not learn gives one verdict on each reply.

    Args:
        verdicts: on each reply, of a judge that learns.
    """

    source = "arXiv 2602.02488"
    needs = ("success", "judge")
    shapes = ("verdicts",)
    credits = "reward"
    compares = "reward"
    verdicts: int = argument(3, at_least=2, whole=True)
    reply_shares, verdict_shares = (1 / 8, 7 / 8), (0.2, 0.8)

    def shape(self) -> RolloutShape:
        """K episodes with so many verdicts on each reply."""
        return replace(super().shape(), width=self.verdicts)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with these rewards."""
        solved(trajectory, self.config)  # raises where nothing says
        # What verdicts say of the decision before them.
        means = {
            group.key.parent - 1: fmean(candidate.info["verdict"] for candidate in group.candidates)
            for group in trajectory.groups
            if group.key.agent == JUDGE
        }

        def reward(group: Group, candidate: Candidate) -> float:
            if group.key.agent != JUDGE:
                # None where the judge's prompt had no room, which ended the episode.
                return trajectory.outcome + means.get(group.key.parent, 0.0)
            verdict, mean = int(candidate.info["verdict"]), means[group.key.parent - 1]
            return (trajectory.outcome + mean) * verdict if verdict else UNREADABLE

        return repaid(trajectory, reward)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The reward above the mean of those it is compared with; exactly 0 where all earned the same, and in tasks that are too hard or easy."""
        # Decisions come by depth, so that the last one of an episode stays.
        ends = {(group.key.task, group.key.episode): group for group in groups}
        outcomes = defaultdict[str, list[bool]](list)
        for (task, _), last in ends.items():
            outcomes[task].append(bool(last.chosen.info["success"]))
        compared = defaultdict[tuple[Any, ...], list[float]](list)
        for group in groups:
            compared[_key(group)] += [candidate.reward for candidate in group.candidates]
        moments: dict[tuple[Any, ...], tuple[float, float]] = {}
        for key, rewards in compared.items():
            least, most = self.verdict_shares if key[1] == JUDGE else self.reply_shares
            if least <= fmean(outcomes[key[0]]) <= most and not max(rewards) - min(rewards) <= SAME:
                scale = pstdev(rewards) + EPSILON if self.config.scale_rewards != "none" else 1.0
                moments[key] = fmean(rewards), scale
        return [
            (c.reward - moments[key][0]) / moments[key][1] if (key := _key(g)) in moments else 0.0
            for g in groups
            for c in g.candidates
        ]


def _key(group: Group) -> tuple[Any, ...]:
    task, agent, turn = group.key.task, group.key.agent, group.key.turn
    return (task, agent, turn, group.key.episode if agent == JUDGE else None)
