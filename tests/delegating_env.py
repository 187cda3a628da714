"""A lead that asks its helper as often as it likes: agents act a varying number of times.

What a reply does depends on its length, so that any text, also a random model's, plays the game.
The lead ends the episode (length divisible by 3), asks the helper (remainder 1), or thinks on
(remainder 2). The helper works on (odd length) or reports to the lead (even length).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pettingllms.envs.base import Outcome, TextEnv


class State(NamedTuple):
    """The question, who acts, and what was said."""

    question: int
    acting: str = "lead_0"
    said: tuple[str, ...] = ()


class raw_env(TextEnv):
    """The game of the module docstring."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "delegating_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("helper", "lead"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> State:
        return State(self._random(seed).randrange(1000))

    def _next_agent(self, state: State, agent: str | None) -> str:
        return state.acting

    def _text(self, state: State, agent: str) -> str:
        return f"{agent}: {state.question} {' '.join(state.said[-3:])}"

    def _act(self, state: State, agent: str, text: str) -> Outcome:
        messages = (*state.said, f"{agent} {len(text)}")
        if agent == "lead_0":
            acting = "helper_0" if len(text) % 3 == 1 else agent
            done = len(text) % 3 == 0
        else:
            acting, done = (agent if len(text) % 2 else "lead_0"), False
        share = sum(ord(letter) < 80 for letter in text) / max(1, len(text))
        asked = any(name.startswith("helper_0") for name in messages)
        after = State(state.question, acting, messages)
        return Outcome(after, team=float(done and asked), local=share, success=asked, done=done)

    def _view(self, state: State) -> str:
        return f"{state.question}: {', '.join(state.said)}"


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
