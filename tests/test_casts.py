"""Who plays, who learns, what of, and how the parts of methods are joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainer import ATGRPOTrainer
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Casting, Method, repaid
from pettingllms.types import Task
from tests import letters_env
from tests.test_estimators_golden import decision
from tests.tiny_lm import save_tiny, tiny_config

torch.set_num_threads(1)
GOLDEN = Path(__file__).parent / "golden"
SMALL: dict[str, Any] = {
    "policies": "per-role",
    "num_generations": 2,
    "tasks_per_step": 2,
    "max_completion_length": 4,
    "eval_tasks": 0,
    "eval_steps": 0,
    "save_steps": 1,
    "scoring_threads": 1,
    "device": "cpu",
    "lora_r": 4,
    "learning_rate": 0.01,
    "warmup_steps": 0,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a run of a second: who plays and learns has nothing to do with what they know."""
    model = save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))
    return {**SMALL, "model": str(model)}


def cases(name: str) -> dict[str, Any]:
    table = json.loads((GOLDEN / f"{name}.json").read_text())
    return {case["name"]: case for case in table["cases"]}


def made(name: str, **settings: Any) -> Method:
    return Method.of(resolve(ATGRPOConfig(method=name, **settings)))


def test_swapped_policies_play_the_roles_of_the_table() -> None:
    case = cases("cory")["who plays which role (every=5)"]
    players = {"pioneer": "a", "observer": "b"}
    casts = [made("swap").players(step, players, ("a", "b")) for step in case["inputs"]["steps"]]
    assert [dict(cast.players) for cast in casts] == case["expected"]["cast"]
    assert {cast.learners for cast in casts} == {("a", "b")}


def test_alternating_policies_learn_in_the_steps_of_the_table() -> None:
    case = cases("marft")["who is trained in step s (agent_iteration_interval)"]
    trained = tuple("abc"[: case["inputs"]["agents"]])
    for every, expected in case["expected"].items():
        steps = int(every.partition("=")[2])
        alternating = made("alternate", method_args={"steps": steps}) if steps else made("at_grpo")
        learners = [alternating.players(n, {}, trained).learners for n in case["inputs"]["steps"]]
        assert [["abc".index(policy) for policy in policies] for policies in learners] == expected


def test_a_policys_updates_are_those_of_the_steps_in_which_it_learns() -> None:
    alternating = made("alternate+at_grpo", max_steps=5, num_iterations=3)
    team: tuple[dict[str, str], tuple[str, ...]] = {}, ("a", "b")
    assert [alternating.updates(name, *team) for name in "ab"] == [9, 6]


def test_an_agent_is_paid_what_its_round_earned() -> None:
    case = cases("cory")["rewards"]
    for paid, both in zip(
        case["inputs"]["(pioneer, observer)"], case["expected"]["both"], strict=True
    ):
        groups = [decision(r, agent=f"p_{n}", parent=n) for n, r in enumerate(paid)]
        played = Trajectory.of(Task("q", 0), 0, groups, early={}, cooperative=False)
        (credited,) = made("shared").credit([played])
        assert [g.chosen.reward for g in credited.groups] == [both, both]
        assert [g.episode_return for g in credited.groups] == [both, both]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "marft", "method_args": {"steps": 0}}, "steps must be a whole number from 1"),
        ({"method": "marft", "method_args": {"steps": 1.5}}, "steps must be a whole number from 1"),
        ({"method": "marft", "method_args": {"step": 1}}, "'step'; did you mean 'steps'"),
        ({"method": "at_grpo", "method_args": {"steps": 1}}, "it takes none"),
        ({"method": "swap+grpo", "policies": "shared"}, r"two trained policies, got 1 \(shared\)"),
        ({"method": "cory", "train_roles": "coder"}, "two trained policies, got 1"),
        ({"method": "shared"}, r"has no advantages; .* --method shared\+dr_mas"),
        ({"method": "at_grpo+grpo"}, "AtGrpo and Grpo both have `advantages`"),
        ({"method": "swap+alternate+grpo"}, "both have `players`"),
        ({"method": "tests.letters_env:raw_env"}, "must be a subclass of Method"),
    ],
)
def test_a_part_that_does_not_fit_is_refused_before_a_model_is_loaded(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(ATGRPOConfig(env="coding", **settings))


@pytest.mark.parametrize(
    ("field", "name", "nearest"),
    [("method", "alternating+grpo", "alternate"), ("method", "share+grpo", "shared")],
)
def test_an_unknown_part_is_refused_with_the_nearest_name(
    field: str, name: str, nearest: str
) -> None:
    settings: dict[str, Any] = {field: name}
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        ATGRPOConfig(**settings)


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "trajectories.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.glob("adapters/*/adapter_model.safetensors"))
    return {path.parent.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_in_alternating_steps_only_one_policy_has_candidates_and_changes(
    small: dict[str, Any], tmp_path: Path
) -> None:
    seen: list[dict[str, bytes]] = []

    class Look(Callback):
        def on_save(self, trainer: Any, _place: Path) -> None:
            seen.append(weights(tmp_path / "run"))

    pl.train(
        env=letters_env.env,
        method="alternate+at_grpo",
        max_steps=3,
        output_dir=tmp_path / "run",
        callbacks=[Look()],
        **small | {"num_generations": 4, "max_completion_length": 8},
    )
    for row in rows(tmp_path / "run"):
        learns = "writer" if row["step"] % 2 else "reader"
        for record in row["decisions"]:
            assert len(record["candidates"]) == (4 if record["role"] == learns else 1)
    first, second, third = seen
    assert first["reader"] == second["reader"] or first["writer"] == second["writer"]
    assert first["writer"] == second["writer"]
    assert second["reader"] == third["reader"]
    assert second["writer"] != third["writer"]


@pytest.mark.slow
def test_a_swapped_run_that_is_resumed_is_in_the_right_place(
    small: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**small, "method": "swap+dr_mas", "method_args": {"steps": 1}}
    whole = pl.train(
        env="tests.letters_env:env", max_steps=3, output_dir=tmp_path / "a", **settings
    )
    from pettingllms.session import run_training as train

    config = ATGRPOConfig(
        env="tests.letters_env:env", max_steps=3, output_dir=str(tmp_path / "b"), **settings
    )
    steps = iter([False, False, True])
    train(config, stop=lambda: next(steps, True))
    done = train(resume=tmp_path / "b")
    assert done.finished
    assert weights(whole.folder) == weights(done.folder)
    for row in rows(done.folder):
        for record in row["decisions"]:
            other = {"writer": "reader", "reader": "writer"}[record["role"]]
            assert record["policy"] == (record["role"] if row["step"] % 2 else other)


class Doubled(AtGrpo):
    """Doubles rewards, and counts its steps."""

    def __init__(self, config: Any, *, by: float = 2.0) -> None:
        super().__init__(config)
        self.by, self.steps = by, 0

    def credit(self, trajectories: Any) -> list[Trajectory]:
        self.steps += 1
        return [repaid(trajectory, lambda _, c: self.by * c.reward) for trajectory in trajectories]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.steps = state.get("steps", 0)


@pytest.mark.slow
def test_a_transform_changes_what_is_compared_and_not_what_is_logged(
    small: dict[str, Any], tmp_path: Path
) -> None:
    pl.train(
        env=letters_env.env,
        method=Doubled,
        method_args={"by": 3.0},
        scale_rewards="none",
        max_steps=1,
        output_dir=tmp_path / "run",
        **small,
    )
    changed = 0
    for row in rows(tmp_path / "run"):
        for record in row["decisions"]:
            candidates = record["candidates"]
            mean = sum(c["reward"] for c in candidates) / len(candidates)
            for c in candidates:
                assert c["reward"] == pytest.approx(c["team_reward"] + c["local_reward"])
                assert c.get("credited", 0.0) == pytest.approx(3 * c["reward"])
                assert c["advantage"] == pytest.approx(3 * (c["reward"] - mean), abs=1e-5)
                changed += c["reward"] != mean
    assert changed


@pytest.mark.slow
def test_the_state_of_a_transform_is_resumed(small: dict[str, Any], tmp_path: Path) -> None:
    trainer = ATGRPOTrainer(
        env=letters_env.env,
        method=Doubled,
        args=ATGRPOConfig(max_steps=2, output_dir=str(tmp_path / "run"), **small),
    )
    trainer.train()
    (newest,) = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1:]
    kept = torch.load(newest / "plugins.pt", weights_only=True)
    assert kept == {"method": {"steps": 2}}


class Resting(AtGrpo):
    """Nobody but the reader learns in the first step."""

    def players(self, step: int, players: Any, trained: Any) -> Casting:
        return Casting(players, ("reader",) if step == 0 else tuple(trained))


@pytest.mark.slow
def test_a_cast_of_ones_own_works_as_an_object(small: dict[str, Any], tmp_path: Path) -> None:
    trainer = ATGRPOTrainer(
        env=letters_env.env,
        method=Resting,
        args=ATGRPOConfig(max_steps=1, output_dir=str(tmp_path / "run"), **small),
    )
    before = {name: trainer.policies.state(name) for name in ("writer", "reader")}
    trainer.train()
    after = {name: trainer.policies.state(name) for name in ("writer", "reader")}
    changed = {
        name: any(not torch.equal(before[name][t], after[name][t]) for t in before[name])
        for name in before
    }
    assert changed == {"writer": False, "reader": True}


# ------------------------------------------------------------------------------ policies of agents


@pytest.mark.slow
def test_agents_of_one_role_play_and_learn_with_policies_of_their_own(
    small: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**small, "policies": "reasoner_0=a,reasoner_1=b,tool=t"}
    summary = pl.train(
        env="math",
        env_args={"reasoners": 2, "max_turns": 1},
        max_steps=1,
        output_dir=tmp_path / "run",
        **settings | {"eval_tasks": 1},
    )
    players = {
        record["agent"]: record["policy"]
        for row in rows(summary.folder)
        for record in row["decisions"]
    }
    assert players["reasoner_0"] == "a"
    assert players["reasoner_1"] == "b"
    assert set(weights(summary.folder)) == {"a", "b", "t"}
    assert summary.after


def test_an_agent_without_a_policy_of_its_own_has_that_of_its_role() -> None:
    from pettingllms.names import parse_policies

    agents = ["tool_0", "reasoner_0", "reasoner_1"]
    roles = ["tool", "reasoner"]
    assert parse_policies("tool=t,reasoner=r,reasoner_1=x", roles, agents) == {
        "tool": "t",
        "reasoner": "r",
        "reasoner_1": "x",
    }
    assert parse_policies("per-agent", roles, agents) == {agent: agent for agent in agents}
    with pytest.raises(ConfigError, match="no policy for 'reasoner'"):
        parse_policies("tool=t,reasoner_1=x", roles, agents)
    with pytest.raises(UnknownNameError, match="unknown role 'reasoner_2'"):
        parse_policies("tool=t,reasoner=r,reasoner_2=x", roles, agents)
