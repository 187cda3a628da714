"""TextArena's games by name: which there are, how many play, and what opening one needs.

TextArena (https://github.com/LeonGuertler/TextArena) registers a game several times: with variants of its rules, and each
variant with other wrappers around what players see (`-raw`, `-train`). It says nowhere in code how many
players a game takes; a game refuses a wrong number when it is reset, or does not notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pettingllms.contrib.games.generators import private, seeded
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean

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


def game_of(name: str) -> Any:
    """Finds a game by its id: an `EnvSpec` of TextArena.

    Raises:
        UnknownNameError: there is none; the text names the nearest.
        ConfigError: TextArena is not installed.
    """
    games = registry()
    if name in games:
        return games[name]
    # Variants of one game would take up all places among the suggestions.
    plain = [game for game in games if not game.endswith(("-raw", "-train"))]
    raise UnknownNameError(f"TextArena has no game {name!r}; {did_you_mean(name, plain)}")
