"""A league: self-play against versions of oneself that earlier steps have left.

Prioritized fictitious self-play of AlphaStar (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z,
Methods), of whose league the main agent alone is here. Two of its numbers differ: a share of 0.5 against itself (there
0.35), and a win rate that halves what it was at each new measurement.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from pettingllms.errors import ConfigError
from pettingllms.methods.dr_mas import DrMas
from pettingllms.names import is_own, own_names, policy_of, trained_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Casting, Method, argument
from pettingllms.trainers.settings import OF_THE_BASE, OF_THE_POLICY, own_settings


class Rivals(Method):
    """A policy plays against what it was in earlier steps, which does not learn.

        P(v) ~ (1 - w_v)^2,   w_v <- (w_v + wins in this step) / 2,   w_v = 1/2 at first

    P is `prioritized`: versions that are beaten come rarely; `uniform` takes all alike, `latest` the newest. The one that is
    drawn plays all episodes of a step, and the learner changes seats after each step. In a share of the steps, and in the first,
    it plays itself, and both seats learn. Win rates are those of training, where replies are sampled.

    For two policies of one model and shape, of which one is trained; the other is the seat of versions. Kept versions
    are part of checkpoints, and are copied once more while a step is taken: `size` adapters, or full models.

    Args:
        opponents: `prioritized`, `uniform`, or `latest`.
        every: steps after which a version is kept.
        size: versions that are kept; the oldest gives way.
        itself: chance of a step against itself.
    """

    source = "doi 10.1038/s41586-019-1724-z"
    needs = ("opponents",)
    opponents: str = argument("prioritized", one_of=("prioritized", "uniform", "latest"))
    every: int = argument(5, at_least=1, whole=True)
    size: int = argument(10, at_least=1, whole=True)
    itself: float = argument(0.5, at_least=0, at_most=1)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        if config.max_staleness:
            raise ConfigError(
                f"method {config.method} with max_staleness: who plays a step follows from the games of the one "
                "before, which is played at the same time; leave max_staleness out"
            )
        self.step = 0  # the next one
        self.kept: dict[int, dict[str, torch.Tensor]] = {}
        """Step -> the learner's weights as it played that step, oldest first."""
        self.rates: dict[int, float] = {}
        """Step -> how often the learner wins against them, a draw counted as half a win."""

    @property
    def drawn(self) -> int | None:
        """The version that plays the next step; None: the learner plays itself."""
        rng = random.Random(f"{self.config.seed} rivals {self.step}")
        if not self.rates or rng.random() < self.itself:
            return None
        chances = self.chances()
        return rng.choices(list(chances), list(chances.values()))[0]

    def attach(self, env: Any, policies: PolicySet) -> None:
        """Takes the policies, of which the one that is not trained becomes a copy of the learner."""
        super().attach(env, policies)
        players = policies.roles_to_policies
        trained = trained_policies(self.config.train_roles, players)
        self.pair = learner, rival = self._pair(players, trained)
        policies.load_state(rival, policies.state(learner), version=0)

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """The learner and the version that was drawn, in seats that change with every step."""
        learner, rival = self._pair(players, trained)
        played = learner if self.drawn is None else rival
        seats = {learner: played, rival: learner} if step % 2 else {learner: learner, rival: played}
        # Policies that are neither, such as a model behind an API, stay where they are.
        return Casting({role: seats.get(name, name) for role, name in players.items()}, (learner,))

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with the learner's decisions alone; takes up who won, and draws the next opponent.

        Raises:
            ConfigError: a team that shares its rewards.
        """
        policies, (learner, rival) = self.policies, self.pair
        if any(trajectory.cooperative for trajectory in trajectories):
            raise ConfigError(
                f"method {self.config.method} plays against itself, and agents of {self.config.env} share rewards"
            )
        if (drawn := self.drawn) is not None and trajectories:
            seats = self.players(self.step, policies.roles_to_policies, (learner,)).players
            won = fmean(won_by(learner, trajectory, seats) for trajectory in trajectories)
            self.rates[drawn] = (self.rates[drawn] + won) / 2
        if self.step % self.every == 0:
            # Before the update: these weights played the step that they are named after.
            self.kept[self.step], self.rates[self.step] = policies.state(learner), 0.5
            for oldest in list(self.kept)[: -self.size]:
                del self.kept[oldest], self.rates[oldest]
        self.step += 1
        self._seat()
        return [
            replace(t, groups=tuple(g for g in t.groups if g.policy != rival)) for t in trajectories
        ]

    def chances(self) -> dict[int, float]:
        """Kept version -> its weight in the draw of an opponent, P without its divisor."""
        if self.opponents == "latest":
            return {max(self.rates): 1.0}
        hard = {step: (1 - rate) ** 2 for step, rate in self.rates.items()}
        if self.opponents == "prioritized" and any(hard.values()):
            return hard
        # Also where all are always beaten.
        return dict.fromkeys(self.rates, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the next step, the versions, their win rates, and the joined method's state."""
        return {**super().state_dict(), "rivals": (self.step, dict(self.kept), dict(self.rates))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the versions of an earlier step, of which the drawn one takes its seat again."""
        joined = dict(state)
        self.step, self.kept, self.rates = joined.pop("rivals", (0, {}, {}))
        super().load_state_dict(joined)
        self._seat()

    def _pair(self, players: Mapping[str, str], trained: Sequence[str]) -> tuple[str, str]:
        """The policy that learns, and the one whose place its versions take; ConfigError where they do not fit."""
        config = self.config
        rivals = [name for name in own_names(players) if is_own(name) and name not in trained]
        if len(trained) != 1 or len(rivals) != 1:
            raise ConfigError(
                f"method {config.method} is for one policy that is trained and one whose place its earlier versions "
                f"take, got {', '.join(trained)} and {', '.join(rivals) or 'none'}; for a game with the roles first "
                "and second: --policies first=player,second=rival --train-roles first"
            )
        learner, rival = trained[0], rivals[0]
        ours, theirs = own_settings(config, learner), own_settings(config, rival)
        for name in (*OF_THE_BASE, *OF_THE_POLICY):
            if getattr(ours, name) != getattr(theirs, name):
                raise ConfigError(
                    f"method {config.method}: {rival} plays earlier versions of {learner}; give both the same {name}"
                )
        return learner, rival

    def _seat(self) -> None:
        if (drawn := self.drawn) is not None:
            self.policies.load_state(self.pair[1], self.kept[drawn], version=drawn)


class League(Rivals, DrMas):
    """Earlier versions of a policy play against it, in games of two policies whose agents have returns of their own."""


def won_by(learner: str, trajectory: Trajectory, seats: Mapping[str, str]) -> float:
    """1 if the learner's agents earned more than the others, 1/2 for as much, else 0."""
    # By the seats and not by the decisions: a game may end before one side has moved.
    returns = trajectory.returns.items()
    lead = sum(won if policy_of(agent, seats) == learner else -won for agent, won in returns)
    return 0.5 if lead == 0 else float(lead > 0)
