"""Does a policy lose in self-play what it has learned? Kuhn poker and Tic-Tac-Toe against earlier versions of itself.

    python -m benchmarks.priming.games      the bases: they write legal moves, at random
    python -m benchmarks.league             three kinds of opponents, three seeds each, of both games
    python -m benchmarks.league --minutes 0 what is finished

The arms are the `opponents` of `--method league`. All else is as Kuhn poker in `benchmarks.self_play`, but for a constant learning
rate, fewer tasks a step, and all weights trained in place of adapters. Every `EVERY` steps the policy of Kuhn poker replies `REPLIES`
times in each of the 12 situations. Everything else follows from the frequencies of its moves by enumeration, with a reply
without a legal move counted as a forfeited hand (the game lets a player try again). Elo ratings come from `HANDS` hands
between any two players, drawn with these frequencies, of which the payoff in chips is the score. In Tic-Tac-Toe the
`VERSIONS` of a training, a random, and a perfect player play `GAMES` games against each other in each seat. Finished trainings
are kept in `results/league.json` and not repeated. One core, two CPU-minutes each in Kuhn poker.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import kuhn, kuhn_game, noughts
from benchmarks.evidence import Table, revision
from benchmarks.options import Options
from benchmarks.priming.games import OUT
from benchmarks.self_play import COMMON, SETUPS, situations
from pettingllms.contrib.games.textarena_v0 import env
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.report import as_text
from pettingllms.methods.league import Rivals
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
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
"""Of Kuhn poker between two players, half of them in each seat."""
GAMES = 60
"""Of Tic-Tac-Toe between two players, in each seat."""
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
OF_GAMES: Mapping[str, Mapping[str, Any]] = {
    "kuhn": {},
    # All games begin alike, and those of a step are compared with each other. Few, and without a penalty (`beta`), which
    # takes a forward pass: a step of eight with it takes 2.5 CPU seconds.
    "tictactoe": {"tasks_per_step": 1, "num_generations": 4, "beta": 0.0},
}
"""Settings of a game that are not those above."""
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


def train(name: str, arm: str, seed: int) -> dict[str, Any]:
    """Trains one policy; returns how it plays on the way, and what that took."""
    setup = SETUPS[name]
    base, game = OUT / setup.game, env(setup.game, roles=("first", "second"), prompt="compact")
    settings = {**SETTINGS, **OF_GAMES[name], "method_args": {"opponents": arm}}
    config = ATGRPOConfig(
        env=f"textarena:{setup.game}",
        model=str(base),
        seed=seed,
        **{**settings, "max_steps": VERSIONS[-1]},
    )
    players = parse_policies(config.policies, roles_of(game))
    policies = load_policies(base, players, seed=seed, full=True, reference=True)
    trainer, texts = ATGRPO(config, game, policies), situations() if name == "kuhn" else {}
    started, opponents = time.process_time(), list[int | None]()
    measured, versions = dict[str, Any](), list[dict[str, torch.Tensor]]()
    while True:
        if texts and trainer.step % EVERY == 0:
            measured[str(trainer.step)] = frequencies(policies, texts, seed)
            print(trainer.step, scores(measured[str(trainer.step)]), flush=True)
        if trainer.step in VERSIONS:
            versions.append(policies.state("player"))
        if trainer.step >= VERSIONS[-1]:
            break
        assert isinstance(trainer.method, Rivals)
        opponents.append(trainer.method.drawn)
        trainer.train_step()
    return {
        **({"frequencies": measured} if texts else {"games": contests(policies, versions, seed)}),
        "opponents": opponents,
        "tokens": trainer.tokens,
        "cpu_s": round(time.process_time() - started),
        "revision": revision(),
    }


def contests(
    policies: PolicySet, versions: Sequence[Mapping[str, torch.Tensor]], seed: int
) -> list[list[list[int]]]:
    """Games of Tic-Tac-Toe between versions, a random player, and a perfect one.

    Returns:
        For the player of a row, who begins, and that of a column, `noughts.counts`.
    """
    count = len(versions) + 2

    def player(place: int, policy: str) -> noughts.Player:
        if place >= len(versions):
            scripted = (noughts.at_random, noughts.optimal)[place - len(versions)]
            return noughts.scripted(scripted, seed)
        policies.load_state(policy, versions[place])
        # Equal seeds would let both players draw alike.
        return noughts.sampled(policies, policy, 2 * seed + (policy == "rival"))

    def make() -> Any:
        return env(SETUPS["tictactoe"].game, prompt="compact")

    return [
        [
            noughts.counts(
                player(one, "player"), player(other, "rival"), make, GAMES * (one != other), seed
            )
            for other in range(count)
        ]
        for one in range(count)
    ]


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


def scores_at(run: Mapping[str, Any], version: int) -> dict[str, float]:
    """How well a version plays."""
    if "frequencies" in run:
        return scores(run["frequencies"][str(VERSIONS[version])])
    points, games = points_of(run), np.array(run["games"])
    replies, illegal = games[version, :, 3:].sum(0)
    return {
        "points a game against a random player": points[version, -2],
        "points a game against a perfect player": points[version, -1],
        "illegal replies, share": illegal / replies,
    }


def points_of(run: Mapping[str, Any]) -> np.ndarray:
    """Won less lost games, as a share, of the player of a row against that of a column, both seats alike."""
    games = np.array(run["games"])
    lead = (games[..., 0] - games[..., 2]) / GAMES
    return (lead - lead.T) / 2


def table(results: Mapping[str, Any], game: str = "kuhn") -> Table:
    """Scores of each arm on the way, means over seeds, and their changes with intervals over seeds."""
    shown, rows = (0, 1, len(VERSIONS) - 1), []
    for arm, runs in by_arm(results, game).items():
        measured = {at: [scores_at(run, at) for run in runs] for at in shown}
        for score in measured[0][0]:
            values = {at: np.array([[row[score]] for row in its]) for at, its in measured.items()}
            cells = [f"{values[at].mean():.3f}" for at in shown]
            cells += [
                _signed(over_seeds(values[shown[-1]] - values[before], share=False))
                for before in shown[:-1]
            ]
            rows.append([f"`{arm}`", str(len(runs)), score, *cells])
    first, early, last = (VERSIONS[at] for at in shown)
    titles = [f"step {step}" for step in (first, early, last)]
    changes = [f"{before} to {last}" for before in (first, early)]
    return ["opponents", "seeds", "score", *titles, *changes], rows


def versions_table(results: Mapping[str, Any], game: str = "kuhn") -> Table:
    """Payoffs of each version against every other player, and ratings; means over seeds."""
    names, rows = (*(f"step {step}" for step in VERSIONS), "random", "perfect"), list[list[str]]()
    for arm, runs in by_arm(results, game).items():
        if game == "kuhn":
            matrices = np.mean([payoffs(players(run)) for run in runs], axis=0)
            rated_ = [elo_of(players(run), seed) for seed, run in enumerate(runs)]
        else:
            matrices = np.mean([points_of(run) for run in runs], axis=0)
            rated_ = [elo_of_games(run["games"], seed) for seed, run in enumerate(runs)]
        for name, paid, rated in zip(names, matrices, np.mean(rated_, axis=0).T, strict=True):
            low, high = np.percentile(rated[1:], [2.5, 97.5])
            cells = ["" if other == name else f"{value:+.2f}" for other, value in zip(names, paid, strict=True)]  # fmt: skip
            rows.append([f"`{arm}`", name, *cells, f"{rated[0]:+.0f} [{low:+.0f}, {high:+.0f}]"])
    return ["opponents", "player", *(f"against {name}" for name in names), "Elo"], rows


noughts_table = functools.partial(table, game="tictactoe")
noughts_versions = functools.partial(versions_table, game="tictactoe")


def by_arm(results: Mapping[str, Any], game: str) -> dict[str, list[Any]]:
    """The finished trainings of each arm, in the order of seeds."""
    cells = results[game]["cells"]
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
    half = HANDS // 2

    def hands(one: int, other: int, rng: np.random.Generator) -> np.ndarray:
        chances = np.array(kuhn.outcomes(several[one], several[other]))
        return rng.multinomial(half, chances / chances.sum())

    return _ratings(hands, len(several), [0.5 + chips / 4 for chips in kuhn.CHIPS], seed)


def elo_of_games(games: Sequence[Sequence[Sequence[int]]], seed: int) -> np.ndarray:
    """The same from played games, of which a draw is half a win."""

    def results(one: int, other: int, rng: np.random.Generator) -> np.ndarray:
        del rng
        return np.array(games[one][other][:3])

    return _ratings(results, len(games), [1.0, 0.5, 0.0], seed)


def _ratings(
    played: Callable[[int, int, np.random.Generator], np.ndarray],
    count: int,
    points: Sequence[float],
    seed: int,
) -> np.ndarray:
    """Ratings by how often each outcome with its points came of games that one player began against another."""
    rng, won_RPP = np.random.default_rng(seed), np.zeros((1 + RESAMPLES, count, count))
    for one, other in itertools.permutations(range(count), 2):
        outcomes = played(one, other, rng)
        half = outcomes.sum()
        drawn = np.vstack([outcomes, rng.multinomial(half, outcomes / half, size=RESAMPLES)])
        mean = drawn @ np.array(points) / half
        # Both seats, half of the games each.
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
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    for game, seed, arm in itertools.product(OF_GAMES, SEEDS, ARMS):
        name, cells = f"{arm}/{seed}", results.get(game, {}).get("cells", {})
        if name in cells or time.monotonic() >= until:
            continue
        print(game, name, flush=True)
        cells[name] = train(game, arm, seed)
        settings = {**SETTINGS, **OF_GAMES[game], "max_steps": VERSIONS[-1]}
        results[game] = {"settings": settings, "versions": versions(), "cells": cells}
        # A list of numbers on one line.
        text = re.sub(r"\s+(?=[^\[\]{}\"]*\])", " ", json.dumps(results, indent=1))
        options.out.write_text(f"{text}\n", encoding="utf-8")
    for made, game in itertools.product((table, versions_table), results):
        head, rows = made(results, game)
        print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
