"""Tables of methods: equal cost, honest intervals, verdicts that follow from the runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks import evidence, experiments, paper, tables
from benchmarks.method_table import EXPERIMENTS
from pettingllms.cli import evaluate, train
from pettingllms.statistics import Estimate
from tests.quoted_commands import fork_commands

# --------------------------------------------------------------------- what has been published


def inconsistencies(experiment: experiments.Experiment, result: dict) -> list[str]:
    """What does not hold of a published result; all experiments are held to the same."""
    runs, faults = result["runs"], []
    if experiment.verdict(runs) != result["verdict"]:
        faults.append("the verdict is not that of the runs")
    arms = {(run["env"], run["arm"]) for run in runs}
    seeds = {tuple(run["seed"] for run in evidence.chosen(runs, *arm)) for arm in arms}
    if len(seeds) != 1 or len(set(next(iter(seeds)))) < 3:
        faults.append("the arms do not have the same seeds, at least three")
    if {len(run["tasks"]) for run in runs} != {result["settings"]["tasks"]}:
        faults.append("not every arm played all tasks")
    for run in runs:
        budget = result["settings"]["tokens"][run["env"]]
        if "tokens" in run and not budget <= run["tokens"] <= 1.25 * budget:
            faults.append(f"{run['env']}, {run['arm']} did not generate its tokens")
    return faults


def a_result(name: str) -> dict:
    """A result as a run of the experiment would publish it."""
    runs, experiment = [], EXPERIMENTS[name]
    for env in experiment.envs:
        for k, arm in enumerate(experiment.arms(env)):
            for seed in range(3):
                digits = "".join(str(int((task + seed) % (k + 2) == 0)) for task in range(40))
                record = {"env": env, "arm": arm.name, "seed": seed, "tasks": digits}
                record["late"] = {"success": 0.5, "turns": 3.0, "num_tokens": 100.0}
                runs.append(record | ({"tokens": 110} if arm.settings else {}))
    settings = {"tasks": 40, "tokens": dict.fromkeys(experiment.envs, 100)}
    return {"settings": settings, "verdict": experiment.verdict(runs), "runs": runs}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_whatever_is_published_is_consistent(name):
    if tables.published(name):
        assert inconsistencies(EXPERIMENTS[name], tables.load(name)) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_result_that_is_inconsistent_is_found(name):
    experiment, good = EXPERIMENTS[name], a_result(name)
    assert inconsistencies(experiment, good) == []
    first, *rest = good["runs"]
    assert inconsistencies(experiment, good | {"verdict": "It works."})
    assert inconsistencies(experiment, good | {"runs": [first | {"seed": 7}, *rest]})
    assert inconsistencies(experiment, good | {"runs": [first | {"tokens": 200}, *rest]})
    assert inconsistencies(experiment, good | {"settings": good["settings"] | {"tasks": 41}})


def test_the_table_of_an_experiment_has_a_row_for_each_arm():
    experiment = EXPERIMENTS["judges"]._replace(rows=None)
    header, rows = experiment.table(a_result("judges"))
    assert [row[0] for row in rows] == [arm.name for arm in experiment.arms("coding")]
    assert header[1:] == list(experiment.envs)
    assert all(len(row) == len(header) for row in rows)


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
    assert (mean, low, high) == pytest.approx((0.25, 0.25 - half, 0.25 + half), abs=0.006)


def test_seeds_that_disagree_widen_the_interval_as_much_as_three_seeds_must():
    half = np.zeros((3, 300))
    half[0] = 1.0
    # All tasks of a seed are alike: only the choice of the three seeds matters.
    mean, low, high = evidence.estimate(half)
    assert (mean, high) == pytest.approx((1 / 3, 1.0), abs=0.02)
    assert low < 0.02


def success_of(
    rng: np.random.Generator, seeds: int, tasks: int, mean: float, task: float, seed: float
) -> np.ndarray:
    """Chances of success: tasks and seeds shift the log-odds by random effects of these spreads."""
    shift = task * rng.normal(size=(1, tasks)) + seed * rng.normal(size=(seeds, 1))
    return 1 / (1 + np.exp(-(mean + shift)))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("mean", "task", "seed"),
    [(-1, 2, 0), (-1, 2, 0.7), (0, 0, 1), (3, 2, 0.5), (5, 2, 0), (5, 2, 0.7), (4, 0, 0)],
)
def test_the_interval_over_seeds_and_tasks_covers_what_new_ones_would_give(seeds, mean, task, seed):
    """Crossed resampling covers 0.66 (two seeds) and 0.80 (three) of the third case."""
    rng, trials, hits = np.random.default_rng(0), 300, 0
    truth = success_of(rng, 1000, 1000, mean, task, seed).mean()
    for _ in range(trials):
        chances = success_of(rng, seeds, 100, mean, task, seed)
        _, low, high = evidence.estimate((rng.random(chances.shape) < chances).astype(float))
        hits += low <= truth <= high
    # Two seeds say next to nothing about how far seeds are apart.
    assert hits / trials >= (0.88 if seeds == 2 else 0.91)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_the_interval_of_a_difference_covers_it(seeds):
    """Two arms on the same seeds and tasks, of which the second is better by some log-odds."""
    rng, trials, hits = np.random.default_rng(1), 300, 0

    def gains(seeds: int, tasks: int) -> np.ndarray:
        shift = 2 * rng.normal(size=(1, tasks)) + (0.5 * rng.normal(size=(seeds, 2)) if seeds > 1
            else np.zeros((1, 2)))[:, :1]  # fmt: skip
        arms = [1 / (1 + np.exp(-(shift + mean))) for mean in (0.0, 0.5)]
        one, two = (rng.random(chance.shape) < chance for chance in arms)
        return two.astype(float) - one

    truth = gains(1000, 1000).mean()
    for _ in range(trials):
        _, low, high = evidence.difference(gains(seeds, 100))
        hits += low <= truth <= high
    assert hits / trials >= 0.91


def a_run(env: str, arm: str, seed: int, tasks: str) -> evidence.Record:
    return {"env": env, "arm": arm, "seed": seed, "tasks": tasks}


def test_a_difference_is_paired_by_seed_and_task():
    digits = ["1010011010" * 5, "0110010110" * 5, "1110000110" * 5]
    runs = [a_run("math", arm, seed, digits[seed]) for arm in "ab" for seed in (2, 0, 1)]
    mean, low, high = evidence.gain(runs, "math", "a", "b")
    assert mean == 0
    assert -0.1 < low < 0 < high < 0.1  # agreement on 50 tasks is not certainty
    worse = [run | {"tasks": "0" + run["tasks"][1:]} if run["arm"] == "b" else run for run in runs]
    assert evidence.gain(worse, "math", "a", "b").mean == pytest.approx(2 / 150)


@given(OUTCOMES)
def test_no_published_interval_is_a_point(values):
    _, low, high = evidence.estimate(values)
    assert high - low > 0
    mean, low, high = evidence.difference(values - values[::-1])
    assert -1 <= low <= mean <= high <= 1
    assert high - low > 0


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
    claim = evidence.judged("It helps", {"math": found}, least)
    assert claim.startswith(f"It helps: {word} in math ({found.mean:+.2f} [")


# ------------------------------------------------------------------------------------ the runs


def a_lab(*words: str) -> paper.Lab:
    return paper.Lab(*paper.parse(["methods", *words]))


@pytest.mark.slow
def test_publishing_one_environment_keeps_what_is_published_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    runs = a_result("methods")["runs"]
    for env, tokens in (("plan_path", "100"), ("search", "90"), ("plan_path", "110")):
        env_runs = [run for run in runs if run["env"] == env]
        lab = a_lab("--envs", env, "--tokens", tokens, "--tasks", "40")
        lab.publish("methods", EXPERIMENTS["methods"], env_runs)
    result = json.loads((tmp_path / "results" / "methods.json").read_text())
    assert result["settings"]["tokens"] == {"search": 90, "plan_path": 110}
    kept = [run for run in runs if run["env"] in ("plan_path", "search")]
    assert sorted(result["runs"], key=json.dumps) == sorted(kept, key=json.dumps)


@pytest.mark.slow
def test_publishing_some_arms_keeps_what_is_published_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    experiment, runs = EXPERIMENTS["methods"], a_result("methods")["runs"]
    mine = [run for run in runs if run["env"] == "plan_path"]
    words = ["--envs", "plan_path", "--tasks", "40"]
    a_lab(*words, "--tokens", "100").publish("methods", experiment, mine)
    again = [run | {"tasks": "1" * 40} for run in mine if run["arm"] == "marft_gae"]
    some = [*words, "--arms", "marft_gae"]
    a_lab(*some, "--tokens", "100").publish("methods", experiment, again)
    published = json.loads((tmp_path / "results" / "methods.json").read_text())["runs"]
    new = {run["seed"]: run for run in again}
    wanted = [new[run["seed"]] if run["arm"] == "marft_gae" else run for run in mine]
    assert published == wanted  # each in its place
    with pytest.raises(ValueError, match="give --tokens 100"):
        a_lab(*some, "--tokens", "90").publish("methods", experiment, again)


def test_an_arm_that_no_environment_has_is_refused_with_those_that_there_are():
    experiment = EXPERIMENTS["methods"]
    jobs = paper.jobs_of(experiment, ["plan_path", "search"], ["grpo"], [0, 1])
    assert [(job.env, job.arm.name, job.seed) for job in jobs] == [
        (env, "grpo", seed) for env in ("plan_path", "search") for seed in (0, 1)
    ]
    with pytest.raises(ValueError, match="no arm 'grpoo' here; did you mean 'grpo'"):
        paper.jobs_of(experiment, ["plan_path"], ["grpoo"], [0])


def test_arms_that_need_the_same_training_share_it_and_others_do_not():
    lab = a_lab()
    trained = {
        (name, arm.name): lab.trainings(paper.Job("coding", arm, 0))
        for name, experiment in EXPERIMENTS.items()
        for arm in experiment.arms("coding")
    }
    assert trained["methods", "grpo"] != trained["methods", "at_grpo"]
    assert trained["methods", "grpo"] != trained["methods", "grpo, small steps"]
    assert trained["methods", "base"] == []
    again = experiments.Arm("another name", {**experiments.PER_ROLE, "method": "grpo"})
    assert lab.trainings(paper.Job("coding", again, 0)) == trained["methods", "grpo"]


def test_an_unknown_experiment_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        paper.parse(["method"])
    assert "methods" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_table_is_made_by_real_trainings_once(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    shared = EXPERIMENTS["judges"]._replace(
        arms=lambda _: [experiments.Arm("shared", {"policies": "shared"})], claims=()
    )
    monkeypatch.setattr("benchmarks.paper.EXPERIMENTS", {"methods": shared})
    words = "methods --envs sokoban --name try --seeds 0 --tokens 200 --tasks 3"
    words += " --eval-tasks 1 --num-generations 2 --tasks-per-step 1 --max-completion-length 4"
    monkeypatch.setattr(subprocess, "run", subprocess.run)  # as it is afterwards
    fork_commands({train.__name__: [], evaluate.__name__: []})

    def run() -> dict:
        paper.main(words.split())
        return json.loads((tmp_path / "results" / "try.json").read_text())

    first = run()
    (only,) = first["runs"]
    assert only["arm"] == "shared"
    assert set(only["tasks"]) <= {"0", "1"}
    assert len(only["tasks"]) == 3
    assert only["tokens"] >= 200
    assert "policies: shared" in only["config"]
    assert (tmp_path / "results" / "try.png").stat().st_size > 5_000
    logs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")}
    assert len(logs) == 3, "a training with its console.log, and an evaluation"
    assert run() == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")} == logs
    assert "wrote" in capsys.readouterr().out
