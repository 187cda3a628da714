"""PettingZoo's games as text: what a player sees, and what actions are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def plain_name(game: Any, agent: str, action: int) -> str:
    """An action by its number."""
    del game, agent
    return str(action)


@dataclass(frozen=True, slots=True)
class GameText:
    """A game's own text, given PettingZoo's environment and one of its agents.

    Both functions must change nothing; the first must work for every agent at any time.
    """

    show: Callable[[Any, str], str]
    """What the agent sees of the game."""
    name: Callable[[Any, str, int], str] = plain_name
    """What an action is called; unlike those of the other legal actions."""


def show_observation(game: Any, agent: str) -> str:
    """The observation as text, whatever it is: boards of two planes as boards, else numbers."""
    observation = game.observe(agent)
    if isinstance(observation, Mapping):
        observation = observation.get("observation", observation)
    values = np.asarray(observation)
    if values.ndim == 3 and values.shape[2] == 2:
        # As integers: the difference of Boolean or unsigned planes is not -1.
        return board(values[:, :, 0] - values[:, :, 1].astype(int))
    # Of planes of zeros and ones, the places of the ones are the shorter text.
    if values.size > 1 and np.isin(values, (0, 1)).all():
        ones = [",".join(map(str, place)) for place in np.argwhere(values)]
        return f"Observation of shape {values.shape}, ones at: {' '.join(ones) or 'none'}"
    return f"Observation: {np.array2string(values, threshold=500, precision=4)}"


def board(values: Any) -> str:
    """A board of 1 (the player's: x), -1 (the opponent's: o) and 0 (free: .)."""
    rows = [" ".join(".xo"[int(value)] for value in row) for row in values]
    return "\n".join(["The board (x: yours, o: your opponent's):", *rows])


generic = GameText(show_observation)


def _columns(game: Any, agent: str) -> str:
    return (
        f"{show_observation(game, agent)}\n0 1 2 3 4 5 6   An action is the column of your piece."
    )


def _cells(game: Any, agent: str) -> str:
    numbers = "The cells: 0 1 2 in the first row, 3 4 5 in the second, 6 7 8 in the third."
    return f"{show_observation(game, agent)}\n{numbers}"


def _chess(game: Any, agent: str) -> str:
    color = (
        "white (capital letters)" if agent == game.possible_agents[0] else "black (small letters)"
    )
    return f"You play {color}; moves are written as e2e4.\n{game.board}\nFEN: {game.board.fen()}"


def _chess_name(game: Any, agent: str, action: int) -> str:
    from pettingzoo.classic.chess import chess_utils

    seat = game.possible_agents.index(agent)
    return str(chess_utils.action_to_move(game.board, action, seat).uci())


def _go(game: Any, agent: str) -> str:
    # Go's board has 1 for black, which is the first agent.
    sign = 1 if agent == game.possible_agents[0] else -1
    return f"{board(game._go.board * sign)}\nRow 0 is the first, column 0 the leftmost."


def _go_name(game: Any, agent: str, action: int) -> str:
    del agent
    size = int(game._N)
    return "pass" if action == size * size else f"{action // size},{action % size}"


def _rps(game: Any, agent: str) -> str:
    last = game._moves[int(game.observations[agent])].lower()
    return f"Round {game.num_moves + 1} of {game.max_cycles}. Your opponent's last move: {last}."


def _rps_name(game: Any, agent: str, action: int) -> str:
    del agent
    return str(game._moves[action]).lower()


def _cards(game: Any, agent: str) -> str:
    """Returns what RLCard shows a player, a line for each entry, without the `hidden` ones."""
    raw = game.env.get_state(game.possible_agents.index(agent))["raw_obs"]
    hidden = ("legal_actions", "current_player", "stakes", "stage")
    lines = [f"{key.replace('_', ' ')}: {_listed(raw[key])}" for key in raw if key not in hidden]
    return "\n".join(lines)


def _listed(value: Any) -> str:
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _limit_name(game: Any, agent: str, action: int) -> str:
    del agent
    return str(game.env.actions[action])


def _no_limit_name(game: Any, agent: str, action: int) -> str:
    del game, agent
    # In the order of the numbers in RLCard's `Action`.
    return ("fold", "check_call", "raise_half_pot", "raise_pot", "all_in")[action]


TEXTS: Mapping[str, GameText] = {
    "connect_four": GameText(_columns),
    "tictactoe": GameText(_cells),
    "chess": GameText(_chess, _chess_name),
    "go": GameText(_go, _go_name),
    "rps": GameText(_rps, _rps_name),
    "leduc_holdem": GameText(_cards, _limit_name),
    "texas_holdem": GameText(_cards, _limit_name),
    "texas_holdem_no_limit": GameText(_cards, _no_limit_name),
}
"""Game -> its own text."""
