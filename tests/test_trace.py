"""Traces tell equal runs from different ones, whatever the values in them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest

from pettingllms.envs import check
from tests import foreign_env, toy_env

VALUES: list[Any] = [
    None,
    True,
    1,
    1.0,
    -0.0,
    0.0,
    float("nan"),
    "1",
    [1],
    (1,),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    np.array([1]),
    np.array([1.0]),
    np.arange(2000),
    np.arange(2000) * 2,
    "\ud800",
]


def test_different_values_have_different_texts():
    for one, other in itertools.combinations(VALUES, 2):
        assert check.canonical(one) != check.canonical(other)


def test_equal_values_have_equal_texts():
    for value, again in zip(VALUES, copy.deepcopy(VALUES), strict=True):
        assert check.canonical(value) == check.canonical(again)


def test_a_difference_names_step_thing_and_values():
    first = [{"word": "a"}, {"word": "b" * 500}]
    second = [{"word": "a"}, {"word": "c"}]
    difference = check.difference(first, second)
    assert difference == f"step 1, word: {'b' * 200}... != c"
    assert check.difference(first, first[:1]) == "2 != 1 steps"
    assert check.difference([{"word": "a"}], [{}]) == "step 0, word: a != None"
    assert check.difference(first, first) is None


def test_scripts_mix_known_replies_with_random_text():
    script = list(itertools.islice(check.scripted(3, ("yes",)), 200))
    assert 100 < script.count("yes") < 190
    assert script == list(itertools.islice(check.scripted(3, ("yes",)), 200))
    assert "yes" not in list(itertools.islice(check.scripted(3, ()), 200))


@pytest.mark.parametrize("env", [toy_env.env(max_turns=2), foreign_env.env(rounds=2)])
def test_playing_on_goes_to_the_end_and_sees_agents_leave(env):
    env.reset(seed=1)
    views = check.continued(env, itertools.repeat(""))
    assert len(views) == 1 + 4 + 2
    assert views[-1]["agents"] == "list()"


def test_playing_on_stops_in_an_endless_environment():
    env = foreign_env.env(rounds=10**6)
    env.reset(seed=1)
    assert len(check.continued(env, itertools.repeat(""))) == check.MAX_STEPS + 1
