"""LLM-Ens: the table of who is best where, what routes and votes play, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.cli.evaluate import main
from pettingllms.cli.guard import FAILED
from pettingllms.envs import load_env
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError
from pettingllms.evaluation.chunks import Chunk, Sampling
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.ensembles import (
    LEAST,
    ROUTED,
    VOTE,
    Cell,
    Ensemble,
    Route,
    Voting,
    routes_of,
    with_members,
)
from pettingllms.evaluation.rollouts import policies_by_seat, roll_out
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.types import Request, Task
from tests import letters_env
from tests.test_estimators_golden import cases
from tests.test_evaluate_adapters import adapter, model  # noqa: F401 - fixtures

torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["two situations", "tie"])
def test_a_table_and_its_routes_are_those_of_the_papers_rule(name: str) -> None:
    case = cases("llm_ens")[name]
    (records,), expected = case["inputs"].values(), case["expected"]
    route = Route.of([(s, p, r) for s, p, r in records], ["a", "b"], least=1)
    means = {s: {p: cell.mean for p, cell in row.items()} for s, row in route.cells.items()}
    for situation, row in expected["means"].items():
        assert means[situation] == pytest.approx(row, abs=1e-6)
    overall = {policy: cell.mean for policy, cell in route.overall.items()}
    assert overall == pytest.approx(expected["overall"], abs=1e-6)
    assert {s: route.best(s) for s in route.cells} == expected["route"]
    assert route.best(None) == route.best("never seen") == expected["fallback"]
    assert Route.from_row(json.loads(json.dumps(route.row()))) == route


def test_a_policy_that_never_was_in_a_situation_is_not_its_best() -> None:
    route = Route.of([("open", "b", -1.0), ("trap", "a", 1.0)], ["a", "b"], least=1)
    assert route.best("open") == "b"


def test_a_cell_of_few_decisions_decides_nothing() -> None:
    many = [("open", "a", 1.0)] * LEAST + [("open", "b", 0.0)] * LEAST
    lucky = [("trap", "b", 9.0)] * (LEAST - 1) + [("trap", "a", 0.0)] * LEAST
    route = Route.of([*many, *lucky], ["a", "b"])
    assert route.cells["trap"]["b"] == Cell(9.0, LEAST - 1)
    assert route.best("trap") == "a"
    assert Route.of([*many, *lucky, ("trap", "b", 9.0)], ["a", "b"]).best("trap") == "b"


def test_a_table_of_too_few_decisions_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"b has 1 decisions, and a table needs {LEAST}"):
        Route.of([("open", "a", 1.0)] * LEAST + [("open", "b", 1.0)], ["a", "b"])


class Doors(letters_env.raw_env):
    """Two kinds of tasks; `left` and `right` open one kind of door each."""

    def situation(self, agent: str) -> str:
        return "even" if self.task_seed % 2 == 0 else "odd"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        opened = (text == "left") == (self.task_seed % 2 == 0)
        return Outcome((*state, text), 0.0, float(opened), success=opened)


TASKS = [Task(f"q:{n}", n) for n in range(40)]
MEMBERS = {"a": {"a-writer": "a-writer", "a-reader": "a-reader"},
           "b": {"a-writer": "b-writer", "a-reader": "b-reader"}}  # fmt: skip


class Two(ScriptedSampler):
    """Member a always says left, b always right."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__(answer or (lambda policy, *_: "left" if policy[0] == "a" else "right"))

    def policy_for(self, role: str) -> str:
        return f"a-{role.partition('_')[0]}"


def play(who: str, routes: Any = None, **options: Any) -> list[Trajectory]:
    env = options.pop("env", None) or Doors(max_turns=1)
    policies = options.pop("policies", None) or Two()
    members = options.pop("members", MEMBERS)
    ensemble = Ensemble(members, who, routes or {}, **options)
    seats = policies_by_seat(policies, env, None)
    with ThreadPoolExecutor(2) as pool:
        return roll_out(
            env, policies, seats, pool, Chunk(TASKS, range(1)), Sampling(8), ensemble=ensemble
        )


def infos(episodes: list[Trajectory], name: str) -> list[Any]:
    return [group.chosen.info[name] for trajectory in episodes for group in trajectory.groups]


def test_a_router_lets_the_best_member_answer_in_each_situation() -> None:
    alone = {member: play(member) for member in MEMBERS}
    assert set(infos(alone["a"], "member")) == {"a"}
    routes = routes_of(alone)
    assert {r: route.row()["best"] for r, route in routes.items()} == {
        role: {"even": "a", "odd": "b"} for role in ("writer", "reader")
    }
    together = play(ROUTED, routes)
    assert all(infos(together, "success"))
    assert not all(infos(alone["a"], "success"))
    assert {g.policy for trajectory in together for g in trajectory.groups} == {
        f"{member}-{role}" for member in MEMBERS for role in ("writer", "reader")
    }
    again = Trajectory.from_row(json.loads(json.dumps(together[1].row())))
    assert again.groups[0].chosen.info["situation"] == "odd"


def test_an_environment_of_another_package_names_situations_in_its_infos() -> None:
    class Foreign(letters_env.raw_env):
        def reset(self, seed: int | None = None, options: Any = None) -> None:
            super().reset(seed, options)
            self.infos["writer_0"]["situation"] = 7

    games = play("a", env=Foreign(max_turns=1))
    assert [g.chosen.info["situation"] for game in games for g in game.groups][:2] == ["7", None]


def test_a_vote_plays_the_most_frequent_reply_and_of_equals_the_first_members() -> None:
    replies = {"a": "x", "b": "y", "c": "y"}
    sampler = ScriptedSampler(lambda policy, *_: replies[policy])
    members = [{"a": name} for name in replies]
    request = Request("a", (1,), 5)
    [[completion]] = Voting(sampler, members).sample([request], 1, max_new_tokens=4)
    assert completion.text == "y"
    [[completion]] = Voting(sampler, members[:2]).sample([request], 1, max_new_tokens=4)
    assert completion.text == "x"


def test_equal_policies_vote_with_draws_of_their_own() -> None:
    seeds: list[int] = []

    def answer(_policy: str, _prompt: str, seed: int) -> str:
        seeds.append(seed)
        return "x"

    sampler = ScriptedSampler(answer)
    Voting(sampler, [{"a": "a"}] * 3).sample([Request("a", (1,), 5)], 1, max_new_tokens=4)
    assert len(set(seeds)) == 3


def test_a_vote_is_played_in_every_decision() -> None:
    members = MEMBERS | {"c": {"a-writer": "b-writer", "a-reader": "b-reader"}}
    texts = {
        g.chosen.completion.text
        for trajectory in play(VOTE, members=members)
        for g in trajectory.groups
    }
    assert texts == {"right"}


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        ("math", {}, r"[23] steps"),
        ("coding", {}, r"program|function"),
        ("search", {}, r"[123] hops?"),
        ("plan_path", {}, r"near|between|far"),
        ("sokoban", {"boxes": 2}, r"[012] boxes off goals"),
        ("sudoku", {}, r"(few|some|many) blanks"),
    ],
)
def test_environments_name_the_situation_before_anybody_has_acted(
    env: str, arguments: dict[str, Any], said: str
) -> None:
    made: Any = load_env(env, **arguments)
    made.reset(seed=3)
    situation = made.unwrapped.situation(made.possible_agents[0])
    assert re.fullmatch(said, situation), situation


@pytest.fixture
def words(model: Path, tmp_path: Path) -> list[str]:  # noqa: F811
    return [*["--env", "tests.letters_env:env", "--env-args.max_turns", "2", "--device", "cpu"],
            *f"--max-completion-length 4 --model {model} --limit 24".split()]  # fmt: skip


@pytest.fixture
def pair(adapter: Path, tmp_path: Path) -> str:  # noqa: F811
    shutil.copytree(adapter, tmp_path / "other")
    return f"a={adapter},b={tmp_path / 'other'}"


@pytest.mark.slow
def test_one_command_makes_the_table_and_another_plays_by_it(
    words: list[str], pair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "route.json"
    made = [*words, "--members", pair, "--split", "train", "--route-out", str(file)]
    assert main(made) == 0
    table = json.loads(file.read_text())
    assert table["roles"]["writer"]["overall"]["a"][1] == 48
    play = [*words, "--members", pair, "--route", str(file), "--vote", "--limit", "4"]
    out = tmp_path / "out"
    assert main([*play, "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert list(results["results"]) == ["a", "b", "vote", "routed"]
    assert results["settings"]["teams"]["routed"]["routes"]["writer"] == table["roles"]["writer"]
    lines = [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]
    policies = {(l["team"], d["policy"]) for l in lines for d in l["decisions"]}  # noqa: E741
    assert {("a", "a-shared"), ("b", "b-shared"), ("routed", "a-shared")} <= policies
    assert ("a", "b-shared") not in policies
    assert main([*play, "--no-base", "--out", str(tmp_path / "two")]) == 0
    assert list(json.loads((tmp_path / "two" / "results.json").read_text())["results"]) == [
        "vote",
        "routed",
    ]
    capsys.readouterr()
    seen = [*words, "--members", pair, "--route", str(file), "--split", "train"]
    assert main(seen) == FAILED
    assert "was made on the split train" in capsys.readouterr().err
    swapped = pair.replace("b=", "c=")
    assert main([*words, "--members", swapped, "--route", str(file)]) == FAILED
    assert "of the members a, b, and these are a, c" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--route", "x.json"], "route is for an ensemble; name its teams: --members"),
        (["--vote"], "vote is for an ensemble"),
        (["--members", "a=runs/x", "--adapters", "y"], "leave out --adapters"),
        (["--members", "runs/x"], "'runs/x' is not NAME=RUN"),
        (["--members", "a={adapter}"], "is one team; use --adapters"),
        (["--members", "a={adapter},a={adapter}"], "name 'a' is named twice"),
        (["--members", "routed={adapter},a={adapter}"], "the name 'routed' is taken"),
        (["--members", "a={adapter},b=/nowhere"], "there is no folder /nowhere"),
        (["--members", "a={adapter},b={adapter}", "--route-out", "x"], "add --split train"),
        (["--members", "a={adapter},b={adapter}", "--route", "{adapter}/adapter_config.json"], "no table of"),
        (["--members", "a={adapter},b={adapter}", "--route", "none.json"], "none.json cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_ensemble_is_refused_with_the_cure(
    words: list[str],
    adapter: Path,  # noqa: F811
    more: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [word.replace("{adapter}", str(adapter)) for word in more]
    assert main([*words, *options, "--dry-run"]) == FAILED
    assert said in capsys.readouterr().err


def test_members_are_given_in_python_as_a_mapping(adapter: Path) -> None:  # noqa: F811
    options = EvalConfig.of(members={"a": adapter, "b": adapter})
    assert options.members == f"a={adapter},b={adapter}"
    _, members = with_members(options)
    assert list(members) == ["a", "b"]
