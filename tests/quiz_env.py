"""A quiz for tests of evaluation: two reasoners and a judge, or the judge alone; easy and hard rows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, TextEnv
from pettingllms.errors import DatasetError


class raw_env(TextEnv):
    """Won where the sum over the characters of the judge's last reply is even.

    Args:
        agents: "team" or "single".
        dataset: file with one question a line; else questions never end.
        trap: where this file exists, the task whose number it holds removes it and kills the process.
        trap_signal: with which signal.
        kwargs: of `TextEnv`.
    """

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "quiz_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    default_turns = 2

    def __init__(
        self,
        *,
        agents: str = "team",
        dataset: str | None = None,
        trap: str | None = None,
        trap_signal: int = signal.SIGKILL,
        **kwargs: Any,
    ) -> None:
        arguments.one_of("agents", agents, ("team", "single"))
        team = ("reasoner", "reasoner", "judge")
        super().__init__(roles=team if agents == "team" else ("judge",), **kwargs)
        rows = None if dataset is None else Path(dataset).read_text().split()
        if rows is not None and "bad" in rows:
            raise DatasetError(f"{dataset}:{rows.index('bad') + 1}: field 'question' is missing")
        self.num_tasks = None if rows is None else len(rows)
        self.trap = None if trap is None else Path(trap)
        self.trap_signal = trap_signal

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[int, str]:
        return (seed, "")

    def _text(self, state: tuple[int, str], agent: str) -> str:
        return f"{agent}: question {state[0]} {state[1]}"

    def _act(self, state: tuple[int, str], agent: str, text: str) -> Outcome:
        if self.trap is not None and self.trap.exists() and int(self.trap.read_text()) == state[0]:
            self.trap.unlink()
            os.kill(os.getpid(), self.trap_signal)
        won = agent == "judge_0" and sum(map(ord, text)) % 2 == 0
        info: dict[str, Any] = {"difficulty": "hard" if state[0] % 2 else "easy"}
        if agent == "judge_0":
            info["statuses"] = ["ok", "error" if won else "ok"]
        return Outcome(
            (state[0], text[:4]), team=float(won), local=0.5, success=won, done=won, info=info
        )

    def _view(self, state: tuple[int, str]) -> str:
        return str(state)


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
