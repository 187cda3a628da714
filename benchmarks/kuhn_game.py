"""Kuhn poker as the literature has it, on top of TextArena's: `KuhnPoker-v1`, once `register` was called.

TextArena's `KuhnPoker-v0` (0.7.4) never adds a bet to the pot, so that a bet costs nothing, and it pays
1 to who has more chips after some rounds. Here one hand is played and the players are paid their
chips: 1 for a hand that is folded or checked, 2 for a bet that is called. Perfect play is then worth -1/18 of
a chip to the player who acts first (Kuhn 1950). Two illegal replies in a row cost 2.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from pettingllms.contrib.games.textarena_v0 import registry

GAME = "KuhnPoker-v1"
LOST = 2
"""Chips that the worst hand costs, and a forfeit."""


def register() -> None:
    """Adds the game to TextArena's table, with the wrappers of TextArena's own Kuhn poker."""
    games: Any = registry()
    original = games["KuhnPoker-v0"]
    entry_point = f"{__name__}:KuhnPoker"
    games[GAME] = dataclasses.replace(original, id=GAME, entry_point=entry_point, kwargs={})


def __getattr__(name: str) -> Any:
    # When it is first asked for: TextArena is an extra.
    if name != "KuhnPoker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _kuhn_poker()


# One class, however often it is asked for: `pickle` refuses an object whose class is not the
# one that is found by its name.
@functools.cache
def _kuhn_poker() -> type:
    from textarena.envs.KuhnPoker.env import KuhnPokerEnv

    class KuhnPoker(KuhnPokerEnv):  # type: ignore[misc]  # TextArena publishes no types
        """One hand, paid in chips."""

        def __init__(self) -> None:
            super().__init__(max_rounds=1)

        def step(self, action: str) -> tuple[bool, dict[str, Any]]:
            """Plays a move as TextArena does; pays chips where the hand is over."""
            done, info = super().step(action)
            if done:
                state = self.state
                forfeits = [seat for seat in (0, 1) if state.game_info[seat]["invalid_move"]]
                if forfeits:
                    state.rewards = {
                        seat: LOST if seat not in forfeits else -LOST for seat in (0, 1)
                    }
                else:
                    # Both began with as many, and one has what the other lost.
                    chips = state.game_state["player_chips"]
                    state.rewards = {seat: (chips[seat] - chips[1 - seat]) / 2 for seat in (0, 1)}
            return done, info

        def _set_round_winner(self, player_id: int, reason: str) -> None:
            # TextArena comes here after a fold or two checks as well, and only its log still says
            # what the last move was.
            if "'[call]'" in self.state.logs[-1][1]:
                # Both have put in a chip that TextArena does not count.
                self.state.game_state["player_chips"][player_id] += 1
                self.state.game_state["player_chips"][1 - player_id] -= 1
            super()._set_round_winner(player_id, reason)

    KuhnPoker.__qualname__ = "KuhnPoker"  # where copies and pickles find it
    return KuhnPoker
