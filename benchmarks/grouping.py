"""Does it matter which replies are compared? Four estimators at equal numbers of generated tokens.

    python -m benchmarks.grouping [--envs coding] [--seeds 0 1 2] [--jobs 2]

`at_grpo` compares K replies to one prompt; `grpo` (K whole episodes of a task in one group), `agent` (these by
role: Dr. MAS) and `turn` compare returns of episodes. A return is the sum of the very rewards that `at_grpo` compares, so
that the estimators differ in grouping and rollout alone. Validation during the training, 60 tasks;
test tasks at its end. Gradient norms are those before clipping: how far the largest is above the median shows spikes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.evidence import (
    COLOURS,
    Record,
    at_tokens,
    chosen,
    envs_of,
    estimate,
    gain,
    judged,
    shown,
    solved,
    spread,
)
from benchmarks.paper import ROLES, Lab, Wanted

ESTIMATORS = ("at_grpo", "grpo", "agent", "turn")
OWN = {"policies": "per-role"}


def wanted(env: str) -> list[Wanted]:
    """One arm an estimator; episodes that are played whole make longer steps, and fewer."""
    whole = [
        Wanted(env, name, OWN | {"estimator": name, "eval_steps": 2}) for name in ESTIMATORS[1:]
    ]
    return [Wanted(env, "at_grpo", OWN), *whole]


def verdict(records: Sequence[Record]) -> str:
    """Claim 3, against each of the other groupings."""
    envs = envs_of(records)
    return " ".join(
        judged(
            f"Agent- and turn-wise groups beat {what} at equal generated tokens (claim 3)",
            {env: gain(records, env, "at_grpo", name) for env in envs},
        )
        for name, what in (
            ("grpo", "trajectory groups"),
            ("agent", "groups by agent"),
            ("turn", "groups by turn"),
        )
    )


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row an environment and estimator."""
    records = result["runs"]
    rows = []
    for env, name in dict.fromkeys((record["env"], record["arm"]) for record in records):
        runs = chosen(records, env, name)
        budget = result["settings"]["tokens"][env]
        half = [at_tokens(run["curve"], budget / 2, "success") for run in runs]
        local = [
            spread([run["scores"][f"{role}/first_local_reward"] for run in runs])
            for role in ROLES[env]
        ]
        spikes = [
            max(max(norms) / np.median(norms) for norms in run["grad_norm"].values())
            for run in runs
        ]
        row = [env, f"`{name}`", spread(half), shown(estimate(solved(runs))), " / ".join(local)]
        decisions = spread([run["late"]["turns"] for run in runs], 1)
        steps = spread([len(next(iter(run["grad_norm"].values()))) for run in runs], 0)
        rows.append([*row, decisions, steps, spread(spikes, 1)])
    header = ["", "", "success at half the tokens (validation)", "success at the end (test)"]
    return [
        *header,
        "local reward by role, first replies",
        "decisions of an episode in training",
        "steps",
        "largest gradient norm / median",
    ], rows


def draw(records: Sequence[Record], path: Path) -> None:
    """Team and roles against generated tokens, and gradient norms; a row an environment."""
    envs = envs_of(records)
    figure, axes = plt.subplots(
        len(envs), 4, figsize=(16, 3.4 * len(envs)), squeeze=False, sharex="row"
    )
    for row, env in zip(axes, envs, strict=True):
        scores = ["success", *(f"{role}/first_local_reward" for role in ROLES[env])]
        for name, colour in zip(ESTIMATORS, COLOURS, strict=False):
            runs = chosen(records, env, name)
            for axis, score in zip(row, scores, strict=False):
                _curves(axis, [run["curve"] for run in runs], score, name, colour)
            for run in runs:
                for norms in run["grad_norm"].values():
                    tokens = np.linspace(0, run["tokens"], len(norms)) / 1e3
                    row[3].plot(tokens, norms, color=colour, lw=0.7, alpha=0.6)
        for axis, score in zip(row, scores, strict=False):
            axis.set(title=f"{env}: {score}", xlabel="generated tokens (thousands)")
        row[3].set(title=f"{env}: gradient norms", yscale="log")
        row[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _curves(axis: Any, curves: Sequence[Any], score: str, name: str, colour: str) -> None:
    grid = np.linspace(0, min(points[-1]["tokens"] for points in curves), 40)
    values = np.array([[at_tokens(points, x, score) for x in grid] for points in curves])
    axis.plot(grid / 1e3, values.mean(0), color=colour, label=name)
    axis.fill_between(grid / 1e3, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)
    axis.grid(alpha=0.3)


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding",))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(arms, verdict, draw)


if __name__ == "__main__":
    main()
