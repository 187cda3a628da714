"""`aligned`: local rewards weigh what they have been worth to the team."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pettingllms.methods.aligned import Aligned
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

Pair = tuple[float, float]
"""Team and local reward of a reply."""


def aligned(**settings: Any) -> Aligned:
    method = Method.of(resolve(ATGRPOConfig(method="aligned", **settings)))
    assert isinstance(method, Aligned)
    return method


def group_of(pairs: Sequence[Pair], unread: Sequence[int] = ()) -> Group:
    candidates = tuple(
        Candidate(
            Completion((1,), (2,), (-0.5,), "", truncated=False, version=0),
            team + local,
            team,
            local,
            chosen=at == 0,
            info={"parse_error": "no word"} if at in unread else {},
        )
        for at, (team, local) in enumerate(pairs)
    )
    key = GroupKey("task", 0, "left_0", "left", 0, 0, "")
    return Group(key, "left", "prompt", (1,), candidates)


def credited(method: Aligned, *groups: Group) -> list[list[float]]:
    """The rewards that a step with these groups, each an episode, compares."""
    task = Task("task", 0)
    records = [Trajectory.of(task, 0, [group], early={}, cooperative=True) for group in groups]
    return [
        [candidate.reward for candidate in record.groups[0].candidates]
        for record in method.credit(records)
    ]


def drawn(rng: random.Random, agreement: float) -> list[Pair]:
    teams = [float(rng.random() < 0.4) for _ in range(8)]
    return [
        (team, agreement * (team - 0.5) + (1 - abs(agreement)) * rng.gauss(0, 1)) for team in teams
    ]


def test_the_weight_is_the_correlation_within_groups_less_a_standard_error():
    rng = random.Random(0)
    steps = [[drawn(rng, 0.7) for _ in range(6)] for _ in range(3)]
    method = aligned()
    for step in steps:
        credited(method, *map(group_of, step))
    # The same in NumPy: earlier steps count 0.95 times as much for each step since.
    teams, locals_, ages = [], [], []
    for age, step in enumerate(reversed(steps)):
        for pairs in step:
            team, local = np.array(pairs).T
            teams.append(team - team.mean())
            locals_.append(local - local.mean())
            ages.append(0.95**age)
    counts = np.repeat(ages, 8)
    team, local = np.concatenate(teams), np.concatenate(locals_)
    correlation = (counts * team * local).sum() / np.sqrt(
        (counts * team**2).sum() * (counts * local**2).sum()
    )
    weight = correlation - 1 / np.sqrt(7 * sum(ages))
    assert 0.2 < weight < 0.9
    [rewards] = credited(method, group_of([(1.0, 0.5), (0.0, -2.0)]))
    assert rewards == pytest.approx([1 + 0.5 * weight, -2 * weight])


@pytest.mark.parametrize(("agreement", "least", "most"), [(1.0, 0.8, 1.0), (-1.0, 0.0, 0.0)])
def test_a_local_reward_against_the_team_weighs_nothing(agreement, least, most):
    method, rng = aligned(method_args={"start": 0.5}), random.Random(1)
    [first] = credited(method, group_of([(0.0, 1.0), (0.0, 0.0)]))
    assert first == [0.5, 0.0]  # nothing is known yet, and no team reward says anything
    credited(method, *(group_of(drawn(rng, agreement)) for _ in range(12)))
    [[worth, _]] = credited(method, group_of([(0.0, 1.0), (0.0, 0.0)]))
    assert least <= worth <= most


def test_a_penalty_for_an_unreadable_reply_keeps_its_weight_and_tells_nothing():
    method, rng = aligned(method_args={"start": 0}), random.Random(2)
    group = group_of([(1.0, 1.0), (0.0, -0.1)], unread=[1])
    assert credited(method, group) == [[1.0, -0.1]]
    plain = [group_of(drawn(rng, 1.0)) for _ in range(5)]
    spoiled = [group_of([*[(c.team_reward, c.local_reward) for c in g.candidates], (1.0, -9.0)], unread=[8]) for g in plain]  # fmt: skip
    one, other = aligned(), aligned()
    credited(one, *plain)
    credited(other, *spoiled)
    assert one.state_dict() == other.state_dict() != {}


def test_a_resumed_run_weighs_as_an_uninterrupted_one():
    rng = random.Random(3)
    steps = [[group_of(drawn(rng, 0.5)) for _ in range(4)] for _ in range(4)]
    whole, resumed = aligned(), aligned()
    for step in steps:
        expected = credited(whole, *step)
        continued = aligned()
        continued.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert credited(continued, *step) == expected
        resumed = continued


def test_roles_are_weighed_apart():
    method, rng = aligned(), random.Random(4)
    left = [group_of(drawn(rng, -1.0)) for _ in range(8)]
    right = [
        replace(group_of(drawn(rng, 1.0)), key=left[0].key._replace(role="right")) for _ in range(8)
    ]
    credited(method, *left, *right)
    weights = {role: sums.weight(1.0) for role, sums in method.agreements.items()}
    assert weights["left"] == 0
    assert weights["right"] > 0.8
