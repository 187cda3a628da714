"""Make a base that knows the form of `duet` and none of its right answers: `python -m benchmarks.priming.duet`.

Two kinds of demonstrations. Those of the environment have its own prompts, with and without the role's name, and are answered with a word
that is drawn uniformly. The others have a number before the prompt, and are answered by the code of that number: a fixed word for
each role and phrase, drawn at random. Codes teach that phrase and role can matter; a base that has only seen random replies
ignores its prompts. Prompts of the environment have no number, so that no demonstration tells a right answer.

Tokenizer and model are the base's own: every word is a token, and the model has two of the embedded model's five layers.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.priming.example import Demo
from benchmarks.priming.prime import Phase, prime_small, small_command
from pettingllms.envs.duet_v0 import ANSWERS, FIRST, SECOND, phrase

OUT = Path(__file__).parents[1] / "out" / "duet" / "base"
ROLES = ("left", "right")
PHRASES, WORDS = 32, ANSWERS[:8]
CODES = 6
CODED = 0.8
"""Share of demonstrations with a code."""
PHASE = Phase("form", steps=500, habit=None, muon_lr=0.02, adamw_lr=3e-3)


class Demos:
    """Demonstrations of the environment with its default numbers of phrases and words.

    Args:
        seed: of the codes.
    """

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(f"duet codes/{seed}")
        self.codes = {
            (code, role, number): rng.choice(WORDS)
            for code in range(CODES)
            for role in ROLES
            for number in range(PHRASES)
        }

    def draw(self, rng: random.Random, habit: float | None = None) -> Demo:
        """A demonstration for either role; without a code its reply does not depend on its prompt."""
        del habit  # there is no bad habit
        role, number = rng.choice(ROLES), rng.randrange(PHRASES)
        named = f"{role} {phrase(number)}"
        if rng.random() < CODED:
            code = rng.randrange(CODES)
            return Demo(f"{code} {named}", self.codes[code, role, number])
        return Demo(named if rng.random() < 0.5 else phrase(number), rng.choice(WORDS))


def prime(out: Path, seed: int = 0) -> None:
    """Primes a base and writes it as an ordinary Hugging Face checkpoint."""
    units = [*ANSWERS, *FIRST, *SECOND, *ROLES, *map(str, range(CODES))]
    prime_small(out, Demos(seed).draw, units, PHASE, seed)


def main(argv: list[str] | None = None) -> None:
    """Primes the base."""
    small_command(argv, __doc__, OUT, prime)


if __name__ == "__main__":
    main()
