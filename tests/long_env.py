"""An environment for tests of long prompts: any completion succeeds, two turns, some tasks are long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pettingllms.envs.base import Outcome, TextEnv


class raw_env(TextEnv):
    """Won by any completion.

    Args:
        long: tasks whose prompts are long.
        grows: tasks whose second prompt is long.
        kwargs: of `TextEnv`.
    """

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "long_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    default_turns = 2

    def __init__(
        self, *, long: Sequence[int] = (), grows: Sequence[int] = (), **kwargs: Any
    ) -> None:
        super().__init__(roles=("solver",), **kwargs)
        self.long, self.grows = tuple(long), tuple(grows)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[int, int]:
        return (seed, 0)

    def _text(self, state: tuple[int, int], agent: str) -> str:
        seed, turn = state
        is_long = seed in self.long or (seed in self.grows and turn > 0)
        return f"question {seed} " + "word " * (40 if is_long else 1)

    def _act(self, state: tuple[int, int], agent: str, text: str) -> Outcome:
        seed, turn = state
        return Outcome(
            (seed, turn + 1), team=float(turn == 0), local=0.0, success=True, done=turn == 1
        )

    def _view(self, state: tuple[int, int]) -> str:
        return str(state)


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
