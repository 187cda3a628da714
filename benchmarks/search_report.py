"""The tables, the verdict and the picture of `benchmarks.search_team`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.evidence import (
    COLORS,
    Table,
    difference,
    draw_curve,
    estimate,
    judged,
    shown,
    spread,
)

Run = Mapping[str, Any]
AGENT, TASK = "dr_mas", "grpo"
"""The two arms whose difference is the question: a mean for each agent, and one for all."""
LEAST = 0.05
"""A gain that would count: Dr. MAS's paper reports 0.056 in math and 0.152 in search, for models of 3B and 8B."""
BEFORE = {"base": "base", "start": "the team that the others begin with"}
BEGINNING = 5
"""Steps over which advantages are averaged: later the agents differ in what they have learned."""


def of(result: Mapping[str, Any], arm: str) -> list[Run]:
    """The runs of an arm on the seeds of its results, in order, at its chosen rate."""
    names = (f"{arm}/{result['rates'][arm]:g}/{seed}" for seed in result["arms"][arm]["seeds"])
    return [result["runs"][name] for name in names if name in result["runs"]]


def digits(runs: Sequence[Run], hops: int) -> np.ndarray:
    """Which test tasks were solved, of shape (seeds, tasks)."""
    return np.array([[float(digit) for digit in run["tasks"][str(hops)]] for run in runs])


def table(result: Mapping[str, Any]) -> Table:
    """What the base and each arm reach, by number of look-ups."""
    rows = []
    for title in ("base", "start"):
        team = result[title]
        two, *others = (shown(estimate(digits([team], hops))) for hops in (2, 1, 3))
        shares = [f"{team['found']['2'][name]:.2f}" for name in ("some", "all")]
        rows.append([BEFORE[title], "", "", two, "", *shares, *others])
    for arm in result["arms"]:
        if not (runs := of(result, arm)):
            continue
        two, one, three = (shown(estimate(digits(runs, hops))) for hops in (2, 1, 3))
        by_seed = " ".join(f"{share:.2f}" for share in digits(runs, 2).mean(1))
        shares = [spread([run["found"]["2"][name] for run in runs]) for name in ("some", "all")]
        steps = spread([run["steps"] for run in runs], 0)
        name, _, rest = arm.partition(",")
        title = f"`{name}`" + {"": "", " dense": ", dense rewards"}.get(rest, f",{rest}")
        rate = f"{result['rates'][arm]:g}"
        rows.append([title, rate, steps, two, by_seed, *shares, one, three])
    header = ["", "learning rate", "steps", "success, two look-ups", "by seed", "finds a fact"]
    return [*header, "finds both", "success, one look-up", "success, three look-ups"], rows


def norms(result: Mapping[str, Any]) -> Table:
    """What a mean for each agent does to advantages and gradients, by agent."""
    rows = []
    for arm in (TASK, AGENT):
        runs = of(result, arm)
        for role in result["roles"]:
            early = [np.array(run["advantages"][role][:BEGINNING]) for run in runs]
            sizes = [np.array([norm for norm in run["grad_norm"][role] if norm]) for run in runs]
            rows.append(
                [
                    f"`{arm}`",
                    role,
                    spread([run[:, 0].mean() for run in early]),
                    spread([run[:, 1].mean() for run in early]),
                    spread([np.median(run) for run in sizes]),
                    spread([run.max() / np.median(run) for run in sizes], 1),
                ]
            )
    header = ["", "agent", f"mean advantage, first {BEGINNING} steps", "mean square of it"]
    return [*header, "median gradient norm", "largest / median"], rows


def verdict(result: Mapping[str, Any]) -> str:
    """Whether a mean for each agent solves more than one for all, by `LEAST`; paired by seed and task."""
    one, other = (of(result, arm) for arm in (AGENT, TASK))
    count = min(len(one), len(other))
    gains = difference(digits(one[:count], 2) - digits(other[:count], 2))
    claim = f"A mean for each agent (`dr_mas`) solves {LEAST} more than one for all (`grpo`)"
    return judged(claim, {f"search, {count} seeds": gains}, LEAST)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Validation success against tokens, by arm, and gradient norms of both means, by agent."""
    figure, axes = plt.subplots(1, 1 + len(result["roles"]), figsize=(16, 4.6))
    for arm, color in zip(result["arms"], COLORS, strict=False):
        if runs := of(result, arm):
            draw_curve(axes[0], [run["curve"] for run in runs], "success", arm, color)
    axes[0].set(title="validation success, two look-ups", ylim=(0, 1))
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncol=2, frameon=False, fontsize="small")  # fmt: skip
    for axis, role in zip(axes[1:], result["roles"], strict=True):
        for arm, color in zip((TASK, AGENT), ("#cc79a7", "#e69f00"), strict=True):
            for n, run in enumerate(of(result, arm)):
                sizes = run["grad_norm"][role]
                tokens = np.linspace(0, run["tokens"], len(sizes)) / 1e3
                label = arm if n == 0 else None
                axis.plot(tokens, sizes, color=color, lw=0.7, alpha=0.7, label=label)
        axis.set(title=f"{role}: gradient norm", yscale="log")
        axis.legend(frameon=False, fontsize="small")
    for axis in axes:
        axis.set_xlabel("generated tokens (thousands)")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
