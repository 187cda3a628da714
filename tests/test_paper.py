"""The paper's tables: equal cost, honest intervals, verdicts that follow from the runs."""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks import evidence, main_table, paper, tables
from pettingllms.evaluate.scores import Estimate

SCRIPTS = {name: importlib.import_module(f"benchmarks.{name}") for name in tables.PAPER}


# --------------------------------------------------------------------- what has been published


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_published_verdict_is_what_the_script_says_of_the_published_runs(name):
    result = tables.load(name)
    assert SCRIPTS[name].verdict(result["runs"]) == result["verdict"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_arm_has_the_same_seeds_at_least_three_and_the_same_number_of_tasks(name):
    runs = tables.load(name)["runs"]
    arms = {(run["env"], run["arm"]) for run in runs}
    seeds = {arm: [r["seed"] for r in evidence.chosen(runs, *arm)] for arm in arms}
    assert len(set(map(tuple, seeds.values()))) == 1
    assert len(set(next(iter(seeds.values())))) >= 3
    assert {len(run["tasks"]) for run in runs} == {tables.load(name)["settings"]["tasks"]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_whatever_was_trained_generated_its_budget_and_at_most_a_step_more(name):
    result = tables.load(name)
    for run in result["runs"]:
        if "tokens" in run:
            budget = result["settings"]["tokens"][run["env"]]
            assert budget <= run["tokens"] <= 1.25 * budget, (name, run["env"], run["arm"])


# ---------------------------------------------------------------------------------- statistics

OUTCOMES = arrays.arrays(
    float, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.sampled_from([0.0, 1.0])
)


@given(OUTCOMES)
def test_an_interval_holds_its_mean_and_stays_within_what_is_possible(values):
    mean, low, high = evidence.estimate(values)
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert mean == pytest.approx(values.mean())


def test_an_interval_over_tasks_alone_is_that_of_the_normal_distribution():
    values = (np.arange(400) % 4 == 0).astype(float)[None]
    mean, low, high = evidence.estimate(values)
    half = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert (mean, low, high) == pytest.approx((0.25, 0.25 - half, 0.25 + half), abs=0.004)


def test_seeds_that_disagree_widen_the_interval_as_much_as_three_seeds_must():
    half = np.zeros((3, 300))
    half[0] = 1.0
    # All tasks of a seed are alike: only the choice of the three seeds matters.
    assert tuple(evidence.estimate(half)) == pytest.approx((1 / 3, 0.0, 1.0))


def a_run(env: str, arm: str, seed: int, tasks: str) -> evidence.Record:
    return {"env": env, "arm": arm, "seed": seed, "tasks": tasks}


def test_a_difference_is_paired_by_seed_and_task():
    digits = ["1010011010" * 5, "0110010110" * 5, "1110000110" * 5]
    runs = [a_run("math", arm, seed, digits[seed]) for arm in "ab" for seed in (2, 0, 1)]
    assert evidence.gain(runs, "math", "a", "b") == Estimate(0.0, 0.0, 0.0)
    worse = [run | {"tasks": "0" + run["tasks"][1:]} if run["arm"] == "b" else run for run in runs]
    assert evidence.gain(worse, "math", "a", "b").mean == pytest.approx(2 / 150)


@pytest.mark.parametrize(
    ("found", "least", "word"),
    [
        (Estimate(0.1, 0.02, 0.2), 0.0, "supported"),
        (Estimate(-0.1, -0.2, -0.02), 0.0, "fails"),
        (Estimate(0.1, -0.02, 0.2), 0.0, "not decided"),
        (Estimate(-0.02, -0.04, 0.0), -0.05, "supported"),
        (Estimate(-0.1, -0.2, -0.06), -0.05, "fails"),
    ],
)
def test_a_claim_is_judged_by_the_whole_interval(found, least, word):
    said = evidence.judged("It helps", {"math": found}, least)
    assert said.startswith(f"It helps: {word} in math ({found.mean:+.2f} [")


def test_where_everybody_solves_everything_nothing_is_concluded():
    full = [a_run("math", arm, seed, "1" * 20) for arm in "ab" for seed in range(3)]
    assert evidence.at_ceiling(full, ("a", "b")) == ["math"]
    assert evidence.at_ceiling([*full, a_run("math", "b", 3, "0" * 20)], ("a", "b")) == []


# ------------------------------------------------------------------------------------ the runs


def test_arms_that_need_the_same_training_share_it_and_others_do_not(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main_table"])
    lab = paper.Lab(None, ("coding",))
    trained = {
        (name, each.arm): [lab._folder("coding", 0, settings) for settings in _trainings(each)]
        for name, script in SCRIPTS.items()
        for each in _wanted(script, lab)
    }
    team = trained["main_table", main_table.PER_ROLE]
    for name, arm in (
        ("grouping", "at_grpo"),
        ("joint_training", "trained together"),
        ("role_swap", "exchanged"),
        ("branching", "best"),
        ("alpha", "alpha = 1"),
        ("sparse_rewards", "with local rewards"),
    ):
        assert trained[name, arm] == team
    folders = [folder for each in trained.values() for folder in each]
    # 1 + GRPO + shared, two roles alone, three estimators, sparse, four alphas, two branches, seven teams
    assert len(set(folders)) == 3 + 2 + 3 + 1 + 4 + 2 + 7


def _wanted(script, lab):
    return (
        script.wanted(lab, "coding")
        if script.__name__.endswith("joint_training")
        else script.wanted("coding")
    )


def _trainings(each):
    return each.combine or ([] if each.settings is None else [each.settings])


def test_a_table_is_made_by_real_trainings_once(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    words = "--seeds 0 --tokens 200 --tasks 3 --eval-tasks 2 --num-generations 2 --tasks-per-step 2"
    monkeypatch.setattr(sys, "argv", ["try", "--envs", "sokoban", *words.split()])

    def run() -> dict:
        lab = paper.Lab(None, ("sokoban",))
        arms = [each for each in main_table.wanted("sokoban") if each.arm == main_table.SHARED]
        lab.publish(arms, lambda _: "said", partial(evidence.draw_bars, title="try"))
        return json.loads((tmp_path / "results" / "try.json").read_text())

    first = run()
    (only,) = first["runs"]
    assert only["arm"] == main_table.SHARED
    assert set(only["tasks"]) <= {"0", "1"}
    assert len(only["tasks"]) == 3
    assert only["tokens"] >= 200
    assert "policies: shared" in only["config"]
    assert (tmp_path / "results" / "try.png").stat().st_size > 5_000
    logs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")}
    assert len(logs) == 2, "a training and an evaluation"
    assert run() == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")} == logs
    assert "wrote" in capsys.readouterr().out
