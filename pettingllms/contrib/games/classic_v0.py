"""PettingZoo's board and card games with text: `env("connect_four_v3")`, `--env pettingzoo:classic/connect_four_v3`.

| | |
|---|---|
| agents | one for each player of the game: `player_0`, `player_1`, ...; `roles` gives other names |
| actions | text: a legal action by name or number, alone or in brackets: `[3]` |
| observations | `text`: the game, what the player sees of it, the legal actions; `turn` |
| rewards | at the end of the game, to every player the sum of what it earned; before that 0 |

A reply that names no legal action follows PettingZoo's rule for these games: the game ends, the player
has -1, the others 0.

Any environment of PettingZoo's registry works whose players act one after another with discrete
actions. How a game looks as text is a `GameText`: the games in
`pettingllms.contrib.games.classic_v0.TEXTS` have one of their own, others a generic one, and the argument
`text` replaces either.

Version history: v0, the games of PettingZoo 1.27.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pettingzoo
from gymnasium.spaces import Discrete
from pettingzoo import AECEnv
from pettingzoo.env_registry.exceptions import PettingZooRegistryError

from pettingllms.contrib.games.game_env import GameEnv, Generators, private, seat_roles, seeded
from pettingllms.envs.aec import deep_copied, pickled
from pettingllms.envs.base import metadata_of
from pettingllms.errors import CloneError, ConfigError, UnknownNameError, did_you_mean
from pettingllms.registry import resolve

INSTALL = "pip install 'pettingllms[classic]'"
ILLEGAL = -1.0
"""Reward of a player whose reply names no legal action."""


class raw_env(GameEnv):
    """A game of PettingZoo's registry; the module docstring says what is where.

    Args:
        game: id of the game, `classic/connect_four_v3`; `classic/` may be left out.
        roles: the role of each player in the game's order; None: all are `player`, one shared
            policy that plays itself.
        text: how the game looks: a `GameText` or the path of one, `my_package.my_game:TEXT`. None
            for the game's own in `TEXTS`, or the generic one.
        max_turns: replies of each player, after which the episode is truncated.
        game_args: arguments of the game itself, such as `{"board_size": 9}`.
        render_mode: "ansi", "human" or None.

    Raises:
        UnknownNameError: PettingZoo has no such game.
        ConfigError: a package of the game is missing; a value that it does not take; actions that
            are not discrete.
        CloneError: the game cannot be copied.
    """

    metadata = metadata_of("classic_v0", outcome="late")

    def __init__(
        self,
        game: str,
        *,
        roles: Sequence[str] | None = None,
        text: GameText | str | None = None,
        max_turns: int = 200,
        game_args: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.game_name = game if "/" in game else f"classic/{game}"
        self._game = _made(self.game_name, game_args or {})
        self._seats = [str(agent) for agent in self._game.possible_agents]
        self._texts = _text_of(self.game_name, text)
        super().__init__(
            roles=seat_roles(roles, len(self._seats)), max_turns=max_turns, render_mode=render_mode
        )
        self._check_copies()

    def __str__(self) -> str:
        return f"pettingzoo:{self.game_name}"

    def _begin(self, seed: int) -> None:
        seed %= 1 << 32  # as `numpy.random.RandomState` takes it
        # A game may keep what an earlier one left behind, for which a copy is not to blame.
        self._game = deep_copied(self._game)
        with private(seeded(seed)) as swap:
            self._prepare()
            self._game.reset(seed=seed)
        self._generators: Generators = swap.state
        self._earned = dict.fromkeys(self._seats, 0.0)
        self._over = False
        self._illegal: int | None = None

    def _prepare(self) -> None:
        """Puts back what a game keeps outside of itself: Go its size, in globals of a module."""
        put = getattr(self._game, "_overwrite_go_global_variables", None)
        if put is not None:
            put(vars(self._game)["_N"])

    def _to_move(self) -> int:
        return self._seats.index(str(self._game.agent_selection))

    def _play(self, seat: int, text: str | None) -> str | None:
        action, error = _chosen(text, self._actions())
        if action is None:
            self._over, self._illegal = True, seat
            return error
        with private(self._generators) as swap:
            self._prepare()
            self._step(action)
            # Agents that are out have to be stepped with None before the next one acts.
            while not self._over and self._is_out(self._game.agent_selection):
                self._step(None)
        self._generators = swap.state
        return None

    def _step(self, action: int | None) -> None:
        self._game.step(action)
        if action is not None:
            for agent, paid in self._game.rewards.items():
                self._earned[str(agent)] += float(paid)
        self._over = all(self._is_out(agent) for agent in self._game.agents)

    def _is_out(self, agent: str) -> bool:
        return bool(self._game.terminations[agent] or self._game.truncations[agent])

    def _actions(self) -> dict[str, int]:
        """The legal actions of the agent to act, by name."""
        agent = self._game.agent_selection
        observation = self._game.observe(agent)
        mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
        if mask is None:
            mask = self._game.infos[agent].get("action_mask")
        space: Any = self._game.action_space(agent)
        # Environments without illegal actions, such as rps, have no mask.
        legal = range(space.n) if mask is None else [int(n) for n in np.flatnonzero(mask)]
        return {self._texts.name(self._game, agent, number): number for number in legal}

    def _text(self, seat: int) -> str:
        agent = self._game.possible_agents[seat]
        lines = [
            f"You are {self.possible_agents[seat]} in a game of {_title(self.game_name)}.",
            self._texts.show(self._game, agent),
        ]
        if not self._over and seat == self._to_move():
            lines.append(
                f"Your legal actions: {', '.join(f'[{name}]' for name in self._actions())}"
            )
        return "\n".join(lines)

    def _outcome(self) -> Sequence[float] | None:
        if self._illegal is not None:
            return [ILLEGAL if seat == self._illegal else 0.0 for seat in range(len(self._seats))]
        return list(self._earned.values()) if self._over else None

    def _copied(self, twin: Self) -> None:
        twin._game = deep_copied(self._game)
        twin._earned = dict(self._earned)

    def __getstate__(self) -> dict[str, Any]:
        # By itself, the game would begin anew.
        return {**self.__dict__, "_game": pickled(self._game)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _game=pickle.loads(state["_game"]))

    def _check_copies(self) -> None:
        """Compares a copy with the original, some moves into a game.

        Raises:
            CloneError: it cannot be copied, or the copy is elsewhere.
        """
        try:
            self.reset(seed=0)
            for _ in range(2):
                if not self._over:
                    # One from the middle: the first may be to fold, which ends a poker hand.
                    names = list(self._actions())
                    self.step(names[len(names) // 2])
            twin = self.__deepcopy__({})
            alike = [instance._text(0) for instance in (self, twin)]
        except Exception as error:
            raise CloneError(f"{self} cannot be copied: {error!r:.300}") from error
        if alike[0] != alike[1]:
            raise CloneError(f"a copy of {self} is not where the original is")
        for name in ("agents", "infos", "agent_selection"):
            del self.__dict__[name]  # as before the first reset
        self._stream = None


env = raw_env


def _made(name: str, given: Mapping[str, Any]) -> AECEnv[Any, Any, Any]:
    try:
        entry_point = pettingzoo.spec("aec", name).entry_point
    except PettingZooRegistryError:
        namespace = name.partition("/")[0]
        candidates = [
            env_id for env_id in pettingzoo.aec_registry if env_id.startswith(f"{namespace}/")
        ]
        hint = did_you_mean(name, candidates or list(pettingzoo.aec_registry))
        raise UnknownNameError(f"PettingZoo has no game {name!r}; {hint}") from None
    try:
        with private(seeded(0)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about spaces that nobody sees here
            creator: Any = entry_point
            if isinstance(entry_point, str):
                creator = resolve(entry_point, "game")
            # Without PettingZoo's wrappers: `_play` has the rule for illegal actions itself.
            game: AECEnv[Any, Any, Any] = creator(**given).unwrapped
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name} needs the package {error.name!r}: {INSTALL}") from error
    except UnknownNameError as error:  # of `resolve`, where a package of the game is missing
        raise ConfigError(f"{name} cannot be imported: {error}; {INSTALL}") from error
    except Exception as error:
        shown = f" with {dict(given)}" if given else ""
        raise ConfigError(
            f"{name} cannot be made{shown}: {type(error).__name__}: {error!s:.300}"
        ) from error
    spaces = [game.action_space(agent) for agent in game.possible_agents]
    if not all(isinstance(space, Discrete) for space in spaces):
        raise ConfigError(f"{name} has actions that are not discrete: {spaces[0]}")
    return game


def _text_of(name: str, given: GameText | str | None) -> GameText:
    game_text = resolve(given, "text") if isinstance(given, str) else given
    if game_text is None:
        return TEXTS.get(_title(name), generic)
    if not isinstance(game_text, GameText):
        raise ConfigError(f"text must be a GameText or the path of one, got {given!r}")
    return game_text


def _title(name: str) -> str:
    """`connect_four` of `classic/connect_four_v3`."""
    return re.sub(r"[-_]v\d+$", "", name.rpartition("/")[2])


def _chosen(text: str | None, actions: Mapping[str, int]) -> tuple[int | None, str | None]:
    """The action that a reply names, or why it names none.

    The whole reply may be the action, by name or number; else the last one in brackets counts.
    """
    plain = {name.casefold(): number for name, number in actions.items()}
    # An action whose name is a number takes precedence over the one that has this number.
    plain |= {str(number): number for number in actions.values() if str(number) not in plain}
    reply = (text or "").strip()
    bracketed = re.findall(r"\[([^\[\]]*)\]", reply)
    for candidate in (reply, *bracketed[-1:]):
        number = plain.get(candidate.strip().casefold())
        if number is not None:
            return number, None
    shown = ", ".join(list(actions)[:20])
    return None, f"no legal action: {(bracketed or [reply])[-1]:.40}; legal are {shown}"


# ---------------------------------------------------------------------------------------- texts
# PettingZoo's games as text: what a player sees, and what actions are called.


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
