from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.settings import EMBEDDED, LARGE, LARGE_FULL
from pettingllms.trainers.trl_names import HERE, MEANING, NOT_HERE

FIELDS = {field.name: field for field in dataclasses.fields(ATGRPOConfig)}
CHOICES = {
    name: field.metadata["choices"] for name, field in FIELDS.items() if "choices" in field.metadata
}
BY_MODEL = sorted(EMBEDDED.keys() | LARGE.keys())


def a_config(**options: Any) -> ATGRPOConfig:
    return ATGRPOConfig(**options)


def misspelt(word):
    """The word with its first two different neighbors exchanged, from the second letter on."""
    at = next(n for n in range(1, len(word)) if word[n] != word[n + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


@pytest.mark.parametrize("name", CHOICES)
def test_a_misspelt_choice_is_refused_with_what_was_meant(name):
    averaging_completions = name in ("importance_sampling_level", "loss_norm")
    beside = {"loss_type": "grpo"} if averaging_completions else {}
    for value in CHOICES[name]:
        a_config(**{name: value}, **beside)
        wrong = misspelt(value)
        with pytest.raises(
            ConfigError, match=f"{name} must be one of .*{value}.*got '{wrong}'"
        ) as e:
            a_config(**{name: wrong})
        assert f"did you mean '{value}'" in str(e.value) or f"or '{value}'" in str(e.value)


def test_every_setting_of_trl_is_here_or_has_an_answer():
    trl = pytest.importorskip("trl")
    theirs = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert theirs <= {*FIELDS, *HERE, *NOT_HERE}, "a setting of TRL's that no table has"
    assert not {*FIELDS} & {*HERE, *NOT_HERE}
    assert not {*HERE} & {*NOT_HERE}
    assert {*MEANING} <= theirs & {*FIELDS}
    assert {where.partition(": ")[0] for where in HERE.values()} <= {*FIELDS, "resume"}
    for name in theirs - {*FIELDS}:
        with pytest.raises(ConfigError, match=f"unknown setting '{name}'; (use|TRL's {name} is) "):
            a_config(**{name: 1})


def test_arguments_of_the_tokenizer_are_none_of_the_template() -> None:
    for name in ("tokenize", "chat_template"):
        with pytest.raises(ConfigError, match=f"chat_template_kwargs: {name} is set here"):
            a_config(chat_template_kwargs={name: False, "enable_thinking": False})


@pytest.mark.parametrize(
    "wrong", [{"adam_beta1": 2}, {"adam_beta2": 1.0}, {"epsilon": 1.5}, {"adam_beta1": -0.1}]
)
def test_numbers_that_an_optimizer_or_a_loss_refuses_are_refused_at_once(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must be "):
        a_config(**wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [("gamma", 1), ("top_layer", 1), ("kl", 1), ("batching", 1), ("loss_type", "vespo")],
)
def test_nothing_far_away_is_suggested(name, value):
    with pytest.raises(ConfigError) as e:
        a_config(**{name: value})
    assert "did you mean" not in str(e.value)


def test_every_schedule_that_may_be_chosen_can_be_made():
    torch = pytest.importorskip("torch")
    from transformers import get_scheduler

    for name in CHOICES["lr_scheduler_type"]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = get_scheduler(name, optimizer, 2, 10)
        optimizer.step()
        schedule.step()


def test_an_unknown_estimator_is_refused_with_what_was_meant():
    with pytest.raises(UnknownNameError, match="did you mean 'at_grpo'"):
        ATGRPOConfig(method="atgrpo")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_generations", 0, "num_generations must be at least 1, got 0"),
        ("tasks_per_step", 0, "tasks_per_step must be at least 1, got 0"),
        ("max_steps", 0, "max_steps must be at least 1"),
        ("max_completion_length", 0, "max_completion_length must be at least 1"),
        ("num_iterations", -1, "num_iterations must be at least 0"),
        ("tokens_per_batch", 0, "tokens_per_batch must be at least 1"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("warmup_steps", -1, "warmup_steps must be at least 0"),
        ("eval_steps", -1, "eval_steps must be at least 0"),
        ("beta", -0.1, "beta must be at least 0.0, got -0.1"),
        ("epsilon", -0.1, "epsilon must be from 0.0 to 1.0"),
        ("epsilon_high", -0.1, "epsilon_high must be at least 0.0"),
        ("weight_decay", -0.1, "weight_decay must be at least 0.0"),
        ("learning_rate", -1e-3, "learning_rate must be at least 0.0"),
        ("learning_rate", float("nan"), "learning_rate must be a finite number, got nan"),
        ("temperature", 0.0, "temperature must be positive, got 0.0"),
        ("temperature", float("nan"), "temperature must be a finite number, got nan"),
        ("max_grad_norm", 0.0, "max_grad_norm must be positive"),
        ("delta", 0.0, "delta must be positive"),
        ("env_args", "[1]", r"env_args must be a JSON object, got '\[1\]'"),
        ("env_args", "{", "env_args must be a JSON object, got '{'"),
        ("chat_template_kwargs", "1", "chat_template_kwargs must be a JSON object"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name, value, text):
    with pytest.raises(ConfigError, match=text):
        a_config(**{name: value})


def test_every_field_explains_itself():
    assert [name for name, field in FIELDS.items() if not field.metadata.get("help")] == []


# What follows from the model and the environment

MODEL = {True: "embedded", False: "some/model"}
"""The setting `model` of the embedded model, and of another."""


@pytest.mark.parametrize(
    ("embedded", "full", "expected"),
    [
        (True, False, EMBEDDED),
        (True, True, EMBEDDED | {"learning_rate": EMBEDDED["learning_rate"] / 10}),
        (False, False, LARGE),
        (False, True, LARGE | LARGE_FULL),
    ],
)
def test_open_values_follow_from_the_model(embedded, full, expected):
    config = resolve(ATGRPOConfig(model=MODEL[embedded], full=full))
    values = {name: getattr(config, name) for name in BY_MODEL}
    clipped = expected | {"epsilon_high": 0.2}  # as epsilon, where no preset says otherwise
    assert values == pytest.approx({name: clipped[name] for name in BY_MODEL})


@pytest.mark.parametrize(
    ("env", "model", "rate", "k", "tasks", "steps"),
    [
        ("coding", "embedded:parts", 3e-3, 8, 16, 60),
        ("math", "embedded", 5e-4, 16, 8, 100),
        ("plan_path", "embedded:parts", 4e-3, 8, 8, 100),
        ("sokoban_v0", "embedded", 5e-4, 16, 8, 100),
        ("pettingllms/sudoku-v0", "embedded", 5e-4, 16, 8, 160),
        ("pettingllms.envs.sudoku_v0:env", "embedded", 5e-4, 16, 8, 160),
    ],
)
def test_the_embedded_model_and_its_settings_follow_from_the_environment(
    env, model, rate, k, tasks, steps
):
    config = resolve(ATGRPOConfig(env=env))
    assert config.model == model
    values = (
        config.learning_rate,
        config.num_generations,
        config.tasks_per_step,
        config.max_steps,
    )
    assert values == (rate, k, tasks, steps)
    assert resolve(ATGRPOConfig(env=env, model="some/model")).num_generations == 8


def test_an_environment_may_only_declare_open_values():
    class Declaring:
        embedded_training: typing.ClassVar = {"learning_rat": 1.0}

    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        resolve(ATGRPOConfig(), Declaring)


@pytest.mark.parametrize("embedded", [True, False])
def test_nothing_is_left_open_that_the_trainer_reads(embedded):
    config = resolve(ATGRPOConfig(model=MODEL[embedded]))
    hints = typing.get_type_hints(ATGRPOConfig)
    optional = {name for name in FIELDS if type(None) in typing.get_args(hints[name])}
    assert optional >= {*BY_MODEL}, "a type says where None stands for a preset"
    missing = {name for name in FIELDS if getattr(config, name) is None}
    assert missing <= optional - {*BY_MODEL}


@pytest.mark.parametrize("name", BY_MODEL)
@pytest.mark.parametrize("embedded", [True, False])
def test_an_explicit_value_stays(name, embedded):
    usual = EMBEDDED[name]
    others = {True: False, False: True, "drop": "count"}
    value = others[usual] if isinstance(usual, bool | str) else 2 + (usual or 0)
    for full in (True, False):
        config = resolve(a_config(model=MODEL[embedded], full=full, **{name: value}))
        assert getattr(config, name) == value


def test_the_steps_and_the_clip_range_of_an_environment_give_way_to_explicit_ones():
    usual = resolve(ATGRPOConfig(env="coding"))
    assert (usual.num_iterations, usual.epsilon_high) == (3, 0.28)
    explicit = resolve(ATGRPOConfig(env="coding", num_iterations=1, epsilon_high=0.2))
    assert (explicit.num_iterations, explicit.epsilon_high) == (1, 0.2)
    # The largest ratio itself: a clip range of 0.28 would be refused.
    assert resolve(ATGRPOConfig(env="coding", loss_type="cispo")).epsilon_high == 5.0
    assert resolve(ATGRPOConfig(env="coding", model="some/model")).num_iterations == 1


def test_resolving_twice_changes_nothing():
    once = resolve(ATGRPOConfig())
    assert resolve(once) == once


def test_the_upper_clip_range_follows_the_lower_one():
    assert ATGRPOConfig(epsilon=0.1).clip_above == 0.1
    assert ATGRPOConfig(epsilon=0.1, epsilon_high=0.3).clip_above == 0.3
    assert ATGRPOConfig(epsilon_high=0.0).clip_above == 0.0


def test_an_object_is_a_dict_in_whatever_form_it_was_saved():
    from pettingllms.runs.checkpoints import _converted

    saved: dict[str, Any] = {"env_args": '{"max_turns": 2}', "pools": None}
    saved["method_args"] = '{"shape": "full"}'
    objects: dict[str, Any] = {
        "env_args": {"max_turns": 2},
        "pools": {},
        "method_args": {"shape": "full"},
    }
    assert ATGRPOConfig(**saved) == ATGRPOConfig(**objects)
    assert ATGRPOConfig().chat_template_kwargs == {}
    # As checkpoints of earlier versions hold them.
    same = {"policies": "shared", "gone": 1}
    assert _converted(saved | same) == objects | same
    older = {"method": None, "estimator": "gae", "estimator_args": '{"gamma": 0.9}'}
    assert _converted(older) == {"method": "gae", "method_args": {"gamma": 0.9}}
    values: list[Any] = [{"a": object()}, {"a": float("nan")}, 3, []]
    for value in values:
        with pytest.raises(ConfigError, match="env_args must be a JSON object"):
            ATGRPOConfig(env_args=value)


@pytest.mark.parametrize("kind", [ATGRPOConfig, EvalConfig])
def test_an_empty_text_is_refused_for_every_setting_that_takes_one(kind: Any) -> None:
    hints = typing.get_type_hints(kind)
    texts = [name for name, hint in hints.items() if hint in (str, str | None)]
    assert {"env", "dataset"} <= {*texts} or {"gate", "out"} <= {*texts}
    for name in texts:
        said = f"{name} (is empty|must be one of)|unknown {name} ''"
        with pytest.raises((ConfigError, UnknownNameError), match=said):
            kind(**{name: ""})
