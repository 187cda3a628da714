"""A planner that calls a worker as often as it has to: the smallest team for methods of calling.

One experiment of `benchmarks.paper`: `python -m benchmarks.paper calls`.

A task has one to three parts. The planner sees how many there are and how many are done; a reply with a 1
calls the worker, any other ends the episode. The worker sees the number of its part and has to say it.
Nobody is paid before the end: then the team earns the share of the parts that were done rightly, less
that of calls too many. It succeeds where all are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome


class Work(NamedTuple):
    """The numbers of a task's parts, what the worker said, and who is next."""

    parts: tuple[int, ...]
    said: tuple[bool, ...] = ()
    """For each call whether the worker said its number."""
    due: str = "planner_0"


class raw_env(TextEnv):
    """The game of the module's docstring."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "calling_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
        "caller": "planner_0",
        "outcome": "late",
    }
    default_turns = 5

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("planner", "worker"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> Work:  # noqa: ARG002
        rng = self._random(seed)
        return Work(tuple(rng.randrange(4) for _ in range(rng.randint(1, 3))))

    def _next_agent(self, state: Work, agent: str | None) -> str:  # noqa: ARG002
        return state.due

    def _text(self, state: Work, agent: str) -> str:
        if agent == "planner_0":
            return f"n = {len(state.parts)}\ndone = {len(state.said)}"
        return f"a = {state.parts[len(state.said) % len(state.parts)]}"

    def _act(self, state: Work, agent: str, text: str) -> Outcome:
        marks, parts = state.said, state.parts
        if agent == "worker_0":
            right = str(parts[len(marks) % len(parts)]) in text[:8]
            after = state._replace(said=(*marks, right), due="planner_0")
            info = {"expert": float(right and len(marks) < len(parts)), "right": right}
            return Outcome(after, 0.0, 0.0, success=False, info=info)
        if "1" in text[:8]:
            return Outcome(state._replace(due="worker_0"), 0.0, 0.0, success=False)
        extra = max(0, len(marks) - len(parts))
        earned = max(0, sum(marks[: len(parts)]) - extra) / len(parts)
        return Outcome(state, earned, 0.0, success=earned == 1.0, done=True)

    def _view(self, state: Work) -> str:
        return str(state)


env = raw_env
"""The game as PettingZoo users make it."""
