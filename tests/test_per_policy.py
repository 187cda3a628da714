"""Settings of single policies: what differs, what may, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.settings import OWN, own_settings
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
SMALL: dict[str, Any] = {
    "num_generations": 4,
    "tasks_per_step": 2,
    "max_steps": 1,
    "warmup_steps": 0,
    "max_completion_length": 6,
    "eval_tasks": 0,
    "eval_steps": 0,
    "scoring_threads": 1,
}


def trained(folder: Path, **settings: Any) -> dict[str, bytes]:
    model = save_tiny(folder.with_name("model"))
    pl.train("tests.letters_env:env", model=str(model), output_dir=folder, **SMALL, **settings)
    files = sorted(folder.glob("adapters/*/adapter_model.safetensors"))
    return {path.parent.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_policy_with_a_rate_of_its_own_learns_at_it_and_the_others_as_before(
    tmp_path: Path,
) -> None:
    still = trained(tmp_path / "still", learning_rate=0.0)
    plain = trained(tmp_path / "plain")
    assert not still.items() & plain.items()
    frozen = trained(tmp_path / "own", policy_settings={"reader": {"learning_rate": 0.0}})
    assert frozen == {"reader": still["reader"], "writer": plain["writer"]}


def test_settings_that_follow_from_others_follow_those_of_the_policy() -> None:
    config = resolve(
        ATGRPOConfig(policy_settings={"a": {"epsilon": 0.1}, "b": {"loss_type": "cispo"}})
    )
    assert own_settings(config, "a").clip_above == 0.1
    assert own_settings(config, "b").clip_above == 5.0
    assert own_settings(config, "c") is config


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"testr": {"beta": 0.1}}, "no policy of the team.s own; did you mean 'tester'"),
        ({"tester": {"num_generations": 4}}, "num_generations cannot differ between policies"),
        ({"tester": {"learning_rate": -1.0}}, "of tester: learning_rate must be at least 0"),
        (
            {"tester": {"learning_rat": 1.0}},
            "unknown setting .learning_rat.; did you mean .learning_rate.",
        ),
        ({"tester": {"learning_rate": None}}, "of tester: learning_rate has no value; give it one"),
        ({"tester": 3}, "of tester must be an object, got 3"),
        ({"tester": {"loss_type": "cispo", "epsilon_high": 0.5}}, "of tester: epsilon_high"),
    ],
)
def test_what_cannot_be_a_policys_own_is_refused_before_a_model_is_loaded(
    own: dict[str, Any], message: str
) -> None:
    settings: Any = own
    with pytest.raises(ConfigError, match=message):
        plan_run(ATGRPOConfig(env="coding", policy_settings=settings))


def test_every_setting_that_may_differ_is_one() -> None:
    config = resolve(ATGRPOConfig())
    assert all(hasattr(config, name) for name in OWN)
