"""`--verify`: a sound step passes every check, and each fault that it names is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pettingllms.policies.loading import load_policies
from pettingllms.trainers import losses
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.verify import LATEST, Verifier
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny

ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def a_trainer(model_dir, env=None, **changes):
    config: dict[str, Any] = {
        "env": "graded",
        "num_generations": 4,
        "tasks_per_step": 1,
        "max_steps": 4,
        "max_completion_length": 10,
        "temperature": 2.0,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "tokens_per_batch": 400,
        "scoring_threads": 2,
    }
    policies = load_policies(model_dir, ROLES, lora_r=4, lora_alpha=8, seed=1)
    return ATGRPO(ATGRPOConfig(**config | changes), env or GradedEnv(), policies)


def verified(trainer, change=lambda trajectories: trajectories):
    """What is said after one step, of which the verifier is shown `change`'s records."""
    verifier = Verifier(trainer)
    verifier.begin()
    trajectories, _ = trainer.take_step()
    verifier.learned(change(trajectories))
    trainer.publish()
    return verifier.report()


def faults(report):
    return [line for line in report.splitlines() if "✗" in line]


@pytest.mark.slow
def test_a_sound_step_passes_every_check_and_is_not_changed_by_them(model_dir):
    plain, checked = a_trainer(model_dir), a_trainer(model_dir)
    report = verified(checked)
    assert report.count("✓") == 2 * 6
    assert faults(report) == []
    plain.train_step()
    for trainer in (plain, checked):
        trainer.train_step()
    for policy in ROLES:
        states = (learner.policies.state(policy) for learner in (plain, checked))
        for one, other in zip(*(state.values() for state in states), strict=True):
            assert torch.equal(one, other)


def test_an_adapter_that_learns_from_another_roles_completions_is_found(model_dir, monkeypatch):
    original = losses.policy_batches

    def mixed(*arguments):
        batches = original(*arguments)
        samples = (*batches["writer"].samples, *batches["reader"].samples)
        return batches | {"writer": replace(batches["writer"], samples=samples)}

    monkeypatch.setattr("pettingllms.trainers.at_grpo.policy_batches", mixed)
    [fault] = faults(verified(a_trainer(model_dir)))
    assert "by the gradient of its own" in fault


def test_an_adapter_that_does_not_change_is_found(model_dir):
    trainer = a_trainer(model_dir)
    trainer.optimizers["writer"].param_groups[0]["params"] = []
    messages = faults(verified(trainer))
    assert "changed by up to 0.0e+00" in messages[0]


def test_an_adapter_that_is_never_sampled_from_is_found(model_dir):
    trainer = a_trainer(model_dir)
    engine = trainer.policies.bases[0].engine
    publish, old = engine.publish, trainer.policies.state("writer")

    def forgets(policy, version):
        """Takes the version over, and for the writer the weights of before."""
        tensors = trainer.policies.base_of(policy).weights.tensors(policy)
        new = trainer.policies.state(policy)
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(old[name] if policy == "writer" else new[name])
            publish(policy, version)
            for name, tensor in tensors.items():
                tensor.copy_(new[name])
        trainer.policies._published[policy] = trainer.policies._counter(policy)

    engine.publish = forgets
    [fault] = faults(verified(trainer))
    assert "the sampler answers with version 1" in fault


def test_candidates_of_another_prompt_are_found(model_dir):
    def other_prompt(trajectories):
        completion = trajectories[0].groups[0].candidates[0].completion
        object.__setattr__(completion, "prompt_ids", (*completion.prompt_ids, 1))
        return trajectories

    assert any(
        "of another prompt" in message
        for message in faults(verified(a_trainer(model_dir), other_prompt))
    )


@pytest.mark.slow
def test_an_end_of_turn_token_outside_the_loss_is_found(model_dir, monkeypatch):
    trainer = a_trainer(model_dir, max_completion_length=24)
    cut = trainer.policies.microbatches

    def without_ends(*arguments):
        for microbatch in (batches := cut(*arguments)):
            for row, sample in enumerate(microbatch.samples):
                microbatch.mask_BT[row, len(sample.token_ids) - 1] = False
        return batches

    monkeypatch.setattr(trainer.policies, "microbatches", without_ends)
    messages = faults(verified(trainer))
    assert any("without an end-of-turn token in the loss" in message for message in messages)


def test_an_update_away_from_rewarded_completions_is_found(model_dir, monkeypatch):
    loss = losses.policy_loss
    away = "pettingllms.trainers.at_grpo.policy_loss"
    monkeypatch.setattr(away, lambda *arguments: -loss(*arguments))
    messages = faults(verified(a_trainer(model_dir)))
    assert len(messages) == 2
    assert all("did not rise" in message for message in messages)


@pytest.mark.slow
def test_a_policy_without_signal_is_reported_and_others_wait_for_a_rate_above_zero(model_dir):
    trainer = a_trainer(model_dir, env=GradedEnv(silent="reader_0"), warmup_steps=1)
    verifier, reports = Verifier(trainer), []
    for _ in range(2):
        verifier.begin()
        verifier.learned(trainer.take_step()[0])
        trainer.publish()
        reports.append(verifier.report())
    assert reports[0] == ""
    assert "verified writer in step 2" in reports[1]
    assert verifier.pending == ["reader"]
    trainer.step = LATEST
    assert "no group of reader had a signal" in verifier.report()
    assert verifier.pending == []
