"""CCPO and SHARP: an agent is credited with what the team would have missed without it.

CCPO, Li et al. 2026, https://arxiv.org/abs/2603.21563, and the authors' code; SHARP, 2026, https://arxiv.org/abs/2602.08335.
Where the papers leave an agent out, a copy of the episode is played on in which its replies are blank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from math import comb

from pettingllms.methods.grpo import Grpo
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import EpisodeCredit, argument, repaid_once, solved


class Ccpo(Grpo):
    """An agent earns the team's outcome, and more where the team would have failed without it.

        r_i = R + lambda * b_i,    b_i = R - R_{-i}
        A   = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    R is the outcome of the episode: F1 where the environment scores answers by it, else 1 for a success and 0. R_{-i}
    is that of its copy in which all replies of agent i are blank, which draws with the episode's seeds: b is 0 for an
    agent that nobody reads, and for one whose policy does not learn. The authors' code takes the mean of all K copies
    and asks whether it is above 1/2 (`averaged`), which also credits an agent with the luck of those that act after it.

    Args:
        weight: lambda.
        joint: weight of R; 0 credits an agent with b alone.
        averaged: b is 1 where R is above 1/2 and the mean of R_{-i} below, -1 in the opposite case, else 0.
    """

    source = "arXiv 2603.21563"
    needs = ("success",)
    shapes = ("blanked", "coalitions")
    credits = "return"
    credit_shapes = shapes
    by_agent = True
    weight: float = argument(0.2, at_least=0)
    joint: float = argument(1.0, at_least=0)
    averaged: bool = argument(default=False)

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with r_i at each agent's last decision, and nothing else."""
        copies: dict[tuple[str, str], list[float]] = defaultdict(list)
        for trajectory in trajectories:
            for agent, outcome in outcomes_alone(trajectory).items():
                copies[trajectory.task.id, agent].append(outcome)
        means = {key: sum(ends) / len(ends) for key, ends in copies.items()}
        records = []
        for trajectory in trajectories:
            solved(trajectory, self.config)  # raises where nothing says
            outcome, alone, worth = trajectory.outcome, outcomes_alone(trajectory), {}
            for agent in dict.fromkeys(group.key.agent for group in trajectory.groups):
                bonus = outcome - alone.get(agent, outcome)
                if self.averaged:
                    mean = means.get((trajectory.task.id, agent), 0.5)
                    bonus = float(outcome > 0.5 > mean) - float(outcome < 0.5 < mean)
                worth[agent] = self.joint * outcome + self.weight * bonus
            records.append(repaid_once(trajectory, worth))
        return records


class Sharp(EpisodeCredit, Grpo):
    """An agent earns the team's outcome, its Shapley value, and how well its own replies did.

        r_i   = R + lambda * phi_i + mu * p_i
        phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S))
        A     = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    v(S) is the outcome of the copy in which all but the agents of S are blank, for up to four agents, whose policies learn;
    v of all is R, as in `ccpo`. p is the mean local reward of the agent's replies, in place of the paper's for calls of tools.

    Args:
        weight: lambda.
        joint: weight of R; 0 leaves it out.
        process: mu.
    """

    source = "arXiv 2602.08335"
    needs = ("success",)
    shapes = ("coalitions",)
    credits = "return"
    credit_shapes = shapes
    by_agent = True
    weight: float = argument(1.0, at_least=0)
    joint: float = argument(1.0, at_least=0)
    process: float = argument(1.0, at_least=0)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with r_i at each agent's last decision, and nothing else."""
        solved(trajectory, self.config)  # raises where nothing says
        values, worth = shapley(trajectory), {}
        for agent in dict.fromkeys(group.key.agent for group in trajectory.groups):
            rewards = [g.chosen.local_reward for g in trajectory.groups if g.key.agent == agent]
            worth[agent] = self.joint * trajectory.outcome + self.weight * values.get(agent, 0.0)
            worth[agent] += self.process * sum(rewards) / len(rewards)
        return repaid_once(trajectory, worth)


def outcomes_alone(trajectory: Trajectory) -> dict[str, float]:
    """Agent -> the outcome of the copy in which it alone is blank."""
    return {end.blanked[0]: end.outcome for end in trajectory.without if len(end.blanked) == 1}


def outcome_without(trajectory: Trajectory, agents: Collection[str]) -> float:
    """The outcome of the episode in which these agents are blank.

    An agent that has no decision in the copy without the others changes nothing there.
    """
    blanked: tuple[str, ...] = ()
    outcome = trajectory.outcome
    # Copies come before those that left them, and of several the one that was blanked first, which the others leave later.
    for end in trajectory.without:
        if end.blanked[:-1] == blanked and end.blanked[-1] in agents:
            blanked, outcome = end.blanked, end.outcome
    return outcome


def shapley(trajectory: Trajectory) -> dict[str, float]:
    """Agent -> its Shapley value, for all agents that are blank in some copy."""
    team = list(dict.fromkeys(agent for end in trajectory.without for agent in end.blanked))
    values = dict.fromkeys(team, 0.0)
    for agent in team:
        others = {*team} - {agent}
        for size in range(len(team)):
            # |S|! (n - |S| - 1)! / n!
            share = 1 / (len(team) * comb(len(others), size))
            for present in combinations([other for other in team if other != agent], size):
                absent = others.difference(present)
                alone = outcome_without(trajectory, absent | {agent})
                values[agent] += share * (outcome_without(trajectory, absent) - alone)
    return values
