"""CCPO and SHARP: an agent is credited with what the team would have missed without it.

Li et al. 2026, "Counterfactual Credit Policy Optimization", https://arxiv.org/abs/2603.21563, and the
authors' code; "SHARP: Shapley Credit-based Optimization for Multi-Agent System", 2026,
https://arxiv.org/abs/2602.08335. Where the papers leave an agent out, a copy of the episode is played
on in which its replies are blank (shapes `blanked` and `coalitions`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import comb

from pettingllms.methods.grpo import Grpo
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import EpisodeCredit, argument, repaid_once, solved


class Ccpo(Grpo):
    """An agent earns the team's outcome, and more where the team would have failed without it.

        r_i = R + lambda * b_i,    b_i = R - R_{-i}
        A   = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    R is the outcome of the episode: F1 where the environment scores answers by it, else 1 for a
    success and 0. R_{-i} is that of its copy in which all replies of agent i are blank. For outcomes
    of 0 and 1, b is 1 where the agent helped and -1 where it hurt. The copy draws with the episode's
    seeds, so b is 0 for an agent that nobody reads. The authors' code takes the mean of all K copies
    and asks whether it is above 1/2 (`averaged`), which also credits an agent with the luck of those
    that act after it. An agent whose policy does not learn has b = 0.

    Args:
        config: resolved settings of the run.
        weight: lambda.
        joint: weight of R; 0 credits an agent with b alone.
        averaged: b is 1 where R is above 1/2 and the mean of R_{-i} over the task's copies below,
            -1 in the opposite case, else 0.
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
        """The records with r_i at each agent's last decision, and nothing else.

        Raises:
            ConfigError: the environment does not say whether a task was solved.
        """
        copies: dict[tuple[str, str], list[float]] = defaultdict(list)
        for trajectory in trajectories:
            for agent, outcome in outcomes_alone(trajectory).items():
                copies[trajectory.task.id, agent].append(outcome)
        means = {key: sum(ends) / len(ends) for key, ends in copies.items()}
        return [self._repaid(trajectory, means) for trajectory in trajectories]

    def _repaid(self, trajectory: Trajectory, means: Mapping[tuple[str, str], float]) -> Trajectory:
        solved(trajectory, self.config)  # raises where nothing says
        outcome, alone = trajectory.outcome, outcomes_alone(trajectory)
        worth = {}
        for agent in _agents(trajectory):
            bonus = outcome - alone.get(agent, outcome)
            if self.averaged:
                mean = means.get((trajectory.task.id, agent), 0.5)
                bonus = float(outcome > 0.5 > mean) - float(outcome < 0.5 < mean)
            worth[agent] = self.joint * outcome + self.weight * bonus
        return repaid_once(trajectory, worth)


class Sharp(EpisodeCredit, Grpo):
    """An agent earns the team's outcome, its Shapley value, and how well its own replies did.

        r_i   = R + lambda * phi_i + mu * p_i
        phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S))
        A     = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    v(S) is the outcome of the copy in which all but the agents of S are blank, exact for teams of up
    to four agents; v of all is R, as in `ccpo`. The phi of a team add up to R - v(none). p is the mean
    local reward of the agent's replies, in place of the paper's reward for calls of tools. The agents
    of the sum are those whose policies learn.

    Args:
        config: resolved settings of the run.
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
        for agent in _agents(trajectory):
            rewards = [g.chosen.local_reward for g in trajectory.groups if g.key.agent == agent]
            worth[agent] = (
                self.joint * trajectory.outcome
                + self.weight * values.get(agent, 0.0)
                + self.process * sum(rewards) / len(rewards)
            )
        return repaid_once(trajectory, worth)


def outcomes_alone(trajectory: Trajectory) -> dict[str, float]:
    """Agent -> the outcome of the copy in which it alone is blank."""
    return {end.blanked[0]: end.outcome for end in trajectory.without if len(end.blanked) == 1}


def outcome_without(trajectory: Trajectory, agents: Collection[str]) -> float:
    """The outcome of the episode in which these agents are blank.

    An agent that has no decision in the copy without the others changes nothing there.
    """
    blanked: tuple[str, ...] = ()
    outcome, ends = trajectory.outcome, trajectory.without
    while following := [
        end for end in ends if end.blanked[:-1] == blanked and end.blanked[-1] in agents
    ]:
        # Of several, the one that was blanked first: the copies without the others leave it later.
        blanked, outcome = following[0].blanked, following[0].outcome
    return outcome


def shapley(trajectory: Trajectory) -> dict[str, float]:
    """Agent -> its Shapley value, for all agents that are blank in some copy."""
    team = list(dict.fromkeys(agent for end in trajectory.without for agent in end.blanked))
    values = {}
    for agent in team:
        others = [other for other in team if other != agent]
        values[agent] = 0.0
        for size in range(len(team)):
            # |S|! (n - |S| - 1)! / n!
            share = 1 / (len(team) * comb(len(others), size))
            for present in combinations(others, size):
                absent = set(others) - set(present)
                added = outcome_without(trajectory, absent)
                added -= outcome_without(trajectory, absent | {agent})
                values[agent] += share * added
    return values


def _agents(trajectory: Trajectory) -> list[str]:
    return list(dict.fromkeys(group.key.agent for group in trajectory.groups))
