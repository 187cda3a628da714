"""What an episode is paid: no way to stall earns more than an honest team, whatever is compared."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data.math import MathProblem
from pettingllms.envs import coding_v0, math_v0
from pettingllms.envs.math_v0 import MathState
from pettingllms.envs.team_env import Scores
from pettingllms.sandbox import open_sandbox
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.types import Candidate, Completion, Group, GroupKey

TURNS = 4
TOO_LONG = "x" * 1_000_001


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def code(program):
    return f"```python\n{program}\n```"


def checks(*pairs):
    return "".join(f"```input\n{a}\n```\n```output\n{b}\n```\n" for a, b in pairs)


# The records


scores = st.sampled_from([-1.0, -0.1, 0.0, 0.25, 0.5, 1.0])
replies = st.lists(st.tuples(st.sampled_from("abc"), scores, scores), max_size=30)


@given(replies)
def test_what_is_paid_adds_up_to_the_last_scores_after_every_reply(told):
    record, team = Scores(), 0.0
    local: defaultdict[str, float] = defaultdict(float)
    for agent, team_score, own_score in told:
        paid = record.after(agent, team=team_score, local=own_score)
        record, team = paid.scores, team + paid.team
        local[agent] += paid.local
        assert team == pytest.approx(team_score)
        assert local == pytest.approx(dict(record.local))


def test_a_record_is_not_changed_by_what_follows():
    first = Scores().after("a", team=1.0, local=0.5).scores
    first.after("a", team=0.0, local=-1.0)
    assert first == Scores(1.0, {"a": 0.5})


# Teams that stall

RIGHT, WRONG = code("print(abs(int(input())))"), code("print(8)")
GOOD = ("-3", "3"), ("3", "3"), ("-8", "8")
ODD = ("2", "1")
CODING = {
    "one wrong test a turn": ([RIGHT], [checks(*GOOD, ODD)]),
    "only a wrong test": ([RIGHT], [checks(ODD)]),
    "contradictions": ([RIGHT], [checks(*GOOD, ("3", "4"))]),
    "right and wrong programs in turn": ([RIGHT, WRONG], [checks(*GOOD, ODD)]),
    "wrong and right programs in turn": ([WRONG, RIGHT], [checks(*GOOD, ODD)]),
    "good and bad tests in turn": ([RIGHT], [checks(*GOOD, ODD), checks(*GOOD[:1], ODD)]),
    "unreadable tests": ([RIGHT], ["?"]),
    "unreadable and good tests in turn": ([WRONG], ["?", checks(*GOOD)]),
    "unreadable programs": ([RIGHT, "?"], ["?"]),
    "replies that are too long": ([RIGHT, TOO_LONG], [TOO_LONG, checks(*GOOD, ODD), TOO_LONG]),
    "failing and right programs": ([code("1 / 0"), RIGHT], [checks(*GOOD, ODD)]),
}
SAY = {n: code(f"print({n})") for n in (7, 8, 9)}
BOX = {n: rf"\boxed{{{n}}}" for n in (7, 8, 9)}
MATH = {
    "the tool never agrees": ([SAY[8]], [BOX[9]]),
    "the reasoner never agrees": ([SAY[9]], [BOX[8]]),
    "right in turns": ([SAY[9], SAY[8]], [BOX[8], BOX[9]]),
    "right and wrong": ([SAY[7], SAY[9]], [BOX[9], BOX[7]]),
    "the tool fails now and then": ([code("1 / 0"), SAY[9]], [BOX[9], BOX[8]]),
    "no program": (["?"], [BOX[9]]),
    "no answer now and then": ([SAY[9]], ["?", BOX[9], BOX[8], BOX[9]]),
    "replies that are too long": ([TOO_LONG, SAY[9]], [BOX[9], TOO_LONG]),
}


def coding_env(sandbox, tmp_path, **options):
    row = {
        "question": "Print the absolute value of the number.",
        "tests": [{"input": str(n), "output": str(abs(n))} for n in (3, -3, 0, -8)],
        "reference": "print(abs(int(input())))",
        "mutants": ["print(int(input()))", "print(-int(input()))"],
        "split": "train",
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    env = coding_v0.env(dataset=tmp_path / "rows.jsonl", sandbox=sandbox, **options)
    env.reset(seed=0)
    return env


def math_env(sandbox, tmp_path, **options):
    env = math_v0.env(sandbox=sandbox, **options)
    env.reset(seed=0)
    env._state = MathState(MathProblem("What is it?", ("9",), "p"))
    env._shown = {}
    return env


HONEST = {
    coding_env: ([RIGHT], [checks(*GOOD)]),
    math_env: ([SAY[9]], [BOX[9]]),
}


def played(env, first, second):
    """(role, turn, reward) of each decision of an episode in which both agents repeat their replies."""
    decisions = []
    while not (any(env.terminations.values()) or any(env.truncations.values())):
        agent, turn = env.agent_selection, env.turn
        replies = first if agent == env.possible_agents[0] else second
        env.step(replies[turn % len(replies)])
        decisions.append((agent.removesuffix("_0"), turn, env.rewards[agent]))
    return decisions


def group(role, turn, depth, rewards, episode=0, episode_return=0.0):
    """What a trainer makes of the completions of one prompt that earned `rewards`."""
    completion = Completion((1,), (2,), (0.0,), "", False, 0)
    # No prompt of these environments is seen twice in an episode: each shows what was said before.
    key = GroupKey("task", episode, f"{role}_0", role, turn, depth, f"prompt {depth}")
    candidates = tuple(Candidate(completion, r, 0.0, r, True) for r in rewards)
    return Group(key, "base", "", (1,), candidates, episode_return=episode_return)


def advantages(groups, name):
    """What the estimator of that name makes of the decisions, under default settings."""
    return METHODS.load(name)(ATGRPOConfig(method=name)).advantages(groups)


def earns_no_more(stalling, honest):
    """In sum, for each role, up to each turn, a reply, and by every estimator of whole episodes."""
    assert sum(r for *_, r in stalling) <= sum(r for *_, r in honest) + 1e-9
    for role in {role for role, *_ in honest}:
        sums = [sum(r for who, _, r in play if who == role) for play in (stalling, honest)]
        assert sums[0] <= sums[1] + 1e-9, role
    for turn in range(TURNS):
        so_far = [sum(r for _, t, r in play if t <= turn) for play in (stalling, honest)]
        assert so_far[0] <= so_far[1] + 1e-9, turn
    means = [sum(r for *_, r in play) / len(play) for play in (stalling, honest)]
    assert means[0] <= means[1] + 1e-9
    for name in METHODS.own:
        method = METHODS.load(name)
        if name in PARTS or name == "distill":  # which reads no rewards
            continue
        # What is credited to calls and decisions is not what these were paid; a critic values
        # decisions and not episodes.
        if not method.tree and not method.frozen_base and method.credits in ("any", "whole"):
            groups = [
                group(role, turn, depth, [reward], episode, sum(r for *_, r in decisions))
                for episode, decisions in enumerate((stalling, honest))
                for depth, (role, turn, reward) in enumerate(decisions)
            ]
            # A running baseline has seen the first episode when it meets the second: apart, it has not.
            stalled, other = groups[: len(stalling)], groups[len(stalling) :]
            alone = method.least == 1
            values = [
                *(advantages(stalled, name) + advantages(other, name) if alone else ()),
                *(() if alone else advantages(groups, name)),
            ]
            if name == "marshal":
                # A later turn is worth nothing for what came before it: first turns, role by role.
                paired = zip(groups, values, strict=True)
                first = {(g.key.episode, g.key.role): v for g, v in paired if g.key.turn == 0}
                for role in {role for role, *_ in honest}:
                    assert first[0, role] <= first[1, role] + 1e-6, (name, role)
                continue
            assert max(values[: len(stalling)]) <= min(values[len(stalling) :]) + 1e-6, name


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"alpha": 0.25}, {"rewards": "sparse"}], ids=str)
@pytest.mark.parametrize(
    ("make", "name"),
    [(coding_env, name) for name in CODING] + [(math_env, name) for name in MATH],
)
def test_a_team_that_stalls_never_earns_more_than_an_honest_one(
    make, name, options, sandbox, tmp_path
):
    strategy = (CODING if make is coding_env else MATH)[name]
    honest = played(make(sandbox, tmp_path, **options), *HONEST[make])
    stalling = played(make(sandbox, tmp_path, **options), *strategy)
    assert len(honest) == 2
    assert len(stalling) > 2 or "turn" in name or name == "unreadable programs"
    earns_no_more(stalling, honest)


# What AT-GRPO compares


CODERS = [RIGHT, WRONG, code("print(int(input()))"), "?", TOO_LONG]
TESTERS = [checks(*GOOD, ODD), checks(ODD), checks(GOOD[0], ODD), "?", TOO_LONG]
TOOLS = [SAY[9], SAY[8], code("1/0"), "?", TOO_LONG]
REASONERS = [BOX[7], BOX[9], "?", TOO_LONG]


@pytest.mark.parametrize(
    ("make", "replies"), [(coding_env, (CODERS, TESTERS)), (math_env, (TOOLS, REASONERS))]
)
def test_advantages_within_a_node_are_those_of_the_scores_themselves(
    make, replies, sandbox, tmp_path
):
    for alpha in (0.3, 1.0):
        env = make(sandbox, tmp_path, alpha=alpha)
        for depth in range(4):
            agent, texts = env.agent_selection, replies[depth % 2]
            twins = env.branch(texts)
            paid = [twin.rewards[agent] for twin in twins]
            scores = [twin._state.scores for twin in twins]
            raw = [alpha * score.team + score.local[agent] for score in scores]
            assert depth < 2 or paid != raw
            computed, expected = (
                advantages([group(agent, env.turn, depth, rewards)], "at_grpo")
                for rewards in (paid, raw)
            )
            assert computed == pytest.approx(expected, abs=1e-6)
            assert any(computed)
            env = twins[depth % len(texts)]
