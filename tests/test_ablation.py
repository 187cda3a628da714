"""The table at the end of a training: who plays in each team, and that nothing is left changed."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch

from pettingllms.evaluation import ablation, held_out
from pettingllms.evaluation.ablation import (
    EXCHANGED,
    RoleTable,
    compare_roles,
    only,
    role_teams,
    switched_off,
)
from pettingllms.evaluation.chunks import Sampling
from pettingllms.evaluation.compare import paired
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.policies.loading import load_policies
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from tests.graded_env import GradedEnv
from tests.test_coverage import side
from tests.tiny_lm import save_tiny

NAMES = ("writer", "reader")
SAMPLING = Sampling(6, 1, False, 1.0, 1.0, 0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"))


def stirred(model_dir):
    """Policies whose adapters change what is said."""
    policies = load_policies(model_dir, dict(zip(NAMES, NAMES, strict=True)), lora_r=4, seed=1)
    for name in NAMES:
        state = {key: torch.full_like(tensor, 0.3) for key, tensor in policies.state(name).items()}
        policies.load_state(name, state)
    return policies


def test_teams_are_base_each_alone_all_and_exchanged():
    assert [(team.title, tuple(team.trained)) for team in role_teams(("a", "b", "c"))] == [
        ("base", ()),
        ("only a", ("a",)),
        ("only b", ("b",)),
        ("only c", ("c",)),
        ("all", ("a", "b", "c")),
        (EXCHANGED, ("a", "b", "c")),
    ]
    assert role_teams(("a", "b", "c"))[-1].played == {"a": "b", "b": "c", "c": "a"}


@pytest.mark.slow
def test_each_team_plays_with_its_own_adapters_and_all_are_as_before(model_dir, monkeypatch):
    policies, seen = stirred(model_dir), dict[int, dict[str, str]]()
    before = {name: policies.state(name) for name in NAMES}
    play = roll_out

    def noted(env, policies, seats, *rest):
        # An adapter is on if its second matrix is not all zeros.
        on = {
            name: any(t.any() for key, t in policies.state(name).items() if "lora_B" in key)
            for name in NAMES
        }
        seen[len(seen)] = {
            agent: policy if on[policy] else "base" for agent, policy in seats.items()
        }
        return play(env, policies, seats, *rest)

    monkeypatch.setattr(ablation, "roll_out", noted)
    env = GradedEnv(split="test")
    table = compare_roles(env, policies, NAMES, tasks=held_out(env, "test", 4), sampling=SAMPLING)
    assert [tuple(seats.values()) for seats in seen.values()] == [
        ("base", "base"),
        ("writer", "base"),
        ("base", "reader"),
        ("writer", "reader"),
        ("reader", "writer"),
    ]
    assert table is not None
    assert list(table.rows) == ["base", only("writer"), only("reader"), "both", EXCHANGED]
    for name in NAMES:
        assert all(tensor.equal(before[name][key]) for key, tensor in policies.state(name).items())


def test_adapters_come_back_where_playing_fails(model_dir):
    policies = stirred(model_dir)
    before = policies.state("writer")
    with contextlib.suppress(ZeroDivisionError), switched_off(policies, ["writer"]):
        assert not any(t.any() for key, t in policies.state("writer").items() if "lora_B" in key)
        raise ZeroDivisionError
    assert all(tensor.equal(before[key]) for key, tensor in policies.state("writer").items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "wanted", "there"), [(10, True, True), (10, False, False), (9, True, False)]
)
def test_a_run_of_several_adapters_ends_with_the_table(model_dir, tmp_path, tasks, wanted, there):
    config = ATGRPOConfig(
        env="tests.letters_env:env",
        env_args={"max_turns": 1},
        model=str(model_dir),
        device="cpu",
        lora_r=4,
        max_steps=1,
        num_generations=2,
        tasks_per_step=1,
        max_completion_length=4,
        eval_tasks=tasks,
        eval_steps=0,
        compare_roles=wanted,
        verify=False,
        output_dir=str(tmp_path / "run"),
    )
    train(config)
    assert (tmp_path / "run" / "roles.json").exists() == there
    assert ("both minus this" in (tmp_path / "run" / "summary.md").read_text()) == there
    if there:
        record = json.loads((tmp_path / "run" / "roles.json").read_text())
        assert (record["score"], record["tasks"]) == ("success", 10)


def test_a_verdict_follows_the_exact_test_and_not_the_interval():
    both, alone = (side(*([n < wins] for n in range(100))) for wins in (4, 0))
    rows = {"both": paired(both, both, ("both", "both"), 0)}
    rows |= {only(name): paired(alone, both, (only(name), "both"), 0) for name in NAMES}
    table = RoleTable("success", NAMES, rows)
    gain = rows[only("writer")].differences["success"]
    assert gain.low > 0
    assert gain.p == 0.125
    assert "No policy made a clear difference" in table.notes()
