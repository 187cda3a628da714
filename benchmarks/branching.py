"""Which of K replies should go on? The best, one at random, or the first.

    python -m benchmarks.branching [--envs math] [--seeds 0 1 2] [--jobs 2]

Executing the best shows training states that single replies seldom reach. The gap is measured on the last quarter
of a training: how many decisions an episode has and how often it ends solved, there and in an evaluation, which never branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import (
    Record,
    chosen,
    draw_bars,
    envs_of,
    estimate,
    gain,
    judged,
    mean_success,
    shown,
    solved,
    spread,
)
from benchmarks.paper import Lab, Wanted

BRANCHES = ("best", "sample", "first")


def wanted(env: str) -> list[Wanted]:
    """One arm a way to go on."""
    own = {"policies": "per-role"}
    return [
        Wanted(env, name, own if name == "best" else own | {"branch": name}) for name in BRANCHES
    ]


def verdict(records: Sequence[Record]) -> str:
    """Whether executing the best is worth its gap."""
    envs = envs_of(records)
    parts = [
        judged(
            f"Executing the best reply beats executing {what} at equal tokens",
            {env: gain(records, env, "best", name) for env in envs},
        )
        for name, what in (("sample", "a random one"), ("first", "the first one"))
    ]
    gaps = {
        name: ", ".join(f"{env} {_gap(chosen(records, env, name)):+.2f}" for env in envs)
        for name in BRANCHES
    }
    said = "; ".join(f"{name}: {gap}" for name, gap in gaps.items())
    return f"{' '.join(parts)} Success in training above that in evaluation: {said}."


def _gap(runs: Sequence[Record]) -> float:
    late = sum(run["late"]["success"] for run in runs) / len(runs)
    return late - mean_success(runs)


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row an environment and way to go on."""
    records = result["runs"]
    rows = []
    for env, name in dict.fromkeys((record["env"], record["arm"]) for record in records):
        runs = chosen(records, env, name)
        rows.append(
            [
                env,
                name,
                shown(estimate(solved(runs))),
                spread([run["late"]["success"] for run in runs]),
                spread([run["late"]["turns"] for run in runs]),
                spread([run["scores"]["decisions"] for run in runs]),
            ]
        )
    return [
        "",
        "executed",
        "success (test)",
        "success in training",
        "decisions of an episode in training",
        "in the test",
    ], rows


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("math",))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(arms, verdict, partial(draw_bars, title="Which of K replies goes on"))


if __name__ == "__main__":
    main()
