"""Policies take turns at learning: MARFT, Liao et al. 2025, https://arxiv.org/abs/2504.16129."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pettingllms.trainers.casts.base import Casting, Periodic
from pettingllms.trainers.config import ResolvedConfig


class Alternate(Periodic):
    """One policy learns at a time; the others play, with one completion a prompt.

    Args:
        config: resolved settings of the run.
        steps: that a policy learns before it is the next one's turn.

    Raises:
        ConfigError: steps is not a whole number from 1.
    """

    def __init__(self, config: ResolvedConfig, *, steps: int = 1) -> None:
        super().__init__(config, steps=steps)

    def at(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """The policies take turns in the order of their roles."""
        return Casting(players, (trained[step // self.steps % len(trained)],))
