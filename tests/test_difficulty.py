"""Difficulty pools: what is drawn follows from the seed and from success in training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run, training_env
from pettingllms.errors import ConfigError, PettingLLMsError
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.episode import Episode, tasks_of_step
from pettingllms.runs import RunFolder, checkpoints
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.difficulty import Pools
from pettingllms.types import Task
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny

SIZES = {"sentences": [2, 3, 4]}


def pools_of(env: Any, measured: dict[str, list[float]], **settings: Any) -> Pools:
    config = ATGRPOConfig(env="read", **{"difficulty_pools": {"rows": True}, **settings})
    pools = Pools(resolve(config, env), env)
    pools.load_state_dict({"measured": measured})
    return pools


def drawn(pools: Pools, env: Any, batches: int = 200, count: int = 5) -> Iterator[Task]:
    for batch in range(batches):
        tasks = pools.drawn(tasks_of_step(env, "read", batch, count, seed=0), batch)
        assert len({task.id for task in tasks}) == count
        yield from tasks


def test_rows_that_are_easy_or_hard_are_drawn_less_and_no_row_twice() -> None:
    env = GradedEnv(num_tasks=10)
    hard, easy = {str(row): [0.2] for row in (0, 1)}, {str(row): [0.8] for row in (2, 3)}
    tasks = [*drawn(pools_of(env, hard | easy | {"4": [0.25], "5": [0.75]}), env)]
    steps = [tasks[start : start + 5] for start in range(0, len(tasks), 5)]
    assert all(len({task.seed for task in step}) == 5 for step in steps)
    times = Counter(task.seed for task in tasks)
    assert max(times[row] for row in range(4)) < 0.5 * min(times[row] for row in range(4, 10))
    assert len({task.id for task in tasks}) == len(tasks)
    # More tasks than rows: each row once before any comes again.
    few = GradedEnv(num_tasks=3)
    assert Counter(t.seed for t in drawn(pools_of(few, {}), few, 1, 5)).most_common()[-1][1] == 1


def test_sizes_change_their_pool_with_the_mean_of_their_latest_tasks() -> None:
    config = ATGRPOConfig(env="read", difficulty_pools=SIZES)
    env = training_env(config, None, ())
    measured = {"sentences=2": [1.0] * 8, "sentences=3": [0.5] * 8, "sentences=4": [0.0] * 7}
    pools = pools_of(env, measured, difficulty_pools=SIZES)
    tasks = [*drawn(pools, env)]
    times = Counter(task.size for task in tasks)
    assert times["sentences=2"] < 0.4 * min(times["sentences=3"], times["sentences=4"])
    assert tasks == [*drawn(pools, env)]
    other = pools_of(env, measured, difficulty_pools=SIZES, seed=1)
    assert tasks != [*drawn(other, env)]
    prompts = {task.size: Episode(env, task, 0).prompt() for task in tasks}
    assert {size: prompt.count(" lives in ") for size, prompt in prompts.items()} == {
        "sentences=2": 2,
        "sentences=3": 3,
        "sentences=4": 4,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("pools", [{"rows": True}, SIZES])
def test_a_resumed_run_draws_and_learns_the_same(
    model: Path, tmp_path: Path, pools: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    config = ATGRPOConfig(
        env="read",
        difficulty_pools=pools,
        num_generations=2,
        tasks_per_step=3,
        max_steps=4,
        max_completion_length=4,
        max_num_gen_batches=2,
    )
    rows = "rows" in pools
    env = GradedEnv(num_tasks=4) if rows else training_env(config, None, ())
    roles = ("writer", "reader") if rows else ("finder", "answerer")

    def a_trainer() -> ATGRPO:
        policies = load_policies(model, {role: role for role in roles}, lora_r=4, seed=1)
        return ATGRPO(resolve(config, env), env, policies)

    def steps(trainer: ATGRPO, count: int) -> list[str]:
        taken = [trainer.train_step() for _ in range(count)]
        return [
            json.dumps([t.task for t in records] + [logged["pools/hard"]])
            for records, logged in taken
        ]

    whole, folder = a_trainer(), RunFolder.create(tmp_path / "run")
    before = steps(whole, 2)
    checkpoints.save(folder, whole)
    after = steps(whole, 2)
    resumed = a_trainer()
    assert checkpoints.resume(folder, resumed) == 2
    assert steps(resumed, 2) == after != before
    for name in roles:
        first, second = whole.policies.state(name), resumed.policies.state(name)
        assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize(
    ("env", "pools", "message"),
    [
        ("read", {"rows": True}, "read has no data set whose rows"),
        ("read", {"sentences": 3}, "lists of the same length"),
        ("read", {"sentences": [3]}, "lists of the same length"),
        ("plan_path", {"height": [4, 6], "width": [4]}, "lists of the same length"),
        ("read", {"sentence": [2, 3]}, "did you mean 'sentences'"),
        ("read", {"sentences": [2, 9]}, "from 2 to 6, got 9"),
        ("math", {"agents": ["team", "single"]}, "the team of math with agents=single is another"),
        ("tests.foreign_env:env", {"rows": True}, "whether the team succeeded"),
    ],
)
def test_pools_that_cannot_work_are_refused(env: str, pools: dict[str, Any], message: str) -> None:
    with pytest.raises(PettingLLMsError, match=message):
        plan_run(ATGRPOConfig(env=env, difficulty_pools=pools))


def test_sizes_of_a_data_set_and_playing_ahead_are_refused(tmp_path: Path) -> None:
    grids = tmp_path / "grids.txt"
    grids.write_text("@.\n.G\n\n@..\n..G\n")
    with pytest.raises(ConfigError, match=r"--difficulty-pools\.rows true"):
        plan_run(
            ATGRPOConfig(env="plan_path", dataset=str(grids), difficulty_pools={"height": [4, 6]})
        )
    with pytest.raises(ConfigError, match="leave max_staleness out"):
        ATGRPOConfig(difficulty_pools=SIZES, workers=1, max_staleness=1)
