"""Playing shards: a function of settings, step, tasks and weights, whatever was played before or beside."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import Player, shards
from pettingllms.types import Task
from tests import letters_env
from tests.tiny_lm import save_tiny


def a_config(method: str = "at_grpo") -> ResolvedConfig:
    return resolve(
        ATGRPOConfig(
            env="tests.letters_env:env",
            method=method,
            num_generations=3,
            tasks_per_step=5,
            tasks_per_shard=2,
            max_completion_length=6,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at_grpo", "grpo"])
def test_shards_played_alone_in_any_order_and_twice_are_those_of_the_step(method, tmp_path):
    torch.set_num_threads(1)
    config = a_config(method)
    model = save_tiny(tmp_path)
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    with contextlib.closing(policies):
        trainer = ATGRPO(config, letters_env.env(max_turns=2), policies)
        player = Player(config, trainer.env, policies, trainer.method.shape())
        tasks = [Task(f"t:{n}", n) for n in range(5)]
        whole = player.play(3, tasks, trainer.casting, Clock())
        parts: dict[int, list[Trajectory]] = {}
        for number, shard in random.Random(0).sample([*enumerate(shards(config, tasks))] * 2, 6):
            played = player.play(3, shard, trainer.casting, Clock())
            assert parts.setdefault(number, played) == played
        assert [trajectory for number in range(3) for trajectory in parts[number]] == whole
        assert player.play(4, tasks, trainer.casting, Clock()) != whole
