"""The tables and the picture of `benchmarks.protocol`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.evidence import COLORS, Table, draw_curve, estimate, shown, spread

Run = Mapping[str, Any]


def of(result: Mapping[str, Any], arm: str, only: str = "") -> list[Run]:
    """The runs of an arm on the seeds of the results, in order; those of its chosen rate."""
    runs = []
    for name, run in result["runs"].items():
        arm_of_run, rate, seed, *rest = name.split("/")
        subset = rest[0].removeprefix("only ") if rest else ""
        if arm_of_run == arm and subset == only and int(seed) in result["seeds"]:
            runs.append((float(rate), int(seed), run))
    return [run for *_, run in sorted(runs, key=lambda entry: entry[:2])]


def shared(runs: Sequence[Run], digits: str = "tasks") -> str:
    """Success over seeds and tasks, with its interval."""
    return shown(estimate(np.array([[float(digit) for digit in run[digits]] for run in runs])))


def exchanged(runs: Sequence[Run]) -> list[float]:
    """The success of each scout with the mover of each other seed, from their probabilities."""
    scouts, movers = ([np.array(run["final"][role]) for run in runs] for role in ("scout", "mover"))
    pairs = itertools.permutations(range(len(runs)), 2)
    return [float(np.mean(np.diagonal(scouts[i] @ movers[j]))) for i, j in pairs]


def table(result: Mapping[str, Any]) -> Table:
    """What each arm reached."""
    rows = []
    for arm in result["arms"]:
        if not (runs := of(result, arm)):
            continue
        finals = [run["final"] for run in runs]
        rows.append(
            [
                f"`{arm}`",
                f"{result['rates'][arm]:g}",
                shared(runs),
                shared(runs, "greedy"),
                " ".join(f"{run['final']['success']:.2f}" for run in runs),
                spread([final["information"] for final in finals]),
                spread([run["steps"] for run in runs], 0),
            ]
        )
    header = ["", "learning rate", "success (test)", "greedy", "by seed"]
    return [*header, "bits between door and word", "steps"], rows


def controls(result: Mapping[str, Any]) -> Table:
    """What is left of an arm's teams without what they agreed on."""
    runs = of(result, arm := result["controlled"])
    rows = [
        [f"trained together, `{arm}`", shared(runs)],
        ["the same, words shuffled between episodes", shared(runs, "shuffled")],
        ["the same, scout of one seed and mover of another", spread(exchanged(runs))],
    ]
    for role in ("scout", "mover"):
        if alone := of(result, arm, role):
            rows.append([f"only the {role} trained", shared(alone)])
    return ["team", "success"], rows


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Success and information against generated tokens, by arm."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    scores = {"success": "success", "information": "bits between door and word"}
    for axis, (score, title) in zip(axes, scores.items(), strict=True):
        for arm, color in zip(result["arms"], COLORS, strict=False):
            if runs := of(result, arm):
                draw_curve(axis, [run["curve"] for run in runs], score, arm, color)
        axis.set(title=title, xlabel="generated tokens (thousands)")
    axes[0].axhline(1 / result["arguments"]["goals"], color="black", lw=0.8, ls=":")
    axes[0].set_ylim(0, 1)
    axes[1].legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
