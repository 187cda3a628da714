"""`q_tree`: the table's fixed point, equal texts, agents with returns of their own, and a resumed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.late_outcome import ROLES, Relay
from pettingllms.errors import GroupError
from pettingllms.methods.q_tree import followed
from pettingllms.policies.loading import load_policies
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.types import Group
from tests.test_checkpoints import CONFIG as SMALL
from tests.test_checkpoints import assert_same, weights, with_a_resumed_twin
from tests.test_estimators_golden import cases, decision, made, played
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
CONFIG = dataclasses.replace(SMALL, method="q_tree", method_args={"memory": 2})


def chain_of_two(choose: int) -> list[Group]:
    """Four of five first replies are right; they lead to a decision in which four of five are, and earn 1."""
    first = decision(0.0, 0.0, 0.0, 0.0, 0.0, agent="planner", episode=choose)
    candidates = tuple(
        dataclasses.replace(one, chosen=k == choose) for k, one in enumerate(first.candidates)
    )
    first = dataclasses.replace(first, candidates=candidates)
    second = decision(1.0, 1.0, 1.0, 1.0, 0.0, agent="worker", parent=1, episode=choose)
    return [first, dataclasses.replace(second, policy="q")] if choose < 4 else [first]


def one_hot(_policies: object, rows: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    return [("0", row_X) for row_X in torch.eye(len(rows))]


@pytest.mark.slow
def test_a_critic_learns_the_values_of_the_table() -> None:
    case = cases("archer")["fixed point on a chain (right twice pays 1, wrong ends with 0), p=0.8"]
    gamma, expected = case["inputs"]["gamma"], case["expected"]
    groups = played({episode: chain_of_two(episode) for episode in range(5)})
    method = made("q_tree", num_generations=5, method_args={"gamma": gamma})
    method.policies, method.critics.features = None, one_hot
    for _ in range(200):
        advantages = method.advantages(groups)
    of_first = [advantages[5 * n] for n, g in enumerate(groups) if g.key.role == "planner"]
    of_second = [advantages[5 * n] for n, g in enumerate(groups) if g.key.role == "worker"]
    right = expected["A right"]
    assert of_first == pytest.approx([right[0]] * 5, abs=0.02)
    assert of_second == pytest.approx([right[1]] * 4, abs=0.02)


def test_a_completion_is_followed_by_the_mean_of_what_could_come_next() -> None:
    groups = played({episode: chain_of_two(episode) for episode in (0, 4)})
    case = cases("archer")["fixed point on a chain (right twice pays 1, wrong ends with 0), p=0.8"]
    values = {
        (group.key.episode, group.key.role): value
        for group, value in zip(groups, followed(groups, 0.9).tolist(), strict=True)
    }
    right, wrong = case["expected"]["Q right"][0], case["expected"]["Q wrong"][0]
    assert values == pytest.approx(
        {(0, "planner"): right, (0, "worker"): 0.0, (4, "planner"): wrong}
    )


def test_an_agent_with_a_return_of_its_own_is_followed_by_its_own_decisions() -> None:
    chain = [
        decision(0.0, 1.0, agent="planner"),
        decision(5.0, 7.0, agent="worker", parent=1),
        decision(2.0, 4.0, agent="planner", parent=2),
    ]
    team = played({0: chain}, cooperative=True)
    alone = played({0: chain}, cooperative=False)
    assert followed(team, 1.0).tolist() == [9.0, 3.0, 0.0]
    assert followed(alone, 1.0).tolist() == [3.0, 0.0, 0.0]


def test_equal_completions_have_equal_advantages_whatever_the_critic_says() -> None:
    group = decision(0.0, 0.0, 0.0)
    twin = dataclasses.replace(group.candidates[1], completion=group.candidates[0].completion)
    group = dataclasses.replace(group, candidates=(group.candidates[0], twin, group.candidates[2]))
    method = made("q_tree", num_generations=3)
    method.policies, method.critics.features = (
        None,
        lambda _policies, rows: [("0", torch.randn(8)) for _ in rows],
    )
    for _ in range(3):
        advantages = method.advantages(played({0: [group, decision(1.0, 0.0, 0.0, parent=1)]}))
        assert advantages[0] == advantages[1]


def test_a_prompt_with_one_candidate_is_refused() -> None:
    with pytest.raises(GroupError, match="has one candidate"):
        made("q_tree").advantages([decision(1.0)])


@pytest.mark.slow
def test_agents_that_are_paid_at_the_end_learn_from_the_second_step_on(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, env="relay", tasks_per_step=8, num_generations=8)
    policies = load_policies(save_tiny(tmp_path), {role: role for role in ROLES}, lora_r=4)
    trainer = ATGRPO(config, Relay(), policies)
    learns = []
    for _ in range(3):
        trajectories, _ = trainer.train_step()
        groups = [group for trajectory in trajectories for group in trajectory.groups]
        first = [one for group in groups if group.key.role == "first" for one in group.candidates]
        assert all(one.reward == 0 for one in first)
        learns.append(any(one.advantage for one in first))
    assert learns == [False, True, True]


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model")
    trainer, twin = with_a_resumed_twin(model, CONFIG, tmp_path / "run")
    assert_same(weights(twin), weights(trainer))
    ours, theirs = (learner.method.state_dict() for learner in (trainer, twin))
    assert ours.keys() == theirs.keys()
    for number, critic in ours.items():
        assert_same(critic["network"], theirs[number]["network"])
        assert len(critic["past"]) == 1
        for one, other in zip(critic["past"], theirs[number]["past"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
