"""Methods: named settings that give way to explicit ones, and the turns that are trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.errors import UnknownNameError
from pettingllms.rollout import shapes
from pettingllms.rollout.trajectory import Trajectory, outcome_is_late
from pettingllms.runs import config_text, read_config
from pettingllms.runs.folder import upgraded
from pettingllms.trainers import losses, method, method_names
from pettingllms.trainers.callbacks import Silent
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import policy_batches
from pettingllms.trainers.method import Method
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.types import Task
from tests.test_estimators_golden import cases, decision

torch.set_num_threads(1)


NAMES = [name for name in METHODS.own if name not in PARTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_sets_what_its_class_says_and_can_be_trained(name):
    needed = {"distill": {"teacher_model": "embedded"}}.get(name, {})
    config = resolve(ATGRPOConfig(method=name, method_args=needed))
    settings = METHODS.load(name).settings
    assert {field: getattr(config, field) for field in settings} == dict(settings)
    assert Method.of(config).config is config


def test_an_explicit_setting_goes_over_that_of_the_method():
    config = ATGRPOConfig(method="gspo", loss_type="sapo")
    assert (config.loss_type, config.importance_sampling_level) == ("sapo", "sequence")


def test_a_copy_of_settings_is_equal_to_them():
    config = ATGRPOConfig(method="rae", num_generations=4)
    assert dataclasses.replace(config) == config
    assert resolve(config).num_generations == 4
    assert dataclasses.replace(config, method="look_ahead").branch == "best"


@pytest.mark.parametrize(
    ("old", "method", "arguments"),
    [
        ({"estimator": "agent"}, "dr_mas", {}),
        ({"estimator": "rae"}, "rae", {}),
        ({"estimator": "gae", "cast": "alternate"}, "marft_gae", {}),
        ({"cast": "swap", "cast_args": {"steps": 2}}, "swap+at_grpo", {"steps": 2}),
        ({"method": "gspo", "estimator": "grpo"}, "gspo", {}),
        ({"method": "gspo", "estimator": "at_grpo"}, "at_grpo", {}),
        (
            {"method": "malt", "estimator": "look_ahead", "shape": "full"},
            "malt",
            {"shape": "full"},
        ),
        (
            {
                "estimator": "agent_turn",
                "reward_transform": "maporl",
                "reward_transform_args": "{}",
            },
            "maporl",
            {},
        ),
        ({"reward_transform": "shared", "estimator": "a.b:C"}, "shared+a.b:C", {}),
    ],
)
def test_a_saved_configuration_of_the_time_before_methods_has_one(old, method, arguments, tmp_path):
    # As that version saved them: all parts.
    parts = {"cast": "all", "reward_transform": "as_paid", "estimator": "at_grpo"}
    old = {"env": "coding", "stream_gradients": False, "num_generations": 5} | parts | old
    (tmp_path / "config.yaml").write_text(json.dumps(old))
    config = read_config(tmp_path)
    assert (config.method, config.method_args) == (method, arguments)
    # A method fills in nothing where settings were saved.
    assert (config.num_generations, config.branch) == (5, ATGRPOConfig.branch)
    now = dataclasses.asdict(config)
    assert {name: now[name] for name in upgraded(old)} == upgraded(old)


def test_what_a_run_left_open_stays_open_when_its_settings_are_read(tmp_path):
    config = ATGRPOConfig(method="mlpo", train_roles=None)
    (tmp_path / "config.yaml").write_text(config_text(config))
    assert read_config(tmp_path).train_roles is None


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match="did you mean 'dr_mas'"):
        ATGRPOConfig(method="drmas")


@pytest.mark.parametrize("turns", ["a", "-1", "0;1", "1.5", "٣"])
def test_turns_that_are_no_numbers_are_refused(turns):
    with pytest.raises(ValueError, match="train_turns must be whole numbers from 0"):
        ATGRPOConfig(train_turns=turns)


def test_only_the_decisions_of_the_turns_asked_for_are_trained_on():
    groups = [decision(0.0, 1.0, turn=turn, parent=turn) for turn in range(3)]
    credited = [
        dataclasses.replace(
            group,
            candidates=tuple(
                dataclasses.replace(c, advantage=c.reward - 0.5) for c in group.candidates
            ),
        )
        for group in groups
    ]
    for turns, count in ((None, 6), ("1", 2), ("0,2", 4), ("7", 0)):
        config = resolve(ATGRPOConfig(train_turns=turns, silent_groups="count"))
        (batch,) = policy_batches(config, {"p": config}, credited).values()
        assert (len(batch.samples), batch.replies) == (count, count)


def test_a_turn_that_no_episode_has_is_refused_before_a_model_is_loaded():
    config = ATGRPOConfig(env="coding", env_args={"max_turns": 2}, train_turns="1,2")
    with pytest.raises(ValueError, match="has turns 0 to 1, got 2"):
        plan_run(config)
    assert plan_run(dataclasses.replace(config, train_turns="1")).config.turns == frozenset({1})


@pytest.mark.parametrize("case", ["one task, N=4, G=4", "all refinements equal"])
def test_igrpo_compares_and_trains_the_refinements_of_the_table(case):
    table = cases("igrpo")[case]
    drafts, refined = (table["inputs"][f"{what} rewards"] for what in ("draft", "refinement"))
    groups = [decision(*drafts, turn=0), decision(*refined, turn=1, parent=1)]
    config = resolve(ATGRPOConfig(method="igrpo", num_generations=len(drafts)))
    values = Method.of(config).advantages(groups)
    expected = table["expected"]["advantage"]
    assert values[len(drafts) :] == pytest.approx(expected, abs=1e-6)
    following = iter(values)
    credited = [
        dataclasses.replace(
            group,
            candidates=tuple(
                dataclasses.replace(c, advantage=next(following)) for c in group.candidates
            ),
        )
        for group in groups
    ]
    (batch,) = policy_batches(config, {"p": config}, credited).values()
    assert len(batch.samples) == sum(value != 0 for value in expected)


def test_mlpo_compares_the_leaders_answers_as_in_the_table():
    table = cases("mlpo")["leader groups (same as at_grpo at the leader's node)"]
    group = decision(*table["inputs"]["leader rewards"])
    config = resolve(ATGRPOConfig(method="mlpo"))
    expected = table["expected"]["advantage without division (Dr. GRPO)"]
    assert Method.of(config).advantages([group]) == pytest.approx(expected, abs=1e-6)
    scaled = resolve(ATGRPOConfig(method="mlpo", scale_rewards="group"))
    expected = table["expected"]["advantage"]
    assert Method.of(scaled).advantages([group]) == pytest.approx(expected, abs=1e-6)


def an_episode(*rewards):
    groups = [decision(*paid, parent=n, turn=n) for n, paid in enumerate(rewards)]
    return Trajectory.of(Task("q", 0), 0, groups, early={}, cooperative=True)


@pytest.mark.parametrize(
    ("episodes", "late"),
    [
        ([((0.0, 0.0), (1.0, 0.0))], True),
        ([((-0.1, 0.0), (1.0, 0.0))], True),
        ([((0.0, 0.2), (1.0, 0.0))], False),
        ([((0.0, 0.0), (0.0, 0.0))], False),
        ([((1.0, 0.0),)], False),
        ([], False),
    ],
)
def test_an_outcome_is_late_where_only_last_decisions_earn(episodes, late):
    assert outcome_is_late([an_episode(*rewards) for rewards in episodes]) is late


class Heard(Silent):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "warned"), [("at_grpo", True), ("grpo", False)])
def test_a_tree_on_an_outcome_at_the_end_is_warned_about(tmp_path, method, warned):
    heard = Heard()
    pl.train(
        env="tests.late_env:env",
        policies="per-role",
        method=method,
        num_generations=2,
        tasks_per_step=2,
        max_steps=1,
        max_completion_length=4,
        eval_tasks=0,
        eval_steps=0,
        output_dir=str(tmp_path / "run"),
        display=heard,
    )
    assert any("earlier decisions may learn nothing" in text for text in heard.said) is warned


def test_the_page_of_methods_describes_every_method_and_loss():
    docs = Path(__file__).parents[1] / "docs"
    overview = (docs / "methods.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in overview] == []
    page = (docs / "methods" / "reference.md").read_text(encoding="utf-8")
    assert "{{ methods }}" in page
    parts: list[tuple[Any, Iterable[str]]] = [
        (shapes, shapes.SHAPES.own),
        (method_names, PARTS),
        (method, method.NEEDS),
    ]
    for module, names in parts:
        assert f"::: {module.__name__}\n" in page
        for name in names:
            assert f"`{name}`" in str(module.__doc__), name
    loss_types = next(f for f in dataclasses.fields(ATGRPOConfig) if f.name == "loss_type")
    for name in loss_types.metadata["choices"]:
        assert f"`{name}`" in str(losses.__doc__), name
