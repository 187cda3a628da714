"""An estimator is refused on an environment that lacks what it needs, with those that would fit."""

from __future__ import annotations

from typing import Any

import pytest

from pettingllms.envs import ENVIRONMENTS, load_env
from pettingllms.errors import ConfigError
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.base import estimator_of
from pettingllms.trainers.estimators.needs import NEEDS
from tests import tic_tac_toe_env

LACKS: dict[str, tuple[dict[str, Any], str]] = {
    "early_rewards": ({"outcome": "late", "reward_parts": 2}, r"pays at the end of an episode"),
    "recurring_states": ({"states_recur": False}, r"states of .* are not met again"),
    "reward_parts": ({"reward_parts": 1}, r"have one part"),
}


def game(**facts):
    class Lacking(tic_tac_toe_env.env):
        metadata = {**tic_tac_toe_env.env.metadata, "reward_parts": 2, **facts}  # noqa: RUF012

    return Lacking


@pytest.mark.parametrize("need", list(NEEDS))
def test_estimators_that_need_what_is_lacking_are_refused_before_a_model_is_loaded(need):
    facts, said = LACKS[need]
    refused, named = set(), ""
    for name in ESTIMATORS.own:
        plan_run(ATGRPOConfig(estimator=name), env=game())
        try:
            plan_run(ATGRPOConfig(estimator=name), env=game(**facts))
        except ConfigError as error:
            refused.add(name)
            named = str(error)
    assert refused == {n for n in ESTIMATORS.own if need in ESTIMATORS.load(n).needs}
    assert refused
    with pytest.raises(ConfigError, match=said):
        plan_run(ATGRPOConfig(estimator=min(refused)), env=game(**facts))
    fitting = named.rpartition("use one of ")[2].split(", ")
    assert set(fitting) == set(ESTIMATORS.own) - refused


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
