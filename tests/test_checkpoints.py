"""Checkpoints: resuming is exact, a full disk or a damaged file loses nothing."""

from __future__ import annotations

import dataclasses
import json
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
from pettingllms.trainers.at_grpo import ATGRPO
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


def new_trainer(model: Path, config: ATGRPOConfig = CONFIG) -> ATGRPO:
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    return ATGRPO(config, letters_env.env(max_turns=2), policies)


def with_a_resumed_twin(model: Path, config: ATGRPOConfig, run: Path) -> tuple[ATGRPO, ATGRPO]:
    """Two trainers after six steps, of which the second resumed from the first one's third."""
    trainer, twin = new_trainer(model, config), new_trainer(model, config)
    resume_twin(trainer, twin, run, steps=3)
    return trainer, twin


def resume_twin(trainer: ATGRPO, twin: ATGRPO, run: Path, steps: int) -> None:
    """Lets `twin` go on from what `trainer` saves after so many steps; both make as many more."""
    with new_folder(run) as folder:
        for _ in range(steps):
            trainer.train_step()
        checkpoints.save(folder, trainer)
        checkpoints.resume(folder, twin)
    for learner in (trainer, twin):
        for _ in range(steps):
            learner.train_step()


def weights(trainer: ATGRPO) -> dict[str, torch.Tensor]:
    policies = trainer.policies
    return {
        f"{policy}/{name}": tensor
        for policy in policies.names
        for name, tensor in policies.state(policy).items()
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def reseal(checkpoint: Path) -> None:
    """Makes changed files those that were written, as somebody would who knows how."""
    facts = json.loads((checkpoint / "state.json").read_text())
    del facts["digest"], facts["files"]
    checkpoints.seal(checkpoint, facts)


def new_folder(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.describe(CONFIG)
    return folder


@pytest.mark.slow
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


@pytest.mark.slow
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
    for learner in (trainer, twin):
        learner.train_step()
    assert_same(weights(twin), weights(trainer))
    rates = [learner.schedulers["writer"].get_last_lr() for learner in (trainer, twin)]
    assert rates[0] == rates[1] < [config.learning_rate]


@pytest.mark.slow
def test_what_an_estimator_learned_is_part_of_a_checkpoint(model: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, method="tests.own_estimator:RunningMean")
    trainer, twin = new_trainer(model, config), new_trainer(model, config)
    with new_folder(tmp_path / "run") as folder:
        trainer.train_step()
        checkpoints.save(folder, trainer)
        checkpoints.resume(folder, twin)
    assert twin.method.state_dict() == trainer.method.state_dict() != {"total": 0, "count": 0}
    for learner in (trainer, twin):
        learner.train_step()
    assert_same(weights(twin), weights(trainer))


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["policy-writer.safetensors", "optimizer-reader.pt", "state.json"])
def test_a_flipped_bit_in_any_file_is_noticed(
    model: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        checkpoints.save(folder, trainer)
        trainer.train_step()
        path = checkpoints.save(folder, trainer) / name
        content = bytearray(path.read_bytes())
        # The last byte of weights is part of a tensor, which any reader takes.
        place = len(content) - 1
        if name == "state.json":  # a digit of a number
            place = content.index(b",", content.index(b'"tokens": ')) - 1
        content[place] ^= 1
        path.write_bytes(content)
        assert checkpoints.resume(folder, new_trainer(model)) == 0
    assert f"{name} is not what was written" in caplog.text


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "3", '{"format": 3}', '{"format": 1}', '{"format": []}', "\xff"]
)
def test_a_broken_state_is_passed_over_or_named(model: Path, tmp_path: Path, text: str) -> None:
    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        path = checkpoints.save(folder, trainer)
        (path / "state.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(RunFolderError, match=r"no checkpoint in .* can be read"):
            checkpoints.resume(folder, trainer)


def test_another_base_model_is_noticed(model: Path, tmp_path: Path) -> None:
    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        checkpoints.save(folder, trainer)
        other = new_trainer(save_tiny(tmp_path / "other", seed=5))
        with pytest.raises(RunFolderError, match=r"base model .*other.* is not the one"):
            checkpoints.resume(folder, other)


@pytest.mark.slow
def test_changed_settings_are_said_or_refused(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        checkpoints.save(folder, trainer)
        longer = new_trainer(model, dataclasses.replace(CONFIG, max_steps=9))
        assert checkpoints.resume(folder, longer) == 0
        assert "is followed from here on: max_steps was 6 and is 9" in caplog.text
        for change in ({"learning_rate": 0.5}, {"beta": 0.1}, {"seed": 3}, {"env": "coding"}):
            twin = new_trainer(model, dataclasses.replace(CONFIG, **change))
            name, value = next(iter(change.items()))
            with pytest.raises(RunFolderError, match=rf"{name} was .* and is {value!r}; undo this"):
                checkpoints.resume(folder, twin)
    assert all(name in vars(CONFIG) for name in checkpoints.CHANGEABLE)


def test_a_checkpoint_cannot_run_code(model: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "pwned"),)

    trainer = new_trainer(model)
    with new_folder(tmp_path / "run") as folder:
        path = checkpoints.save(folder, trainer)
        torch.save(Evil(), path / "optimizer-writer.pt")
        reseal(path)
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
