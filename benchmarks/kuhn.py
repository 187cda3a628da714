"""Kuhn poker by arithmetic: values of strategies and how much a best response takes from them.

A situation of a player (an information set) is its card and what was done before. A strategy gives the probability
of the bold action in each, to bet or to call. There are 12 situations, six for each player, and 64 pure
strategies a player, so that everything here is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

CARDS = "JQK"
DEALS = tuple(itertools.permutations(CARDS, 2))
HISTORIES = {"first": ((), ("check", "bet")), "second": (("check",), ("bet",))}
"""What was done before each decision of a player."""
VALUE = -1 / 18
"""Of perfect play to the player who acts first, in chips."""

Situation = tuple[str, tuple[str, ...]]
"""A card, and the actions before."""
Strategy = Mapping[Situation, float]
"""Situation -> probability to bet or to call."""
Frequencies = Mapping[Situation, tuple[float, float]]
"""Situation -> shares of the timid and of the bold action; the rest are replies that forfeit the hand."""
CHIPS = (-2.0, -1.0, 1.0, 2.0)
"""Payoffs of a hand; a forfeit costs as much as the worst one."""

SITUATIONS = {
    seat: [(card, history) for card in CARDS for history in histories]
    for seat, histories in HISTORIES.items()
}


def legal(history: tuple[str, ...]) -> tuple[str, str]:
    """The timid and the bold action after `history`."""
    return ("fold", "call") if "bet" in history else ("check", "bet")


def equilibrium(bluff: float = 1 / 3) -> dict[Situation, float]:
    """Perfect play of both players; `bluff`, up to 1/3, is how often the first bets a jack."""
    raised = ("check", "bet")
    first: dict[Situation, float] = {
        ("J", ()): bluff,
        ("Q", ()): 0.0,
        ("K", ()): 3 * bluff,
        ("J", raised): 0.0,
        ("Q", raised): bluff + 1 / 3,
        ("K", raised): 1.0,
    }
    second: dict[Situation, float] = {
        ("J", ("check",)): 1 / 3,
        ("Q", ("check",)): 0.0,
        ("K", ("check",)): 1.0,
        ("J", ("bet",)): 0.0,
        ("Q", ("bet",)): 1 / 3,
        ("K", ("bet",)): 1.0,
    }
    return {**first, **second}


def uniform() -> dict[Situation, float]:
    """Both actions alike, everywhere."""
    return {situation: 0.5 for seat in SITUATIONS for situation in SITUATIONS[seat]}


def value(first: Strategy, second: Strategy) -> float:
    """What the player who acts first earns on average, in chips."""
    return sum(_played(deal, (), first, second) for deal in DEALS) / len(DEALS)


def _played(
    deal: tuple[str, str], history: tuple[str, ...], first: Strategy, second: Strategy
) -> float:
    over = _payoff(deal, history)
    if over is not None:
        return over
    seat = len(history) % 2
    bold = (first, second)[seat][deal[seat], history]
    timid_action, bold_action = legal(history)
    return bold * _played(deal, (*history, bold_action), first, second) + (1 - bold) * _played(
        deal, (*history, timid_action), first, second
    )


def _payoff(deal: tuple[str, str], history: tuple[str, ...]) -> float | None:
    """What the first player wins where the hand is over."""
    better = 1.0 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1.0
    if history[-1:] == ("fold",):
        return -1.0 if len(history) == 3 else 1.0
    if history[-1:] == ("call",):
        return 2 * better
    return better if history == ("check", "check") else None


def exploitability(strategy: Strategy) -> float:
    """What a best response takes from both seats of a strategy, on average, in chips; 0 where it is perfect."""
    best = {
        seat: max(
            value(reply, strategy) if seat == "first" else -value(strategy, reply)
            for bold in itertools.product((0.0, 1.0), repeat=len(SITUATIONS[seat]))
            for reply in [dict(zip(SITUATIONS[seat], bold, strict=True))]
        )
        for seat in SITUATIONS
    }
    return (best["first"] + best["second"]) / 2


def outcomes(first: Frequencies, second: Frequencies) -> list[float]:
    """The probabilities of `CHIPS` for the player who acts first, over all deals."""
    shares = dict.fromkeys(CHIPS, 0.0)
    unfinished: list[tuple[tuple[str, str], tuple[str, ...], float]] = [
        (deal, (), 1 / len(DEALS)) for deal in DEALS
    ]
    for deal, history, share in unfinished:
        over = _payoff(deal, history)
        if over is not None:
            shares[over] += share
            continue
        seat = len(history) % 2
        pair = (first, second)[seat][deal[seat], history]
        shares[2.0 if seat else -2.0] += share * (1 - sum(pair))
        for action, chance in zip(legal(history), pair, strict=True):
            unfinished.append((deal, (*history, action), share * chance))
    return [*shares.values()]


def payoff(player: Frequencies, other: Frequencies) -> float:
    """Chips a hand that a player earns against another, both seats alike."""

    def earned(first: Frequencies, second: Frequencies) -> float:
        return sum(
            chips * share for chips, share in zip(CHIPS, outcomes(first, second), strict=True)
        )

    return (earned(player, other) - earned(other, player)) / 2


def best_payoff(player: Frequencies) -> float:
    """What a best response earns against a player, forfeited hands included; `exploitability` where there are none."""
    taken = 0.0
    for seat, situations in SITUATIONS.items():
        own = {situation: (1.0, 0.0) for other in SITUATIONS for situation in SITUATIONS[other]}
        replies = (
            {**own, **dict(zip(situations, actions, strict=True))}
            for actions in itertools.product(((1.0, 0.0), (0.0, 1.0)), repeat=len(situations))
        )
        shares = (
            outcomes(reply, player) if seat == "first" else outcomes(player, reply)[::-1]
            for reply in replies
        )
        taken += max(
            sum(chips * share for chips, share in zip(CHIPS, row, strict=True)) for row in shares
        )
    return taken / 2


def frequencies(strategy: Strategy) -> dict[Situation, tuple[float, float]]:
    """A strategy as the shares of both actions."""
    return {situation: (1 - bold, bold) for situation, bold in strategy.items()}


def mean_strategy(strategies: Sequence[Strategy]) -> dict[Situation, float]:
    """The strategy that plays one of several, drawn before the hand: weighted by who gets where."""
    mean = {}
    for seat in SITUATIONS:
        for card, history in SITUATIONS[seat]:
            # A player reaches its second decision by its own timid first one alone.
            reach = [
                1 - strategy[card, ()] if len(history) == 2 else 1.0 for strategy in strategies
            ]
            bold = [
                weight * strategy[card, history]
                for weight, strategy in zip(reach, strategies, strict=True)
            ]
            mean[card, history] = sum(bold) / sum(reach) if sum(reach) > 0 else 0.5
    return mean
