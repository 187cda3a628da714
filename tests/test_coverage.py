"""Coverage: the counts and ratios of an independent table, and where they are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pettingllms.evaluation.compare import Coverage, coverage, paired
from pettingllms.evaluation.report import as_text, coverage_table
from pettingllms.evaluation.run import section
from pettingllms.evaluation.scores import pass_at_k
from pettingllms.rollout.trajectory import Overlong, Trajectory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

GOLDEN = Path(__file__).parent / "golden"


def case(name: str) -> dict[str, Any]:
    table = json.loads((GOLDEN / "coverage.json").read_text())
    (entry,) = [case for case in table["cases"] if case["name"].startswith(name)]
    return entry


def played(task: int, verdicts: Sequence[bool | None]) -> list[Trajectory]:
    trajectories = []
    for episode, won in enumerate(verdicts):
        key = GroupKey(f"t:{task}", episode, "coder_0", "coder", 0, 0, "")
        completion = Completion((1,), (2,), (-0.5,), "", truncated=False, version=0)
        info = {} if won is None else {"success": won}
        reward = float(bool(won))
        candidate = Candidate(completion, reward, reward, 0.0, chosen=True, info=info)
        group = Group(key, "p", "", (1,), (candidate,))
        trajectory = Trajectory.of(
            Task(f"t:{task}", task), episode, [group], early={}, cooperative=True
        )
        trajectories.append(trajectory)
    return trajectories


def side(*tasks: Sequence[bool | None]) -> list[Trajectory]:
    return [trajectory for n, verdicts in enumerate(tasks) for trajectory in played(n, verdicts)]


def test_tasks_are_counted_as_in_the_table() -> None:
    inputs, expected = case("eight contexts")["inputs"], case("eight contexts")["expected"]
    base, trained = (
        side(*([n in inputs[f"solved by {who}"], False] for n in range(inputs["contexts"])))
        for who in ("base", "trained")
    )
    one, two = coverage(base, trained)
    for counts in (one, two):
        assert counts.preserved == expected["preserved"]
        assert counts.expansion == expected["expansion"]
        assert counts.shrinkage == expected["shrinkage"]
        assert counts.neither == expected["out of support"]
        assert counts.ratio == expected["ESR"]
        assert (
            counts.low <= (counts.expansion - counts.shrinkage) / inputs["contexts"] <= counts.high
        )
    assert (one.k, two.k) == (1, 2)


def test_a_ratio_without_shrinkage_is_that_of_the_table() -> None:
    edges = case("edge cases of ESR")
    pairs = edges["inputs"]["(expansion, shrinkage)"]
    for (expansion, shrinkage), ratio in zip(pairs, edges["expected"]["ESR"], strict=True):
        counts = Coverage(1, 0, expansion, shrinkage, 0, 0.0, 0.0)
        assert counts.ratio == (math.inf if ratio == "inf" else ratio)
        json.dumps(counts.row(), allow_nan=False)


def test_pass_at_k_is_that_of_the_table() -> None:
    for name, value in case("pass@k of n=8")["expected"].items():
        successes, k = (int(word.partition("=")[2]) for word in name.split())
        assert pass_at_k(8, successes, k) == pytest.approx(value, abs=1e-6)


def test_sharpening_gains_the_first_sample_and_loses_tasks() -> None:
    inputs = case("sharpening")["inputs"]
    expected = case("sharpening")["expected"]
    # Those that succeed come last, so that the first samples of the base solve little.
    base, after = (
        side(*([False] * (8 - n) + [True] * n for n in inputs[name]))
        for name in ("correct of 8, base", "after")
    )
    by_k = coverage(base, after)
    assert [counts.k for counts in by_k] == [1, 2, 4, 8]
    last = by_k[-1]
    for name in ("preserved", "expansion", "shrinkage"):
        assert getattr(last, name) == expected[name]
    assert by_k[0].expansion > 0


def test_an_episode_that_ended_at_its_first_prompt_is_a_failure_as_in_the_scores() -> None:
    fits = side([True, True], [True, False])
    cut = side([True, True], [None, None])
    for place in (2, 3):
        cut[place] = replace(cut[place], overlong=Overlong("coder_0", 9, 5))
    (_, record) = coverage(cut, fits)
    assert (record.preserved, record.expansion, record.neither) == (1, 1, 0)
    assert paired(cut, fits, ("cut", "fits"), 0).tasks == 2


def test_one_sample_of_a_task_or_no_verdict_has_no_coverage() -> None:
    assert coverage(side([True]), side([False])) == ()
    assert coverage(side([None, None]), side([None, None])) == ()
    assert coverage(side([True, False]), side([True])) == ()


def test_a_comparison_shows_coverage() -> None:
    comparison = paired(
        side([False, True], [False, False]), side([True, True], [True, False]), ("base", "x"), 0
    )
    lines = as_text(coverage_table(comparison)).splitlines()
    assert lines[0].split()[:4] == ["samples", "both", "only", "x"]
    assert lines[2].split()[:6] == ["2", "1", "1", "0", "0", "∞"]
    assert "at least one of the first k samples" in section(comparison)
    assert comparison.row()["coverage"][1]["expansion"] == 1
