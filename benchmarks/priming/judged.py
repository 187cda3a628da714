"""Make a base for `judged:duet` whose judge is right more often than not: `python -m benchmarks.priming.judged`.

Players know no answer: as in `benchmarks.priming.duet`, their prompts are answered with a word drawn uniformly, and those with a number in
front by a fixed word for each number, role, and phrase, which teaches that prompts matter. The judge knows something: of its
verdicts on replies, half of which are right, all are true in the first phase and a share of `GOOD` in the second: it ends in doubt.

Tokenizer and model are the base's own: every word is a token, and the model has two of the embedded model's five layers.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import Options
from benchmarks.priming.example import Demo
from benchmarks.priming.prime import Phase, build_model, build_tokenizer, run_phase, save
from pettingllms.envs.duet_v0 import ANSWERS, FIRST, SECOND, phrase, raw_env
from pettingllms.envs.judged import QUESTION, quoted

OUT = Path(__file__).parents[1] / "out" / "judged" / "base"
ROLES = ("left", "right")
PHRASES, WORDS = 16, ANSWERS[:4]
WORLD: Mapping[str, Any] = {
    "inputs": PHRASES,
    "answers": len(WORDS),
    "rho": 0.5,
    "q": 0.0,
    # Nothing but the outcome: the default pays each right reply.
    "rewards": "sparse",
}
"""Arguments of the environment."""
CODES = 4
CODED = 0.8
"""Share of the players' demonstrations with a number."""
GOOD = (1.0, 0.7)
"""Share of true verdicts in the judge's, in each phase."""
PHASES = (
    Phase("form", steps=600, habit=None, muon_lr=0.02, adamw_lr=3e-3),
    Phase("doubt", steps=100, habit=None, muon_lr=0.01, adamw_lr=1e-3),
)


def question(prompt: str, reply: str) -> str:
    """What the judge is asked about a reply."""
    return QUESTION.format(quoted(prompt), quoted(reply))


class Demos:
    """Demonstrations of replies and, as often, of verdicts.

    Args:
        good: share of true verdicts.
        seed: of the words behind numbers.
    """

    def __init__(self, good: float, seed: int = 0) -> None:
        self.good = good
        rng = random.Random(f"judged codes/{seed}")
        self.right = raw_env(**WORLD).right
        self.codes = {
            (code, role, number): rng.choice(WORDS)
            for code in range(CODES)
            for role in ROLES
            for number in range(PHRASES)
        }

    def draw(self, rng: random.Random, habit: float | None = None) -> Demo:
        """A reply or a verdict."""
        del habit  # there is no bad habit
        role, number = rng.choice(ROLES), rng.randrange(PHRASES)
        prompt, word = f"{role} {phrase(number)}", rng.choice(WORDS)
        if rng.random() < 0.5:
            answer = WORDS[self.right[role][number]]
            right = rng.random() < 0.5
            reply = answer if right else rng.choice([w for w in WORDS if w != answer])
            true = rng.random() < self.good
            return Demo(question(prompt, reply), "right" if right == true else "wrong")
        if rng.random() < CODED:
            code = rng.randrange(CODES)
            return Demo(f"{code} {prompt}", self.codes[code, role, number])
        return Demo(prompt, word)


def prime(out: Path, seed: int = 0) -> None:
    """Primes a base and writes it as an ordinary Hugging Face checkpoint."""
    units = [*WORDS, *FIRST, *SECOND, *ROLES, "right", "wrong", *map(str, range(CODES))]
    tokenizer = build_tokenizer(seed, Demos(GOOD[0], seed).draw, units)
    model = build_model(len(tokenizer), seed, num_hidden_layers=2)
    for good, phase in zip(GOOD, PHASES, strict=False):
        run_phase(model, tokenizer, phase, seed, Demos(good, seed).draw)
    save(model, tokenizer, out)


def main(argv: list[str] | None = None) -> None:
    """Primes the base."""
    parser = Options(__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and demonstrations")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    prime(options.out, options.seed)


if __name__ == "__main__":
    main()
