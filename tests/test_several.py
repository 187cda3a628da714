"""Several environments in one run: draws, episodes, scores, and `agentrl`, which scales each one's advantages."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.assembly import (
    default_folder,
    isolation_of,
    located,
    make_env,
    plan_run,
    training_env,
)
from pettingllms.cli import envs
from pettingllms.envs import load_env
from pettingllms.envs.aec import entries_of, pickled
from pettingllms.envs.reward_funcs import reward_functions
from pettingllms.envs.several import SeveralEnvs
from pettingllms.errors import PettingLLMsError, SandboxUnavailable
from pettingllms.evaluation import held_out, seats_of
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import RunFolder, checkpoints
from pettingllms.session import Summary
from pettingllms.session import run_training as train
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Casting
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import Player
from pettingllms.types import Task
from pettingllms.viewer.episodes import parsed
from tests import letters_env, rows_env
from tests.test_estimators_golden import cases, decision, made
from tests.tiny_lm import SHORT_RUN, save_tiny, tiny_config

torch.set_num_threads(1)
ENV = "two=tests.letters_env:env,three=tests.trio_env:env*3"
ROLES = ("writer", "reader", "judge")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", config=tiny_config(layers=1))


def settings(model: Path, **changes: Any) -> ATGRPOConfig:
    values = {
        "env": ENV,
        "model": str(model),
        "policies": "per-role",
        "env_args": {"two.max_turns": 2},
    }
    return ATGRPOConfig(**{**SHORT_RUN, **values, **changes})


def policies_on(model: Path) -> PolicySet:
    return load_policies(model, {role: role for role in ROLES}, lora_r=4, seed=1)


def test_tasks_are_drawn_by_weight_from_seed_and_step_alone() -> None:
    parts = {"a": letters_env.env(), "b": rows_env.env(dataset="three rows")}
    env = SeveralEnvs(parts, entries_of("a=x,b=y*3"))
    steps = [tasks_of_step(env, "a=x,b=y*3", step, 5, seed=0) for step in range(200)]
    assert all(3 <= sum(task.size == "b" for task in step) <= 4 for step in steps)
    times = Counter(task.size for step in steps for task in step)
    assert times["b"] == pytest.approx(750, abs=25)
    assert {tuple(task.size for task in step).index("a") for step in steps} == {0, 1, 2, 3, 4}
    assert steps[7] == tasks_of_step(env, "a=x,b=y*3", 7, 5, seed=0)
    assert steps[:9] != [tasks_of_step(env, "a=x,b=y*3", step, 5, seed=1) for step in range(9)]
    # Each is the task that its environment has at this place in a run of its own.
    alone = {
        name: [tasks_of_step(part, name, step, 5, seed=0) for step in range(200)]
        for name, part in parts.items()
    }
    for number, step in enumerate(steps):
        for place, task in enumerate(step):
            assert task._replace(size="") == alone[task.size][number][place]
    assert len({task.id for step in steps for task in step}) == 1000


@pytest.mark.slow
def test_an_episode_is_byte_equal_to_one_of_its_environment_alone(model: Path) -> None:
    config = resolve(settings(model, tasks_per_step=8, tasks_per_shard=1))
    env = training_env(config, None, ())
    policies = policies_on(model)
    casting = Casting({role: role for role in ROLES}, ROLES)

    def played(env: Any, tasks: list[Task]) -> list[Trajectory]:
        shape = made("at_grpo", num_generations=4).shape()
        return Player(config, env, policies, shape).play(3, tasks, casting, Clock())

    tasks = tasks_of_step(env, config.env, 3, 8, config.seed)
    together = played(env, tasks)
    assert len(together) == 8
    alone = {
        "two": letters_env.env(max_turns=2),
        "three": make_env(
            dataclasses.replace(config, env="tests.trio_env:env", env_args={}), "train"
        ),
    }
    for name, part in alone.items():
        own = [task._replace(size="") for task in tasks if task.size == name]
        rows = [json.dumps(record.row()) for record in played(part, own)]
        texts = [record.row() for record in together if record.task.size == name]
        assert rows == [json.dumps({k: v for k, v in row.items() if k != "size"}) for row in texts]
        assert rows


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    config = resolve(settings(model, max_steps=4, method="agentrl", max_num_gen_batches=2))
    env = training_env(config, None, ())

    def steps(trainer: ATGRPO, count: int) -> list[str]:
        return [json.dumps([t.row() for t in trainer.train_step()[0]]) for _ in range(count)]

    whole, folder = ATGRPO(config, env, policies_on(model)), RunFolder.create(tmp_path / "run")
    steps(whole, 2)
    checkpoints.save(folder, whole)
    after = steps(whole, 2)
    resumed = ATGRPO(config, env, policies_on(model))
    assert checkpoints.resume(folder, resumed) == 2
    assert steps(resumed, 2) == after
    for role in ROLES:
        first, second = whole.policies.state(role), resumed.policies.state(role)
        assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("runs") / "several"
    return train(settings(model, output_dir=str(folder), eval_tasks=3, eval_steps=1, max_steps=2))


@pytest.mark.slow
def test_the_success_of_each_is_reported_in_training(run: Summary) -> None:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    evals = [row for row in rows if row["kind"] == "eval"]
    assert {row["when"] for row in evals} == {"before", "validation", "after"}
    for row in evals:
        # Equal shares, the odd task for the first.
        of = {name: row[f"eval/env/{name}/success"] for name in ("two", "three")}
        assert row["eval/success"] == pytest.approx((2 * of["two"] + of["three"]) / 3)
    shares = [row for row in rows if row["kind"] == "train"]
    assert all("env/two/success" in row or "env/three/success" in row for row in shares)
    assert "| success, two " in (run.folder / "summary.md").read_text()
    lines = (run.folder / "trajectories.jsonl").read_bytes().splitlines()
    assert {parsed(line)["size"] for line in lines} == {"two", "three"}


@pytest.mark.slow
def test_a_run_is_evaluated_together_or_on_one_of_its_environments(
    run: Summary, tmp_path: Path
) -> None:
    out = tmp_path / "together"
    asked = {"adapters": str(run.folder), "limit": 4, "base": False}
    first = run_evaluation(EvalConfig.of(**asked, out=str(out)))
    again = run_evaluation(EvalConfig.of(**asked, out=str(out)))  # read from the folder
    for result in (first, again):
        assert {f"env/{name}/success" for name in ("two", "three")} <= {
            *result.teams["adapters"].scores
        }
    assert again.teams == first.teams
    one = run_evaluation(EvalConfig.of(**asked, env="two"))
    assert one.plan.config.env == "tests.letters_env:env"
    assert (one.plan.config.env_args, len(one.plan.tasks)) == ({"max_turns": 2}, 4)
    other = run_evaluation(EvalConfig.of(**asked, env="tests.trio_env:env"))
    assert other.plan.config.env_args == {}


def test_roles_of_one_name_share_a_policy_and_the_others_have_their_own(model: Path) -> None:
    plan = plan_run(settings(model))
    assert plan.roles_to_policies == {role: role for role in ROLES}
    assert seats_of(plan.env)[1] == ["writer_0", "reader_0", "judge_0"]
    assert set(plan_run(settings(model, policies="shared")).roles_to_policies.values()) == {
        "shared"
    }


def test_settings_that_follow_from_environments_are_the_largest() -> None:
    config = resolve(ATGRPOConfig(env="a=sudoku,b=sokoban,c=duet", model="embedded"))
    each = [
        resolve(ATGRPOConfig(env=name, model="embedded")) for name in ("sudoku", "sokoban", "duet")
    ]
    for name in ("max_steps", "max_completion_length", "tasks_per_step"):
        assert getattr(config, name) == max(getattr(one, name) for one in each)
    assert resolve(ATGRPOConfig(env="a=coding,b=plan_path")).model == "embedded:parts"


def test_reward_functions_are_paid_in_every_environment(model: Path) -> None:
    seen: list[int] = []

    def bonus(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        seen.append(trainer_state.global_step)
        return [10.0] * len(completions)

    config = resolve(settings(model, tasks_per_step=4))
    env = training_env(config, None, reward_functions([bonus]))
    records, _ = ATGRPO(config, env, policies_on(model)).train_step()
    assert {record.task.size for record in records} == {"two", "three"}
    assert all(c.reward >= 10 for r in records for group in r.groups for c in group.candidates)
    assert set(seen) == {0}


def test_paths_are_placed_and_folders_named_by_the_environments(tmp_path: Path) -> None:
    config = ATGRPOConfig(env="a=./mine.py:env*2.5,b=read*2", policies="shared")
    assert located(config).env == f"a={Path.cwd()}/mine.py:env*2.5,b=read*2"
    assert located(located(config)) == located(config)
    assert default_folder(config, tmp_path).name.startswith("a-b-shared-2")


@pytest.mark.parametrize("env", ["a=coding", "a=coding,b=coding,c=duet"])
def test_full_isolation_is_required_of_every_environment(env: str, monkeypatch: Any) -> None:
    def held(sandbox: Any, level: str) -> str:
        if level == "full":
            raise SandboxUnavailable("less than full")
        return "namespaces"

    monkeypatch.setattr("pettingllms.assembly.held_by", held)
    made = make_env(ATGRPOConfig(env=env, model="embedded"), "train")
    assert isolation_of(made, "any") == "namespaces"
    with pytest.raises(SandboxUnavailable):
        isolation_of(made, "full")


def test_held_out_tasks_are_shared_out_equally_whatever_the_weights() -> None:
    env = make_env(ATGRPOConfig(env=ENV), "test")
    tasks = held_out(env, "test", 5)
    assert Counter(task.size for task in tasks) == {"two": 3, "three": 2}
    assert [task.seed for task in tasks] == [0, 1, 2, 0, 1]
    assert len({task.id for task in tasks}) == 5
    assert len(held_out(env, "test")) == 200


def test_together_they_are_pickled_and_play_nothing() -> None:
    made: Any = load_env("a=read,b=plan_path", a={"sentences": 2}, b={"split": "val"})
    env: Any = pickle.loads(pickled(made))
    assert (env.parts["a"].sentences, env.parts["b"].split) == (2, "val")
    with pytest.raises(PettingLLMsError, match="several environments; play one of them"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("a=read,a=math", {}, "two environments are called 'a'; give each its own name"),
        ("a=read,b=reed", {}, "unknown environment 'reed'; did you mean 'read'"),
        ("=read,b=math", {}, "name environments as in a=coding,b=search.*, got '=read'"),
        ("a=,b=math", {}, "name environments as in a=coding,b=search.*, got 'a='"),
        ("read,math", {}, "name environments as in a=coding,b=search.*, got 'read'"),
        ("1=read,b=math", {}, "got '1=read'"),
        ("a=b=read,c=math", {}, "'a' must be one environment, got 'b=read'"),
        ("a=read*0,b=math", {}, "the weight of 'a' must be a number above 0, got '0'"),
        ("a=read*,b=math", {}, "the weight of 'a' must be a number above 0, got ''"),
        ("a=read*inf,b=math", {}, "got 'inf'"),
        ("a=read,b=math", {}, r"different default models \(smollm2, embedded\); choose one"),
        ("a=sudoku,b=math", {"env_args": {"size": 4}}, "'size' is of no environment of a, b"),
        ("a=sudoku,b=math", {"env_args": {"c.size": 4}}, r"--env-args\.a\.size 4"),
        ("a=sudoku,b=math", {"env_args": {"a.sice": 4}}, "no argument 'sice'; did you mean 'size'"),
        ("a=sudoku,b=math", {"alpha": 0.5}, r"--env-args\.a\.alpha 0\.5"),
        ("a=sudoku,b=math", {"dataset": "gsm8k"}, "dataset is of one environment"),
        ("a=sudoku,b=math", {"sandbox": "docker"}, r"--env-args\.a\.sandbox docker"),
        ("a=sudoku,b=math", {"difficulty_pools": {"size": [4, 9]}}, "of one environment.*several"),
        ("a=sudoku,b=math", {"difficulty_pools": {"rows": True}}, "of one environment.*several"),
        (
            "a=coding,b=coding",
            {"method": "cure"},
            "cure runs programs and tests of one environment",
        ),
        ("a=sudoku,b=math", {"method": "gigpo"}, "states of math_v0 are not met again"),
        ("a=sudoku,b=math", {"train_turns": "99"}, "has turns 0 to"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    env: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PettingLLMsError, match=message) as refused:
        plan_run(ATGRPOConfig(env=env, **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("command", ["show", "check", "play"])
def test_commands_about_one_environment_ask_for_one(command: str, capsys: Any) -> None:
    assert envs.main([command, "a=read,b=math"]) == 2
    assert "several environments; give one, such as read" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in cases("agentrl") if "kind" in name])
def test_agentrl_gives_the_advantages_of_the_table(name: str, monkeypatch: Any) -> None:
    case = cases("agentrl")[name]
    given, tokens = case["inputs"]["advantages"], case["inputs"]["tokens"]
    kinds = case["inputs"].get("kinds", ["coding"] * len(given))
    groups = []
    for kind in dict.fromkeys(kinds):
        at = [n for n, of in enumerate(kinds) if of == kind]
        group = decision(*(given[n] for n in at), task=f"{kind}:7")
        candidates = [
            dataclasses.replace(
                c,
                completion=dataclasses.replace(
                    c.completion, token_ids=(5,) * tokens[n], logprobs=(-0.5,) * tokens[n]
                ),
            )
            for c, n in zip(group.candidates, at, strict=True)
        ]
        groups.append(dataclasses.replace(group, candidates=tuple(candidates)))
    # The table begins with the advantages of at_grpo.
    monkeypatch.setattr("pettingllms.trainers.at_grpo.AtGrpo.advantages", lambda *_: given)
    method = made("agentrl", env="coding=coding,search=search", model="embedded")
    assert method.advantages(groups) == pytest.approx(case["expected"]["normalised"], abs=1e-6)


def test_agentrl_scales_each_environment_by_itself_and_leaves_silent_groups_out() -> None:
    method = made("agentrl", env="a=math,b=math", num_generations=2, scale_rewards="none")

    def groups(far: float) -> list[Any]:
        easy = [decision(0.0, 0.1, task=f"a:{n}") for n in range(3)]
        hard = [decision(0.0, far, task=f"b:{n}", episode=1) for n in range(2)]
        return [*easy, *hard, decision(0.5, 0.5, task="a:9")]

    one, other = method.advantages(groups(1.0)), method.advantages(groups(100.0))
    assert one[:6] == other[:6]
    assert one[6:10] == pytest.approx(other[6:10], rel=1e-3)
    assert one[10:] == [0.0, 0.0]
    # Scaled alike, though the rewards are ten times as large.
    assert one[1] == pytest.approx(-one[0]) == pytest.approx(0.91, abs=0.01)
    plain = made("agentrl", num_generations=2).advantages(groups(1.0))
    assert plain[:2] != one[:2]
