"""`Cast`: who plays which role in a step, and which policies learn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pettingllms.errors import ConfigError
from pettingllms.trainers.casts import CASTS
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.plugins import Plugin


class Casting(NamedTuple):
    """One step's."""

    players: Mapping[str, str]
    """Role, or agent, -> policy."""
    learners: tuple[str, ...]
    """The policies that are trained, in the order of the roles."""


class Cast(Plugin):
    """Everybody keeps the role and learns in every step.

    Args:
        config: resolved settings of the run.
    """

    setting, registry = "cast", CASTS

    def at(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """Returns who plays and who learns in a step.

        Args:
            step: counted from 0.
            players: role, or agent, -> policy, as the settings say.
            trained: the policies that the run trains.
        """
        del step
        return Casting(players, tuple(trained))

    def updates(self, policy: str, players: Mapping[str, str], trained: Sequence[str]) -> int:
        """Optimizer steps of a policy in the whole run, which its learning rate falls over."""
        config = self.config
        # Counted by asking for every step, so that a cast of one's own need not say how often a
        # policy learns.
        taken = [policy in self.at(n, players, trained).learners for n in range(config.max_steps)]
        return sum(taken) * config.num_iterations


class Periodic(Cast):
    """A cast that changes every few steps.

    Args:
        config: resolved settings of the run.
        steps: of a period.

    Raises:
        ConfigError: steps is not a whole number from 1.
    """

    def __init__(self, config: ResolvedConfig, *, steps: int) -> None:
        super().__init__(config)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"cast_args: steps must be a whole number from 1, got {steps!r}")
        self.steps = steps
