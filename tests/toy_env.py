"""A small deterministic TextEnv for tests: a guesser proposes a number, a checker judges it.

The guesser's reply is a number from 0 to 9, the checker's is `higher`, `lower` or `right`. The
team earns 1 while the guess is the secret; each role earns 0.5 for a reply that can be read (the
guesser) or is true (the checker). The episode ends when the checker says `right`, true or not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pettingllms.envs.base import Outcome, TextEnv


class State(NamedTuple):
    """The secret, the guess on the table, and what was said so far."""

    secret: int
    guess: int | None
    said: tuple[str, ...]


class raw_env(TextEnv):
    """The game of the module docstring."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "toy_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    reset_options = ("secret",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("guesser", "checker"), **kwargs)
        self.digits = {str(number): number for number in range(10)}

    def _start(self, seed: int, options: dict[str, Any]) -> State:
        return State(options.get("secret", self._random(seed).randrange(10)), None, ())

    def _text(self, state: State, agent: str) -> str:
        past = " ".join(state.said) or "nothing"
        if agent == "checker_0":
            return f"The secret is {state.secret}. Said so far: {past}."
        return f"Guess the secret, 0 to 9. Said so far: {past}."

    def _act(self, state: State, agent: str, text: str) -> Outcome:
        return self._guess(state, text) if agent == "guesser_0" else self._judge(state, text)

    def _guess(self, state: State, text: str) -> Outcome:
        guess = self.digits.get(text.strip())
        if guess is None:
            return self._outcome(state, local=0.0, parse_error="not a number from 0 to 9")
        return self._outcome(state._replace(guess=guess, said=(*state.said, str(guess))), local=0.5)

    def _judge(self, state: State, text: str) -> Outcome:
        verdict = text.strip()
        if verdict not in ("higher", "lower", "right"):
            return self._outcome(state, local=0.0, parse_error="not higher, lower or right")
        truth = "right" if state.guess == state.secret else "wrong"
        if state.guess is not None and truth == "wrong":
            truth = "higher" if state.guess < state.secret else "lower"
        state = state._replace(said=(*state.said, verdict))
        return self._outcome(state, local=0.5 * (verdict == truth), done=verdict == "right")

    def _outcome(self, state: State, local: float, **rest: Any) -> Outcome:
        solved = state.guess == state.secret
        info = {"guess": state.guess}
        return Outcome(state, team=float(solved), local=local, success=solved, info=info, **rest)

    def _view(self, state: State) -> str:
        return f"secret {state.secret}: {' '.join(state.said)}"


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
