"""From how many decisions on grouping matters, and how much of the rewards' variance lies between prompts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import between
from benchmarks.between import parts_of
from benchmarks.claims import decisions, experiments, report
from benchmarks.claims.experiments import EXPERIMENTS, SEEDS, SHORT
from tests.test_claims import a_cell


def rewarded(between: float, role: float, within: float, tasks: int = 2_000) -> dict:
    """Rewards of eight prompts a task, with these variances of a prompt, a role and a completion."""
    rng = np.random.default_rng(0)
    means = {"tool": role**0.5, "planner": -(role**0.5)}
    return {
        str(task): [
            (name, list(rng.normal(means[name] + rng.normal(0, between**0.5), within**0.5, 8)))
            for name in ("tool", "planner") * 4
        ]
        for task in range(tasks)
    }


def test_prompts_that_pay_alike_have_no_variance_between_them_however_few_completions_they_have():
    variances = parts_of(rewarded(0, 0, 1))
    assert variances == pytest.approx((0, 0, 1), abs=0.02)
    assert variances.share == pytest.approx(0, abs=0.02)


@pytest.mark.slow
def test_variance_between_prompts_is_divided_into_that_of_roles_and_the_rest():
    # Of eight prompts the population's variance is 7/8 of a draw's; two means of four differ by chance, too.
    assert parts_of(rewarded(0.4, 0, 1)) == pytest.approx((0.35, 0.05, 1), abs=0.02)
    variances = parts_of(rewarded(0.4, 0.25, 1))
    assert variances == pytest.approx((0.6, 0.3, 1), abs=0.03)
    assert variances.share == pytest.approx(0.6 / 1.6, abs=0.02)


def test_grounds_stand_by_their_decisions_each_with_the_gain_over_either_arm():
    runs: dict = {}
    for ground, count, gain in (("search", 7.0, 0.2), ("coding", 3.0, 0.0), ("math", 2.0, 0.1)):
        for arm, share in ((experiments.AT_GRPO, 0.5), ("tree, by task", 0.5 - gain)):
            runs[ground, arm] = [a_cell(ground, arm, seed, share) for seed in SEEDS]
            for cell in runs[ground, arm]:
                cell["curves"] = [[(1, count)]]
    runs["math", "GRPO, by episode"] = runs["math", "tree, by task"]
    arms, verdicts, _ = report.published(runs, list(EXPERIMENTS), dict.fromkeys(("search", "coding", "math"), False))  # fmt: skip
    header, rows = decisions.table({"arms": arms, "verdicts": verdicts}, {"math": {"share": 0.2}})
    assert [row[:2] for row in rows] == [["`math`", "2.0"], ["`coding`", "3.0"], ["`search`", "7.0"]]  # fmt: skip
    assert all(len(row) == len(header) for row in rows)
    assert [float(row[3][:5]) for row in rows] == pytest.approx([0.1, 0, 0.2], abs=0.02)
    assert [row[2] for row in rows] == ["0.20", "", ""]
    assert rows[0][5] == rows[0][3]
    assert rows[1][5] == rows[2][5] == ""


@pytest.mark.slow
def test_what_lies_between_prompts_is_measured_on_the_trees_of_a_training(monkeypatch):
    monkeypatch.setattr(between, "STEPS", 1)
    ground = SHORT["plan_path"]
    few = {**ground.settings, "tasks_per_step": 2, "num_generations": 4}
    measured = between.measured("plan_path", ground._replace(settings=few))
    assert measured["tasks"] == 2
    assert 2 <= measured["decisions"] <= 16
    assert 0 <= measured["share"] <= 1
    assert measured["within"] > 0
