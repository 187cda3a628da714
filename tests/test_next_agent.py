"""Training on an environment whose agents call each other a varying number of times."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from pettingllms.policies.loading import load_policies
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from tests import delegating_env
from tests.tiny_lm import save_tiny


@pytest.mark.slow
def test_two_steps_of_training_where_the_game_decides_who_acts(tmp_path):
    config = ATGRPOConfig(
        env="tests.delegating_env:env",
        num_generations=4,
        tasks_per_step=4,
        max_steps=2,
        max_completion_length=8,
        learning_rate=1e-2,
        warmup_steps=0,
        tokens_per_batch=400,
        temperature=2.0,
        scoring_threads=1,
        branch="sample",
    )
    roles = {"lead": "lead", "helper": "helper"}
    policies = load_policies(save_tiny(tmp_path / "tiny"), roles, lora_r=4, lora_alpha=8, seed=1)
    trainer = ATGRPO(config, delegating_env.env(max_turns=6), policies)
    before = {name: {k: v.clone() for k, v in policies.state(name).items()} for name in roles}
    orders = defaultdict(list)
    for _ in range(2):
        trajectories, _ = trainer.train_step()
        for group in (group for trajectory in trajectories for group in trajectory.groups):
            orders[group.key.task].append((group.key.role, group.key.turn))
    calls = {sum(role == "helper" for role, _ in order) for order in orders.values()}
    assert len(calls) > 1
    assert {order[0] for order in orders.values()} == {("lead", 0)}
    for order in orders.values():
        for role in roles:
            turns = [turn for name, turn in order if name == role]
            assert turns == list(range(len(turns)))
    for name in roles:
        after = policies.state(name)
        assert any(not torch.equal(value, after[k]) for k, value in before[name].items())
