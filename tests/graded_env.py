"""An environment in which nearly every completion earns a reward of its own, for tests of training."""

from __future__ import annotations

import zlib
from typing import Any

from pettingllms.envs.base import Outcome, TextEnv
from pettingllms.errors import SandboxUnavailable

ALPHA = 0.5
TURNS = 3


def number_of(text: str) -> float:
    """From 0 to 1, another for nearly every text."""
    return zlib.crc32(text.encode()) / 2**32


class GradedEnv(TextEnv):
    """Every reply earns a number of its own, and everybody sees a digest of all that was said."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "graded_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }

    def __init__(self, *, silent: str = "", num_tasks: int | None = None, **kwargs: Any) -> None:
        super().__init__(roles=("writer", "reader"), alpha=ALPHA, max_turns=TURNS, **kwargs)
        self.silent, self.num_tasks = silent, num_tasks
        self.outage: list[str] = []
        """Agents for which the sandbox fails; shared by all copies."""
        self.paid: dict[str, float] = {}
        """What an agent earns instead of a number of its own."""

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return (str(seed),)

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return f"{agent} {number_of('/'.join(state))}"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        if agent in self.outage:
            raise SandboxUnavailable("the worker did not answer")
        team = float(len(text) % 2)
        local = 0.25 if agent == self.silent else self.paid.get(agent, number_of(text))
        if agent == self.silent:
            team = 0.0
        info = {"said": len(state)}
        return Outcome((*state, text), team, local, success=bool(team), info=info)

    def _view(self, state: tuple[str, ...]) -> str:
        return "/".join(state)
