"""Training runs that sample with vLLM, beside the same runs with transformers."""

from __future__ import annotations

import json

import pytest
import torch

from pettingllms.errors import SamplerUnavailable
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from tests.vllm_policies import OPTIONS, save_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
torch.set_num_threads(1)
SMALL = {"max_steps": 3, "tasks_per_step": 2, "num_generations": 4, "eval_tasks": 0}
GAP = "sampling/sampling_logp_difference"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vllm") / "tiny")


def settings(model_dir, folder, sampler, **changes):
    chosen = {
        "env": "tests.letters_env:env",
        "model": str(model_dir),
        "output_dir": str(folder),
        "max_steps": 5,
        "tasks_per_step": 4,
        "num_generations": 8,
        "max_completion_length": 12,
        "learning_rate": 0.001,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "eval_steps": 0,
        "eval_tasks": 1,
        "save_steps": 6,
        "lora_r": 4,
        "scoring_threads": 1,
        "sampler": sampler,
        "vllm": json.dumps(OPTIONS) if sampler == "vllm" else None,
    }
    return ATGRPOConfig(**{**chosen, **changes})


def steps_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


def test_a_run_on_vllm_learns_what_a_run_on_transformers_learns(model_dir, tmp_path):
    rewards = {}
    for sampler in ("transformers", "vllm"):
        summary = train(settings(model_dir, tmp_path / sampler, sampler))
        assert summary.finished
        rows = steps_of(summary.folder)
        rewards[sampler] = [row["reward"] for row in rows]
        for row in rows[:3]:
            for policy in ("writer", "reader"):
                assert 0 < row[f"{policy}/{GAP}/mean"] < row[f"{policy}/{GAP}/max"] < 1e-3
                assert abs(row[f"{policy}/sampling/kl"]) < 1e-6
    here, there = rewards["transformers"], rewards["vllm"]
    # Both rise, by several times what they differ by.
    rise = here[-1] - here[0]
    assert rise > 1.0
    assert there[-1] - there[0] > 0.5 * rise
    assert abs(there[-1] - here[-1]) < 0.5 * rise


def test_at_learning_rate_zero_the_mismatch_stays_flat_and_the_weights_too(model_dir, tmp_path):
    config = settings(model_dir, tmp_path / "run", "vllm", learning_rate=0.0, **SMALL)
    rows = steps_of(train(config).folder)
    for policy in ("writer", "reader"):
        means = [row[f"{policy}/{GAP}/mean"] for row in rows]
        assert len(means) == 3
        assert max(means) < 1e-5
        assert max(means) < 3 * min(means)
        assert max(abs(row[f"{policy}/sampling/kl"]) for row in rows) < 1e-9


def test_an_engine_that_fails_to_take_new_weights_loses_no_finished_step_and_the_run_goes_on_the_same(
    model_dir, tmp_path, monkeypatch
):
    from pettingllms.samplers import vllm

    whole = train(settings(model_dir, tmp_path / "whole", "vllm", **SMALL)).folder
    publish, calls = vllm.VllmEngine.publish, []

    def fail_at_the_end_of_step_two(self, policy, version):
        calls.append((policy, version))
        if (policy, version) == ("reader", 2):
            raise SamplerUnavailable("the engine is gone")
        publish(self, policy, version)

    monkeypatch.setattr(vllm.VllmEngine, "publish", fail_at_the_end_of_step_two)
    with pytest.raises(SamplerUnavailable, match=r"the state after step 2 is saved in .*000002"):
        train(settings(model_dir, tmp_path / "cut", "vllm", **SMALL))
    assert ("writer", 2) in calls
    monkeypatch.undo()
    assert train(resume=tmp_path / "cut").finished
    assert [row["step"] for row in steps_of(tmp_path / "cut")] == [1, 2, 3]
    # What it sampled before and after is what the uninterrupted run did.
    replies = [
        [
            [candidate["completion"] for candidate in decision["candidates"]]
            for line in (run / "trajectories.jsonl").read_text().splitlines()
            for decision in json.loads(line)["decisions"]
        ]
        for run in (whole, tmp_path / "cut")
    ]
    assert replies[0] == replies[1]
