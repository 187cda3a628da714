"""`distill`: every token is compared with what the teacher of its role says, and students come closer to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from tests import letters_env
from tests.test_checkpoints import CONFIG as SMALL
from tests.test_checkpoints import assert_same, resume_twin, weights
from tests.test_estimators_golden import made
from tests.tiny_lm import save_tiny, save_tiny_llama

torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def teacher(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters far from those of new students, and from each other."""
    folder = tmp_path_factory.mktemp("teacher")
    policies = load_policies(model, ROLES, lora_r=4)
    for seed, policy in enumerate(policies.names):
        generator = torch.Generator().manual_seed(seed)
        state = policies.state(policy)
        changed = {n: 0.5 * torch.randn(w.shape, generator=generator) for n, w in state.items()}
        policies.load_state(policy, changed)
        policies.save(policy, folder / policy)
    return folder


def trainer_of(model: Path, policies: dict[str, str] | None = None, **changes: Any) -> ATGRPO:
    config = dataclasses.replace(SMALL, method="distill", model=str(model), **changes)
    loaded = load_policies(model, policies or ROLES, lora_r=4)
    return ATGRPO(config, letters_env.env(max_turns=2), loaded)


def divergence(trajectories: list[Trajectory], role: str) -> float:
    """Mean of log student - log teacher over the tokens that the student wrote."""
    values = [
        value
        for trajectory in trajectories
        for group in trajectory.groups
        if group.key.role == role
        for candidate in group.candidates
        for value in cast("tuple[float, ...]", candidate.advantage)
    ]
    return -sum(values) / len(values)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["per role", "shared student"])
def test_a_token_is_worth_what_the_teacher_of_its_role_says_above_the_student(
    model: Path, teacher: Path, shared: bool
) -> None:
    roles = dict.fromkeys(ROLES, "shared") if shared else ROLES
    trainer = trainer_of(model, roles, method_args={"teacher": str(teacher)}, temperature=0.7)
    trajectories, _ = trainer.train_step()
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain = PeftModel.from_pretrained(base, teacher / "writer", adapter_name="writer")
    plain.load_adapter(teacher / "reader", adapter_name="reader")
    checked = set()
    for group in (group for trajectory in trajectories for group in trajectory.groups):
        plain.set_adapter(group.key.role)
        for candidate in group.candidates:
            ids = candidate.completion.token_ids
            with torch.no_grad():
                logits = plain(torch.tensor([[*group.prompt_ids, *ids]])).logits[0]
            logp = (logits[len(group.prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
            theirs = logp.gather(1, torch.tensor(ids)[:, None])[:, 0]
            expected = theirs - torch.tensor(candidate.completion.logprobs)
            assert candidate.advantage == pytest.approx(expected.tolist(), abs=1e-4)
            checked.add(group.key.role)
    assert checked == set(ROLES)


@pytest.mark.slow
def test_one_completion_a_prompt_suffices_and_students_come_closer(
    model: Path, teacher: Path
) -> None:
    changes: dict[str, Any] = {
        "num_generations": 1,
        "tasks_per_step": 8,
        "learning_rate": 0.03,
        "max_steps": 20,
    }
    trainer = trainer_of(model, method_args={"teacher": str(teacher)}, **changes)
    steps = [trainer.train_step()[0] for _ in range(20)]
    for role in ROLES:
        before, after = (
            sum(divergence(step, role) for step in part) for part in (steps[:4], steps[-4:])
        )
        assert after < 0.7 * before


def test_a_student_that_is_its_teacher_has_nothing_to_learn(model: Path) -> None:
    trajectories, _ = trainer_of(model, method_args={"teacher_model": str(model)}).train_step()
    assert abs(divergence(trajectories, "writer")) < 1e-5


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(model: Path, teacher: Path, tmp_path: Path) -> None:
    trainer, twin = (trainer_of(model, method_args={"teacher": str(teacher)}) for _ in range(2))
    resume_twin(trainer, twin, tmp_path / "run", steps=1)
    assert_same(weights(twin), weights(trainer))


def test_a_run_of_one_shared_policy_teaches_all_roles(model: Path, tmp_path: Path) -> None:
    policies = load_policies(model, dict.fromkeys(ROLES, "shared"), lora_r=4)
    policies.save("shared", tmp_path / "shared")
    trainer = trainer_of(model, method_args={"teacher": str(tmp_path)})
    trajectories, _ = trainer.train_step()
    assert abs(divergence(trajectories, "reader")) < 1e-5


def test_the_latest_run_can_teach_and_is_found_from_elsewhere(
    model: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latest").symlink_to(teacher)
    config = dataclasses.replace(
        SMALL, method="distill", model=str(model), method_args={"teacher": "latest"}
    )
    kept = plan_run(config).config
    monkeypatch.chdir("/")
    assert kept.method_args == {"teacher": str(teacher)}
    assert plan_run(kept).config == kept


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "needs a teacher"),
        ({"teacher": "no/such/run/here"}, "there is no folder"),
    ],
)
def test_a_missing_teacher_is_refused_before_a_model_is_loaded(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        made("distill", method_args=arguments)


def test_a_teacher_without_an_adapter_for_a_role_is_refused(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    (tmp_path / "writer").symlink_to(teacher / "writer")
    with pytest.raises(ConfigError, match="has no adapter for the policy 'reader'"):
        trainer_of(model, method_args={"teacher": str(tmp_path)})


def test_a_teacher_with_another_vocabulary_is_refused(model: Path, tmp_path: Path) -> None:
    other = save_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match="the teacher of writer has another vocabulary"):
        trainer_of(model, method_args={"teacher_model": str(other)})


def test_a_method_that_is_joined_to_distillation_finds_the_students(model: Path) -> None:
    trainer = trainer_of(model, method_args={"teacher_model": str(model)})
    assert trainer.method.policies is trainer.policies
