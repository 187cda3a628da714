"""`curves.png`: how success and rewards went, from the rows of metrics.jsonl."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's, told apart by colour-blind readers as well."""
MARKERS = "osD^vP"


def curves(rows: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """A PNG with two panels over generated tokens: success of the team, reward by role.

    Lines are training steps, smoothed where there are many; points are validations with their
    95 % intervals.
    """
    # Imported here: it takes most of a second, and only this function draws.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [row for row in rows if row["kind"] == "train"]
    points = [row for row in rows if row["kind"] == "eval" and row["split"] == "val"]
    totals = list(accumulate((row["num_tokens"] for row in steps), initial=0.0))
    tokens = {row["step"]: total for row, total in zip(steps, totals[1:], strict=True)} | {0: 0.0}
    roles = [
        key.removeprefix("reward/")
        for key in (steps[0] if steps else {})
        if key.startswith("reward/")
    ]

    figure = Figure(figsize=(9.0, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    panels = [(left, "success", "team", 0, "success", "eval/success")]
    panels += [
        (right, "local reward", role, n, f"local_reward/{role}", f"eval/{role}/local_reward")
        for n, role in enumerate(roles)
    ]
    for axes, what, who, number, trained, validated in panels:
        colour = COLOURS[number % len(COLOURS)]
        series = [
            (tokens[row["step"]], row[trained]) for row in steps if row.get(trained) is not None
        ]
        if series:
            x, y = zip(*series, strict=True)
            axes.plot(x, y, color=colour, alpha=0.25, linewidth=1)
            # Executed replies are the best of K by default: above what validations can reach.
            label = "executed in training" if trained == "success" else f"{who}, training"
            axes.plot(x, smooth(y), color=colour, linewidth=1.8, label=label)
        _draw_validations(axes, points, validated, tokens, number, who)
        axes.set_title(what, loc="left", fontsize=11)
    for axes in (left, right):
        axes.set_xlabel("generated tokens")
        axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.has_data():
            axes.legend(frameon=False, fontsize=8)
    left.set_ylim(-0.03, 1.03)
    figure.suptitle(title, fontsize=11)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_validations(
    axes: Any,
    points: Sequence[Mapping[str, Any]],
    score: str,
    tokens: Mapping[int, float],
    number: int,
    who: str,
) -> None:
    """Points with their intervals, where there are any."""
    checks = [row for row in points if row.get(score) is not None]
    if checks:
        axes.errorbar(
            [tokens[row["step"]] for row in checks],
            [row[score] for row in checks],
            yerr=[
                [row[score] - row[f"{score}/low"] for row in checks],
                [row[f"{score}/high"] - row[score] for row in checks],
            ],
            color=COLOURS[number % len(COLOURS)],
            fmt=MARKERS[number % len(MARKERS)],
            markersize=4.5,
            capsize=2.5,
            label=f"{who}, validation",
        )


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a window of a tenth of the series, narrower at its ends."""
    reach = len(values) // 20
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
