"""Your own environment.

An environment is four methods over an immutable state; `TextEnv` implements the rest of PettingZoo's interface. Here a guesser looks for a number and
an adviser says whether to guess higher or lower. `check_env` then tries what usually goes wrong.
"""

from typing import Any, NamedTuple

from pettingllms.envs import Outcome, TextEnv, check_env


class State(NamedTuple):
    secret: int
    guess: int | None = None


class raw_env(TextEnv):
    metadata = {"name": "numbers_v0", "render_modes": ["ansi"], "is_parallelizable": False}

    def __init__(self, largest: int = 20, **kwargs: Any) -> None:
        super().__init__(roles=("guesser", "adviser"), **kwargs)
        self.largest = largest

    def _start(self, seed: int, options: dict[str, Any]) -> State:
        return State(secret=self._random(seed).randint(1, self.largest))

    def _text(self, state: State, agent: str) -> str:
        if agent == "guesser_0":
            return f"Guess a number from 1 to {self.largest}."
        return f"The secret is {state.secret}, the guess {state.guess}. Say higher, lower or right."

    def _act(self, state: State, agent: str, text: str) -> Outcome:
        if agent == "adviser_0":
            right = text.strip() == self._advice(state)
            return Outcome(state, team=0.0, local=float(right), success=self._solved(state))
        if not text.strip().isdecimal() or len(text) > 9:
            # Model-written text is never bad input: say what was wrong and continue.
            why = "not a whole number"
            return Outcome(state, 0.0, 0.0, success=self._solved(state), parse_error=why)
        after = state._replace(guess=int(text))
        solved = self._solved(after)
        return Outcome(after, team=float(solved), local=0.0, success=solved, done=solved)

    def _view(self, state: State) -> str:
        return f"secret {state.secret}, guess {state.guess}"

    def _advice(self, state: State) -> str:
        if state.guess is None or state.guess == state.secret:
            return "right"
        return "higher" if state.guess < state.secret else "lower"

    def _solved(self, state: State) -> bool:
        return state.guess == state.secret


def env(**kwargs: Any) -> raw_env:
    """PettingZoo's convention: a module has a function `env`."""
    return raw_env(**kwargs)


if __name__ == "__main__":
    check_env(env(), episodes=5)
    print("the environment keeps its contract; train on it with --env module:env")
