"""A whole run: what it leaves behind, and that stopping, dying and failing lose nothing."""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError, NonFiniteError, RunFolderError, SandboxUnavailable
from pettingllms.evaluation.plots import curves, smooth
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import read_config
from pettingllms.session import Summary
from pettingllms.session import run_training as train
from pettingllms.trainers.callbacks import Silent
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch
from tests import rows_env
from tests.tiny_lm import save_tiny, tiny_config

STEPS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: what a run keeps of itself does not depend on how deep its model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


def settings(model: Path, **changes: Any) -> ATGRPOConfig:
    values: dict[str, Any] = {
        "env": "tests.letters_env:env",
        "env_args": '{"max_turns": 2}',
        "model": str(model),
        "device": "cpu",
        "lora_r": 4,
        "max_steps": STEPS,
        "num_generations": 4,
        "tasks_per_step": 2,
        "max_completion_length": 6,
        "learning_rate": 0.01,
        "warmup_steps": 0,
        "eval_tasks": 3,
        "eval_steps": 2,
        "save_steps": 2,
    }
    return ATGRPOConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train(settings(model, output_dir=str(folder), report_to="tensorboard"))


def assert_equal_runs(one: Path, other: Path) -> None:
    """Adapters and trees byte for byte; metrics but for measured times."""
    files = [path.relative_to(one) for path in sorted((one / "adapters").rglob("*.*"))]
    assert {path.parts[1] for path in files} == {"writer", "reader"}
    for path in [*files, Path("trajectories.jsonl"), Path("summary.json"), Path("curves.png")]:
        assert filecmp.cmp(one / path, other / path, shallow=False), path
    assert timeless(one) == timeless(other)


def timeless(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k != "tokens_per_second"}
        for row in rows
    ]


# ------------------------------------------------------------------------------ a whole run


@pytest.mark.slow
def test_a_run_leaves_everything_that_it_promises(whole: Summary) -> None:
    assert whole.finished
    assert whole.step == STEPS
    names = {path.name for path in whole.folder.iterdir()}
    assert names >= {
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "trajectories.jsonl",
        "summary.md",
        "summary.json",
        "curves.png",
        "adapters",
        "checkpoints",
        "tensorboard",
    }
    rows = timeless(whole.folder)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]
    evaluations = [
        (row["when"], row["step"], row["greedy"]) for row in rows if row["kind"] == "eval"
    ]
    assert evaluations == [
        ("before", 0, False),
        ("before", 0, True),
        ("validation", 0, False),
        ("validation", 2, False),
        ("validation", 4, False),
        ("after", 4, False),
        ("after", 4, True),
    ]
    assert (whole.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert any((whole.folder / "tensorboard").iterdir())
    assert "| team | success | sampled |" in (whole.folder / "summary.md").read_text()
    assert whole.next.startswith("pettingllms-eval --env tests.letters_env:env --adapters ")


@pytest.mark.slow
def test_what_was_shown_is_kept_and_a_run_prints_one_line(whole: Summary) -> None:
    shown = (whole.folder / "console.log").read_text()
    assert f"starting; run folder {whole.folder}" in shown
    assert f"step {STEPS}/{STEPS}  success: mean " in shown
    line = f"in step {STEPS} of training: success "
    assert line in shown
    assert line in (whole.folder / "summary.md").read_text()
    text = repr(whole)
    assert text.startswith(f"Summary({str(whole.folder)!r}, finished after step {STEPS}, success ")
    assert len(text.splitlines()) == len(repr(whole.after[0]).splitlines()) == 1
    assert repr(whole.after[1]).startswith("Evaluation(3 tasks, greedy, success ")


@pytest.mark.slow
def test_a_run_without_evaluations_says_when_there_is_nothing_to_learn_from(
    model: Path, tmp_path: Path
) -> None:
    assert resolve(ATGRPOConfig(eval_steps=0)).eval_tasks == 0
    few = {"temperature": 1e-3, "tasks_per_step": 1, "max_steps": 6, "max_completion_length": 2}
    folder = tmp_path / "run"
    summary = train(settings(model, eval_tasks=0, output_dir=str(folder), **few))
    assert summary.finished
    assert not [*summary.before, *summary.after]
    rows = timeless(folder)
    assert [row["kind"] for row in rows] == ["train"] * 6
    # So cold that all completions of a group are the same.
    assert all(row["frac_reward_zero_std"] == 1 for row in rows)
    assert all(row["success_mean"] == row["success"] for row in rows)
    shown = (folder / "console.log").read_text()
    assert "silent groups 100%" in shown
    assert shown.count("warning: 5 steps in a row had nothing to learn from") == 1
    assert (folder / "curves.png").is_file()
    with pytest.raises(ConfigError, match="eval_tasks"):
        plan_run(settings(model, eval_tasks=0, push_to_hub="me/mine"))


def test_no_group_at_all_counts_as_nothing_to_learn_from() -> None:
    assert PolicyBatch((), 0, 0).metrics["frac_reward_zero_std"] == 1
    assert PolicyBatch((), 0, 0, groups=4, silent=1).metrics["frac_reward_zero_std"] == 0.25


@pytest.mark.slow
def test_a_validation_says_how_much_more_first_replies_earned_in_training(whole: Summary) -> None:
    rows = timeless(whole.folder)
    first, *later = [row for row in rows if row.get("when") == "validation"]
    assert not any(name.startswith("gap/") for name in first)
    for row in later:
        steps = [
            r for r in rows if r["kind"] == "train" and row["step"] - 2 < r["step"] <= row["step"]
        ]
        for role in ("writer", "reader"):
            earned = [step[f"first_local_reward/{role}"] for step in steps]
            held_out = row[f"eval/{role}/first_local_reward"]
            assert row[f"gap/{role}"] == pytest.approx(sum(earned) / len(earned) - held_out)


@pytest.mark.slow
def test_a_run_reads_its_data_set_once_a_split(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_env, "READ", [])
    few = {"max_steps": 1, "eval_steps": 1, "eval_tasks": 1, "max_completion_length": 2}
    arguments = json.dumps({"dataset": "rows", "max_turns": 1})
    train(
        settings(
            model,
            env="tests.rows_env:env",
            env_args=arguments,
            output_dir=str(tmp_path / "run"),
            **few,
        )
    )
    assert rows_env.READ == ["rows"] * 3  # train, val and test: five evaluations


def test_trajectories_hold_every_decision_with_its_candidates(whole: Summary) -> None:
    rows = [
        json.loads(line) for line in (whole.folder / "trajectories.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [step for step in range(1, STEPS + 1) for _ in "ab"]
    assert all(Trajectory.from_row(row).returns == row["returns"] for row in rows)
    decisions = [decision for row in rows for decision in row["decisions"]]
    assert len(decisions) == STEPS * 2 * 2 * 2  # tasks, turns, roles
    for row in decisions:
        candidates = row["candidates"]
        assert len(candidates) == 4
        assert sum(candidate["chosen"] for candidate in candidates) == 1
        assert all(
            c["reward"] == pytest.approx(c["team_reward"] + c["local_reward"]) for c in candidates
        )
        assert sum(c["advantage"] for c in candidates) == pytest.approx(0, abs=1e-4)
        assert row["policy"] == row["role"]
        assert f"{row['role']}_0: " in row["prompt"]
        assert all(len(c["token_ids"]) <= 6 and c["logprob"] < 0 for c in candidates)
    best = [max(c["reward"] for c in row["candidates"]) for row in decisions]
    chosen = [next(c["reward"] for c in row["candidates"] if c["chosen"]) for row in decisions]
    assert chosen == best


def test_adapters_load_with_plain_peft_and_differ_from_the_base(
    whole: Summary, model: Path
) -> None:
    ids = torch.tensor([[1, 5, 9, 30]])
    base = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        before = base(ids).logits
        for policy in ("writer", "reader"):
            fresh = AutoModelForCausalLM.from_pretrained(model)
            adapted = PeftModel.from_pretrained(fresh, str(whole.folder / "adapters" / policy))
            assert not torch.equal(adapted(ids).logits, before)


# ------------------------------------------------------------------- stopped, killed, failed


class KillAfterStep3(Silent):
    def step(self, step: int, total: int, row: Any) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(whole: Summary, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = dataclasses.replace(read_config(whole.folder), output_dir=str(run))
    killed = multiprocessing.get_context("fork").Process(
        target=train, args=(config,), kwargs={"display": KillAfterStep3()}
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert [row["step"] for row in timeless(run) if row["kind"] == "train"] == [1, 2, 3]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    resumed = train(resume=run)
    assert resumed.finished
    assert resumed.before == whole.before
    assert resumed.after == whole.after
    assert_equal_runs(run, whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0)])
def test_evaluations_may_begin_or_end_where_a_run_is_resumed(
    model: Path, tmp_path: Path, first: int, then: int
) -> None:
    run = tmp_path / "run"
    train(settings(model, output_dir=str(run), eval_tasks=first, eval_steps=0, max_steps=1))
    values = yaml.safe_load((run / "config.yaml").read_text()) | {
        "eval_tasks": then,
        "max_steps": 2,
    }
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert train(resume=run).finished
    assert (run / "summary.md").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("named", ["dataset", "env_args"])
def test_data_that_were_edited_are_those_of_another_run(tmp_path: Path, named: str) -> None:
    data, run = tmp_path / "mine.jsonl", tmp_path / "run"
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    data.write_text("\n".join(map(json.dumps, rows)))
    asked: Any = f"{data}?divide" if named == "dataset" else {"dataset": f"{data}?divide"}
    few: dict[str, Any] = {
        "max_steps": 1,
        "tasks_per_step": 2,
        "num_generations": 2,
        "eval_steps": 0,
    }
    few |= {"env": "math", named: asked, "max_completion_length": 4, "output_dir": str(run)}
    train(ATGRPOConfig(**few))
    values = yaml.safe_load((run / "config.yaml").read_text()) | {"max_steps": 2}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    data.write_text(data.read_text().replace("+ 1?", "+ 1 ?", 1).replace("What is 5", "What was 5"))
    with pytest.raises(RunFolderError, match="the data of dataset are not what they were"):
        train(resume=run)


def stop_at_question(number: int) -> Callable[[], bool]:
    questions = itertools.count(1)
    return lambda: next(questions) >= number


@pytest.mark.slow
@pytest.mark.parametrize("question", [12, 17, 18, 33])
def test_a_run_stopped_anywhere_goes_on_as_if_it_had_not_been(
    whole: Summary, model: Path, tmp_path: Path, question: int
) -> None:
    run = tmp_path / "run"
    config = settings(model, output_dir=str(run), report_to="tensorboard")
    stopped = train(config, stop=stop_at_question(question))
    assert not stopped.finished
    if stopped.step:
        assert (run / "checkpoints" / f"step-{stopped.step:06d}").is_dir()
    assert train(resume=run).finished
    assert_equal_runs(run, whole.folder)


@pytest.mark.slow
def test_a_run_that_filled_its_disk_goes_on_once_there_is_space(
    whole: Summary, model: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=180k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with pytest.raises(RunFolderError, match=r"No space left on device.*--resume"):
            train(settings(model, output_dir=str(disk / "run")))
        steps = [row["step"] for row in whole_lines(disk / "run") if row["kind"] == "train"]
        assert steps, "the disk must fill up in the middle, or this test shows nothing"
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        assert train(resume=disk / "run").finished
        assert_equal_runs(disk / "run", whole.folder)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def whole_lines(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(whole: Summary) -> None:
    before = timeless(whole.folder)
    again = train(resume=whole.folder)
    assert again.finished
    assert again.after == whole.after
    assert timeless(whole.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("overflow", NonFiniteError, "returned the advantage -?inf"),
        ("sandbox", SandboxUnavailable, "did not start"),
    ],
)
def test_a_failing_step_leaves_the_state_before_it(
    model: Path, tmp_path: Path, how: str, error: type[Exception], says: str
) -> None:
    failing = {"env": "tests.letters_env:failing", "eval_steps": 0, "save_steps": 100}
    failing["scale_rewards"] = "none"
    arguments = json.dumps({"max_turns": 1, "how": how})
    good = settings(model, **failing, env_args=arguments, output_dir=str(tmp_path / "good"))
    with pytest.raises(error, match=rf"(?s){says}.*after step 2 is saved in .*step-000002"):
        train(good)
    fine = dataclasses.replace(good, max_steps=STEPS, output_dir=str(tmp_path / "fine"))
    stopped = train(
        fine, stop=lambda: (tmp_path / "fine" / "trajectories.jsonl").exists() and two(tmp_path)
    )
    assert stopped.step == 2
    for policy in ("writer", "reader"):
        path = f"adapters/{policy}/adapter_model.safetensors"
        assert filecmp.cmp(tmp_path / "good" / path, tmp_path / "fine" / path, shallow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("updates", "says"),
    [(0, "no step has been saved yet"), (2, r"last checkpoint is in .*step-000001$")],
)
def test_an_update_that_breaks_halfway_names_the_checkpoint_to_go_on_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, says: str
) -> None:
    step, done = torch.optim.AdamW.step, list[object]()

    def breaking(*arguments: Any) -> Any:
        if len(done) == updates:  # two policies make one of a step each
            raise torch.OutOfMemoryError("of this test")
        done.append(arguments)
        return step(*arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", breaking)
    config = settings(model, output_dir=str(tmp_path / "run"), eval_steps=0, save_steps=1)
    with pytest.raises(ConfigError, match=rf"(?s)out of memory.*{says}"):
        train(config)


def two(tmp_path: Path) -> bool:
    rows = timeless(tmp_path / "fine")
    return any(row["kind"] == "train" and row["step"] == 2 for row in rows)


# ------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": "tests.letters_env:environment"}, "environment"),
        ({"policies": "writer=a"}, "reader"),
        ({"train_roles": "writr"}, "writer"),
        ({"env_args": '{"max_turn": 2}'}, "max_turn"),
        ({"dataset": "tasks.jsonl"}, "no argument 'dataset'"),
        ({"report_to": "tensorbord"}, "tensorboard"),
        ({"report_to": "wandb"}, "pip install wandb"),
        ({"adapters": "nowhere"}, "no folder nowhere"),
        ({"model": "nowhere/to-be-found"}, "nowhere/to-be-found"),
    ],
)
def test_settings_that_cannot_be_used_are_named_and_leave_no_folder(
    model: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigError, LookupError), match=says):
        train(settings(**{"model": model, "output_dir": str(tmp_path / "run"), **changes}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_adapters_to_start_from_are_used_and_a_missing_one_is_named(
    whole: Summary, model: Path, tmp_path: Path
) -> None:
    config = settings(model, adapters=str(whole.folder), max_steps=1, eval_steps=0)
    summary = train(dataclasses.replace(config, output_dir=str(tmp_path / "run")))
    assert summary.before == whole.after
    with pytest.raises(ConfigError, match=r"no adapter for the policy 'a'.*reader, writer"):
        train(
            dataclasses.replace(
                config, policies="writer=a,reader=b", output_dir=str(tmp_path / "2")
            )
        )


def test_a_run_needs_settings_or_a_folder_and_not_both(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either"):
        train()
    with pytest.raises(ConfigError, match="either"):
        train(settings(model), resume=tmp_path)
    with pytest.raises(RunFolderError, match="no run folder"):
        train(resume=tmp_path)


@pytest.mark.usefixtures("as_published")
def test_curves_are_drawn_for_any_run_however_short() -> None:
    assert curves([], "nothing yet").startswith(b"\x89PNG")
    only = {"kind": "train", "step": 1, "num_tokens": 5.0, "reward/a": 1.0, "local_reward/a": 1.0}
    assert curves([only | {"success": None}], "no success").startswith(b"\x89PNG")
    assert smooth([3.0]) == [3.0]
    assert smooth([0.0, 1.0] * 20)[20] == pytest.approx(0.5, abs=0.11)
