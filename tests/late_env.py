"""A two-role environment that pays the team at the end of an episode only, for nearly any text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pettingllms.envs.base import Outcome
from tests.letters_env import raw_env as letters


class raw_env(letters):
    """The writer earns nothing, the reader a share of the writer's and its own letters."""

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        outcome = super()._act(state, agent, text)
        if agent == "writer_0":
            return replace(outcome, team=0.0, local=0.0, success=False)
        return replace(outcome, team=outcome.local, local=0.0, done=True)


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
