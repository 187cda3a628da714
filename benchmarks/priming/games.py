"""Make bases that know a game's rules and nothing else: `python -m benchmarks.priming.games [GAME]`.

Trains a tokenizer and a model of the embedded model's architecture for each of two games, on demonstrations of
Kuhn poker or Tic-Tac-Toe from TextArena: what a player is shown, in the compact prompt, and a reply, which repeats the player's
situation (`check bet K [call]`, `X 1 O 3 4 5 6 7 8 [4]`) before a legal move that is drawn uniformly from all of
them. So the base reads its situation, writes moves that can be read, and plays at random; what a move is worth is left to
self-play. The embedded tokenizer cuts these prompts into more than twice as many
tokens: 99 and 229 on average, against 42 and 109 with a tokenizer of their own.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import kuhn_game
from benchmarks.options import Options
from benchmarks.priming.example import Demo
from benchmarks.priming.prime import Phase, build_model, build_tokenizer, run_phase, save
from pettingllms.contrib.games.textarena_v0 import env

logger = logging.getLogger(__name__)

OUT = Path(__file__).parents[1] / "out" / "games"
MOVE = r" ?\[\w+\]|"
"""A move is one token, so that it is predicted from the last word before it, the player's card."""
STEPS = {"KuhnPoker-v1": 150, "TicTacToe-v0": 500}
PHASE = Phase("random play", steps=0, habit=None, muon_lr=0.02, adamw_lr=3e-3)
POOL = {"KuhnPoker-v1": 200, "TicTacToe-v0": 12_000}
"""Demonstrations; Kuhn poker has 12 situations, Tic-Tac-Toe 5,478 positions, and more ways to reach them."""


def legal_moves(text: str) -> list[str]:
    """The moves that a prompt of either game offers."""
    offered = text.rpartition("Available Moves:" if "Available Moves:" in text else "actions are:")
    return re.findall(r"'(\[\w+\])'", offered[2])


def situation(text: str) -> str:
    """What a player of either game has to know, in short."""
    card = re.search(r"card is: '(\w)'", text)
    if card is None:
        rows = re.findall(r"^ (\S) \| (\S) \| (\S) $", text, re.MULTILINE)
        return " ".join(cell for row in rows for cell in row)
    # The card comes last, so that the move is predicted from it at once: with the card first, self-play
    # played all cards alike for as long as it was watched.
    return " ".join([*re.findall(r"submitted move: '\[(\w+)\]'", text), card[1]])


def reply(text: str, move: str) -> str:
    """The situation and a move, in the form of the demonstrations."""
    return f"{situation(text)} {move}"


def play(game: Any, rng: random.Random) -> Iterator[Demo]:
    """The decisions of one game of random legal moves."""
    game.reset(seed=rng.getrandbits(32))
    while not any(game.terminations.values()):
        text = game.observe(game.agent_selection)["text"]
        move = rng.choice(legal_moves(text))
        yield Demo(text, reply(text, move))
        game.step(move)


def pool(name: str, seed: int) -> list[Demo]:
    """Demonstrations of a game."""
    rng, game = random.Random(seed), env(name, prompt="compact")
    demos: list[Demo] = []
    while len(demos) < POOL[name]:
        demos += play(game, rng)
    return demos


def prime(name: str, seed: int) -> None:
    """Primes a base for one game and writes it as an ordinary Hugging Face checkpoint."""
    started, demos = time.process_time(), pool(name, seed)

    def draw(rng: random.Random, habit: float | None) -> Demo:
        del habit  # there is no bad habit
        text = rng.choice(demos).prompt
        return Demo(text, reply(text, rng.choice(legal_moves(text))))

    tokenizer = build_tokenizer(seed, draw, units=[], whole=MOVE)
    model = build_model(len(tokenizer), seed)
    logger.info("%s: %d tokens, %d parameters", name, len(tokenizer), model.num_parameters())
    run_phase(model, tokenizer, PHASE._replace(steps=STEPS[name]), seed, draw)
    save(model, tokenizer, OUT / name)
    logger.info("%s: %.0f s of CPU", OUT / name, time.process_time() - started)


def main(argv: list[str] | None = None) -> None:
    """Primes a base for each game."""
    parser = Options(__doc__)
    parser.add_argument("game", nargs="?", choices=list(STEPS), help="default: both")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and demonstrations")
    options = parser.parse_args(argv)
    kuhn_game.register()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    for name in [options.game] if options.game else STEPS:
        prime(name, options.seed)


if __name__ == "__main__":
    main()
