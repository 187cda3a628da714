"""Checkpoints: resuming is exact, a full disk or a damaged file loses nothing."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch

from pettingllms.errors import RunFolderError
from pettingllms.policies.loading import load_policies
from pettingllms.runs import (
    METRICS,
    TRAJECTORIES,
    RunFolder,
    checkpoints,
)
from pettingllms.trainers.at_grpo import ATGRPOTrainer
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests import letters_env
from tests.tiny_lm import save_tiny

CONFIG = resolve(
    ATGRPOConfig(
        env="tests.letters_env:env",
        num_generations=4,
        tasks_per_step=2,
        max_steps=6,
        max_completion_length=6,
        learning_rate=0.01,
    )
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def new_trainer(model: Path, config: ATGRPOConfig = CONFIG) -> ATGRPOTrainer:
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    return ATGRPOTrainer(config, letters_env.env(max_turns=2), policies)


def weights(trainer: ATGRPOTrainer) -> dict[str, torch.Tensor]:
    policies = trainer.policies
    return {
        f"{policy}/{name}": tensor
        for policy in policies.names
        for name, tensor in policies.state(policy).items()
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def new_folder(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.describe(CONFIG)
    return folder


def test_a_resumed_trainer_goes_on_exactly_and_its_logs_are_cut_back(
    model: Path, tmp_path: Path
) -> None:
    trainer = new_trainer(model)
    start = weights(trainer)
    with new_folder(tmp_path / "run") as folder:
        for step in range(1, 5):
            trainer.train_step()
            folder.append(METRICS, [{"step": step}])
            folder.append(TRAJECTORIES, [{"step": step, "text": "ä\ud800"}])
            if step == 2:
                checkpoints.save(folder, trainer)
    end = weights(trainer)
    assert not any(torch.equal(start[name], end[name]) for name in start if "lora_B" in name), (
        "the steps must change the weights, or this test shows nothing"
    )

    twin = new_trainer(model)
    with RunFolder.reopen(tmp_path / "run") as folder:
        assert checkpoints.resume(folder, twin) == twin.step == 2
        assert folder.rows(METRICS) == [{"step": 1}, {"step": 2}]
        assert [row["text"] for row in folder.rows(TRAJECTORIES)] == ["ä\ud800"] * 2
    assert twin.policies.versions == {"writer": 2, "reader": 2}
    twin.train_step()
    twin.train_step()
    assert_same(weights(twin), end)


def test_a_budget_of_tokens_is_resumed_where_it_was(model: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_tokens=500, max_steps=100)
    trainer, twin = new_trainer(model, config), new_trainer(model, config)
    with new_folder(tmp_path / "run") as folder:
        for _ in range(2):
            trainer.train_step()
        checkpoints.save(folder, trainer)
        assert 0 < trainer.tokens < 500
        checkpoints.resume(folder, twin)
    assert twin.tokens == trainer.tokens
    for each in (trainer, twin):
        each.train_step()
    assert_same(weights(twin), weights(trainer))
    rates = [each.schedulers["writer"].get_last_lr() for each in (trainer, twin)]
    assert rates[0] == rates[1] < [config.learning_rate]


def test_what_an_estimator_learned_is_part_of_a_checkpoint(model: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, estimator="tests.own_estimator:RunningMean")
    trainer, twin = new_trainer(model, config), new_trainer(model, config)
    with new_folder(tmp_path / "run") as folder:
        trainer.train_step()
        checkpoints.save(folder, trainer)
        checkpoints.resume(folder, twin)
    assert twin.estimator.state_dict() == trainer.estimator.state_dict() != {"total": 0, "count": 0}
    for each in (trainer, twin):
        each.train_step()
    assert_same(weights(twin), weights(trainer))


def test_the_last_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        for _ in range(3):
            trainer.train_step()
            checkpoints.save(folder, trainer)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000002", "step-000003"]
    end = weights(trainer)
    damaged = tmp_path / "run" / "checkpoints" / "step-000003" / "optimizer-reader.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    twin = new_trainer(model)
    with RunFolder.reopen(tmp_path / "run") as folder:
        assert checkpoints.resume(folder, twin) == 2
        assert "step-000003" in caplog.text
        twin.train_step()
        checkpoints.save(folder, twin)
        assert_same(weights(twin), end)
        assert checkpoints.resume(folder, new_trainer(model)) == 3
    for name in ("step-000002", "step-000003"):
        (tmp_path / "run" / "checkpoints" / name / "state.json").write_text("{}")
    with (
        RunFolder.reopen(tmp_path / "run") as folder,
        pytest.raises(RunFolderError, match="no checkpoint"),
    ):
        checkpoints.resume(folder, twin)


def test_a_checkpoint_cannot_run_code(model: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "pwned"),)

    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        path = checkpoints.save(folder, trainer)
        torch.save(Evil(), path / "optimizer-writer.pt")
        with pytest.raises(RunFolderError):
            checkpoints.resume(folder, trainer)
    assert not (tmp_path / "pwned").exists()


def test_restore_undoes_a_step_completely(model: Path) -> None:
    trainer = new_trainer(model)
    trainer.train_step()
    state, before = checkpoints.capture(trainer), weights(trainer)
    trainer.train_step()
    after = weights(trainer)
    checkpoints.restore(trainer, state)
    assert_same(weights(trainer), before)
    trainer.train_step()
    assert_same(weights(trainer), after)
    checkpoints.restore(trainer, state)  # the state was not used up by the first time
    trainer.train_step()
    assert_same(weights(trainer), after)


def test_a_full_disk_leaves_the_last_checkpoint_and_the_logs_usable(
    model: Path, tmp_path: Path
) -> None:
    trainer = new_trainer(model)
    folder = new_folder(tmp_path / "run")
    trainer.train_step()
    folder.append(METRICS, [{"step": 1}])
    checkpoints.save(folder, trainer)
    good = weights(trainer)
    trainer.train_step()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file may grow beyond
    try:
        with pytest.raises(RunFolderError, match=r"cannot write .*--resume"):
            checkpoints.save(folder, trainer)
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
            folder.append(METRICS, [{"step": 2, "text": "x" * 5000}])
        with pytest.raises(RunFolderError, match=r"summary\.md"):
            folder.write("summary.md", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "run" / METRICS).stat().st_size == 1000, "a line was half-written"
    folder.close()
    twin = new_trainer(model)
    with RunFolder.reopen(tmp_path / "run") as folder:
        assert checkpoints.resume(folder, twin) == 1
        assert folder.rows(METRICS) == [{"step": 1}]
    assert_same(weights(twin), good)
    left = [path.name for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")]
    assert left == [".lock"]


def test_a_small_disk_that_is_really_full_is_named(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        trainer = new_trainer(model)
        trainer.train_step()
        with (
            new_folder(disk / "run") as folder,
            pytest.raises(RunFolderError, match="No space left on device"),
        ):
            checkpoints.save(folder, trainer)
        assert list((disk / "run" / "checkpoints").iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
