"""A two-role environment in which even a random model's replies differ in reward."""

from __future__ import annotations

import dataclasses
from typing import Any

from pettingllms.envs.base import Outcome, TextEnv
from pettingllms.errors import SandboxUnavailable


class raw_env(TextEnv):
    """The writer earns its share of ASCII characters, the reader its share of lower bytes."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "letters_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("writer", "reader"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return (f"word {seed % 1000} of {self.split}",)

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return f"{agent}: {state[-1]}"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        limit = 128 if agent == "writer_0" else 80
        share = sum(ord(letter) < limit for letter in text) / max(1, len(text))
        return Outcome(
            (*state, text[:8]),
            team=float(share > 0.9),
            local=share,
            success=share > 0.9,
            info={"share": share},
        )

    def _view(self, state: tuple[str, ...]) -> str:
        return " ".join(state)


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)


class FailingEnv(raw_env):
    """From task 4 of training on (step 2 of two tasks each), the reader's turn goes wrong."""

    def __init__(self, how: str = "overflow", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.how = how

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return ("late" if seed >= 4 and self.split == "train" else "early", str(seed))

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        outcome = super()._act(state, agent, text)
        if state[0] == "late" and agent == "reader_0":
            if self.how == "sandbox":
                raise SandboxUnavailable("the sandbox did not start")
            # Finite as a reward, but not in the float32 of an advantage: nor is the loss. Nearly every
            # text is paid another one, so that no group is left out for earning the same.
            return dataclasses.replace(outcome, local=1e300 * (sum(map(ord, text)) % 97))
        return outcome


def failing(**kwargs: Any) -> FailingEnv:
    """The environment that fails."""
    return FailingEnv(**kwargs)
