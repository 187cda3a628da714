"""`ATGRPOTrainer`: the calls that users of TRL try first, with objects wherever there are names."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

import pettingllms as pl
from pettingllms.errors import ConfigError, PettingLLMsError, RunFolderError, UnknownNameError
from pettingllms.methods.grpo import Gspo
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from tests import foreign_env, letters_env
from tests.own_estimator import RunningMean
from tests.tiny_lm import save_tiny, tiny_config, tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


def settings(run: Path, **changes: Any) -> pl.ATGRPOConfig:
    """Settings of a run of seconds."""
    few: dict[str, Any] = {
        "output_dir": run,
        "device": "cpu",
        "lora_r": 2,
        "num_generations": 2,
        "tasks_per_step": 1,
        "max_completion_length": 4,
        "max_steps": 1,
        "eval_tasks": 1,
        "eval_steps": 0,
        "warmup_steps": 0,
        "learning_rate": 0.01,
    }
    return pl.ATGRPOConfig(**few | changes)


TOLD: list[tuple[Any, ...]] = []


PAID = "tests.test_trainer:brevity,tests.test_trainer:as_trl_calls_it"


def as_trl_calls_it(prompts, completion_ids, trainer_state):
    TOLD.append((len(prompts), completion_ids, trainer_state.global_step, trainer_state.max_steps))
    return [None] * len(prompts)


def brevity(completions: list[str], **kwargs: Any) -> list[float]:
    """Pays short completions."""
    return [-float(len(text)) for text in completions]


class Counting(TrainerCallback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.told.append(("begin", args.learning_rate, state.max_steps))

    def on_step_begin(self, args, state, control, **kwargs):
        self.told.append(("step", state.global_step))

    def on_step_end(self, args, state, control, **kwargs):
        self.told.append(("stepped", state.global_step))
        control.should_training_stop = state.global_step == 2
        return control

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.told.append(("log", "reward" in logs))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.told.append((metrics["when"], "eval/success" in metrics))

    def on_save(self, args, state, control, **kwargs):
        self.told.append(("save", kwargs["processing_class"] is not None))

    def on_train_end(self, args, state, control, **kwargs):
        self.told.append(("end", len(state.log_history)))


def model_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def short(**kwargs: Any) -> Any:
    """Episodes of one turn: how an environment is given has nothing to do with how long it plays."""
    return letters_env.env(**{"max_turns": 1, **kwargs})


LETTERS = "tests.test_trainer:short"
CALLS: dict[str, Any] = {
    "names": lambda folder: {"model": str(folder), "env": LETTERS},
    "a path as model": lambda folder: {"model": folder, "env": LETTERS},
    "a model as model": lambda folder: {"model": model_of(folder), "env": LETTERS},
    "a model and a tokenizer": lambda folder: {
        "model": model_of(folder),
        "processing_class": AutoTokenizer.from_pretrained(folder),
        "env": LETTERS,
    },
    "an environment": lambda folder: {"model": folder, "env": letters_env.env(max_turns=1)},
    "a class": lambda folder: {"model": folder, "env": letters_env.raw_env},
    "a function": lambda folder: {
        "model": folder,
        "env": functools.partial(letters_env.env, max_turns=1),
    },
    "policies as a mapping": lambda folder: {
        "model": folder,
        "env": LETTERS,
        "policies": {"writer": "a", "reader": "a"},
    },
    "policies that are loaded": lambda folder: {
        "policies": load_policies(folder, {"writer": "a", "reader": "b"}, lora_r=2),
        "env": LETTERS,
    },
    "a configuration of PEFT": lambda folder: {
        "model": folder,
        "env": LETTERS,
        "peft_config": LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"]),
    },
    "callbacks of transformers, as an object and a class": lambda folder: {
        "model": folder,
        "env": LETTERS,
        "callbacks": [Counting(), Counting],
    },
    "reward functions": lambda folder: {
        "model": folder,
        "env": LETTERS,
        "reward_funcs": [brevity, lambda completions, **kwargs: [None] * len(completions)],
    },
    "an estimator": lambda folder: {
        "model": folder,
        "env": LETTERS,
        "method": RunningMean(pl.ATGRPOConfig()),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_obvious_calls_train_evaluate_and_save(call: str, folder: Path, tmp_path: Path) -> None:
    inputs = CALLS[call](folder)
    rank = 16 if "peft_config" in inputs else 2
    arguments = settings(tmp_path / "run", lora_r=rank, eval_tasks=0)
    trainer = pl.ATGRPOTrainer(args=arguments, **inputs)
    summary = trainer.train()
    assert summary.finished
    assert summary.folder == tmp_path / "run"
    assert 0.0 <= trainer.evaluate(limit=1).scores["success"].mean <= 1.0
    saved = trainer.save_model(tmp_path / "saved")
    trainer.close()
    names = {path.name for path in saved.iterdir()}
    assert names == set(trainer.policies.names)
    again = load_policies(
        folder, dict.fromkeys(names, "x"), adapters=dict.fromkeys("x", saved / min(names))
    )
    assert all(
        value.equal(trainer.policies.state(min(names))[name])
        for name, value in again.state("x").items()
    )


def test_settings_take_mappings_lists_and_paths(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "env_args": {"size": 6},
        "policies": {"tool": "a", "planner": "b"},
        "lora_target_modules": ["q_proj", "v_proj"],
        "train_roles": ["tool"],
        "report_to": ["tensorboard"],
        "chat_template_kwargs": {"enable_thinking": False},
        "sandbox": {"backend": "embedded", "workers": 1},
        "output_dir": tmp_path,
    }
    config = pl.ATGRPOConfig(env="sokoban", **options)
    assert config.env_args == {"size": 6}
    assert config.policies == "tool=a,planner=b"
    assert config.lora_target_modules == "q_proj,v_proj"
    assert config.output_dir == str(tmp_path)
    with pytest.raises(ConfigError, match="env_args must be a JSON object"):
        pl.ATGRPOConfig(env_args={"size": object()})


WRONG: dict[str, Any] = {
    "a number as model": (lambda: {"model": 3}, "model must be a name, a folder or a causal model"),
    "a model that vLLM cannot have": (
        lambda: {"model": torch.nn.Linear(2, 2), "args": pl.ATGRPOConfig(sampler="vllm")},
        "vLLM loads a model by its name",
    ),
    "a plain module as model": (
        lambda: {"model": torch.nn.Linear(2, 2)},
        "model must be .* got a Linear",
    ),
    "settings of TRL": (
        lambda: {"args": object.__new__(GRPOConfig)},
        "args must be an ATGRPOConfig, got a GRPOConfig",
    ),
    "a data set": (lambda: {"train_dataset": []}, "no argument 'train_dataset'; use env"),
    "a tokenizer by its old name": (lambda: {"tokenizer": None}, "use processing_class"),
    "a setting": (lambda: {"max_steps": 3}, r"it is a setting: args=ATGRPOConfig\(max_steps=...\)"),
    "a misspelling": (lambda: {"polices": "shared"}, "'polices'; did you mean 'policies'"),
    "a word as tokenizer": (lambda: {"processing_class": "gpt2"}, "must be a tokenizer"),
    "no estimator": (lambda: {"method": int}, "method must be a Method"),
    "no callback": (lambda: {"callbacks": [print]}, "callbacks takes pettingllms.Callback"),
    "no function": (lambda: {"reward_funcs": [3]}, "reward_funcs takes functions or their paths"),
    "an unknown environment": (lambda: {"env": "codng"}, "did you mean 'coding'"),
    "an unknown role": (lambda: {"policies": {"codr": "a"}}, "unknown role 'codr'"),
    "a number as environment": (lambda: {"env": 3}, "env must be a name, a PettingZoo AECEnv"),
    "DoRA": (lambda: {"peft_config": LoraConfig(use_dora=True)}, "use_dora=True is not supported"),
    "a dictionary for PEFT": (lambda: {"peft_config": {"r": 8}}, "must be a peft.LoraConfig"),
    "two ranks": (
        lambda: {"peft_config": LoraConfig(r=8), "args": pl.ATGRPOConfig(lora_r=4)},
        "lora_r is given twice: 8 to the trainer, 4 in its settings",
    ),
    "a foreign environment with reward functions": (
        lambda: {"env": foreign_env.env, "reward_funcs": brevity},
        "reward_funcs are for environments that are a TextEnv",
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_argument_is_one_clear_error(call: str) -> None:
    inputs, says = WRONG[call]
    with pytest.raises(PettingLLMsError, match=says):
        pl.ATGRPOTrainer(**inputs())


@pytest.mark.slow
def test_a_model_without_a_name_needs_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    trainer = pl.ATGRPOTrainer(tiny_model(), LETTERS, settings(tmp_path / "run"))
    with pytest.raises(ConfigError, match="give it as processing_class"):
        trainer.train()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options: dict[str, Any] = {"args": settings(tmp_path / "run"), "processing_class": tokenizer}
    assert pl.ATGRPOTrainer(tiny_model(), LETTERS, **options).train().finished


def test_settings_by_another_name_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'max_step'; did you mean 'max_steps'"):
        pl.ATGRPOConfig(max_step=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'model_name_or_path'; use model"):
        pl.ATGRPOConfig(model_name_or_path="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("method", ["gspo", Gspo])
def test_a_method_sets_the_same_as_in_settings_and_explicit_ones_go_over_it(method: Any) -> None:
    named = pl.ATGRPOTrainer(args=pl.ATGRPOConfig(env="plan_path", method="gspo")).args
    given = pl.ATGRPOTrainer(env="plan_path", method=method).args
    for args in (named, given):
        assert (args.loss_type, args.importance_sampling_level) == ("grpo", "sequence")
    explicit = pl.ATGRPOConfig(env="plan_path", loss_type="sapo")
    assert pl.ATGRPOTrainer(args=explicit, method=method).args.loss_type == "sapo"
    explicit = pl.ATGRPOConfig(
        env="plan_path", method="gspo", loss_type="dapo", importance_sampling_level="token"
    )
    assert pl.ATGRPOTrainer(args=explicit, method="gspo").args.loss_type == "dapo"


@pytest.mark.slow
def test_a_callback_of_transformers_is_told_what_happens_and_ends_training(
    folder: Path, tmp_path: Path
) -> None:
    counting = Counting()
    trainer = pl.ATGRPOTrainer(
        folder, LETTERS, settings(tmp_path / "run", max_steps=5), callbacks=counting
    )
    assert trainer.train().step == 2
    trainer.close()
    assert counting.told == [
        ("begin", 0.01, 5),
        ("step", 0),
        ("before", True),
        ("before", True),
        ("stepped", 1),
        ("log", True),
        ("step", 1),
        ("stepped", 2),
        ("log", True),
        ("save", True),
        ("after", True),
        ("after", True),
        ("end", 2),
    ]


@pytest.mark.slow
def test_a_resumed_trainer_ends_where_an_uninterrupted_one_does(
    folder: Path, tmp_path: Path
) -> None:
    class Stop(pl.Callback):
        def on_step(self, trainer: pl.ATGRPO, row: Any) -> bool:
            return trainer.step == 1

    ends = []
    for run, callbacks in (("one", []), ("two", [Stop()])):
        config = settings(tmp_path / run, max_steps=2, save_steps=1, eval_tasks=0)
        trainer = pl.ATGRPOTrainer(model_of(folder), LETTERS, config, callbacks=callbacks)
        trainer.train()
        if callbacks:
            trainer = pl.ATGRPOTrainer(model_of(folder), LETTERS, config)
            with pytest.raises(
                RunFolderError, match=r"holds a run already; .* train\(resume=.* output_dir"
            ) as e:
                trainer.train()
            assert "--" not in str(e.value), "advice for the command line"
            with pytest.raises(ConfigError, match="'resume_from_checkpoint'; use resume"):
                trainer.train(resume_from_checkpoint=True)
            assert trainer.train(resume=tmp_path / run).step == 2
        ends.append(trainer.policies.state("writer"))
    assert all(value.equal(ends[1][name]) for name, value in ends[0].items())


# Reward functions


def last_rewards(run: Path) -> list[Any]:
    rows = (run / "trajectories.jsonl").read_text().splitlines()
    episodes = [Trajectory.from_row(json.loads(row)) for row in rows]
    return [c for trajectory in episodes for group in trajectory.groups for c in group.candidates]


@pytest.mark.slow
def test_reward_functions_add_to_the_local_reward_and_are_recorded(
    folder: Path, tmp_path: Path
) -> None:
    TOLD.clear()
    for run, functions in (("plain", None), ("paid", PAID)):
        config = settings(tmp_path / run, reward_funcs=functions, max_completion_length=8)
        pl.ATGRPOTrainer(folder, LETTERS, config).train()
    plain, paid = (last_rewards(tmp_path / run) for run in ("plain", "paid"))
    first = [
        (left, right)
        for left, right in zip(plain, paid, strict=True)
        if left.completion.text == right.completion.text
    ]
    assert len(first) >= 2, "before the first update the same is sampled"
    for left, right in first:
        length = len(left.completion.text)
        assert right.local_reward == pytest.approx(left.local_reward - length)
        assert right.team_reward == left.team_reward
        assert right.info["rewards/brevity"] == -length
    sampled = {candidate.completion.token_ids for candidate in paid}
    told = {tuple(ids) for _, completions, *_ in TOLD for ids in completions}
    assert told == sampled
    steps = json.loads((tmp_path / "paid" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert {(step, most) for *_, step, most in TOLD} == {(n, steps) for n in range(steps)}


@pytest.mark.parametrize("name", ["math", "coding", "search"])
def test_reward_functions_get_the_columns_of_the_task(name: str) -> None:
    env = pl.make(name)
    env.reset(seed=1)
    columns: dict[str, Any] = {}

    def function(completions: list[str], **kwargs: Any) -> list[None]:
        columns.update(kwargs)
        return [None] * len(completions)

    env.reward_funcs = [function]
    env.branch(["a", "b"])
    assert columns["question"][0] == columns["question"][1] in columns["prompts"][0]
    assert columns["completion_ids"] == [None, None]
    assert {"id", "difficulty"} <= columns.keys()


@pytest.mark.parametrize("values", [[1.0], [1.0, "x"], 3, None], ids=str)
def test_a_reward_function_that_returns_something_else_is_named(values: Any) -> None:
    env = letters_env.env()
    env.reset(seed=1)
    env.reward_funcs = [lambda **kwargs: values]
    with pytest.raises(ConfigError, match="must return a list with a number, or None, for each"):
        env.branch(["a", "b"])


def test_a_path_to_no_reward_function_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'brevity'"):
        pl.ATGRPOTrainer(env=LETTERS, reward_funcs="tests.test_trainer:brevty")
