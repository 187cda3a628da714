"""Estimators that compare what is earned at once are refused where an environment pays at its end."""

from __future__ import annotations

import pytest

from pettingllms.errors import ConfigError
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.base import FIT_LATE, estimator_of
from tests.tic_tac_toe_env import env


class late(env):
    metadata = {**env.metadata, "outcome": "late"}  # noqa: RUF012


@pytest.mark.parametrize("name", ["at_grpo", "gdpo"])
def test_a_run_with_an_estimator_that_learns_nothing_is_refused(name):
    config = ATGRPOConfig(estimator=name)
    with pytest.raises(ConfigError, match=r"pays at the end of the game.*look_ahead, grpo.* rae"):
        plan_run(config, env=late)
    assert plan_run(config, env=env).config.estimator == name


def test_every_estimator_that_the_message_names_is_accepted_and_no_other():
    accepted = []
    for name in ESTIMATORS.own:
        try:
            estimator_of(resolve(ATGRPOConfig(estimator=name)), env=late())
        except ConfigError:
            continue
        accepted.append(name)
    assert sorted(accepted) == sorted(FIT_LATE)


def test_a_method_of_self_play_is_accepted():
    config = ATGRPOConfig(method="rae")
    assert plan_run(config, env=late).config.estimator == "rae"
