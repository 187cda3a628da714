"""What self-play is measured by: exact values of Kuhn poker, and a perfect player of Tic-Tac-Toe."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter

import pytest

from benchmarks import kuhn

games = pytest.mark.games


@pytest.mark.parametrize("bluff", [0.0, 0.2, 1 / 3])
def test_no_reply_gains_on_perfect_play_and_it_is_worth_a_eighteenth(bluff):
    perfect = kuhn.equilibrium(bluff)
    assert kuhn.exploitability(perfect) == pytest.approx(0, abs=1e-12)
    assert kuhn.value(perfect, kuhn.equilibrium()) == pytest.approx(-1 / 18)


def test_random_play_loses_eleven_chips_in_twenty_four_hands():
    assert kuhn.exploitability(kuhn.uniform()) == pytest.approx(11 / 24)
    assert kuhn.value(kuhn.uniform(), kuhn.uniform()) == pytest.approx(1 / 8)


def test_bluffing_more_than_perfect_play_allows_can_be_exploited():
    assert kuhn.exploitability({**kuhn.equilibrium(), ("J", ()): 1.0}) > 0.05


def test_a_mixture_of_strategies_earns_the_mean_of_what_they_earn():
    rng = random.Random(0)
    several = [{s: rng.random() for s in kuhn.uniform()} for _ in range(4)]
    other = {s: rng.random() for s in kuhn.uniform()}
    mixed = kuhn.mean_strategy(several)
    as_first = sum(kuhn.value(strategy, other) for strategy in several) / 4
    as_second = sum(kuhn.value(other, strategy) for strategy in several) / 4
    assert kuhn.value(mixed, other) == pytest.approx(as_first)
    assert kuhn.value(other, mixed) == pytest.approx(as_second)


@pytest.mark.parametrize(
    ("board", "outlook"),
    [
        ("         ", 0),
        ("OO XX    ", 1),
        ("O X OX  X", -1),
        ("X   O   X", 0),
    ],
)
def test_what_a_player_can_reach_in_tic_tac_toe_is_known(board, outlook):
    pytest.importorskip("torch")
    from benchmarks import noughts

    assert noughts.outlook(tuple(mark.strip() for mark in board), "O") == outlook


@games
@pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="needs TextArena")
def test_demonstrations_are_legal_and_show_all_moves_alike():
    from benchmarks import kuhn_game
    from benchmarks.priming.games import legal_moves, play
    from pettingllms.contrib.games.textarena_v0 import env

    kuhn_game.register()
    rng, opening, cards = random.Random(0), Counter[str](), Counter[str]()
    noughts = env("TicTacToe-v0", prompt="compact")
    poker = env("KuhnPoker-v1", prompt="compact")
    for _ in range(180):
        shown = list(play(noughts, rng))
        moves = [demo.reply.rpartition(" ")[2] for demo in shown]
        assert all(
            move in legal_moves(demo.prompt) for move, demo in zip(moves, shown, strict=True)
        )
        opening[moves[0]] += 1
        cards.update(demo.reply for demo in play(poker, rng))
    assert len(opening) == 9
    assert max(opening.values()) < 40
    # What was done before, the card, and both legal actions after it.
    after = {"": "check bet", "check": "check bet", "bet": "fold call", "check bet": "fold call"}
    assert set(cards) == {
        f"{done} {card} [{move}]".lstrip()
        for card in "JQK"
        for done, moves in after.items()
        for move in moves.split()
    }


@games
@pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="needs TextArena")
def test_a_perfect_player_never_loses_at_tic_tac_toe():
    from benchmarks.noughts import at_random, optimal, over
    from pettingllms.contrib.games.textarena_v0 import env

    rng, game = random.Random(0), env("TicTacToe-v0", prompt="compact")
    results = Counter[float]()
    for number in range(40):
        game.reset(seed=number)
        perfect = f"player_{number % 2}"
        while not over(game):
            player = optimal if game.agent_selection == perfect else at_random
            game.step(player(game, rng))
        results[game.rewards[perfect]] += 1
    assert results[-1.0] == 0
    assert results[1.0] > 20
