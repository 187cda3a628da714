"""`agentrl` with `stale`: half of the prompts are answered by a copy of the policy that is some updates old."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError, NonFiniteError, SandboxUnavailable
from pettingllms.methods.agentrl import AgentRl
from pettingllms.policies.loading import load_policies
from pettingllms.runs import checkpoints
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Group, Request, Sample
from tests import letters_env
from tests.test_checkpoints import assert_same, new_folder, weights
from tests.tiny_lm import SHORT_RUN, save_tiny

torch.set_num_threads(1)
SETTINGS: dict[str, Any] = {
    **SHORT_RUN,
    "env": "tests.letters_env:env",
    "env_args": {"max_turns": 2},
    "policies": "per-role",
    "method": "agentrl",
    "method_args": {"stale": 3},
    "max_steps": 9,
    "warmup_steps": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer_of(model: Path, **changes: Any) -> ATGRPO:
    config = resolve(ATGRPOConfig(**{**SETTINGS, "model": str(model), **changes}))
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    return ATGRPO(config, letters_env.env(max_turns=2), policies)


def groups_of(trainer: ATGRPO) -> list[Group]:
    trajectories, _ = trainer.train_step()
    return [group for trajectory in trajectories for group in trajectory.groups]


def version_of(group: Group) -> int:
    [version] = {candidate.completion.version for candidate in group.candidates}
    return version


@pytest.mark.slow
def test_half_of_the_prompts_are_answered_by_a_copy_that_is_renewed(model: Path) -> None:
    trainer, ages, drawn = trainer_of(model), [], Counter[bool]()
    for step in range(8):
        old = [step - version_of(group) for group in groups_of(trainer)]
        ages.append({age for age in old if age})
        drawn.update(age > 0 for age in old if step)
    # Of step 0, then of step 3 and of step 6, each once it has been played.
    assert ages == [set(), {1}, {2}, {3}, {1}, {2}, {3}, {1}]
    assert 0.35 < drawn[True] / drawn.total() < 0.65


@pytest.mark.slow
def test_recorded_log_probabilities_are_those_of_the_version_that_answered(model: Path) -> None:
    trainer, was = trainer_of(model), []
    policies, seen = trainer.policies, Counter[int]()
    for step in range(4):
        was.append({name: policies.state(name) for name in policies.names})
        for group in groups_of(trainer):
            version = version_of(group)
            now = policies.state(group.policy)
            policies.overwrite(group.policy, was[version][group.policy])
            samples = [
                Sample(group.prompt_ids, c.completion.token_ids, c.completion.logprobs, 0.0)
                for c in group.candidates
            ]
            pairs = [(group.policy, sample) for sample in samples]
            says = policies.sample_logprobs(pairs, 1024, trainer.config.temperature)
            policies.load_state(group.policy, now, version=policies.versions[group.policy])
            for sample in samples:
                assert says[group.policy, sample].tolist() == pytest.approx(
                    sample.logprobs, abs=1e-4
                )
            seen[step - version] += 1
    assert min(seen[age] for age in (0, 1, 2, 3)) > 0
    changed = [(was[0][name], was[3][name]) for name in policies.names]
    assert not any(torch.equal(a[k], b[k]) for a, b in changed for k in a if "lora_B" in k)


def test_outside_of_the_rollout_the_current_weights_answer(model: Path) -> None:
    trainer = trainer_of(model)
    for step in range(3):
        groups_of(trainer)
        assert set(trainer.policies.versions.values()) == {step + 1}
        [[reply]] = trainer.policies.sample([Request("writer", (5, 6), 0)], 1, max_new_tokens=2)
        assert reply.version == step + 1


def test_a_rollout_that_fails_leaves_the_current_weights(model: Path) -> None:
    trainer = trainer_of(model)
    groups_of(trainer)
    before, versions = weights(trainer), dict(trainer.policies.versions)
    base = trainer.policies.base_of("writer")
    sample = base.engine.sample  # type: ignore[union-attr]

    def fails(requests: Any, *arguments: Any, **settings: Any) -> Any:
        if trainer.policies.versions != versions:
            raise SandboxUnavailable("no")
        return sample(requests, *arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.engine, "sample", fails)
        with pytest.raises(SandboxUnavailable):
            trainer.train_step()
    assert_same(weights(trainer), before)
    assert trainer.policies.versions == versions


@pytest.mark.slow
def test_a_step_that_fails_renews_no_copy(model: Path) -> None:
    trainer, twin = (trainer_of(model, method_args={"stale": 1}) for _ in range(2))
    for one in (trainer, twin):
        groups_of(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_backward", lambda *_: (_ for _ in ()).throw(NonFiniteError("no")))
        with pytest.raises(NonFiniteError):
            trainer.train_step()
    method = trainer.method
    assert isinstance(method, AgentRl)
    assert {version for version, _ in method.copies.values()} == {0}
    for one in (trainer, twin):
        one.train_step()
    assert_same(weights(trainer), weights(twin))


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    trainer, twin = trainer_of(model), trainer_of(model)
    with new_folder(tmp_path / "run") as folder:
        for _ in range(2):
            trainer.train_step()
        checkpoints.save(folder, trainer)
        checkpoints.resume(folder, twin)
    rows = [
        [json.dumps(t.row()) for _ in range(3) for t in one.train_step()[0]]
        for one in (trainer, twin)
    ]
    assert rows[0] == rows[1]
    assert_same(weights(twin), weights(trainer))


def test_without_copies_nothing_is_kept(model: Path) -> None:
    trainer = trainer_of(model, method_args={})
    assert all(version_of(group) == step for step in range(3) for group in groups_of(trainer))
    assert trainer.method.state_dict() == {}


@pytest.mark.parametrize(
    "changes",
    [{"sampler": "vllm"}, {"workers": 2, "tasks_per_shard": 1, "max_staleness": 1}],
)
def test_where_weights_cannot_be_exchanged_it_is_refused_before_a_model_is_loaded(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match="stale needs sampler transformers and max_staleness 0"):
        plan_run(ATGRPOConfig(**{**SETTINGS, **changes}))
