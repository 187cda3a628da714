"""The letters environment with a third role, so that a team can have three base models."""

from __future__ import annotations

from typing import Any

from pettingllms.envs.base import TextEnv
from tests.letters_env import raw_env as letters


class raw_env(letters):
    """The writer earns its share of ASCII characters, reader and judge theirs of lower bytes."""

    def __init__(self, **kwargs: Any) -> None:
        TextEnv.__init__(self, roles=("writer", "reader", "judge"), **kwargs)


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
