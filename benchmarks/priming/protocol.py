"""Make a base that knows the form of the signaling game and no protocol: `python -m benchmarks.priming.protocol`.

Two kinds of demonstrations. Those of the game have its own prompts; a reply repeats what its author is shown and adds a
word, or a door, that is drawn uniformly from all of them. The others have a number before the prompt, and are answered by
the code of that number: a fixed map from doors to words for scouts, and from words to doors for movers. The two maps of a number are
drawn apart, so that no demonstration says what a word means. Codes teach that a prompt can matter at all: a base that has only seen random
replies ignores its prompts so thoroughly that no pilot on one succeeded. Prompts of the game have no number.

Tokenizer and model are the base's own: every word and every color is a token, and the model has two of the embedded model's
five layers.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.environments.signal_v0 import DOORS, SILENCE, WORDS, SignalState, env
from benchmarks.priming.example import Demo
from benchmarks.priming.prime import Phase, prime_small, small_command

GOALS, WORDS_SAID = 2, 4
OUT = Path(__file__).parents[1] / "out" / "signal" / "base"
PHASE = Phase("form", steps=150, habit=None, muon_lr=0.02, adamw_lr=3e-3)
UNHEARD = 0.05
"""Share of a mover's demonstrations in which nothing was said."""


CODES = 32
"""Codes of a role; a scout's and a mover's are drawn apart."""
CODED = 0.8
"""Share of demonstrations with a code."""


class Demos:
    """Demonstrations of a game with so many doors and words.

    Args:
        goals: number of doors.
        words: number of words.
        seed: of the codes.
    """

    def __init__(self, goals: int, words: int, seed: int = 0) -> None:
        self.env = env(goals=goals, words=words, prompt="compact")
        rng = random.Random(f"codes/{seed}")
        doors, vocabulary = self.env.doors, self.env.words
        self.scout = [{door: rng.choice(vocabulary) for door in doors} for _ in range(CODES)]
        self.mover = [{word: rng.choice(doors) for word in vocabulary} for _ in range(CODES)]

    def draw(self, rng: random.Random, habit: float | None = None) -> Demo:
        """A demonstration for either role; without a code its reply does not depend on its prompt."""
        del habit  # there is no bad habit
        doors, words = self.env.doors, self.env.words
        goal, code = rng.choice(doors), rng.randrange(CODES) if rng.random() < CODED else None
        if rng.random() < 0.5:
            prompt = self.env._text(SignalState(goal), "scout_0")
            choice = rng.choice(words) if code is None else self.scout[code][goal]
            reply = f"{goal} {choice}"
        else:
            heard: tuple[str, ...] = (rng.choice(words),)
            if code is None and rng.random() < UNHEARD:
                heard = ()
            prompt = self.env._text(SignalState(goal, heard), "mover_0")
            choice = rng.choice(doors) if code is None else self.mover[code][heard[0]]
            reply = f"{prompt.split()[-1]} {choice}"
        return Demo(prompt if code is None else f"{code} {prompt}", reply)


def prime(out: Path, goals: int, words: int, seed: int = 0) -> None:
    """Primes a base and writes it as an ordinary Hugging Face checkpoint."""
    units = [*DOORS, *WORDS, SILENCE, "scout", "mover", *map(str, range(CODES))]
    prime_small(out, Demos(goals, words, seed).draw, units, PHASE, seed)


def main(argv: list[str] | None = None) -> None:
    """Primes the base."""
    small_command(
        argv,
        __doc__,
        OUT,
        prime,
        goals=(GOALS, "doors of the game"),
        words=(WORDS_SAID, "words of the game"),
    )


if __name__ == "__main__":
    main()
