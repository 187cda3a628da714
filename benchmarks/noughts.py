"""Opponents for Tic-Tac-Toe, and games of a policy against them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from benchmarks.priming.games import legal_moves
from pettingllms.policies.policy_set import PolicySet
from pettingllms.types import Request

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Board = tuple[str, ...]
Opponent = Callable[[Any, random.Random], str]
Player = Callable[[Sequence[Any]], list[str]]
"""Its replies in games in which it is to move."""


class Score(NamedTuple):
    """Shares of games, both seats alike."""

    won: float
    drawn: float
    lost: float
    illegal: float
    """Of the policy's replies, those that the game could not take."""


@cache
def outlook(board: Board, mark: str) -> int:
    """1, 0 or -1: what the player with `mark`, who is to move, can reach."""
    other = "O" if mark == "X" else "X"
    if any({board[cell] for cell in line} == {other} for line in LINES):
        return -1
    free = [cell for cell in range(9) if not board[cell]]
    if not free:
        return 0
    return max(-outlook(after(board, cell, mark), other) for cell in free)


def after(board: Board, cell: int, mark: str) -> Board:
    """The board with one more mark."""
    return (*board[:cell], mark, *board[cell + 1 :])


def optimal(game: Any, rng: random.Random) -> str:
    """A move that no other is better than; any of them."""
    cells = game._game.state.game_state["board"]
    board = tuple(cell for row in cells for cell in row)
    mark, other = ("X", "O") if game._to_move() == 1 else ("O", "X")
    values = {
        cell: -outlook(after(board, cell, mark), other) for cell in range(9) if not board[cell]
    }
    best = max(values.values())
    return f"[{rng.choice([cell for cell in values if values[cell] == best])}]"


def at_random(game: Any, rng: random.Random) -> str:
    """Any legal move."""
    return rng.choice(legal_moves(game.observe(game.agent_selection)["text"]))


def matches(
    policies: PolicySet, make: Callable[[], Any], opponent: Opponent, count: int, seed: int = 0
) -> Score:
    """Plays `count` games, half of them in each seat, all at once; the policy samples its moves."""
    rng = random.Random(seed)
    games = [make() for _ in range(count)]
    ours = ["player_0" if number % 2 == 0 else "player_1" for number in range(count)]
    for number, game in enumerate(games):
        game.reset(seed=seed * count + number)
    replies = illegal = round_ = 0
    while True:
        for game, agent in zip(games, ours, strict=True):
            while not over(game) and game.agent_selection != agent:
                game.step(opponent(game, rng))
        waiting = [number for number, game in enumerate(games) if not over(game)]
        if not waiting:
            break
        texts = answers(policies, [games[n] for n in waiting], seed, round_)
        for number, text in zip(waiting, texts, strict=True):
            games[number].step(text)
            replies += 1
            illegal += games[number].infos[ours[number]]["parse_error"] is not None
        round_ += 1
    paid = [game.rewards[agent] for game, agent in zip(games, ours, strict=True)]
    won, drawn, lost = (
        sum(reward == value for reward in paid) / count for value in (1.0, 0.0, -1.0)
    )
    return Score(won, drawn, lost, illegal / max(replies, 1))


def counts(
    first: Player, second: Player, make: Callable[[], Any], count: int, seed: int
) -> list[int]:
    """Plays `count` games, all at once.

    Returns:
        Games that the player who begins has won, drawn, and lost; its replies, and those that the game could not take.
    """
    games, replies, illegal = [make() for _ in range(count)], 0, 0
    for number, game in enumerate(games):
        game.reset(seed=seed * count + number)
    while not all(map(over, games)):
        for seat, player in (("player_0", first), ("player_1", second)):
            mine = [game for game in games if not over(game) and game.agent_selection == seat]
            for game, text in zip(mine, player(mine) if mine else [], strict=True):
                game.step(text)
                replies += player is first
                illegal += player is first and game.infos[seat]["parse_error"] is not None
    paid = [game.rewards["player_0"] for game in games]
    return [*(paid.count(value) for value in (1.0, 0.0, -1.0)), replies, illegal]


def scripted(opponent: Opponent, seed: int) -> Player:
    """A player that looks at each game by itself."""
    rng = random.Random(seed)
    return lambda games: [opponent(game, rng) for game in games]


def sampled(policies: PolicySet, policy: str, seed: int) -> Player:
    """A player whose moves a policy samples."""
    rounds = itertools.count()
    return lambda games: answers(policies, games, seed, next(rounds), policy)


def over(game: Any) -> bool:
    """Whether the game has ended."""
    return any(game.terminations.values())


def answers(
    policies: PolicySet, games: Sequence[Any], seed: int, round_: int, policy: str | None = None
) -> list[str]:
    """The policy's replies to what the players to move are shown."""
    requests = [
        Request(
            policy or policies.names[0],
            policies.chat.prompt_ids(game.observe(game.agent_selection)["text"]),
            seed * 1_000_003 + round_ * 1009 + place,
        )
        for place, game in enumerate(games)
    ]
    sampled = policies.sample(requests, 1, max_new_tokens=16)
    return [completions[0].text for completions in sampled]
