"""Gradients of micro-batches that are computed at the same time."""

import threading

import pytest
import torch

from pettingllms.policies.loading import load_policies
from pettingllms.trainers import at_grpo
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.gradients import batches_at_once
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}


def trained(model, at_once, monkeypatch):
    """Weights and metrics after three steps, and the threads that computed log-probabilities."""
    monkeypatch.setattr(at_grpo, "batches_at_once", lambda *_: at_once)
    config = ATGRPOConfig(
        env="graded",
        num_generations=4,
        tasks_per_step=5,
        max_steps=3,
        max_completion_length=8,
        temperature=2.0,
        learning_rate=1e-2,
        tokens_per_batch=40,
    )
    policies = load_policies(model, ROLES, lora_r=4, lora_alpha=8, seed=1)
    names, plain = set(), policies.logprobs

    def logprobs(*args, **kwargs):
        names.add(threading.current_thread().name.split("_")[0])
        return plain(*args, **kwargs)

    monkeypatch.setattr(policies, "logprobs", logprobs)
    trainer = ATGRPO(resolve(config, GradedEnv()), GradedEnv(), policies)
    found = [trainer.train_step()[1] for _ in range(3)]
    metrics = [
        {k: v for k, v in step.items() if not k.startswith(("time", "tokens_per"))}
        for step in found
    ]
    return {name: policies.state(name) for name in policies.names}, metrics, names


def test_micro_batches_computed_at_once_change_no_bit(tmp_path, monkeypatch):
    model = save_tiny(tmp_path / "tiny")
    weights, metrics, threads = trained(model, 1, monkeypatch)
    others, other_metrics, other_threads = trained(model, 3, monkeypatch)
    assert (threads, other_threads) == ({"MainThread"}, {"gradients"})
    assert repr(metrics) == repr(other_metrics)
    for name, tensors in weights.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, others[name][key]), (name, key)


@pytest.mark.parametrize(
    ("changes", "device", "alone"),
    [({}, "cpu", False), ({"beta": 0.1}, "cpu", True), ({}, "meta", True)],
)
def test_only_what_shares_nothing_is_computed_at_once(changes, device, alone, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = resolve(ATGRPOConfig(env="math", **changes))
    parameters = [torch.nn.Parameter(torch.zeros(1, device=device))]
    assert batches_at_once(settings, parameters) == (1 if alone else 3)


def test_no_more_threads_are_taken_than_the_user_allows(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    assert batches_at_once(resolve(ATGRPOConfig(env="math")), parameters) == 2
