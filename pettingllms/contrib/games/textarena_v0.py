"""Games of TextArena 0.7 as environments: `env("KuhnPoker-v0")`, `--env textarena:TicTacToe-v0`.

| | |
|---|---|
| agents | one for each player of the game: `player_0`, `player_1`, ...; `roles` gives other names |
| actions | text: what the game asks for, mostly a move in brackets, as in `[4]` |
| observations | `text`: the rules and what happened so far, as TextArena's own wrappers show it; `turn` |
| rewards | at the end of the game, to every player what the game gives it; before that 0 |

A reply that is not a legal move follows the game's rule for it: mostly the player may try again
once, and loses at the second time. Where a game raises an exception at a reply, the reply counts as
an empty one. Where it raises at that as well, or asks a player whom it has thrown out, the game is
over: that player and all who are out lose 1.

TextArena's games draw from the global random generators, take an observation away by reading it, and start differently after a game
than before. Here each environment has its own generators, swapped in and out around every
call; its own transcript, from which observations are made; and every episode starts from a fresh copy.

Version history: v0, the games of TextArena 0.7.
"""

from __future__ import annotations

import copy
import importlib
import logging
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, Literal, Self, get_args

import numpy as np

from pettingllms.contrib.games.game_env import GameEnv, Generators, private, seat_roles, seeded
from pettingllms.envs import arguments
from pettingllms.envs.base import metadata_of
from pettingllms.errors import CloneError, ConfigError, UnknownNameError, did_you_mean

logger = logging.getLogger(__name__)

Prompt = Literal["full", "compact"]
Message = tuple[int, str, Any]
"""Who said it (-1: the game), what, and TextArena's type of it."""

LOSS = -1.0
"""Reward of a player that a game gives up on."""
# A reply as it was written, and after it the game's own account of it.
_SAID_AGAIN = ("PLAYER_ACTION", "GAME_ACTION_DESCRIPTION")
_TRIED = (2, 1, 3, 4, 5, 6)
"""Numbers of players that are tried where none is given."""


class raw_env(GameEnv):
    """A game of TextArena; the module docstring says what is where.

    Args:
        game: id of the game, such as `TicTacToe-v0`.
        num_players: players; None for the smallest number with which the game starts, 2 where
            that is possible.
        roles: the role of each player in the game's order; None: all are `player`, one shared
            policy that plays itself.
        prompt: "full" for what TextArena's wrappers show; "compact" leaves out the rules, all
            boards but the latest, and words that the game repeats, for small models.
        max_turns: replies of each player, after which the episode is truncated.
        game_args: arguments of the game itself, such as `{"max_rounds": 5}`.
        render_mode: "ansi", "human" or None.

    Raises:
        UnknownNameError: TextArena has no such game.
        ConfigError: TextArena or a word list is missing; a value that the game does not take.
    """

    metadata = metadata_of("textarena_v0", outcome="late")
    embedded = {"prompt": "compact"}

    def __init__(
        self,
        game: str,
        *,
        num_players: int | None = None,
        roles: Sequence[str] | None = None,
        prompt: Prompt = "full",
        max_turns: int = 200,
        game_args: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.game_name = game
        games = registry()
        if game not in games:
            # Variants of one game would take up all places among the suggestions.
            plain = [name for name in games if not name.endswith(("-raw", "-train"))]
            raise UnknownNameError(f"TextArena has no game {game!r}; {did_you_mean(game, plain)}")
        spec = games[game]
        self.prompt = arguments.one_of("prompt", prompt, get_args(Prompt))
        self._fresh = _made(game, spec, game_args or {})
        self._draws_from_numpy = _has_numpy(type(self._fresh).__module__)
        self._wrappers = list(spec.default_wrappers or ())
        self.num_players = _players(game, self._fresh, num_players)
        super().__init__(
            roles=seat_roles(roles, self.num_players), max_turns=max_turns, render_mode=render_mode
        )

    def __str__(self) -> str:
        return f"textarena:{self.game_name}"

    def _begin(self, seed: int) -> None:
        self._seed, self._moves = seed, list[str]()
        self._fault: int | None = None
        self._start()

    def _start(self) -> None:
        self._game = _copy(self._fresh)
        self._messages: list[list[Message]] = [[] for _ in range(self.num_players)]
        with private(seeded(self._seed, numpy=self._draws_from_numpy)) as swap:
            self._game.reset(num_players=self.num_players, seed=self._seed)
        self._generators: Generators = swap.state
        state = self._game.state
        if isinstance(getattr(state, "elimination_order", None), list):
            state.elimination_order = Eliminated(state.elimination_order, self.num_players)
        self._collect()

    def _collect(self) -> None:
        """Moves what players were sent to the transcript; reading it there takes nothing away."""
        waiting = self._game.state.observations
        for seat, messages in enumerate(self._messages):
            for sender, text, category in waiting.get(seat, ()):
                # Some games mix up the arguments of `add_observation`.
                messages.append((sender if isinstance(sender, int) else -1, str(text), category))
            waiting[seat] = []

    def _to_move(self) -> int:
        return int(self._game.state.current_player_id)

    def _play(self, seat: int, text: str | None) -> str | None:
        move = self._formatted(text or "")
        try:
            self._move(move)
        except Exception as error:  # noqa: BLE001 - the game's own, at a text that it did not foresee
            # What the game has changed before is undone by playing it again.
            logger.info("%s raised %r at the reply %.80r", self, error, text)
            return self._as_unread(seat, f"the game raised {type(error).__name__}")
        return self._reason(seat) if text is not None else None

    def _as_unread(self, seat: int, reason: str) -> str:
        """Plays an empty reply in place of one at which the game raised an exception."""
        moves = self._moves
        self._moves = []
        self._start()
        try:
            for move in (*moves, self._formatted("")):
                self._move(move)
        except Exception as error:  # noqa: BLE001
            # It raises whatever it is given; who cannot play on has lost.
            logger.info("%s raised %r at an empty reply; player %d loses", self, error, seat)
            self._fault = seat
        return reason

    def _move(self, move: str) -> None:
        with private(self._generators) as swap:
            done, _ = self._game.step(action=move)
            state = self._game.state
            if not done and not 0 <= state.current_player_id < self.num_players:
                # `_play` takes it as if the game had raised it.
                raise IndexError(f"player {state.current_player_id} of {self.num_players} is next")
        self._generators = swap.state
        # Noted after the step: a move at which the game raised must not be played again.
        self._moves.append(move)
        self._collect()
        # Asked of a plain list, because `Eliminated` raises where all players are out.
        if not done and list(getattr(state, "elimination_order", ())).count(
            state.current_player_id
        ):
            # Some games ask a player again and again whom they have thrown out.
            self._fault = state.current_player_id

    def _formatted(self, text: str) -> str:
        """The reply as the wrappers of the game hand it on, which put brackets around a bare move."""
        for wrapper in self._wrappers:
            made = wrapper(self._game)
            text = made.action(text) if hasattr(wrapper, "action") else text
        return text

    def _reason(self, seat: int) -> str | None:
        """Returns why the game did not take the last reply, or None where it did."""
        state = self._game.state
        info = (getattr(state, "game_info", None) or {}).get(seat, {})
        if not getattr(state, "error_count", 0) and not info.get("invalid_move"):
            return None
        notices = [
            text for _, text, category in self._messages[seat] if _name(category) == "GAME_ADMIN"
        ]
        return notices[-1] if notices else str(info.get("reason", "not a legal move"))

    def _text(self, seat: int) -> str:
        messages = self._messages[seat]
        if self.prompt == "compact":
            return _lines(self._game, _compact(messages))
        for wrapper in self._wrappers:
            if hasattr(wrapper, "observation"):
                # Its own store is filled from ours each time, so that reading changes nothing.
                made = wrapper(self._game)
                made.full_observations = {seat: list(messages)}
                try:
                    return str(made.observation(seat, []))
                except (LookupError, ValueError):
                    break  # it wants a board, and the game has shown none yet
        return _lines(self._game, messages)

    def _outcome(self) -> Sequence[float] | None:
        state, seats = self._game.state, range(self.num_players)
        if self._fault is not None:
            lost = {self._fault, *getattr(state, "elimination_order", ())}
            return [LOSS if seat in lost else 0.0 for seat in seats]
        if not state.done:
            return None
        paid = state.rewards or {}
        return [_number(paid.get(seat, 0.0)) for seat in seats]

    def _copied(self, twin: Self) -> None:
        twin._game = _copy(self._game)
        twin._messages = [list(messages) for messages in self._messages]
        twin._moves = list(self._moves)


env = raw_env


class Eliminated(list[int]):
    """The players that are out of the game, in order.

    TextArena looks for the next player who is not among them, without end where all are.
    """

    def __init__(self, players: Sequence[int], count: int) -> None:
        super().__init__(players)
        self.total = count

    def __contains__(self, player: object) -> bool:
        if len({*self}) >= self.total:
            raise RuntimeError("all players are out of the game")
        return super().__contains__(player)

    def __deepcopy__(self, memo: dict[int, Any]) -> Eliminated:
        return Eliminated(self, self.total)


def _lines(game: Any, messages: Sequence[Message]) -> str:
    """Messages as TextArena shows them to language models."""
    names = getattr(game.state, "role_mapping", None) or {}
    return "\n".join(
        f"[{'GAME' if sender < 0 else names.get(sender, f'Player {sender}')}] {text}"
        for sender, text, _ in messages
    )


def _compact(messages: Sequence[Message]) -> list[Message]:
    categories = [_name(category) for _, _, category in messages]
    boards = [at for at, category in enumerate(categories) if category == "GAME_BOARD"]
    # What a player wrote, where the game says next what that meant.
    twice = [at for at, pair in enumerate(pairwise(categories)) if pair == _SAID_AGAIN]
    out = {*boards[:-1], *twice}
    return [
        message
        for at, (message, category) in enumerate(zip(messages, categories, strict=True))
        if category != "PROMPT" and at not in out
    ]


def _name(kind: Any) -> str:
    return str(getattr(kind, "name", ""))


def _number(paid: Any) -> float:
    """Returns what a game pays, as a number.

    Some games mix up arguments and pay a text for a wrong move; that counts as a loss.
    """
    number = isinstance(paid, Real) and math.isfinite(paid)
    return float(paid) if number else LOSS


def _made(name: str, game: Any, given: Mapping[str, Any]) -> Any:
    """The game as its constructor makes it, without TextArena's wrappers.

    Raises:
        ConfigError: it lacks a word list, or does not take an argument.
    """
    module, _, attribute = game.entry_point.partition(":")
    try:
        with private(seeded(0)):
            # Some modules fetch word lists while they are imported, and print what they do.
            game_class = getattr(importlib.import_module(module), attribute)
            return game_class(**{**game.kwargs, **given})
    except Exception as error:
        raise ConfigError(_why_not(name, error, given)) from error


def _has_numpy(module: str) -> bool:
    """Returns whether a game's package has imported NumPy, whose generator it may use then."""
    package = module.rpartition(".")[0] if module.startswith("textarena.") else module
    submodules = [imported for name, imported in sys.modules.items() if name.startswith(package)]
    return any(value is np for submodule in submodules for value in vars(submodule).values())


def _why_not(name: str, error: Exception, given: Mapping[str, Any]) -> str:
    message = " ".join(str(error).split())
    # NLTK's own error is a page of advice, of which this one command helps.
    if "nltk" in message.lower():
        return (
            f"{name} reads word lists of NLTK that are not on this machine; fetch them: {DOWNLOAD}"
        )
    if "OPENROUTER_API_KEY" in message:
        return (
            f"{name} asks a language model behind OpenRouter to judge; it needs network and a key in "
            "OPENROUTER_API_KEY"
        )
    if isinstance(error, SyntaxError):
        return (
            f"{name} does not run on Python {platform.python_version()}: {error}; try Python 3.12"
        )
    if isinstance(error, FileNotFoundError) or (
        isinstance(error, ModuleNotFoundError) and str(error.name).startswith("textarena")
    ):
        return f"{name} is registered in TextArena, but not a part of its package: {message:.300}"
    if isinstance(error, ModuleNotFoundError):
        return f"{name} needs the package {error.name!r}: pip install {error.name}"
    shown = f" with {dict(given)}" if given else ""
    return f"{name} cannot be made{shown}: {type(error).__name__}: {message:.300}"


def _players(name: str, fresh: Any, given: int | None) -> int:
    """The number of players, after starting a game with it.

    Raises:
        ConfigError: it does not start with that many.
    """
    errors: dict[int, Exception] = {}
    for count in _TRIED if given is None else (given,):
        try:
            with private(seeded(0)):
                # A reset that fails may leave the copy changed.
                game = copy.deepcopy(fresh)
                game.reset(num_players=count, seed=0)
                game.state.observations  # noqa: B018 - of all that a game has, what is used here
            return count
        except Exception as error:  # noqa: BLE001 - the game's own
            errors[count] = error
    why = next(iter(errors.values()))
    tried = ", ".join(map(str, errors))
    raise ConfigError(f"{_why_not(name, why, {})} (tried with num_players={tried})") from why


def _copy(game: Any) -> Any:
    try:
        return copy.deepcopy(game)
    except Exception as error:
        raise CloneError(f"{type(game).__name__} cannot be copied: {error!r:.300}") from error


# ---------------------------------------------------------------------------------------- games
# TextArena's games by name: which there are, how many play, and what opening one needs.
#
# TextArena (https://github.com/LeonGuertler/TextArena) registers a game several times: with variants of its rules, and each
# variant with other wrappers around what players see (`-raw`, `-train`). It says nowhere in code how many
# players a game takes; a game refuses a wrong number when it is reset, or does not notice.


INSTALL = "pip install 'pettingllms[textarena]'"
DOWNLOAD = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
"""Fetches the word lists of NLTK that TextArena's word games read."""


def registry() -> Mapping[str, Any]:
    """TextArena's table of games.

    Raises:
        ConfigError: TextArena is not installed.
    """
    try:
        # The import of TextArena draws from the global generator, which is the caller's.
        with private(seeded(0)):
            import textarena  # noqa: F401 - registers its games
            from textarena.envs.registration import ENV_REGISTRY
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"TextArena's games need the package {error.name!r}: {INSTALL}"
        ) from error
    games: Mapping[str, Any] = ENV_REGISTRY
    return games
