"""`tests/letters_env.py` as a team that takes a question, and answers with what was written last."""

from __future__ import annotations

from typing import Any, Unpack

from pettingllms.envs.base import Outcome
from pettingllms.envs.team_env import TeamArguments, TeamEnv
from tests import letters_env


class raw_env(TeamEnv):
    """A writer and a reader."""

    metadata = {**letters_env.raw_env.metadata, "name": "asked_v0"}  # noqa: RUF012 - PettingZoo's
    reset_options = ("question",)

    def __init__(self, **kwargs: Unpack[TeamArguments]) -> None:
        super().__init__(roles=("writer", "reader"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return (str(options.get("question", f"word {seed % 1000} of {self.split}")),)

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return f"{agent}: {state[-1]}"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        return letters_env.raw_env._act(self, state, agent, text)  # type: ignore[arg-type]

    def _answer(self, state: tuple[str, ...]) -> str | None:
        return state[-1] if len(state) > 1 else None

    def _view(self, state: tuple[str, ...]) -> str:
        return " ".join(state)


env = raw_env
