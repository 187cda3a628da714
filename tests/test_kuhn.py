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


def random_strategy(rng: random.Random) -> dict[kuhn.Situation, float]:
    return {situation: rng.random() for situation in kuhn.uniform()}


def test_chances_of_payoffs_add_up_to_the_value_of_a_game():
    rng = random.Random(1)
    one, other = random_strategy(rng), random_strategy(rng)
    chances = kuhn.outcomes(kuhn.frequencies(one), kuhn.frequencies(other))
    assert sum(chances) == pytest.approx(1)
    mean = sum(chips * share for chips, share in zip(kuhn.CHIPS, chances, strict=True))
    assert mean == pytest.approx(kuhn.value(one, other))
    assert kuhn.best_payoff(kuhn.frequencies(one)) == pytest.approx(kuhn.exploitability(one))


def test_a_reply_without_a_legal_move_costs_the_worst_hand():
    perfect = kuhn.frequencies(kuhn.equilibrium())
    mute = dict.fromkeys(perfect, (0.0, 0.0))
    assert kuhn.outcomes(mute, perfect) == pytest.approx([1, 0, 0, 0])
    assert kuhn.payoff(perfect, mute) == pytest.approx(2)
    assert kuhn.best_payoff(mute) == pytest.approx(2)
    half = {place: (timid / 2, bold / 2) for place, (timid, bold) in perfect.items()}
    assert kuhn.best_payoff(half) > 0.5


def test_ratings_say_how_often_a_player_wins():
    pytest.importorskip("torch")
    import numpy as np

    from benchmarks.league import elo, elo_of

    ten_to_one = np.array([[0.5, 10 / 11], [1 / 11, 0.5]])
    assert elo(ten_to_one[None])[0] == pytest.approx([0, -400], abs=0.1)
    perfect, uniform = (kuhn.frequencies(play()) for play in (kuhn.equilibrium, kuhn.uniform))
    ratings = elo_of([uniform, perfect, uniform], seed=0)
    low, high = np.percentile(ratings[1:], [2.5, 97.5], axis=0)
    assert low[1] > high[2]
    assert low[2] < 0 < high[2]


@games
@pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="needs TextArena")
@pytest.mark.parametrize("history", [(), ("check",), ("bet",), ("check", "bet")])
@pytest.mark.parametrize(
    "text",
    [
        "J [bet]",
        "[CALL] [fold]",
        "check",
        "[check",
        "[ bet]",
        "[raise] [check]",
        "x [fold] [bet]",
        "",
    ],
)
def test_moves_are_read_as_the_game_reads_them(history, text):
    from benchmarks import kuhn_game
    from benchmarks.league import move_of
    from pettingllms.contrib.games.textarena_v0 import env

    kuhn_game.register()
    game = env("KuhnPoker-v1", prompt="compact")
    game.reset(seed=0)
    for move in history:
        game.step(f"[{move}]")
    player = game.agent_selection
    game.step(text)
    move = move_of(text, history)
    assert (game.infos[player]["parse_error"] is None) == (move is not None)
    if move in ("check", "bet") and history in ((), ("check",)) and game.agent_selection != player:
        assert f"submitted move: '[{move}]'" in game.observe(game.agent_selection)["text"]


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
