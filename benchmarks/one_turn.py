"""`OneTurn`: an environment that costs nothing, for measuring a trainer by itself."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from pettingllms.envs.base import Outcome, TextEnv

ROLE = "writer"


class OneTurn(TextEnv):
    """Shows one of some texts and pays a number that follows from the reply."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "one_turn_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(roles=(ROLE,), max_turns=1)
        self.texts, self.num_tasks = texts, len(texts)

    def _start(self, seed: int, options: dict[str, Any]) -> str:  # noqa: ARG002 - has none
        return self.texts[seed]

    def _text(self, state: str, agent: str) -> str:  # noqa: ARG002 - there is one
        return state

    def _act(self, state: str, agent: str, text: str) -> Outcome:  # noqa: ARG002 - there is one
        return Outcome(state, team=0.0, local=reward(text), success=False, done=True)

    def _view(self, state: str) -> str:
        return state


def reward(text: str) -> float:
    """A number from 0 to 1, another for nearly every text."""
    return zlib.crc32(text.encode()) / 2**32


def rewards(completions: list[Any], **_: Any) -> list[float | None]:
    """The same for TRL, whose replies are lists of messages."""
    return [reward(completion[0]["content"]) for completion in completions]
