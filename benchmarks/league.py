"""Does a policy lose in self-play what it has learned? Kuhn poker against earlier versions of itself.

    python -m benchmarks.priming.games      the bases: they write legal moves, at random
    python -m benchmarks.league             three kinds of opponents, three seeds each
    python -m benchmarks.league --minutes 0 what is finished

The arms are the `opponents` of `--method league`. All else is as in `benchmarks.self_play`, but for a constant learning rate, half as
many tasks a step, and all weights trained in place of adapters. Every `EVERY` steps the policy replies `REPLIES` times in each of the 12 situations. Everything else follows from the frequencies of its
moves by enumeration, with a reply without a legal move counted as a forfeited hand (the game lets a player try again). Elo
ratings come from `HANDS` hands between any two players, drawn with these frequencies, of which the payoff in chips is
the score. Finished trainings are kept in `results/league.json` and not repeated. One core, two CPU-minutes each.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import kuhn, kuhn_game
from benchmarks.evidence import Table, revision
from benchmarks.options import Options
from benchmarks.priming.games import OUT
from benchmarks.self_play import COMMON, SETUPS, situations
from pettingllms.contrib.games.textarena_v0 import env
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.report import as_text
from pettingllms.methods.league import Rivals
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.roles import parse_policies
from pettingllms.runs import versions
from pettingllms.statistics import RESAMPLES, Estimate, over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Request

RESULTS = Path(__file__).parent / "results" / "league.json"
ARMS = ("latest", "prioritized", "uniform")
SEEDS = (1, 2, 3)
EVERY = 16
"""Steps between two measurements."""
VERSIONS = (0, 80, 160, 256)
"""Steps whose policies play each other; the last ends training, and the second is where others report a collapse."""
REPLIES = 1000
HANDS = 1000
"""Between two players, half of them in each seat."""
SETTINGS: Mapping[str, Any] = {
    **COMMON,
    **SETUPS["kuhn"].settings,
    # Late steps change as much as early ones, which is harder on what was learned.
    "lr_scheduler_type": "constant",
    # With adapters no move gets more than 0.8: both moves of a pair have nearly the same embedding in the base, and
    # adapters leave embeddings as they are.
    "full": True,
    "learning_rate": 2e-4,
    "tasks_per_step": 6,
    "method": "league",
    "policies": "first=player,second=rival",
    "train_roles": "first",
}
PLACES = [situation for seat in kuhn.SITUATIONS for situation in kuhn.SITUATIONS[seat]]
"""The order of situations in the results."""
_MOVE = re.compile(r"\[(check|bet|fold|call)\]", re.IGNORECASE)


def move_of(text: str, history: tuple[str, ...]) -> str | None:
    """The move that TextArena reads in a reply: its first in brackets; None where that is not legal."""
    if "[" not in text and "]" not in text:
        text = f"[{text}]"
    found = _MOVE.search(text)
    move = found and found[1].lower()
    return move if move in kuhn.legal(history) else None


def frequencies(
    policies: PolicySet, texts: Mapping[kuhn.Situation, str], seed: int
) -> list[list[float]]:
    """The shares of the timid and of the bold move in replies of `player`, by situation."""
    requests = [
        Request("player", policies.chat.prompt_ids(texts[place]), seed * 1009 + number)
        for number, place in enumerate(PLACES)
    ]
    sampled = policies.sample(requests, REPLIES, max_new_tokens=SETTINGS["max_completion_length"])
    shares = []
    for (_, history), completions in zip(PLACES, sampled, strict=True):
        moves = [move_of(completion.text, history) for completion in completions]
        shares.append([moves.count(move) / REPLIES for move in kuhn.legal(history)])
    return shares


def train(arm: str, seed: int) -> dict[str, Any]:
    """Trains one policy; returns its frequencies on the way, and what that took."""
    setup = SETUPS["kuhn"]
    base, game = OUT / setup.game, env(setup.game, roles=("first", "second"), prompt="compact")
    config = ATGRPOConfig(
        env=f"textarena:{setup.game}",
        model=str(base),
        seed=seed,
        **{**SETTINGS, "method_args": {"opponents": arm}, "max_steps": VERSIONS[-1]},
    )
    players = parse_policies(config.policies, roles_of(game))
    policies = load_policies(base, players, seed=seed, full=True, reference=True)
    trainer, texts = ATGRPO(config, game, policies), situations()
    started, measured, opponents = time.process_time(), dict[str, Any](), list[int | None]()
    while True:
        if trainer.step % EVERY == 0:
            measured[str(trainer.step)] = frequencies(policies, texts, seed)
            print(trainer.step, scores(measured[str(trainer.step)]), flush=True)
        if trainer.step >= VERSIONS[-1]:
            break
        assert isinstance(trainer.method, Rivals)
        opponents.append(trainer.method.drawn)
        trainer.train_step()
    return {
        "frequencies": measured,
        "opponents": opponents,
        "tokens": trainer.tokens,
        "cpu_s": round(time.process_time() - started),
        "revision": revision(),
    }


def player_of(shares: Sequence[Sequence[float]]) -> dict[kuhn.Situation, tuple[float, float]]:
    """The frequencies of a measurement by situation."""
    return {place: (pair[0], pair[1]) for place, pair in zip(PLACES, shares, strict=True)}


def scores(shares: Sequence[Sequence[float]]) -> dict[str, float]:
    """How well a policy plays, by its frequencies."""
    player = player_of(shares)
    return {
        "exploitability, chips a hand": kuhn.best_payoff(player),
        "chips a hand against a random player": kuhn.payoff(player, RANDOM),
        "chips a hand against a perfect player": kuhn.payoff(player, PERFECT),
        "illegal replies, share": 1 - float(np.mean([sum(pair) for pair in shares])),
    }


RANDOM = kuhn.frequencies(kuhn.uniform())
PERFECT = kuhn.frequencies(kuhn.equilibrium())


def table(results: Mapping[str, Any]) -> Table:
    """Scores of each arm on the way, means over seeds, and their changes with intervals over seeds."""
    first, early, last = (str(step) for step in (VERSIONS[0], VERSIONS[1], VERSIONS[-1]))
    rows = []
    for arm, runs in by_arm(results).items():
        measured = {
            step: [scores(run["frequencies"][step]) for run in runs]
            for step in (first, early, last)
        }
        for score in measured[first][0]:
            values = {
                step: np.array([[row[score]] for row in rows_]) for step, rows_ in measured.items()
            }
            cells = [f"{values[step].mean():.3f}" for step in (first, early, last)]
            cells += [
                _signed(over_seeds(values[last] - values[before], share=False))
                for before in (first, early)
            ]
            rows.append([f"`{arm}`", str(len(runs)), score, *cells])
    titles = [f"step {step}" for step in (first, early, last)]
    changes = [f"{before} to {last}" for before in (first, early)]
    return ["opponents", "seeds", "score", *titles, *changes], rows


def versions_table(results: Mapping[str, Any]) -> Table:
    """Chips a hand of each version against every other player, and ratings; means over seeds."""
    names, rows = (*(f"step {step}" for step in VERSIONS), "random", "perfect"), list[list[str]]()
    for arm, runs in by_arm(results).items():
        matrices = np.mean([payoffs(players(run)) for run in runs], axis=0)
        ratings = np.mean([elo_of(players(run), seed) for seed, run in enumerate(runs)], axis=0)
        for name, paid, rated in zip(names, matrices, ratings.T, strict=True):
            low, high = np.percentile(rated[1:], [2.5, 97.5])
            cells = ["" if other == name else f"{chips:+.2f}" for other, chips in zip(names, paid, strict=True)]  # fmt: skip
            rows.append([f"`{arm}`", name, *cells, f"{rated[0]:+.0f} [{low:+.0f}, {high:+.0f}]"])
    return ["opponents", "player", *(f"against {name}" for name in names), "Elo"], rows


def by_arm(results: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The finished trainings of each arm, in the order of seeds."""
    cells = results["cells"]
    runs = {arm: [cells[n] for seed in SEEDS if (n := f"{arm}/{seed}") in cells] for arm in ARMS}
    return {arm: its for arm, its in runs.items() if its}


def players(run: Mapping[str, Any]) -> list[kuhn.Frequencies]:
    """The versions of a training, a random player, and a perfect one."""
    return [*(player_of(run["frequencies"][str(step)]) for step in VERSIONS), RANDOM, PERFECT]


def payoffs(several: Sequence[kuhn.Frequencies]) -> np.ndarray:
    """Exact chips a hand of the player of a row against that of a column."""
    return np.array([[kuhn.payoff(one, other) for other in several] for one in several])


def elo_of(several: Sequence[kuhn.Frequencies], seed: int) -> np.ndarray:
    """Ratings of players from hands against each other: of all hands, and of their resamples.

    Returns:
        Of shape (1 + resamples, players); the first player has 0.
    """
    rng, half, count = np.random.default_rng(seed), HANDS // 2, len(several)
    points = np.array([0.5 + chips / 4 for chips in kuhn.CHIPS])
    won_RPP = np.zeros((1 + RESAMPLES, count, count))
    for one, other in itertools.permutations(range(count), 2):
        chances = np.array(kuhn.outcomes(several[one], several[other]))
        hands = rng.multinomial(half, chances / chances.sum())
        drawn = np.vstack([hands, rng.multinomial(half, hands / half, size=RESAMPLES)])
        mean = drawn @ points / half
        # Both seats, half of the hands each.
        won_RPP[:, one, other] += mean / 2
        won_RPP[:, other, one] += (1 - mean) / 2
    return elo(won_RPP)


def elo(won_RPP: np.ndarray) -> np.ndarray:
    """The ratings that most likely lead to mean scores: those of Bradley and Terry's model, 400 for odds of ten.

    Args:
        won_RPP: mean score, from 0 to 1, of the player of a row against that of a column.

    Returns:
        Of shape (repetitions, players); the first player has 0.
    """
    count = won_RPP.shape[-1]
    different = 1 - np.eye(count)
    strength = np.zeros(won_RPP.shape[:-1])
    for _ in range(100):
        expected = 1 / (1 + np.exp(strength[:, None, :] - strength[:, :, None]))
        # The slope of a logistic curve is at most 1/4: no step goes too far.
        strength += ((won_RPP - expected) * different).sum(-1) * 2 / count
    return (strength - strength[:, :1]) * 400 / np.log(10)


def _signed(value: Estimate) -> str:
    return f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, writes after each training, and prints the tables."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=90.0, help="begin no training after so long"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    kuhn_game.register()
    torch.set_num_threads(1)
    cells = json.loads(options.out.read_text())["cells"] if options.out.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    for arm, seed in itertools.product(ARMS, SEEDS):
        name = f"{arm}/{seed}"
        if name in cells or time.monotonic() >= until:
            continue
        print(name, flush=True)
        cells[name] = train(arm, seed)
        settings = {**SETTINGS, "max_steps": VERSIONS[-1]}
        result = {"settings": settings, "versions": versions(), "cells": cells}
        # A list of numbers on one line.
        text = re.sub(r"\s+(?=[^\[\]{}\"]*\])", " ", json.dumps(result, indent=1))
        options.out.write_text(f"{text}\n", encoding="utf-8")
    for made in (table, versions_table) if cells else ():
        head, rows = made({"cells": cells})
        print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
