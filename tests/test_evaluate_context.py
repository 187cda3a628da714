"""A prompt that leaves no room in the model's context: reported, counted, never sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from pettingllms.cli.evaluate import main
from pettingllms.cli.guard import FAILED
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.rollout.trajectory import Overlong, Trajectory
from tests.tiny_lm import save_tiny, tiny_config, tiny_tokenizer

CONTEXT = 160
# PEFT says so of GPT-2's layers, and does what it says.
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with rotary and one with learned positions, which fails beyond its last."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "rotary", config=tiny_config(max_position_embeddings=CONTEXT))
    config = GPT2Config(
        vocab_size=264,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=2,
        eos_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "learned")
    tiny_tokenizer().save_pretrained(folder / "learned")
    return {name: folder / name for name in ("rotary", "learned")}


def words(model: Path, **env_args: Any) -> list[str]:
    arguments = json.dumps(env_args)
    return [*["--env", "tests.long_env:env", "--device", "cpu", "--limit", "4", "--max-completion-length", "8"],
            *["--model", str(model), "--env-args", arguments]]  # fmt: skip


@pytest.mark.parametrize("kind", ["rotary", "learned"])
def test_tasks_that_do_not_fit_are_named_and_count_as_no_success(
    models: dict[str, Path], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words(models[kind], long=[1]), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (warning,) = (line for line in out.splitlines() if line.startswith("warning: "))
    assert "1 of 4 episodes ended early, as no success" in warning
    assert f"exceed the model's context of {CONTEXT}" in warning
    assert "the first is task test:1, where solver_0 is asked with" in warning
    assert "choose a --model with a longer context" in warning

    episodes = read_trajectories(tmp_path)["base"]
    long, *others = sorted(episodes, key=lambda trajectory: trajectory.overlong is None)
    assert long.overlong is not None
    assert long.overlong.prompt_tokens > long.overlong.longest == CONTEXT - 8
    assert not long.groups  # nothing was sampled
    assert all(trajectory.groups and trajectory.overlong is None for trajectory in others)
    assert Trajectory.from_row(json.loads(json.dumps(long.row()))) == long

    written = json.loads((tmp_path / "results.json").read_text())
    scores = written["results"]["base"][0]
    # Every episode that can be played is a success.
    assert (scores["eval/success"], scores["eval/overlong"], scores["eval/return"]) == (
        0.75,
        0.25,
        0.75,
    )
    assert written["success"]["mean"] == 0.75
    assert written["warnings"] == [warning.removeprefix("warning: ")]
    assert warning.removeprefix("warning: ") in (tmp_path / "results.md").read_text()


def test_an_episode_that_grows_beyond_the_context_keeps_what_it_earned(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Task 2 fits at first; the prompt of its second turn does not."""
    assert main([*words(models["learned"], grows=[2]), "--out", str(tmp_path)]) == 0
    assert "the first is task test:2" in capsys.readouterr().out
    (cut,) = (
        trajectory
        for trajectory in read_trajectories(tmp_path)["base"]
        if trajectory.overlong is not None
    )
    assert len(cut.groups) == 1
    assert cut.groups[0].chosen.info["success"] is True  # until then
    assert cut.success is False
    scores = scores_by_task(read_trajectories(tmp_path)["base"])["test:2"]
    assert (scores["return"], scores["success"], scores["overlong"]) == (1.0, 0.0, 1.0)


@pytest.mark.slow
def test_a_shorter_completion_is_advised_where_it_helps(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*words(models["rotary"]), "--max-completion-length"]
    assert main([*argv, str(CONTEXT - 30)]) == FAILED
    err = capsys.readouterr().err
    assert "there is nothing to score: 4 of 4 episodes ended early" in err
    advised = int(err.split("lower --max-completion-length to ")[1].split()[0])
    assert main([*argv, str(advised)]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main([*argv, str(CONTEXT)]) == FAILED
    assert (
        f"leave no room for a prompt in the model's context of {CONTEXT}" in capsys.readouterr().err
    )


def test_no_task_that_fits_is_an_error_and_no_score(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words(models["learned"], long=[0, 1, 2, 3]), "--out", str(tmp_path)]) == FAILED
    err = capsys.readouterr().err
    assert "4 of 4 episodes ended early" in err
    assert "lower --max-completion-length" not in err  # which would not help
    assert not (tmp_path / "results.json").exists()


def test_a_record_without_an_overlong_prompt_is_written_as_before() -> None:
    from pettingllms.types import Task

    row = Trajectory(Task("test:0", 0), 0, ()).row()
    assert "overlong" not in row
    assert Trajectory(Task("t", 0), 0, (), overlong=Overlong("a_0", 9, 5)).row()["overlong"] == {
        "agent": "a_0",
        "prompt_tokens": 9,
        "longest": 5,
    }
