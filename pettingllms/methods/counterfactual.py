"""CCPO and SHARP: an agent is credited with what the team would have missed without it.

CCPO, Li et al. 2026, https://arxiv.org/abs/2603.21563, and the authors' code; SHARP, 2026, https://arxiv.org/abs/2602.08335.
Where the papers leave an agent out, a copy of the episode is played on in which its replies are blank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import permutations
from math import factorial
from statistics import fmean

from pettingllms.methods.grpo import Grpo
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import argument, repaid_once, solved


class Counterfactual(Grpo):
    """Rewards each agent for the outcome and for its own contribution; compares it with itself."""

    needs = ("success",)
    credits = "return"
    by_agent = True
    joint: float = argument(1.0, at_least=0)

    def part(self, agent: str, trajectory: Trajectory, episodes: Sequence[Trajectory]) -> float:
        """Returns the reward for an agent's contribution to one of the K `episodes` of a task."""
        raise NotImplementedError

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with r_i at each agent's last decision, and nothing else."""
        episodes, records = defaultdict[str, list[Trajectory]](list), []
        for trajectory in trajectories:
            solved(trajectory, self.config)  # raises where nothing says
            episodes[trajectory.task.id].append(trajectory)
        for trajectory in trajectories:
            worth = {
                agent: self.joint * trajectory.outcome
                + self.part(agent, trajectory, episodes[trajectory.task.id])
                for agent in {group.key.agent for group in trajectory.groups}
            }
            records.append(repaid_once(trajectory, worth))
        return records


class Ccpo(Counterfactual):
    """An agent earns the team's outcome, and more where the team would have failed without it.

        r_i = R + lambda * b_i,    b_i = R - R_{-i}
        A   = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    R is the outcome of the episode: F1 where the environment scores answers by it, else 1 for a success and 0. R_{-i}
    is that of its copy in which all replies of agent i are blank, which draws with the episode's seeds: b is 0 for an
    agent that nobody reads, and for one whose policy does not learn. The authors' code takes the mean of all K copies
    and asks whether it is above 1/2 (`averaged`), which also credits an agent with the luck of those that act after it.

    Args:
        joint: weight of R; 0 credits an agent with b alone.
        weight: lambda.
        averaged: b is 1 where R is above 1/2 and the mean of R_{-i} below, -1 in the opposite case, else 0.
    """

    source = "arXiv 2603.21563"
    shapes = ("blanked", "coalitions")
    weight: float = argument(0.2, at_least=0)
    averaged: bool = argument(default=False)

    def part(self, agent: str, trajectory: Trajectory, episodes: Sequence[Trajectory]) -> float:
        """Returns the weighted bonus."""
        outcome = trajectory.outcome
        bonus = outcome - outcome_without(trajectory, {agent})
        if self.averaged:
            mean = fmean(outcome_without(episode, {agent}) for episode in episodes)
            bonus = float(outcome > 0.5 > mean) - float(outcome < 0.5 < mean)
        return self.weight * bonus


class Sharp(Counterfactual):
    """An agent earns the team's outcome, its Shapley value, and how well its own replies did.

        r_i   = R + lambda * phi_i + mu * p_i
        phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S))
        A     = (r_i - mean r_i) / (std r_i + epsilon)    among the agent's K episodes of a task

    v(S) is the outcome of the copy in which all but the agents of S are blank, for up to four agents, whose policies learn;
    v of all is R, as in `ccpo`. p is the mean local reward of the agent's replies, in place of the paper's for calls of tools.

    Args:
        joint: weight of R; 0 leaves it out.
        weight: lambda.
        process: mu.
    """

    source = "arXiv 2602.08335"
    shapes = ("coalitions",)
    weight: float = argument(1.0, at_least=0)
    process: float = argument(1.0, at_least=0)

    def part(self, agent: str, trajectory: Trajectory, episodes: Sequence[Trajectory]) -> float:
        """Returns the weighted Shapley value plus the weighted local reward."""
        del episodes
        process = fmean(g.chosen.local_reward for g in trajectory.groups if g.key.agent == agent)
        return self.weight * shapley(agent, trajectory) + self.process * process


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


def shapley(agent: str, trajectory: Trajectory) -> float:
    """Returns the Shapley value, averaged over all orders of agents; 0 if no copy blanks the agent."""
    team = dict.fromkeys(name for end in trajectory.without for name in end.blanked)
    added = 0.0
    for order in permutations(team):
        # The agent and all that come after it.
        absent = order[order.index(agent) :] if agent in team else ()
        added += outcome_without(trajectory, absent[1:]) - outcome_without(trajectory, absent)
    return added / factorial(len(team))
