"""Training on Ray: byte for byte the one process, however many workers, whoever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.scale import actors, run
from pettingllms.runs import RunFolder, checkpoints
from pettingllms.trainers.at_grpo import ATGRPO
from tests import test_cross_policy, test_league
from tests.processes import eventually
from tests.tiny_lm import save_tiny, save_tiny_llama

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    from pettingllms.distributed.cluster import connected
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    with connected(resolve(ATGRPOConfig(workers=6))) as module:
        yield module


def hit(actor: str, number: signal.Signals) -> None:
    os.kill(eventually(lambda: actors(actor))[0], number)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "env": "plan_path",
            "policy_settings": {"planner": {"full": True}},
            "difficulty_pools": {"height": [4, 6], "width": [4, 6]},
        },
        {
            "env": "tests.listening_program:relay_and_chat_env",
            "method": "look_ahead",
            "max_completion_length": 16,
        },
    ],
    ids=[
        "two-bases-pools",
        "program-conversation",
    ],
)
def test_a_worker_changes_no_bit(ray, settings):
    assert run(ray, workers=1, **settings) == run(None, **settings)


@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (1, {**test_league.SETTINGS, "method_args": test_league.VERSIONED, "warmup_steps": 0}),
        (2, {**test_cross_policy.SETTINGS, "policies": "shared"}),
    ],
    ids=["league", "cross-policy"],
)
def test_earlier_weights_that_a_method_keeps_are_those_of_one_process(
    ray, models, workers, settings
):
    settings = {**settings, "model": models["model"], "lora_r": 4, "device": "cpu"}
    assert run(ray, 4, workers=workers, **settings) == run(None, 4, **settings)


def test_a_worker_plays_the_first_step_while_learners_start_and_each_step_once(ray, monkeypatch):
    from pettingllms.distributed.fleet import Fleet

    submit, jobs, before = Fleet.submit, list[Any](), list[int]()

    def noting(fleet: Fleet, *job: Any, **options: Any) -> Any:
        jobs.append(job)
        return submit(fleet, *job, **options)

    monkeypatch.setattr(Fleet, "submit", noting)
    # What a worker plays is scored by the driver, from what the environment alone knows.
    settings: dict[str, Any] = {"env": "math", "policies": "shared", "method": "hindsight"}
    result = run(ray, 2, lambda _: before.append(len(jobs)), workers=1, **settings)
    assert before == [3, 3, 6]  # SMALL has three shards a step
    assert result == run(None, 2, **settings)


def test_several_workers_and_killed_workers_and_learners_change_no_bit(ray):
    steps = iter(range(4))

    def before(trainer: ATGRPO) -> None:
        match next(steps):
            case 1:
                hit("Learner", signal.SIGKILL)
                hit("RolloutWorker", signal.SIGKILL)
            case 2:
                hit("RolloutWorker", signal.SIGKILL)

    settings: dict[str, Any] = {
        "env": "coding",
        "method": "rae",  # which keeps a state
        "train_roles": "tester",
        "beta": 0.01,  # also the base is asked for its likelihoods
        "num_iterations": 2,
        "max_num_gen_batches": 2,
        "tasks_per_step": 2,
    }
    disturbed = run(ray, 3, before, workers=2, **settings)
    assert disturbed == run(None, 3, **settings)
    assert eventually(lambda: not actors("RolloutWorker", "Learner"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A team of two architectures, one of whose policies is a full model."""
    folder = tmp_path_factory.mktemp("models")
    llama = {"model": str(save_tiny_llama(folder / "llama")), "full": True}
    return {
        "env": "tests.trio_env:env",
        "env_args": {"max_turns": 1},
        "model": str(save_tiny(folder / "qwen")),
        "policy_settings": {"reader": {**llama, "learning_rate": 1e-3}},
        "lora_r": 4,
        "max_completion_length": 6,
        "device": "cpu",
    }


def test_a_full_model_is_divided_between_ranks_and_survives_the_loss_of_one(ray, models):
    settings: dict[str, Any] = {**models, "train_roles": "reader"}
    ranks: dict[str, Any] = {"workers": 1, "pools": {"reader": {"ranks": 2}}}
    kept: list[checkpoints.TrainerState] = []

    def keep(trainer: ATGRPO) -> None:
        if trainer.step == 2:
            kept.append(checkpoints.capture(trainer))

    def disturbed(trainer: ATGRPO) -> None:
        if trainer.step == 1:
            hit("Learner", signal.SIGKILL)
        keep(trainer)

    def go_on(trainer: ATGRPO) -> None:
        if not trainer.step:
            checkpoints.restore(trainer, kept[0])

    alone = run(ray, 2, **ranks, **settings)
    assert run(ray, 2, disturbed, **ranks, **settings) == alone
    assert eventually(lambda: not actors("RolloutWorker", "Learner"))
    run(None, 2, keep, **settings)
    assert apart(kept[0], kept[1]) < 2e-5
    # What two ranks have learned has come to a worker, and goes on with one.
    rest = run(ray, 1, go_on, workers=1, **settings)
    assert rest["records"][:-1] != alone["records"][: len(rest["records"]) - 1]


def apart(one: checkpoints.TrainerState, other: checkpoints.TrainerState) -> float:
    pairs = zip(one.policies["reader"].values(), other.policies["reader"].values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def test_stale_weights_are_fixed_and_survive_kills_and_a_checkpoint(ray, tmp_path):
    settings: dict[str, Any] = {"env": "math", "policies": "shared", "tasks_per_step": 2}
    stale: dict[str, Any] = {**settings, "max_staleness": 1}
    folder = RunFolder.create(tmp_path / "run")

    def keep(trainer: ATGRPO) -> None:
        if trainer.step == 1:
            checkpoints.save(folder, trainer)

    def go_on(trainer: ATGRPO) -> None:
        if not trainer.step:
            assert checkpoints.resume(folder, trainer) == 1
        elif trainer.step == 2:  # workers play step 2 already, with the weights of step 1
            hit("RolloutWorker", signal.SIGKILL)

    whole = run(ray, 4, keep, workers=1, **stale)
    rest = run(ray, 3, go_on, workers=2, **stale)
    assert rest["state"] == whole["state"]
    assert rest["records"] == whole["records"][-len(rest["records"]) :]
    assert run(None, 4, **settings)["state"] != whole["state"]
