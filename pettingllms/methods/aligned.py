"""A local reward counts as far as it has agreed with the team's reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import SAME, AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import argument, repaid
from pettingllms.types import Candidate, Group

DECAY = 0.95
"""What is left of a step's sums in the next step."""
FEWEST = 4
"""Groups in which both rewards differ, before a correlation is used."""


@dataclass
class Agreement:
    """Sums over the groups of a role in which both rewards differ, centered in each group."""

    groups: float = 0.0
    free: float = 0.0
    """Degrees of freedom: the candidates less one of each group."""
    team_local: float = 0.0
    team_team: float = 0.0
    local_local: float = 0.0

    def weight(self, start: float) -> float:
        """The weight of the local reward: its correlation less one standard error, at least 0."""
        if self.groups < FEWEST:
            return start
        correlation = self.team_local / math.sqrt(self.team_team * self.local_local)
        return max(0.0, correlation - 1 / math.sqrt(self.free))

    def decay(self) -> None:
        """Begins a step."""
        for name, value in asdict(self).items():
            setattr(self, name, DECAY * value)

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Adds a group, if both rewards differ in it."""
        teams = [candidate.team_reward for candidate in candidates]
        locals_ = [candidate.local_reward for candidate in candidates]
        if min(max(teams) - min(teams), max(locals_) - min(locals_)) <= SAME:
            return
        team, local = mean(teams), mean(locals_)
        self.groups += 1
        self.free += len(candidates) - 1
        for one, other in zip(teams, locals_, strict=True):
            self.team_local += (one - team) * (other - local)
            self.team_team += (one - team) ** 2
            self.local_local += (other - local) ** 2


class Aligned(AtGrpo):
    """`at_grpo` whose local rewards weigh what they have been worth to the team.

        c = sum ct cl / sqrt(sum ct^2 sum cl^2)    by role; ct, cl: rewards less their group's mean
        w = max(0, c - 1 / sqrt(d))                d: degrees of freedom; `start` until 4 groups tell
        r = alpha * team + w * local               w from earlier steps

    The sums are over groups in which both rewards differ, and decay by 0.95 a step. A reply that cannot
    be read keeps its whole penalty and is left out of the sums.

    Args:
        start: weight of the local reward before there is evidence.
    """

    source = "this project"
    needs = (*AtGrpo.needs, "reward_parts")
    start: float = argument(1.0, at_least=0)

    def __init__(self, config: ResolvedConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.agreements: dict[str, Agreement] = {}
        """Role -> what its local rewards have been worth."""

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the records with weighed local rewards; then learns from them."""
        alpha = self.config.alpha
        weights = {role: of_role.weight(self.start) for role, of_role in self.agreements.items()}

        def reward(group: Group, candidate: Candidate) -> float:
            weight = weights.get(group.key.role, self.start) if _readable(candidate) else 1.0
            return alpha * candidate.team_reward + weight * candidate.local_reward

        weighed = [repaid(trajectory, reward) for trajectory in trajectories]
        for agreement in self.agreements.values():
            agreement.decay()
        for trajectory in trajectories:
            for group in trajectory.groups:
                agreement = self.agreements.setdefault(group.key.role, Agreement())
                if replies := [c for c in group.candidates if _readable(c)]:
                    agreement.add(replies)
        return weighed

    def state_dict(self) -> dict[str, Any]:
        """The sums of each role."""
        return {role: asdict(agreement) for role, agreement in self.agreements.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the sums of an earlier step."""
        self.agreements = {role: Agreement(**sums) for role, sums in state.items()}


def _readable(candidate: Candidate) -> bool:
    return candidate.info.get("parse_error") is None
