"""The base of the search team: what it was shown; and the benchmark of methods on it."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import search_report, search_team, tables
from benchmarks.priming import copying, search
from pettingllms.assembly import make_env
from pettingllms.data import facts
from pettingllms.data.rows import digest
from pettingllms.models import SEARCH
from pettingllms.trainers.config import ATGRPOConfig, resolve


def test_no_demonstration_has_three_look_ups_or_says_which_query_of_two_is_right():
    """Where the first fact of two is found, the right query is as frequent as each of the others."""
    rng, second = random.Random(0), []
    for _ in range(6000):
        prompt, reply = search.demo(rng, 0.0)
        role, question, *passages = prompt.split("\n ")
        *relations, start = question.split(" of ")
        assert len(relations) <= 2
        if role == "searcher" and len(relations) == 2 and len(passages) == 2:
            first = next(line for line in passages if line.startswith(f"{start} {relations[1]} "))
            second.append(reply.strip() == f"{first.split()[-1]} {relations[0]}")
    assert len(second) > 150
    # One entity of two or three, and one relation of two.
    assert 0.1 < sum(second) / len(second) < 0.35


def test_the_drill_copies_its_lines_of_training_names_and_nothing_else():
    rng, world = random.Random(0), facts.world("train")
    for _ in range(200):
        prompt, reply = copying.demo(rng)
        word, *lines = prompt.split("\n ")
        assert word == copying.WORD
        assert reply == "\n".join(f" {line}" for line in lines)
        assert all(line.split()[at] in world.entities for line in lines for at in (0, -1))


def test_the_shipped_base_gets_the_questions_and_settings_that_the_environment_declares():
    config = resolve(ATGRPOConfig(env="search", model="embedded:search"))
    assert (config.learning_rate, config.tasks_per_step, config.max_completion_length) == (
        4e-3,
        8,
        20,
    )
    game: Any = make_env(config, "train").unwrapped
    game.reset(seed=0)
    assert game.infos[game.agent_selection] is not None
    assert game.observe("searcher_0")["text"].count(" of ") == 2


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A tiny beginning, on few tasks, that no arm changes."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("begun") / "start"
    with few_tasks(folder):
        search_team.begin(SEARCH)
    return folder


@contextlib.contextmanager
def few_tasks(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_team, "START", folder)
        patch.setattr(search_team, "START_TOKENS", 1)
        for name in ("TASKS", "OTHER_TASKS", "VALIDATION"):
            patch.setattr(search_team, name, 2)
        few = {**search_team.COMMON, "tasks_per_step": 1, "num_generations": 2}
        patch.setattr(search_team, "COMMON", few)
        yield


@pytest.fixture
def start(begun):
    with few_tasks(begun):
        yield begun


@pytest.mark.slow
@pytest.mark.parametrize("arm", search_team.ARMS)
def test_every_arm_trains_and_is_measured(arm, start, monkeypatch):
    # Replies too short to say anything: it is about what is measured.
    monkeypatch.setattr(search_team, "LENGTH", 4)
    monkeypatch.setitem(search_team.COMMON, "max_completion_length", 4)
    run = search_team.train(SEARCH, search_team.ARMS[arm], 1e-3, 0, tokens=10)
    assert run["tokens"] >= 10
    assert {hops: len(digits) for hops, digits in run["tasks"].items()} == dict.fromkeys("123", 2)
    assert all(len(norms) == run["steps"] for norms in run["grad_norm"].values())
    assert len(run["curve"]) >= 2


@pytest.mark.slow
def test_a_mean_for_each_agent_leaves_no_agent_above_or_below_it(start):
    """The advantages of an agent are centered under `dr_mas`, whatever its calls."""
    run = search_team.train(SEARCH, search_team.ARMS["dr_mas"], 1e-3, 0, tokens=400)
    for values in run["advantages"].values():
        assert all(abs(mean) < 1e-3 for mean, _ in values)


def a_result() -> dict[str, Any]:
    """A result as the command would publish it, in which `dr_mas` solves all and `grpo` none."""
    team = {
        "tasks": dict.fromkeys("123", "01" * 20),
        "found": {hops: {"some": 0.5, "all": 0.25} for hops in "123"},
    }
    run = team | {
        "steps": 3,
        "tokens": 100,
        "grad_norm": {role: [1.0, 2.0, 3.0] for role in search_team.ROLES},
        "advantages": {role: [(0.1, 1.0)] * 3 for role in search_team.ROLES},
        "curve": [{"tokens": 0, "success": 0.0}, {"tokens": 100, "success": 0.5}],
    }
    arms = {name: arm._asdict() for name, arm in search_team.ARMS.items()}
    digits = {"dr_mas": "1" * 40, "grpo": "0" * 40}
    runs = {
        search_team.key(name, 0.002, seed): run
        | {"tasks": dict.fromkeys("123", digits.get(name, "01" * 20))}
        for name, arm in search_team.ARMS.items()
        for seed in arm.seeds
    }
    rates = dict.fromkeys(arms, 0.002)
    named = {"arms": arms, "roles": [*search_team.ROLES], "rates": rates}
    return {**named, "base": team, "start": team, "runs": runs}


@pytest.mark.slow
def test_the_report_has_a_row_for_each_arm_and_a_verdict_that_follows_from_the_runs(tmp_path):
    result = json.loads(json.dumps(a_result()))
    header, rows = search_report.table(result)
    assert len(rows) == 2 + len(search_team.ARMS)
    assert {len(row) for row in rows} == {len(header)}
    header, rows = search_report.norms(result)
    assert {len(row) for row in rows} == {len(header)}
    assert "supported in search, 15 seeds (+1.00" in search_report.verdict(result)
    search_report.draw(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_what_is_published_was_measured_on_the_shipped_base():
    if tables.published("search_team"):
        result = tables.load("search_team")
        assert result["model"] == digest(SEARCH)
        for name, arm in result["arms"].items():
            runs = search_report.of(result, name)
            assert len(runs) == len(arm["seeds"])
            assert {run["tokens"] // search_team.TOKENS for run in runs} == {1}
            assert search_report.digits(runs, 2).shape == (len(arm["seeds"]), search_team.TASKS)
            assert np.isfinite(
                [norm for run in runs for norm in run["grad_norm"]["searcher"]]
            ).all()
