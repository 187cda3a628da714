"""Playing shards: a function of settings, step, tasks and weights, whatever was played before or beside."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

from pettingllms.policies.loading import load_policies
from pettingllms.rollout.engine import returned
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import Player, shards
from pettingllms.types import Group, Task
from tests import letters_env
from tests.tiny_lm import save_tiny


def a_config(estimator: str = "at_grpo") -> ResolvedConfig:
    return resolve(
        ATGRPOConfig(
            env="tests.letters_env:env",
            estimator=estimator,
            num_generations=3,
            tasks_per_step=5,
            tasks_per_shard=2,
            max_completion_length=6,
        )
    )


@pytest.mark.parametrize("estimator", ["at_grpo", "grpo"])
def test_shards_played_alone_in_any_order_and_twice_are_those_of_the_step(estimator, tmp_path):
    torch.set_num_threads(1)
    config = a_config(estimator)
    model = save_tiny(tmp_path)
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    with contextlib.closing(policies):
        trainer = ATGRPO(config, letters_env.env(max_turns=2), policies)
        player = Player(config, trainer.env, policies, trainer.estimator.shape())
        tasks = [Task(f"t:{n}", n) for n in range(5)]
        whole = player.play(3, tasks, trainer.casting, Clock())
        parts: dict[int, list[Trajectory]] = {}
        for number, shard in random.Random(0).sample([*enumerate(shards(config, tasks))] * 2, 6):
            played = player.play(3, shard, trainer.casting, Clock())
            assert parts.setdefault(number, played) == played
        assert [each for number in range(3) for each in parts[number]] == whole
        assert player.play(4, tasks, trainer.casting, Clock()) != whole


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_shard_that_another_player_has_begun_is_continued_and_nothing_is_sampled_twice(
    batches, tmp_path, monkeypatch
):
    torch.set_num_threads(1)
    config, asked = a_config(), list[int]()
    policies = load_policies(
        save_tiny(tmp_path), {"writer": "writer", "reader": "reader"}, lora_r=4
    )
    sample = policies.sample

    def counted(requests: Any, n: int, **settings: Any) -> Any:
        asked.append(len(requests))
        return sample(requests, n, **settings)

    monkeypatch.setattr(policies, "sample", counted)
    with contextlib.closing(policies):
        trainer = ATGRPO(config, letters_env.env(max_turns=2), policies)
        player = Player(config, trainer.env, policies, trainer.estimator.shape())
        tasks = [Task(f"t:{n}", n) for n in range(4)]
        stream = partial(player.stream, 3, tasks, trainer.casting, Clock())
        whole = returned(stream())
        needed = len(asked)
        lost = stream()
        begun = list(itertools.islice(lost, batches))
        lost.close()
        asked.clear()
        again = list(stream(begun))
        assert returned(stream(begun)) == whole
    assert len(asked) == 2 * (needed - batches)
    decided = [
        group for each in [*begun, *again] for part in each.trajectories for group in part.groups
    ]
    places = {(g.key.task, g.key.parent): texts(g) for g in decided}
    assert len(places) == len(decided)
    assert places == {(g.key.task, g.key.parent): texts(g) for each in whole for g in each.groups}


def texts(group: Group) -> list[tuple[str, float]]:
    return [(each.completion.text, each.reward) for each in group.candidates]
