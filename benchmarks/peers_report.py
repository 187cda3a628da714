"""From the runs of `benchmarks.peers` to its table, sentence and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

TITLES = {"trl": "TRL `GRPOTrainer`", "ours": "`ATGRPOTrainer`"}
UNITS = {"tokens": "tokens", "cpu_seconds": "CPU-seconds", "seconds": "seconds"}
WINDOW = 3
"""Steps of the moving mean of training success."""


def reached(run: dict[str, Any], level: float, what: str) -> dict[str, Any]:
    """The first point of the curve where `what` is at a level; empty where none is.

    Training success is the mean of the last `WINDOW` steps.
    """
    curve = run["curve"]
    for end, row in enumerate(curve):
        value = row.get("validation", 0.0)
        if what == "training":
            window = [point["success"] for point in curve[max(1, end + 1 - WINDOW) : end + 1]]
            value = sum(window) / WINDOW
        if value >= level:
            return dict(row)
    return {}


def measures(run: dict[str, Any], level: float) -> dict[str, float | None]:
    """What is compared of a run; None where a level was not reached."""
    row_of: dict[str, float | None] = {}
    for what in ("training", "held-out"):
        row = reached(run, level, what)
        for key, unit in UNITS.items():
            row_of[f"{unit} to {what} success {level:g}"] = row.get(key)
    for activity in ("sampling", "updating", "training"):
        row_of[f"tokens per CPU-second of {activity}"] = (
            run["tokens"] / run[f"{activity}_cpu_seconds"]
        )
    row_of["peak memory, MiB"] = run["peak_mib"]
    row_of["of it since training began, MiB"] = run["peak_mib"] - run["start_mib"]
    row_of["success on test tasks at the end"] = run["test"][0]
    return row_of


def compared(results: dict[str, Any]) -> dict[str, list[list[float | None]]]:
    """What is compared -> of each trainer, the values of its seeds."""
    level = results["config"]["level"]
    measured = [[measures(run, level) for run in of(results, trainer)] for trainer in TITLES]
    return {title: [[run[title] for run in runs] for runs in measured] for title in measured[0][0]}


def of(results: dict[str, Any], trainer: str) -> list[dict[str, Any]]:
    """The runs of one trainer."""
    return [run for name, run in results["runs"].items() if name.startswith(f"{trainer}-")]


def mean_of(values: Sequence[float | None]) -> float:
    """The mean of the seeds; no number where one of them has no value."""
    return float(np.mean([np.nan if value is None else value for value in values]))


def tables(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Every measure for both trainers: mean and range of the seeds, and the ratio of the means."""

    def cell(values: Sequence[float | None]) -> str:
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            return f"reached by {len(numbers)} of {len(values)} seeds"
        form = ".2f" if max(numbers) < 10 else ",.0f"
        return f"{mean_of(numbers):{form}} [{min(numbers):{form}}, {max(numbers):{form}}]"

    rows = []
    for title, sides in compared(results).items():
        trl, ours = map(mean_of, sides)
        rows.append([title, *map(cell, sides), "" if np.isnan(ours / trl) else f"{ours / trl:.2f}"])
    return ["", *TITLES.values(), "ratio"], rows


def sentence(results: dict[str, Any]) -> str:
    """The comparison in a sentence, from the numbers."""
    level = results["config"]["level"]
    means = {title: [mean_of(side) for side in sides] for title, sides in compared(results).items()}
    (trl_s, own_s), (trl_end, own_end), (trl_mib, own_mib) = (
        means[f"CPU-seconds to held-out success {level:g}"],
        means["success on test tasks at the end"],
        means["peak memory, MiB"],
    )
    sampling, updating = (
        ours / trl
        for trl, ours in (means[f"tokens per CPU-second of {p}"] for p in ("sampling", "updating"))
    )
    pace = (
        f"To a held-out success of {level:g}, TRL's GRPOTrainer needs {trl_s:.0f} CPU-seconds and "
        f"ATGRPOTrainer {own_s:.0f}, {trl_s / own_s:.1f} times fewer"
    )
    if np.isnan(trl_s + own_s):
        pace = f"Not every run reaches a held-out success of {level:g}"
    return (
        f"{pace}; a CPU-second of sampling gives {sampling:.1f} times the tokens in ours, one of "
        f"updating {updating:.1f} times; after equally many tokens {trl_end:.2f} (TRL) and "
        f"{own_end:.2f} (ours) of the test tasks succeed; at the peak they hold {trl_mib:,.0f} and "
        f"{own_mib:,.0f} MiB."
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Held-out success against tokens and seconds: mean and range of the seeds."""
    figure, axes = plt.subplots(1, len(UNITS), figsize=(4 * len(UNITS), 3.6), sharey=True)
    for axis, (key, unit) in zip(axes, UNITS.items(), strict=True):
        for trainer, color in zip(TITLES, ("#d55e00", "#0072b2"), strict=True):
            curves = [
                [row for row in r["curve"] if "validation" in row] for r in of(results, trainer)
            ]
            grid = np.linspace(0, min(curve[-1][key] for curve in curves), 100)
            lines = [
                np.interp(grid, [row[key] for row in curve], [row["validation"] for row in curve])
                for curve in curves
            ]
            low, high = np.min(lines, 0), np.max(lines, 0)
            axis.plot(grid, np.mean(lines, 0), color=color, label=TITLES[trainer].replace("`", ""))
            axis.fill_between(grid, low, high, color=color, alpha=0.2, lw=0)
        axis.set(xlabel=unit, ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out success")
    axes[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
