"""What the three board games promise about rewards over whole episodes, whichever team plays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.data import plan_path
from pettingllms.data.sokoban import solve
from pettingllms.envs import make
from pettingllms.envs.boards import WORST
from pettingllms.envs.sokoban_v0 import MOVE_COST
from pettingllms.envs.team_env import FORMAT_PENALTY

GAMES = ("plan_path", "sokoban", "sudoku")
SCHEMES = [(game, scheme) for game in GAMES for scheme in ("paper", "sparse")]
SCHEMES.append(("sokoban", "gym"))
games = pytest.mark.parametrize("game", GAMES)
schemes = pytest.mark.parametrize(("game", "scheme"), SCHEMES)
TURNS = 4
TOO_LONG = "[]".rjust(1_000_001, ".")


def dealt(game, seed=0, **options):
    env = make(game, **options)
    env.reset(seed=seed)
    return env


def right(env):
    """The parts of an answer that solves the board as it is."""
    level, position = env._state.level, env._state.position
    if env.metadata["name"] == "sokoban_v0":
        solution = solve(level.room, position)
        return [] if solution is None else list(solution.moves)
    if env.metadata["name"] == "sudoku_v0":
        size = level.size
        wrong = [c for c, v in enumerate(position) if v not in (0, level.solution[c])]
        missing = [c for c, v in enumerate(position) if v != level.solution[c]]
        fills = [(c, 0) for c in wrong] + [(c, level.solution[c]) for c in missing]
        return [[c // size + 1, c % size + 1, value] for c, value in fills]
    cell, moves = position, []
    while cell != level.goal:
        near = plan_path.neighbours(level.height, level.width)[cell]
        move = next(m for m in near if level.distances[near[m]] == level.distances[cell] - 1)
        moves.append(move)
        cell = near[move]
    return moves


def said(parts):
    return f"#### {parts}".replace("'", "")


def episode(env, tool, planner):
    """What each role earned in each turn; `tool` and `planner` make a reply from an environment."""
    earned: dict[str, list[float]] = {"tool_0": [], "planner_0": []}
    while not any((*env.terminations.values(), *env.truncations.values())):
        agent = env.agent_selection
        env.step((tool if agent == "tool_0" else planner)(env))
        earned[agent].append(env.rewards[agent])
    return earned


def honest(env):
    return said(right(env))


def part_of_it(share):
    return lambda env: said(right(env)[: int(len(right(env)) * share)])


def by_turn(*replies):
    return lambda env: replies[env.turn % len(replies)](env)


def idle(env):
    return said([])


def unreadable(env):
    return "I give up"


def too_long(env):
    return TOO_LONG


def wild(env):
    rng = random.Random(f"{env.task_seed}/{env.turn}/{env.agent_selection}")
    if env.metadata["name"] == "sudoku_v0":
        return said([[rng.randint(1, 4), rng.randint(1, 4), rng.randint(0, 4)] for _ in range(9)])
    return said([rng.choice("UDLR") for _ in range(9)])


STALLING = {
    "never played": (honest, idle),
    "nearly": (part_of_it(0.9), part_of_it(0.5)),
    "proposed now and then": (by_turn(honest, idle), idle),
    "withdrawn and proposed again": (by_turn(honest, unreadable), unreadable),
    "withdrawn by length": (by_turn(honest, too_long), too_long),
    "bit by bit": (part_of_it(0.3), part_of_it(0.3)),
    "wild": (wild, wild),
    "wild, then right": (by_turn(wild, honest), by_turn(wild, wild, wild, idle)),
    "nothing": (idle, idle),
}


@pytest.mark.slow
@schemes
@pytest.mark.parametrize("name", STALLING)
def test_a_team_that_stalls_never_earns_more_than_an_honest_one(game, scheme, name):
    stalled = 0
    for seed in range(12):
        fair = episode(dealt(game, seed, rewards=scheme), honest, honest)
        assert [len(turns) for turns in fair.values()] == [1, 1]
        env = dealt(game, seed, rewards=scheme, max_turns=TURNS)
        earned = episode(env, *STALLING[name])
        if env.infos["planner_0"]["success"]:
            continue
        stalled += 1
        for agent, turns in earned.items():
            # The role's own episode, the whole team's, and every single decision.
            assert sum(turns) <= sum(fair[agent]) + 1e-9
        assert sum(map(sum, earned.values())) < sum(map(sum, fair.values()))
        assert max(earned["planner_0"]) < fair["planner_0"][0]
    assert stalled > 6


@games
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    replies=st.lists(
        st.sampled_from([honest, part_of_it(0.5), idle, unreadable, wild]), min_size=8, max_size=8
    ),
)
def test_the_rewards_of_an_episode_add_up_to_where_it_ends(game, seed, replies):
    env = dealt(game, seed, max_turns=TURNS)
    sums, unread, said_so_far = {"tool_0": 0.0, "planner_0": 0.0}, {"tool_0": 0, "planner_0": 0}, 0
    while not any((*env.terminations.values(), *env.truncations.values())):
        agent = env.agent_selection
        env.step(replies[said_so_far](env))
        said_so_far += 1
        sums[agent] += env.infos[agent]["local_reward"]
        unread[agent] += env.infos[agent]["parse_error"] is not None
    state = env._state
    assert sums["planner_0"] == pytest.approx(state.nearness - FORMAT_PENALTY * unread["planner_0"])
    assert sums["tool_0"] == pytest.approx(state.proposed - FORMAT_PENALTY * unread["tool_0"])
    assert min(state.nearness, state.proposed) >= WORST / 2
    assert max(state.nearness, state.proposed) <= 1.0


@schemes
def test_a_tool_that_is_right_later_earns_more_than_an_idle_one_and_no_more_than_one_right_at_once(
    game, scheme
):
    def total(tool):
        return sum(episode(dealt(game, 3, rewards=scheme), tool, idle)["tool_0"])

    at_once, later = (
        total(by_turn(honest, honest)),
        total(lambda e: (honest if e.turn else idle)(e)),
    )
    assert total(idle) < later
    # Under "gym" each move costs, so that the turn without a proposal saves its moves.
    saved = MOVE_COST * len(right(dealt(game, 3))) if scheme == "gym" else 0.0
    assert later <= at_once + saved + 1e-9


@schemes
def test_in_every_turn_a_right_proposal_earns_more_than_an_idle_or_unreadable_one(game, scheme):
    for first in (honest, idle, unreadable, wild):
        env = dealt(game, 5, rewards=scheme)
        env.step(first(env))
        env.step(said([]))
        replies = (honest(env), idle(env), unreadable(env), TOO_LONG)
        solved, nothing, unread, long = (twin.rewards["tool_0"] for twin in env.branch(replies))
        assert solved > nothing >= unread == long


@games
def test_a_proposal_that_is_not_played_earns_the_team_nothing(game):
    env = dealt(game)
    env.step(honest(env))
    assert env.infos["tool_0"]["answer_solves"]
    assert env.infos["tool_0"]["team_reward"] == 0.0
    env.step(honest(env))
    assert env.infos["planner_0"]["team_reward"] == 1.0


@games
def test_a_right_start_that_trails_off_earns_what_the_start_alone_earns(game):
    trailing = 0
    for seed in range(30):
        env = dealt(game, seed, agents="single")
        start = right(env)[: max(1, len(right(env)) // 2)]
        for move in [[9, 9, 9]] if game == "sudoku" else "UDLR":
            replies = ([*start, move], [*start, move, *start], start)
            first, whole, alone = env.branch([said(reply) for reply in replies])
            if first.infos["planner_0"]["illegal"]:
                trailing += 1
                assert first.rewards == whole.rewards == alone.rewards
                assert whole._state.position == alone._state.position
    assert trailing > 15
