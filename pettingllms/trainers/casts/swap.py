"""Two policies change places: CORY, Ma et al. 2024, https://arxiv.org/abs/2410.06101."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pettingllms.errors import ConfigError
from pettingllms.trainers.casts.base import Casting, Periodic
from pettingllms.trainers.config import ResolvedConfig


class SwapPlaces(Periodic):
    """Two policies learn both roles, by changing places. Which of them is used later is open.

    Args:
        config: resolved settings of the run.
        steps: after which they change places.

    Raises:
        ConfigError: steps is not a whole number from 1; or, when it is used, there are not two.
    """

    def __init__(self, config: ResolvedConfig, *, steps: int = 5) -> None:
        super().__init__(config, steps=steps)

    def at(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """Swaps, in every other period, the places that the settings give the two policies."""
        if len(trained) != 2:
            shown = ", ".join(trained)
            raise ConfigError(
                f"cast swap changes the places of two trained policies, got {len(trained)} "
                f"({shown}); set policies and train_roles so that two are trained"
            )
        if step // self.steps % 2 == 0:
            return Casting(players, tuple(trained))
        one, other = trained
        places = {one: other, other: one}
        # Policies that are not trained stay where they are.
        swapped = {role: places.get(policy, policy) for role, policy in players.items()}
        return Casting(swapped, tuple(trained))
