"""The Python front door: `import pettingllms as pl`, and the trainer with parts of one's own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pettingllms as pl
from pettingllms.envs.base import Outcome
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from tests import letters_env, rows_env
from tests.tiny_lm import save_tiny, tiny_config

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


def small(model: Path, **more: Any) -> dict[str, Any]:
    """Settings of a run of seconds."""
    return {
        "model": model,
        "device": "cpu",
        "lora_r": 2,
        "num_generations": 4,
        "tasks_per_step": 2,
        "max_completion_length": 4,
        "max_steps": 3,
        "eval_tasks": 2,
        "eval_steps": 0,
        "warmup_steps": 0,
        "learning_rate": 0.01,
        **more,
    }


# A reward, a method, and a callback of one's own, as on the pages of the docs.


class VowelEnv(letters_env.raw_env):
    """Rewards each completion for its share of vowels."""

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        share = sum(letter in "aeiou" for letter in text) / max(1, len(text))
        return Outcome((*state, text[:8]), team=share, local=len(text) % 3, success=share > 0.5)


class AboveTheBest(pl.Method):
    """Compares every completion with the best one of its group."""

    tree = True

    def advantages(self, groups: Any) -> list[Any]:
        best = [max(candidate.reward for candidate in group.candidates) for group in groups]
        pairs = zip(groups, best, strict=True)
        return [candidate.reward - top for group, top in pairs for candidate in group.candidates]


class StopAfterTwo(pl.Callback):
    """Ends training after its second step."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_step(self, trainer: pl.ATGRPO, row: Mapping[str, Any]) -> bool:
        self.seen.append(("step", trainer.step))
        return trainer.step == 2

    def on_evaluation(self, trainer: pl.ATGRPO, row: Mapping[str, Any]) -> None:
        self.seen.append((row["when"], row["eval/success"]))

    def on_save(self, trainer: pl.ATGRPO, folder: Path) -> None:
        self.seen.append(("save", folder.name))


@pytest.mark.slow
def test_the_algorithm_takes_a_reward_and_an_estimator_by_hand(model: Path) -> None:
    policies = load_policies(model, {"writer": "a", "reader": "b"}, lora_r=2)
    before = {name: policies.state(name) for name in policies.names}
    config = pl.ATGRPOConfig(max_steps=9, tasks_per_step=2, num_generations=4, learning_rate=0.01)
    trainer = pl.ATGRPO(config, VowelEnv(max_turns=1), policies, AboveTheBest)
    for _ in range(2):
        trainer.train_step()
    assert trainer.config.max_completion_length == 96, "open values follow from the model"
    assert any(
        not value.equal(before[name][key])
        for name in policies.names
        for key, value in policies.state(name).items()
    )


# A whole run


@pytest.mark.slow
def test_a_callback_sees_steps_evaluations_and_checkpoints_and_ends_the_run(
    model: Path, tmp_path: Path
) -> None:
    stop, run = StopAfterTwo(), tmp_path / "run"
    summary = pl.train(
        VowelEnv,
        method=AboveTheBest,
        callbacks=[stop],
        output_dir=run,
        env_args={"max_turns": 1},
        **small(model, max_steps=3),
    )
    assert [name for name, _ in stop.seen] == ["before"] * 2 + ["step"] * 2 + [
        "save",
        "after",
        "after",
    ]
    assert stop.seen[4] == ("save", "step-000002")
    assert summary.finished
    assert summary.step == 2
    evaluation = pl.evaluate(adapters=summary, limit=2, base=False)
    assert evaluation.success == summary.after[0].scores["success"]
    assert evaluation.teams.keys() == {"adapters"}
    assert evaluation.success is not None
    assert evaluation.success.low <= evaluation.success.mean <= evaluation.success.high
    assert pl.train(VowelEnv, resume=summary).step == 3


def test_what_is_no_callback_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    given: Any = [3]
    with pytest.raises(ConfigError, match=r"callbacks takes .*got 3"):
        pl.train("coding", callbacks=given, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_environment_a_class_and_a_function_play_alike(model: Path) -> None:
    settings = small(model)
    sources: list[Any] = [
        "tests.letters_env:env",
        letters_env.env,
        letters_env.raw_env,
        functools.partial(letters_env.raw_env, max_turns=4),
        letters_env.env(split="test"),
    ]
    kept = ("model", "device", "max_completion_length")
    shared = {name: settings[name] for name in kept}
    scores = [pl.evaluate(source, limit=2, **shared).teams["base"].scores for source in sources]
    assert all(result == scores[0] for result in scores)


def test_held_out_tasks_of_an_environment_itself_are_not_those_of_training(model: Path) -> None:
    shared: dict[str, Any] = {"model": model, "device": "cpu", "max_completion_length": 2}
    result = pl.evaluate(letters_env.env(split="train"), limit=2, **shared)
    assert all(task.seed >= 1 << 31 for task in result.plan.tasks)
    with pytest.raises(ConfigError, match="holds the split 'train' of a data set, not 'test'"):
        pl.evaluate(rows_env.env(dataset="rows"), **shared)
    with pytest.raises(ConfigError, match="takes no alpha"):
        pl.evaluate(letters_env.env(), alpha=0.5, **shared)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="'max_step'; did you mean 'max_steps'"):
        pl.train(env="coding", max_step=3)
    with pytest.raises(ConfigError, match="own settings; leave out seed"):
        pl.train(resume="runs/x", seed=3)
    with pytest.raises(ConfigError, match="'limi'; did you mean 'limit'"):
        pl.evaluate(env="coding", limi=3)
    with pytest.raises(ConfigError, match="no hook 'on_steps'; did you mean 'on_step'"):
        type("Misspelt", (pl.Callback,), {"on_steps": None})


# The module


@pytest.mark.slow
def test_the_package_loads_nothing_and_environments_no_deep_learning_library() -> None:
    code = """
import json, sys
before = set(sys.modules)
import pettingllms as pl
heavy = {name.partition(".")[0] for name in set(sys.modules) - before}
names = dir(pl)
for name in ("coding", "duet", "math", "plan_path", "read", "search", "sokoban", "sudoku"):
    pl.make(name).reset(seed=0)
pl.check_env, pl.open_sandbox
deep = sorted({"torch", "transformers", "trl", "peft", "vllm", "ray"} & set(sys.modules))
print(json.dumps([sorted(heavy & {"torch", "pettingzoo", "numpy", "yaml"}), deep, names]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    heavy, deep, names = json.loads(done.stdout.splitlines()[-1])
    assert heavy == []
    assert deep == []
    assert set(pl.__all__) <= set(names)


def test_help_shows_the_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    help(pl)
    assert "pl.train(" in capsys.readouterr().out


@pytest.mark.parametrize("name", pl.__all__)
def test_every_name_of_the_front_door_is_there(name: str) -> None:
    assert getattr(pl, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trains'"):
        pl.trains  # noqa: B018
