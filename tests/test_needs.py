"""A part of a method is refused on an environment that lacks what it needs, with those that would fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pettingllms.envs import ENVIRONMENTS, load_env
from pettingllms.errors import ConfigError
from pettingllms.registry import Registry
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.base import estimator_of
from pettingllms.trainers.estimators.needs import NEEDS
from pettingllms.trainers.rewards import REWARD_TRANSFORMS
from tests import tic_tac_toe_env

LACKS: dict[str, tuple[dict[str, Any], str]] = {
    "early_rewards": ({"outcome": "late", "reward_parts": 2}, r"pays at the end of an episode"),
    "recurring_states": ({"states_recur": False}, r"states of .* are not met again"),
    "reward_parts": ({"reward_parts": 1}, r"have one part"),
    "judged_replies": ({"judged_replies": False}, r"does not say of every reply"),
    "cross_runs": ({"cross_runs": ()}, r"is for programs and tests that judge each other"),
    "rounds": ({"rounds": False}, r"do not act in rounds"),
    "calls": ({"caller": ""}, r"is for an agent that calls others"),
}
PARTS: tuple[tuple[str, Registry], ...] = (
    ("estimator", ESTIMATORS),
    ("reward_transform", REWARD_TRANSFORMS),
)


ALL = {"reward_parts": 2, "judged_replies": True, "caller": "x", "cross_runs": ("a", "b")}
"""What an environment says that lacks nothing."""


def game(**facts):
    class Lacking(tic_tac_toe_env.env):
        metadata = {**tic_tac_toe_env.env.metadata, **ALL, **facts}  # noqa: RUF012

    return Lacking


@pytest.mark.parametrize("need", list(NEEDS))
def test_parts_that_need_what_is_lacking_are_refused_before_a_model_is_loaded(need):
    facts, said = LACKS[need]
    count = 0
    for setting, registry in PARTS:
        refused, named = set(), ""
        for name in registry.own:
            options: dict[str, Any] = {setting: name}
            config = replace(ATGRPOConfig(estimator="agent"), **options)
            plan_run(config, env=game())
            try:
                plan_run(config, env=game(**facts))
            except ConfigError as error:
                refused.add(name)
                named = str(error)
                assert re.search(said, named)
        assert refused == {n for n in registry.own if need in registry.load(n).needs}
        if refused:
            fitting = named.rpartition("use one of ")[2].split(", ")
            assert set(fitting) == set(registry.own) - refused
        count += len(refused)
    assert count


def test_gigpo_is_refused_where_states_hardly_recur_and_taken_on_boards():
    taken = set()
    for name in ("coding", "math", "plan_path", "sokoban", "sudoku"):
        assert name in ENVIRONMENTS
        config = resolve(ATGRPOConfig(estimator="gigpo"))
        if name in ("coding", "math"):
            with pytest.raises(ConfigError, match="are not met again; use one of at_grpo, grpo"):
                estimator_of(config, env=load_env(name))
        else:
            estimator_of(config, env=load_env(name))
            taken.add(name)
    assert taken == {"plan_path", "sokoban", "sudoku"}


def test_a_method_of_self_play_is_accepted_where_the_outcome_is_late():
    config = ATGRPOConfig(method="rae")
    assert plan_run(config, env=game(outcome="late")).config.estimator == "rae"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reward_transform": "maporl", "estimator": "grpo"}, "adds up what it pays"),
        ({"reward_transform": "flow", "estimator": "gigpo"}, "adds up what it pays"),
        ({"reward_transform": "m_grpo", "estimator": "rae"}, "adds up what it pays"),
        ({"reward_transform": "cure", "estimator": "look_ahead"}, "adds up what it pays"),
        (
            {
                "reward_transform": "maporl",
                "estimator": "agent",
                "estimator_args": {"by": "return"},
            },
            "adds up what it pays",
        ),
        ({"reward_transform": "matpo", "estimator": "at_grpo"}, "it pays an episode once"),
        (
            {"reward_transform": "matpo", "estimator": "grpo", "estimator_args": {"mean": True}},
            "it pays an episode once",
        ),
        ({"reward_transform": "flow", "estimator": "at_grpo"}, "samples tree, whose candidates"),
        (
            {"reward_transform": "m_grpo", "estimator": "agent", "shape": "fork_on_first"},
            "samples fork_on_first, whose candidates",
        ),
        ({"reward_transform": "shared", "estimator": "gigpo"}, "later rounds pay once for each"),
        ({"reward_transform": "shared", "estimator": "gdpo"}, "compares the parts"),
    ],
)
def test_a_comparison_that_would_prefer_another_than_the_best_reply_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        plan_run(replace(ATGRPOConfig(), **settings), env=game())


@pytest.mark.parametrize("transform", ["maporl", "flow", "m_grpo", "cure"])
def test_what_a_decision_is_worth_is_compared_by_decision_unless_said_otherwise(transform):
    config = ATGRPOConfig(estimator="agent", reward_transform=transform)
    assert estimator_of(resolve(config)).compares == "reward"
    plan_run(replace(config, estimator="grpo", estimator_args='{"mean": true}'), env=game())
