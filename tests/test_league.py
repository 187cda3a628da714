"""`league`: a policy plays frozen versions of itself, is the only one that learns, and draws them by its results."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from pettingzoo import AECEnv

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError, NonFiniteError
from pettingllms.methods.league import League, won_by
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import checkpoints
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.types import Task
from tests import tic_tac_toe_env
from tests.test_checkpoints import assert_same, new_folder, weights
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
GAME = "tests.test_league:env"
TEAM = {"first": "player", "second": "rival"}
SETTINGS: dict[str, Any] = {
    "env": GAME,
    "policies": "first=player,second=rival",
    "train_roles": "first",
    "method": "league",
    "num_generations": 4,
    "tasks_per_step": 2,
    "max_steps": 8,
    "max_completion_length": 6,
    "learning_rate": 0.02,
}
VERSIONED: dict[str, Any] = {"every": 1, "itself": 0.0}


class env(tic_tac_toe_env.env):
    """Each player writes once; who has the larger share of ASCII wins 1 from the other."""

    metadata = {"name": "letters_match", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["first_0", "second_0"]

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.seed, self.shares = seed, []

    def observe(self, agent):
        return f"{agent}: match {self.seed}"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self.shares.append(sum(map(str.isascii, action)) / max(1, len(action)))
        self.agent_selection = self.possible_agents[len(self.shares) % 2]
        if len(self.shares) == 2:
            one, other = self.shares
            lead = (one > other) - (one < other)
            self.rewards = {"first_0": lead, "second_0": -lead}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()


class sharing(env):
    """The same, where nothing says beforehand that both are paid alike."""

    def step(self, action):
        super().step(action)
        self.infos = {agent: {"team_reward": 0.0, "local_reward": 0.0} for agent in self.infos}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer_of(model: Path, game: type[AECEnv] = env, **arguments: Any) -> ATGRPO:
    method_args = {**VERSIONED, **arguments}
    config = resolve(ATGRPOConfig(**SETTINGS, model=str(model), method_args=method_args))
    return ATGRPO(config, game(), load_policies(model, TEAM, lora_r=4))


def league_of(**arguments: Any) -> League:
    method = Method.of(resolve(ATGRPOConfig(**SETTINGS, method_args=arguments)))
    assert isinstance(method, League)
    return method


def with_versions(league: League, **rates: float) -> League:
    league.rates = {int(name[1:]): rate for name, rate in rates.items()}
    return league


@pytest.mark.slow
def test_the_opponent_is_what_the_learner_was_in_the_step_that_was_drawn(model: Path) -> None:
    trainer = trainer_of(model, opponents="uniform")
    method, policies = trainer.method, trainer.policies
    assert isinstance(method, League)
    was, seen = list[dict[str, torch.Tensor]](), set[int]()
    for step in range(6):
        was.append(policies.state("player"))
        drawn = method.drawn
        trajectories, _ = trainer.train_step()
        theirs = [g for t in trajectories for g in t.groups if g.policy == "rival"]
        assert bool(theirs) is (step > 0) is (drawn is not None)
        assert {g.candidates[0].completion.version for g in theirs} == {drawn} - {None}
        if method.drawn is not None:  # it has its seat as soon as it was drawn
            assert_same(policies.state("rival"), was[method.drawn])
            seen.add(method.drawn)
    assert len(seen) > 2
    assert not torch.equal(*(next(w for n, w in was[s].items() if "lora_B" in n) for s in (0, 5)))


def test_opponents_are_never_trained_and_only_the_learner_is_compared(model: Path) -> None:
    trainer = trainer_of(model, opponents="latest")
    assert list(trainer.optimizers) == ["player"]
    seats = set()
    for step in range(4):
        trajectories, _ = trainer.train_step()
        for group in (group for t in trajectories for group in t.groups):
            advantages = {candidate.advantage for candidate in group.candidates}
            assert (advantages == {None}) is (group.policy == "rival")
            if step:
                seats.add((step % 2, group.key.role, group.policy))
    # Each seat is the learner's in every other step.
    assert seats == {
        (0, "first", "player"),
        (0, "second", "rival"),
        (1, "first", "rival"),
        (1, "second", "player"),
    }


def test_against_itself_both_seats_learn(model: Path) -> None:
    trainer = trainer_of(model, itself=1.0)
    for _ in range(2):
        trajectories, _ = trainer.train_step()
        groups = [group for t in trajectories for group in t.groups]
        assert {(g.key.role, g.policy) for g in groups} == {(role, "player") for role in TEAM}
        assert all(c.advantage is not None for g in groups for c in g.candidates)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    trainer, twin = trainer_of(model), trainer_of(model)
    with new_folder(tmp_path / "run") as folder:
        for _ in range(3):
            trainer.train_step()
        checkpoints.save(folder, trainer)
        checkpoints.resume(folder, twin)
    rows = [[t.row() for _ in range(4) for t in one.train_step()[0]] for one in (trainer, twin)]
    assert rows[0] == rows[1]
    assert {d["policy"] for row in rows[0] for d in row["decisions"]} == {"player", "rival"}
    assert_same(weights(twin), weights(trainer))


@pytest.mark.slow
def test_a_step_that_fails_changes_neither_the_opponent_nor_what_was_kept(model: Path) -> None:
    trainer, twin = trainer_of(model), trainer_of(model)
    for one in (trainer, twin):
        for _ in range(2):
            one.train_step()
    before = weights(trainer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_backward", lambda *_: (_ for _ in ()).throw(NonFiniteError("no")))
        with pytest.raises(NonFiniteError):
            trainer.train_step()
    assert_same(weights(trainer), before)
    for one in (trainer, twin):
        one.train_step()
    assert_same(weights(trainer), weights(twin))


def test_versions_that_are_beaten_come_rarely() -> None:
    league = with_versions(league_of(), v0=0.9, v5=0.5, v9=0.0)
    assert league.chances() == pytest.approx({0: 0.01, 5: 0.25, 9: 1.0})
    assert with_versions(league, v0=1.0, v5=1.0).chances() == {0: 1.0, 5: 1.0}
    rates = {"v0": 0.9, "v5": 0.1}
    assert with_versions(league_of(opponents="uniform"), **rates).chances() == {0: 1.0, 5: 1.0}
    assert with_versions(league_of(opponents="latest"), **rates).chances() == {5: 1.0}


def test_draws_follow_from_seed_step_and_results_alone() -> None:
    def draws(**arguments: Any) -> list[int | None]:
        league = with_versions(league_of(**arguments), v0=0.9, v5=0.5, v9=0.0)
        random.seed(len(arguments))
        drawn = []
        for league.step in range(3000):
            drawn.append(league.drawn)
        return drawn

    drawn = draws(itself=0.4)
    assert drawn == draws(itself=0.4, every=2)
    shares = Counter(drawn)
    expected = {None: 0.4} | {v: 0.6 * w / 1.26 for v, w in {0: 0.01, 5: 0.25, 9: 1.0}.items()}
    assert {v: n / 3000 for v, n in shares.items()} == pytest.approx(expected, abs=0.03)


def test_the_rate_of_the_opponent_follows_what_was_won(model: Path) -> None:
    trainer = trainer_of(model, opponents="latest", every=3)
    method = trainer.method
    assert isinstance(method, League)
    trainer.train_step()
    rate = 0.5
    for step in (1, 2):
        trajectories, _ = trainer.train_step()
        mine = "first_0" if step == 2 else "second_0"
        points = [0.5 + t.returns[mine] / 2 for t in trajectories]
        rate = (rate + sum(points) / len(points)) / 2
        assert method.rates[0] == pytest.approx(rate)
    assert rate != 0.5


def test_a_game_that_ends_before_the_learner_moves_counts_for_its_seat() -> None:
    lost = Trajectory.of(
        Task("q", 0), 0, [], early={"second_0": -1.0, "first_0": 1.0}, cooperative=False
    )
    seats = {"first": "player", "second": "rival"}
    assert won_by("player", lost, seats) == 1.0
    assert won_by("rival", lost, seats) == 0.0
    even = Trajectory.of(Task("q", 0), 0, [], early={}, cooperative=False)
    assert won_by("player", even, seats) == 0.5


@pytest.mark.slow
def test_the_oldest_version_gives_way(model: Path) -> None:
    trainer = trainer_of(model, every=2, size=2)
    for _ in range(7):
        trainer.train_step()
    method = trainer.method
    assert isinstance(method, League)
    assert list(method.kept) == [4, 6]
    assert method.drawn in method.kept


@pytest.mark.parametrize("joined", ["rivals+rae", "rivals+grpo"])
def test_other_comparisons_play_in_the_league_and_keep_their_state(
    model: Path, joined: str
) -> None:
    config = ATGRPOConfig(**{**SETTINGS, "method": joined}, method_args=VERSIONED)
    trainer = ATGRPO(resolve(config), env(), load_policies(model, TEAM, lora_r=4))
    for _ in range(2):
        trainer.train_step()
    state = trainer.method.state_dict()
    assert ("baseline" in state) is (joined == "rivals+rae")
    twin = Method.of(resolve(config))
    twin.attach(env(), trainer.policies)
    twin.load_state_dict(state)
    again = twin.state_dict()
    (step, kept, rates), other = again.pop("rivals"), state.pop("rivals")
    assert (step, list(kept), rates) == (2, [0, 1], other[2])
    assert again == state


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "math", "policies": "per-role", "train_roles": "reasoner"}, "are one team"),
        ({"policies": "shared", "train_roles": None}, "got shared and none"),
        ({"train_roles": None}, "got player, rival and none"),
        ({"method_args": {"opponents": "latests"}}, "did you mean 'latest'"),
        ({"policy_settings": {"rival": {"lora_alpha": 8}}}, "give both the same lora_alpha"),
        (
            {"workers": 2, "tasks_per_shard": 1, "max_staleness": 1},
            "who plays a step follows from the games of the one before",
        ),
    ],
)
def test_what_is_no_league_is_refused_before_a_model_is_loaded(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_run(ATGRPOConfig(**{**SETTINGS, **changes}))


def test_a_game_that_turns_out_to_share_rewards_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="share rewards"):
        trainer_of(model, sharing).train_step()
