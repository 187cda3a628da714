"""The runner of the paper's claims: equal cost, nothing tuned on what is reported, verdicts that can fail."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.claims import __main__ as command
from benchmarks.claims import cells, difference, experiments, groupings, report, statistics
from benchmarks.claims.experiments import ARMS, EXPERIMENTS, MORE, SEEDS, SHORT, TUNING
from pettingllms.data.rows import digest
from pettingllms.statistics import holm
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import GroupKey

# ---------------------------------------------------------------------------------- statistics


def outcomes(rng: np.random.Generator, seeds: int, spread: float, gain: float = 0.1) -> np.ndarray:
    """Paired differences of two arms of which one solves `gain` more, by a spread over seeds."""
    gains = np.clip(gain + spread * rng.normal(size=(seeds, 1)), -0.9, 0.9)
    one = rng.random((seeds, 300)) < 0.5 + gains / 2
    return one.astype(float) - (rng.random((seeds, 300)) < 0.5 - gains / 2)


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_intervals_and_tests_over_five_seeds_err_as_seldom_as_they_say(spread, monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 1_000)
    rng, trials, held, rejected = np.random.default_rng(0), 100, 0, 0
    for _ in range(trials):
        gains = outcomes(rng, 5, spread)
        _, low, high = statistics.interval(gains)
        held += low <= 0.1 <= high
        rejected += statistics.p_value(gains, 0.1) < 0.05
    assert held / trials >= 0.93
    assert rejected / trials <= 0.08


def test_a_large_difference_is_seen_and_seeds_that_disagree_hide_it():
    clear = outcomes(np.random.default_rng(0), 5, 0.01, 0.3)
    blurred = np.array([[gain] * 300 for gain in (0.9, 0.6, -0.3, 0.4, -0.1)])
    assert clear.mean() == pytest.approx(blurred.mean(), abs=0.03)
    assert statistics.p_value(clear) < 0.001
    assert statistics.p_value(blurred) > 0.1
    assert statistics.interval(clear).low > 0 > statistics.interval(blurred).low


def test_students_distribution_is_that_of_the_tables():
    for freedom, quantile in ((1, 12.706), (4, 2.776), (30, 2.042)):
        assert statistics._quantile(0.975, freedom) == pytest.approx(quantile, abs=1e-3)


def test_intervals_without_variation_have_a_width():
    for value in (0.0, 1.0):
        mean, low, high = statistics.interval(np.full((5, 300), value))
        assert low <= mean == value <= high
        assert high - low > 0.001


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order():
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert corrected == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


def test_ranks_are_correlated_as_by_hand_and_few_of_them_decide_little():
    assert statistics.rank_correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]).mean == pytest.approx(0.8208, abs=1e-4)  # fmt: skip
    assert statistics.rank_correlation([1, 2, 3, 4, 5], [1] * 5).mean == 0
    up = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert statistics.rank_correlation(up, up[::-1]).mean == pytest.approx(-1)
    assert statistics.rank_p_value(up, up[::-1]) == pytest.approx(2 / 720)
    assert statistics.rank_p_value(up[:3], up[:3]) == pytest.approx(2 / 6)
    _, low, high = statistics.rank_correlation(up, [1, 3, 2, 6, 4, 5])
    assert low < 0 < 0.77 < high < 1


# -------------------------------------------------------------------------------------- verdicts


def a_cell(ground: str, arm: str, seed: int, share: float) -> dict:
    rng = np.random.default_rng(1000 * seed)  # one stream a seed: arms are paired
    digits = "".join("1" if chance < share else "0" for chance in rng.random(300))
    reading = {"steps": 10, "tokens": 30_000, "own": digits}
    return {
        "cell": f"{ground}/{arm}/1/{seed}",
        "rate": 4e-3,
        "curves": [[(3_000, 9.0)]],
        "tokens": reading,
        "updates": dict(reading),
    }


def runs_of(seeds: Sequence[int] = SEEDS, **shares: float) -> report.Runs:
    names = {"team": experiments.AT_GRPO, "task": "tree, by task", "apart": "trained apart"}
    return {
        ("plan_path", names[name]): [a_cell("plan_path", names[name], s, share) for s in seeds]
        for name, share in shares.items()
    }


def verdicts(runs: report.Runs) -> dict[str, dict]:
    _, judged, _ = report.published(runs, list(EXPERIMENTS), {"plan_path": False})
    return {verdict["claim"]: verdict for verdict in judged}


@pytest.mark.parametrize(
    ("team", "task", "word"),
    [(0.8, 0.5, "supported"), (0.5, 0.8, "refuted"), (0.5, 0.5, "not decided")],
)
def test_a_verdict_follows_from_the_runs_and_names_what_it_leaves_open(team, task, word):
    verdict = verdicts(runs_of(team=team, task=task))["AT-GRPO beats tree, by task"]
    assert verdict["verdict"] == word
    assert all(verdict["confounds"])


def test_seeds_that_were_added_after_a_look_at_the_first_double_the_p_value():
    runs = runs_of((*SEEDS, *MORE), team=0.52, task=0.5)
    (verdict,) = report.judged(runs, ["grouping"])
    one, two = (
        statistics.digits([cell["tokens"]["own"] for cell in of_arm]) for of_arm in runs.values()
    )
    assert 0 < verdict.p == pytest.approx(2 * statistics.p_value(one - two))
    first = {key: cells[: len(SEEDS)] for key, cells in runs.items()}
    (verdict,) = report.judged(first, ["grouping"])
    assert verdict.p == pytest.approx(statistics.p_value((one - two)[: len(SEEDS)]))


def test_readings_that_disagree_decide_nothing():
    runs = runs_of(team=0.8, task=0.5)
    cells: Any = runs["plan_path", experiments.AT_GRPO]
    for cell in cells:
        cell["updates"] = {**cell["updates"], "own": "0" * 300}
    assert verdicts(runs)["AT-GRPO beats tree, by task"]["verdict"] == "not decided"


def test_a_best_rate_at_the_edge_of_the_grid_is_a_confound():
    runs = runs_of(team=0.8, task=0.5)
    cells: Any = runs["plan_path", "tree, by task"]
    for cell in cells:
        cell["cell"] = cell["cell"].replace("/1/", "/2/")
    (verdict,) = verdicts(runs).values()
    assert any("edge of the grid: tree, by task" in confound for confound in verdict["confounds"])


def test_tokens_that_are_not_equal_are_a_confound():
    runs = runs_of(team=0.8, task=0.5)
    told = "At equal tokens tree, by task has 20 % more, because its steps are large."
    (verdict,) = verdicts(runs).values()
    assert told not in verdict["confounds"]
    for cell in runs["plan_path", "tree, by task"]:
        cell["tokens"]["tokens"] = 36_000
    (verdict,) = verdicts(runs).values()
    assert told in verdict["confounds"]


def several(count: int, gains: Sequence[float], losses: Sequence[float]) -> report.Runs:
    """Made-up pairs of arms on `count` grounds: gains of a policy for each role, losses by an exchange."""
    runs: dict[tuple[str, str], list[dict]] = {}
    for number, (gain, loss) in enumerate(zip(gains[:count], losses[:count], strict=True)):
        shares = ((experiments.AT_GRPO, 0.6), (experiments.SHARED, 0.6 - gain))
        for arm, share in shares:
            runs[f"g{number}", arm] = [a_cell(f"g{number}", arm, seed, share) for seed in SEEDS]
        for cell in runs[f"g{number}", experiments.AT_GRPO]:
            other = a_cell("", "", int(cell["cell"][-1]), 0.6 - loss)["tokens"]["own"]
            cell["tokens"] = {**cell["tokens"], experiments.EXCHANGED: other}
    return runs


def test_whether_gains_follow_what_an_exchange_loses_is_one_test_over_six_environments():
    losses = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
    correlation = difference.correlated(several(6, losses, losses))
    assert correlation is not None
    assert correlation["points"]["g5"] == pytest.approx({"loss": 0.5, "tokens": 0.5, "updates": 0.5}, abs=0.05)  # fmt: skip
    assert correlation["p"] == pytest.approx(2 / 720, rel=0.02)
    assert [correlation[name][0] for name in cells.READINGS] == [1, 1]
    assert "**supported**" in difference.sentence({"difference": {**correlation, "p_holm": 0.01}})
    assert "**not decided**" in difference.sentence({"difference": {**correlation, "p_holm": 0.2}})
    against = difference.correlated(several(6, losses[::-1], losses))
    assert "**refuted**" in difference.sentence({"difference": {**(against or {}), "p_holm": 0.01}})
    assert difference.correlated(several(5, losses, losses)) is None


def test_the_correlation_is_corrected_together_with_the_verdicts():
    losses = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
    runs = {**several(6, losses, losses), **runs_of(team=0.8, task=0.8)}
    arms, judged, correlation = report.published(runs, list(EXPERIMENTS), dict.fromkeys((*(f"g{n}" for n in range(6)), "plan_path"), False))  # fmt: skip
    assert correlation is not None
    assert len(judged) == 1
    assert len(arms) == 7
    assert correlation["p_holm"] == pytest.approx(2 * correlation["p"], rel=0.02)


def test_arms_without_all_seeds_are_not_judged_but_named_as_missing():
    runs = runs_of(team=0.8, task=0.5)
    partial = {
        key: of_arm[:4] if key[1] == "tree, by task" else of_arm for key, of_arm in runs.items()
    }
    asked = dict.fromkeys(runs, SEEDS)
    assert verdicts(report.complete(partial, asked)) == {}
    assert len(verdicts(report.complete(runs, asked))) == 1
    assert report.complete(runs, dict.fromkeys(runs, (*SEEDS, *MORE))) == {}
    lacking = report.missing({"verdicts": []})
    assert lacking.keys() == EXPERIMENTS.keys()
    assert lacking["grouping"].startswith("`plan_path`, `signal`")


def test_more_open_questions_than_letters_are_named_apart_and_in_order():
    parts = [f"question {number}" for number in range(40)]
    one = {"claim": "", "ground": "", "gains": {}, "p_holm": 1.0, "verdict": "not decided"}
    rows = [{**one, "confounds": parts}, {**one, "confounds": parts[::-3]}]
    letters = report.open_questions(rows)
    assert [letters[question] for question in (parts[0], parts[25], parts[26])] == ["a", "z", "aa"]
    assert len(set(letters.values())) == 40
    _, (_, (*_, last)) = report.table(rows)
    assert last == ", ".join(letters[question] for question in parts if question in parts[::-3])


def test_every_claim_names_a_confound_and_arms_that_exist():
    for experiment in EXPERIMENTS.values():
        for claim in experiment.claims:
            assert claim.confound.endswith(".")
            assert {claim.arm, claim.over} <= set(ARMS)
            assert claim.lineup == "own" or claim.lineup in ARMS[claim.over].also


# ----------------------------------------------------------------------------------------- cells


def test_no_task_of_one_seed_is_one_of_another_and_rates_are_not_tuned_on_test_tasks():
    seen: set[str] = set()
    for seed in (*SEEDS, *MORE, *TUNING):
        tasks = {task.id for task in cells.tasks_of(seed)}
        assert not tasks & seen
        seen |= tasks
        assert len(tasks) >= (100 if seed in TUNING else 300)
        assert {name.split(":")[0] for name in tasks} == {"val" if seed in TUNING else "test"}
    assert not {*SEEDS, *MORE} & set(TUNING)
    assert len(SEEDS) >= 5


def test_other_groupings_sample_the_same_trees():
    key = GroupKey("t", 0, "tool_0", "tool", 1, 2, "")
    for name, estimator in (("task", groupings.TreeByTask), ("role", groupings.TreeByRole), ("turn", groupings.TreeByTurn)):  # fmt: skip
        setting = ARMS[f"tree, by {name}"].settings["method"]
        config = resolve(ATGRPOConfig(env="plan_path", method=setting))
        made = estimator(config)
        assert setting.endswith(f":{estimator.__name__}")
        assert made.shape() == type(made.shape()).of(config.num_generations, config.branch)
        assert estimator.tree
        assert set(estimator.key) < set(key._fields)


def few_of(ground: experiments.Ground) -> dict[str, Any]:
    """Settings of a ground with the smallest steps."""
    few = {"tasks_per_step": 1, "num_generations": 2, "max_completion_length": 4}
    return {**ground.settings, **few}


@pytest.mark.slow
def test_a_cell_is_trained_until_it_has_its_tokens_and_its_updates():
    ground = SHORT["plan_path"]._replace(tokens=250, updates=3)
    cell = cells.Cell("plan_path", experiments.AT_GRPO, 1.0, 0)
    trainer = cells.trainer_of(cell, ground._replace(settings=few_of(ground)), {})
    readings, curve = cells.trained(trainer, ground.tokens, ground.updates)
    assert readings["updates"].steps == 3
    assert readings["tokens"].tokens >= 250
    assert len(curve) == max(reading.steps for reading in readings.values())
    assert readings["tokens"].tokens == curve[readings["tokens"].steps - 1][0]
    first, last = (readings[name].state["tool"] for name in ("updates", "tokens"))
    same = all((first[name] == last[name]).all() for name in first)
    assert same == (readings["tokens"].steps == readings["updates"].steps)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "times"), [(1, 1), (250, 2)], ids=["same-step", "another"])
def test_readings_of_the_same_weights_are_played_once(tokens, times, monkeypatch):
    asked: list[Any] = []

    def play(*team: Any) -> str:
        asked.append(team)
        return "01"

    monkeypatch.setattr(cells, "played", play)
    ground = SHORT["plan_path"]._replace(tokens=tokens, updates=1)
    cell = cells.Cell("plan_path", experiments.AT_GRPO, 1.0, TUNING[0])
    result = cells.measured(cell, ground._replace(settings=few_of(ground)))
    assert len(asked) == times
    assert [result[name]["own"] for name in cells.READINGS] == ["01", "01"]
    assert (result["tokens"]["steps"] == result["updates"]["steps"]) == (times == 1)


def a_lab(tmp_path, monkeypatch, before=None) -> tuple[command.Lab, list[str]]:
    """A lab whose cells cost nothing: a rate of twice the ground's is best."""
    ran: list[str] = []

    def measured(cell: cells.Cell, ground: experiments.Ground) -> dict:
        ran.append(cell.name)
        share = 0.4 + 0.2 * cell.scale if cell.arm == experiments.AT_GRPO else 0.3
        measures = {"cell": cell.name, "cpu_s": 1.0, "rate": 4e-3 * cell.scale}
        result = a_cell(cell.ground, cell.arm, cell.seed, share) | measures
        if cell.seed in TUNING:
            for name in cells.READINGS:
                result[name]["own"] = result[name]["own"][: experiments.VALIDATION_TASKS]
        return result

    monkeypatch.setattr(command, "measured", measured)
    wanted = ["plan_path", experiments.AT_GRPO, "tree, by task"]
    lab = command.Lab(["grouping"], budget="small", out=tmp_path, wanted=wanted, before=before)
    return lab, ran


def test_a_killed_runner_goes_on_and_repeats_nothing(tmp_path, monkeypatch):
    lab, ran = a_lab(tmp_path, monkeypatch)
    first = next(lab.cells())
    assert lab.measure(first)
    assert lab.run(1) == 0
    assert len(ran) == len(set(ran)) == 2 * (3 * len(TUNING) + len(SEEDS))
    assert lab.run(1) == 0
    assert ran.count(first.name) == 1
    (lab.out / first.file).write_text(json.dumps({"settings": "of another version"}))
    assert lab.found(first) is None


@pytest.mark.slow
def test_what_is_published_is_not_run_again_unless_its_settings_have_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "rliable_scores", lambda runs: {})  # an environment of its own
    lab, ran = a_lab(tmp_path / "here", monkeypatch)
    lab.run(1)
    lab.publish(["grouping"], results := tmp_path / "claims.json")
    wanted, times = lab.pairs, len(ran)
    other, ran = a_lab(tmp_path / "elsewhere", monkeypatch, before=results)
    assert other.pairs == wanted
    assert other.run(1) == 0
    assert ran == []
    assert {cell: other.rate(*cell) for cell in wanted} == {
        cell: lab.rate(*cell) for cell in wanted
    }
    other.publish(["grouping"], again := tmp_path / "again.json")
    assert json.loads(again.read_text()) == json.loads(results.read_text())
    ground, arm = next(iter(wanted))
    other.pairs[ground, arm] = wanted[ground, arm]._replace(tokens=7)
    assert other.run(1) == 0
    assert len(ran) == times / 2
    again.write_text(again.read_text().replace(digest(wanted[ground, arm].model), "another base"))
    another, _ = a_lab(tmp_path / "with another base", monkeypatch, before=again)
    assert not any(another.found(cell) for cell in another.cells())


def given(tmp_path, settings: dict) -> str:
    """What stands for a ground with other settings of the trainer."""
    lab = command.Lab(["grouping"], budget="small", out=tmp_path)
    first = next(lab.cells())
    ground = lab.pairs[first.ground, first.arm]
    lab.pairs[first.ground, first.arm] = ground._replace(settings=settings)
    return lab._given(first)


def test_a_cell_is_another_where_another_thing_is_measured_and_only_there(tmp_path):
    settings = dict(SHORT["plan_path"].settings)
    same = given(tmp_path, settings)
    unnamed = {name: value for name, value in settings.items() if name not in cells.UNNAMED}
    assert given(tmp_path, {**unnamed, "tokens_per_batch": 4096}) == same
    assert given(tmp_path, {**settings, "eval_steps": 3, "max_steps": 7, "warmup_steps": 5}) == same
    for other in ({"num_iterations": 3}, {"epsilon_high": 0.28}, {"learning_rate": 1e-3}, {"beta": 0.1}):  # fmt: skip
        assert given(tmp_path, {**settings, **other}) != same
    bare = resolve(ATGRPOConfig(env="math"))
    assert bare.num_iterations == cells.UNNAMED["num_iterations"]
    assert bare.epsilon_high == bare.epsilon  # as wherever nothing is named


@pytest.mark.skipif(not tables.published("claims"), reason="no results are published")
def test_everything_that_is_published_counts_as_run():
    result = tables.load("claims")
    lab = command.Lab(list(EXPERIMENTS), budget=result["settings"]["budget"], out=Path("no folder"), before=command.RESULTS)  # fmt: skip
    counted = {cell.name for cell in lab.cells() if lab.found(cell)}
    assert {*result["cells"], *result["sweeps"]} == counted


@pytest.mark.parametrize(("budget", "hours"), [("small", 2), ("full", 40)])
def test_a_budget_is_kept_by_the_estimate_that_is_shown(budget, hours, tmp_path, capsys):
    command.Lab(list(EXPERIMENTS), budget=budget, out=tmp_path).dry()
    (told,) = re.findall(r"about ([\d.]+) CPU-hours", capsys.readouterr().out)
    assert 0 < float(told) <= hours


@pytest.mark.skipif(not tables.published("claims"), reason="no results are published")
def test_the_published_cells_of_small_took_two_cpu_hours_at_most():
    result = tables.load("claims")
    pairs = command.Lab(list(EXPERIMENTS), budget="small", out=Path("no folder")).pairs
    spent = {
        name: cell["cpu_s"]
        for name, cell in {**result["cells"], **result["sweeps"]}.items()
        if tuple(name.split("/")[:2]) in pairs and int(name.split("/")[3]) not in MORE
    }
    assert len(spent) == 11 * len(pairs)
    assert sum(spent.values()) <= 2 * 3600


def test_only_medium_has_further_seeds_and_only_on_some_grounds(tmp_path):
    small, medium = ({(cell.ground, cell.seed) for cell in command.Lab(list(EXPERIMENTS), budget=budget, out=tmp_path, before=command.RESULTS).cells()} for budget in ("small", "medium"))  # fmt: skip
    assert {seed for _, seed in small} == {*SEEDS, *TUNING}
    assert {ground for ground, seed in medium if seed in MORE} == {"plan_path", "search", "sokoban"}


def test_small_is_a_part_of_medium_and_results_are_not_overwritten_by_fewer(tmp_path, monkeypatch):
    small, medium = (command.Lab(list(EXPERIMENTS), budget=budget, out=tmp_path) for budget in ("small", "medium"))  # fmt: skip
    assert small.pairs.items() < medium.pairs.items()
    assert small.out == medium.out
    monkeypatch.setattr(report, "rliable_scores", lambda runs: {})
    lab, _ = a_lab(tmp_path, monkeypatch)
    lab.run(1)
    lab.publish(["grouping"], results := tmp_path / "claims.json")
    first = next(iter(lab.pairs))
    del lab.pairs[first]
    with pytest.raises(SystemExit, match="holds 5 cells that these options leave out"):
        lab.publish(["grouping"], results)


def test_the_rate_of_each_arm_is_the_best_of_its_own_sweep(tmp_path, monkeypatch):
    lab, ran = a_lab(tmp_path, monkeypatch)
    lab.run(1)
    assert lab.rate("plan_path", experiments.AT_GRPO) == 2.0
    assert lab.rate("plan_path", "tree, by task") == 0.5  # all are equal: the lowest
    counted = {name for name in ran if int(name.split("/")[3]) in SEEDS}
    assert counted == {
        f"plan_path/{arm}/{scale}/{seed}"
        for arm, scale in ((experiments.AT_GRPO, 2), ("tree, by task", 0.5))
        for seed in SEEDS
    }


def test_every_cell_that_is_listed_is_a_command(tmp_path, monkeypatch, capsys):
    lab, ran = a_lab(tmp_path, monkeypatch)
    lab.dry()
    line = capsys.readouterr().out.splitlines()[0]
    name = line.split("--cell ")[1].strip("'")
    words = ["--small", "--afresh", "--cell", name, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["claims", *words])
    command.main()
    assert ran == [name]
    assert cells.cell_of(name) == next(lab.cells())


# -------------------------------------------------------------------------------------- published


@pytest.mark.slow
@pytest.mark.skipif(not tables.published("claims"), reason="no results are published")
def test_published_verdicts_are_those_of_the_published_cells():
    result = tables.load("claims")
    runs: dict = {}
    for name, cell in result["cells"].items():
        ground, arm, scale, _ = name.split("/")
        rate = result["arms"][ground][arm]["rate"]
        assert float(scale) == result["arms"][ground][arm]["scale"]
        runs.setdefault((ground, arm), []).append({**cell, "cell": name, "rate": rate})
    habits = {
        ground: next(iter(arms.values()))["habits"] for ground, arms in result["arms"].items()
    }
    seeds = {key: result["settings"]["grounds"][key[0]].get("seeds", SEEDS) for key in runs}
    made = report.published(report.complete(runs, seeds), list(EXPERIMENTS), habits)
    arms, judged, correlation = json.loads(json.dumps(made))
    assert judged == result["verdicts"]
    assert arms == result["arms"]
    assert correlation == result["difference"]
    for ground, by_arm in result["arms"].items():
        budget = result["settings"]["grounds"][ground]
        for name, arm in by_arm.items():
            assert budget["tokens"] <= arm["tokens"]["tokens"]
            assert arm["updates"]["steps"] == budget["updates"]
            if arm["tokens"]["tokens"] > 1.25 * budget["tokens"]:
                told = [
                    text for one in judged if one["ground"] == ground for text in one["confounds"]
                ]
                assert any(f"At equal tokens {name} has" in text for text in told), name


def test_the_table_has_a_letter_for_everything_that_a_verdict_leaves_open():
    arms, judged, _ = report.published(runs_of(team=0.8, task=0.5), list(EXPERIMENTS), {"plan_path": False})  # fmt: skip
    result = {"verdicts": judged, "arms": arms}
    header, rows = report.table(report.of_experiment(result, "grouping"))
    letters = report.open_questions(judged)
    assert set(letters) == {confound for verdict in judged for confound in verdict["confounds"]}
    assert all(len(row) == len(header) and row[-1] for row in rows)
    assert all(len(row) == len(report.arms(result)[0]) for row in report.arms(result)[1])


def test_the_summary_names_every_ground_of_every_experiment_once_for_each_verdict_it_has():
    _, judged, _ = report.published(runs_of(team=0.8, task=0.5, apart=0.8), list(EXPERIMENTS), {"plan_path": False})  # fmt: skip
    _, rows = report.summary_table({"verdicts": judged})
    assert [row[0] for row in rows][:3] == [
        "Claim 1: joint training",
        "Claim 2: exchanged policies",
        "Claim 3: grouping",
    ]
    assert rows[2][2:5] == ["`plan_path`", "", ""]
    assert rows[2][5].startswith("`plan_path` (6 of 7), `signal`,")
    assert rows[0][2:5] == ["", "", "`plan_path`"]
    for row, experiment in zip(rows, sorted(EXPERIMENTS.values(), key=lambda item: item.title)[1:], strict=False):  # fmt: skip
        assert {name for name in experiment.grounds if f"`{name}`" in " ".join(row)} == {
            *experiment.grounds
        }
    one = {**judged[0], "ground": "math"}
    both = [{**one, "verdict": "supported"}, {**one, "verdict": "refuted"}]
    _, rows = report.summary_table({"verdicts": both})
    assert rows[2][2:4] == ["`math` (1 of 2)", "`math` (1 of 2)"]
