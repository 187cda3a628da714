"""MARFT's advantages and its critic: the table, what it learns, and that a resumed run is the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.envs.base import Outcome
from pettingllms.errors import NonFiniteError
from pettingllms.methods.critic import Critic, Network
from pettingllms.methods.marft import chained, standardized
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.types import Task, Unplayed
from tests import letters_env
from tests.test_checkpoints import CONFIG as SMALL
from tests.test_checkpoints import assert_same, new_trainer, weights, with_a_resumed_twin
from tests.test_estimators_golden import cases, decision, played
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
CONFIG = dataclasses.replace(SMALL, method="gae", num_generations=1, tasks_per_step=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


GAMMA_LAMBDA = {
    "two agents, two steps, reward at the end": (0.99, 0.95),
    "gamma = lambda = 1: return-to-go minus value": (1.0, 1.0),
    "lambda = 0: one-step temporal difference": (1.0, 0.0),
    "one decision": (0.99, 0.95),
}


@pytest.mark.parametrize("name", GAMMA_LAMBDA)
def test_advantages_along_the_chain_are_those_of_the_table(name: str) -> None:
    case = cases("marft")[name]
    rewards = case["inputs"]["rewards along the chain"]
    agents = ("planner", "worker")
    chain = [decision(r, agent=agents[n % 2], parent=n) for n, r in enumerate(rewards)]
    groups = played({0: chain})
    values = torch.tensor(case["inputs"]["values"], dtype=torch.float64)
    advantages = chained(groups, values, *GAMMA_LAMBDA[name])
    expected = case["expected"]
    assert advantages.tolist() == pytest.approx(expected["advantage"], abs=1e-6)
    if "target of the critic" in expected:
        targets = (advantages + values).tolist()
        assert targets == pytest.approx(expected["target of the critic"], abs=1e-6)
    if "normalised" in expected:
        assert standardized(advantages).tolist() == pytest.approx(expected["normalised"], abs=2e-6)


def test_agents_with_returns_of_their_own_have_chains_of_their_own() -> None:
    game = [decision(r, agent="ab"[n % 2], parent=n) for n, r in enumerate((0.0, 0.0, 1.0, -1.0))]
    groups = played({0: game}, cooperative=False)
    advantages = chained(groups, torch.zeros(4, dtype=torch.float64), 1.0, 1.0)
    assert advantages.tolist() == [1.0, -1.0, 1.0, -1.0]


def test_an_episode_that_the_limit_on_turns_ended_is_worth_what_would_have_come_next() -> None:
    groups = played({0: [decision(0.0, parent=0), decision(1.0, parent=1)]})
    values = torch.tensor([0.25, 0.5], dtype=torch.float64)
    ends = torch.tensor([0.0, 0.75], dtype=torch.float64)
    # delta: 0 + 0.5 * 0.5 - 0.25 and 1 + 0.5 * 0.75 - 0.5; lambda 1
    assert chained(groups, values, 0.5, 1.0, ends).tolist() == [0.4375, 0.875]
    assert chained(groups, values, 0.5, 1.0).tolist() == [0.25, 0.5]


def test_the_record_has_the_prompt_that_the_limit_on_turns_kept_from_being_answered(
    model: Path,
) -> None:
    trainer = new_trainer(model, CONFIG)
    trajectories, _ = trainer.train_step()
    assert len(trajectories) == 4
    for trajectory in trajectories:
        assert [group.unplayed is None for group in trajectory.groups] == [True, True, True, False]
        env = letters_env.env(max_turns=2)
        env.reset(seed=trajectory.task.seed)
        for group in trajectory.groups:
            env.step(group.chosen.completion.text)
        ids = trainer.policies.prompt_ids("writer_0", env.observe("writer_0")["text"])
        assert trajectory.groups[-1].unplayed == ("writer", ids)
        read = Trajectory.from_row(json.loads(json.dumps(trajectory.row())))
        assert [group.unplayed for group in read.groups] == [g.unplayed for g in trajectory.groups]


def test_an_episode_that_the_environment_ended_has_no_such_prompt(model: Path) -> None:
    class Ended(letters_env.raw_env):
        def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
            outcome = super()._act(state, agent, text)
            return dataclasses.replace(
                outcome, done=len(state) == 4
            )  # with the last turn of the last agent

    policies = new_trainer(model, CONFIG).policies
    trajectories, _ = ATGRPO(CONFIG, Ended(max_turns=2), policies).train_step()
    assert all(len(trajectory.groups) == 4 for trajectory in trajectories)
    assert all(group.unplayed is None for trajectory in trajectories for group in trajectory.groups)


def test_agents_with_returns_of_their_own_are_cut_where_each_would_have_acted_next() -> None:
    groups = [decision(0.0, agent="ab"[n % 2], parent=n) for n in range(3)]
    cut = {"a": Unplayed("p", (1,)), "b": Unplayed("q", (2,)), "never acted": Unplayed("r", (3,))}
    separate, team = (
        Trajectory.of(Task("q", 0), 0, groups, early={}, cooperative=shared, unplayed=unplayed)
        for shared, unplayed in ((False, cut), (True, {"b": cut["b"]}))
    )
    assert [group.unplayed for group in separate.groups] == [None, cut["b"], cut["a"]]
    assert [group.unplayed for group in team.groups] == [None, None, cut["b"]]


def test_a_tree_asks_for_no_such_prompt(model: Path) -> None:
    trajectories, _ = new_trainer(model).train_step()
    assert all(group.unplayed is None for trajectory in trajectories for group in trajectory.groups)


def test_episodes_have_chains_of_their_own() -> None:
    episodes = {n: [decision(float(n), episode=n, parent=at) for at in range(2)] for n in range(2)}
    groups = played(episodes)
    advantages = chained(groups, torch.zeros(4, dtype=torch.float64), 1.0, 1.0)
    assert {g.key.episode: v for g, v in zip(groups, advantages.tolist(), strict=True)} == {
        0: 0,
        1: 1,
    }


@pytest.mark.slow
def test_a_critic_learns_and_does_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    critic = Critic(Network(8, 3), "3", learning_rate=1e-2, epochs=20)
    features = torch.eye(8)
    targets = torch.linspace(-1, 2, 8).double()
    assert critic.values(features).tolist() == [0.0] * 8
    for _ in range(30):
        critic.fit(features, targets)
    assert critic.values(features) == pytest.approx(targets, abs=0.1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("memory", [1, 2, 3, 4, 8])
def test_a_critic_learns_again_what_it_learned_in_as_many_steps_as_it_remembers(
    memory: int,
) -> None:
    learned = []

    def loss(values_N: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        learned.append(sorted(targets_N.int().tolist()))
        return values_N.sum()

    critic = Critic(Network(4, 0), "0", learning_rate=1e-3, epochs=1, memory=memory)
    for step in range(10):
        critic.fit(torch.ones(1, 4), torch.tensor([float(step)]), loss)
    assert learned == [[*range(max(0, step - memory + 1), step + 1)] for step in range(10)]


def test_a_value_that_is_no_number_stops_the_training() -> None:
    critic = Critic(Network(4, 0), "0", learning_rate=1e-3, epochs=1)
    with pytest.raises(NonFiniteError, match="critic"):
        critic.values(torch.full((1, 4), float("nan")))


def test_features_are_those_of_the_base_whatever_else_is_in_the_batch(model: Path) -> None:
    trainer = new_trainer(model, CONFIG)
    prompts = [(5, 6, 7), (5, 6), (9, 8, 7, 6, 5)]
    [base] = trainer.policies.bases
    together = base.features(prompts, 100)
    alone = {ids: base.features([ids], 1)[ids] for ids in prompts}
    for ids in prompts:
        torch.testing.assert_close(together[ids], alone[ids])
    for policy in trainer.policies.names:
        state = {k: torch.ones_like(t) for k, t in trainer.policies.state(policy).items()}
        trainer.policies.load_state(policy, state)
    for ids, state_X in base.features(prompts, 100).items():
        assert torch.equal(state_X, together[ids])


@pytest.mark.slow
def test_a_resumed_critic_and_team_are_those_of_the_uninterrupted_run(
    model: Path, tmp_path: Path
) -> None:
    trainer, twin = with_a_resumed_twin(model, CONFIG, tmp_path / "run")
    assert_same(weights(twin), weights(trainer))
    states = [learner.method.state_dict()["0"] for learner in (trainer, twin)]
    assert states[0]["fits"] == states[1]["fits"] == 6
    assert_same(states[0]["network"], states[1]["network"])
    unlearned = new_trainer(model, CONFIG)
    unlearned.train_step()
    first = unlearned.method.state_dict()["0"]["network"]
    assert any(not torch.equal(first[name], states[0]["network"][name]) for name in first)


def test_policies_rest_while_the_critic_warms_up(model: Path) -> None:
    # Also where silent groups have a gradient.
    silent: dict[str, Any] = {"silent_groups": "count", "entropy_coef": 0.05}
    trainer = new_trainer(model, dataclasses.replace(CONFIG, method_args={"warmup": 2}, **silent))
    start = weights(trainer)
    for _ in range(2):
        trainer.train_step()
    assert_same(weights(trainer), start)
    trainer.train_step()
    assert any(not torch.equal(start[name], now) for name, now in weights(trainer).items())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gamma": 1.5}, "gamma must be at least 0 and at most 1, got 1.5"),
        ({"lamb": 0.9}, "did you mean 'lam'"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"epochs": 0}, "epochs must be a whole number from 1, got 0"),
        ({"warmup": 0.5}, "warmup must be a whole number from 0, got 0.5"),
    ],
    ids=["gamma", "unknown", "rate", "epochs", "warmup"],
)
def test_arguments_that_gae_cannot_use_are_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Method.of(resolve(dataclasses.replace(CONFIG, method_args=arguments)))


def test_full_policies_without_a_frozen_base_are_refused_before_anything_is_loaded() -> None:
    config = ATGRPOConfig(env="plan_path", method="marft_gae", full=True)
    with pytest.raises(ValueError, match="full policies do not keep"):
        plan_run(config)
    assert plan_run(dataclasses.replace(config, beta=0.01)).config.method == "marft_gae"
