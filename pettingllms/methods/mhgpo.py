"""MHGPO: the outcome flows back from who used a reply to who wrote it.

"Heterogeneous Group-Based Reinforcement Learning for LLM-based Multi-Agent Systems", 2025,
https://arxiv.org/abs/2506.02718. After the paper's description; that penalties are not passed on is our reading of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pettingllms.methods.dr_mas import DrMas
from pettingllms.rollout.forest import flowing, place_of, used_by
from pettingllms.rollout.trajectory import Trajectory, outcome_of
from pettingllms.trainers.method import Method, repaid, solved
from pettingllms.types import Candidate, Group


class Flow(Method):
    """A reply is worth the mean of the replies that used it, and its own penalty.

        S(i) = mean of S(j) over the replies j that used i,   S(leaf) = its outcome
        R(i) = S(i) + penalty(i)

    A reply is used by those to the next prompt after it, in every episode that continues from it;
    so is the report of a worker by its planner's next reply. A leaf ended its episode: its outcome is F1 where the
    environment scores answers by it (`info["f1"]`), else 1 for a success and 0 otherwise. A penalty is
    a negative local reward; it is not passed on.
    """

    credits = "reward"
    # In a tree, candidates without a continuation would have the outcome of an episode that ended there.
    credit_shapes = ("episodes", "fork_on_first", "round_robin", "full")

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with R in place of every reward.

        Raises:
            ConfigError: the environment does not say whether a task was solved.
        """
        users = used_by(trajectories)
        outcomes: dict[Hashable, float] = {}
        for trajectory in trajectories:
            solved(trajectory, self.config)  # raises where nobody knows
            for group in trajectory.groups:
                for k, candidate in enumerate(group.candidates):
                    place = place_of(group, k)
                    if not users.get(place):
                        outcomes[place] = outcome_of(candidate)
        shares = flowing(users, outcomes)

        def reward(group: Group, candidate: Candidate) -> float:
            # By identity, because equal candidates compare equal and each has a place of its own.
            (k,) = [n for n, other in enumerate(group.candidates) if other is candidate]
            return shares[place_of(group, k)] + min(0.0, candidate.local_reward)

        return [repaid(trajectory, reward) for trajectory in trajectories]


class Mhgpo(Flow, DrMas):
    """The outcome flows back from who used a reply to who wrote it.

    Episodes fork at one agent's decision, another's from task to task (shape `round_robin`).
    """

    source = "arXiv 2506.02718"
    shapes = ("round_robin", "fork_on_first", "episodes", "full")
