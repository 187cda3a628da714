"""`curves.png` of a training run and `results.png` of an evaluation."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from pettingllms.evaluation.scores import Evaluation

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's, distinguishable for color-blind readers."""
MARKERS = "osD^vP"


def curves(rows: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """A PNG with two panels over generated tokens: success of the team, reward by role.

    Lines are training steps, smoothed where there are many; points are validations with their
    95 % intervals.
    """
    steps = [row for row in rows if row["kind"] == "train"]
    points = [row for row in rows if row["kind"] == "eval" and row["split"] == "val"]
    totals = list(accumulate((row["num_tokens"] for row in steps), initial=0.0))
    # Over generated tokens and not steps, because steps of different methods cost differently.
    tokens = {row["step"]: total for row, total in zip(steps, totals[1:], strict=True)} | {0: 0.0}
    roles = [
        key.removeprefix("reward/")
        for key in (steps[0] if steps else {})
        if key.startswith("reward/")
    ]

    figure = _figure(9.0, 3.6, dpi=150)
    left, right = figure.subplots(1, 2)
    # Validations sample one completion: the mean over the K of training is what compares with them.
    sampled = "success_mean" if any("success_mean" in row for row in steps) else "success"
    solved, paid = "success (share of tasks)", "local reward of a completion"
    panels = [(left, solved, "team", 0, sampled, "eval/success")]
    if sampled != "success":  # executed: the best of K by default, above what validations can reach
        panels.append((left, solved, "team, executed", 5, "success", ""))
    panels += [
        (right, paid, role, n, f"local_reward/{role}", f"eval/{role}/local_reward")
        for n, role in enumerate(roles)
    ]
    for axes, what, who, number, trained, validated in panels:
        color = COLORS[number % len(COLORS)]
        series = [
            (tokens[row["step"]], row[trained]) for row in steps if row.get(trained) is not None
        ]
        if series:
            x, y = zip(*series, strict=True)
            axes.plot(x, y, color=color, alpha=0.25, linewidth=1)
            axes.plot(x, smooth(y), color=color, linewidth=1.8, label=f"{who}, training")
        _draw_validations(axes, points, validated, tokens, number, who)
        axes.set_title(what, loc="left", fontsize=11)
    for axes in (left, right):
        axes.set_xlabel("generated tokens")
        axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.has_data():
            axes.legend(frameon=False, fontsize=8)
    # A little beyond 0 and 1, where markers would be cut in half.
    left.set_ylim(-0.03, 1.03)
    return _png(figure, title)


def _draw_validations(
    axes: Any,
    points: Sequence[Mapping[str, Any]],
    score: str,
    tokens: Mapping[int, float],
    number: int,
    who: str,
) -> None:
    """Points with their intervals, if there are any."""
    checks = [row for row in points if row.get(score) is not None]
    if checks:
        axes.errorbar(
            [tokens[row["step"]] for row in checks],
            [row[score] for row in checks],
            yerr=[
                [row[score] - row[f"{score}/low"] for row in checks],
                [row[f"{score}/high"] - row[score] for row in checks],
            ],
            color=COLORS[number % len(COLORS)],
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


def bars(teams: Mapping[str, Evaluation], title: str) -> bytes:
    """A PNG: success and each role's reward with 95 % intervals, a color for each line-up."""
    first = next(iter(teams.values()))
    team_scores = ["success", *sorted(name for name in first.scores if name.startswith("pass@"))]
    panels = [
        ("team", [name for name in team_scores if name in first.scores]),
        ("local reward of a completion", [f"{role}/local_reward" for role in first.roles]),
    ]
    panels = [(name, scores) for name, scores in panels if scores]
    figure = _figure(4.6 * len(panels), 3.8, dpi=130)
    axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for place, (name, scores) in zip(axes, panels, strict=True):
        _draw_bars(place, teams, scores)
        place.set_title(name, loc="left", fontsize=10)
    if panels[0][0] == "team":
        axes[0].set_ylim(0, 1.05)
    axes[0].legend(frameon=False, fontsize=8)
    return _png(figure, title)


def _draw_bars(axes: Any, teams: Mapping[str, Evaluation], scores: Sequence[str]) -> None:
    width = 0.8 / len(teams)
    for number, (title, evaluation) in enumerate(teams.items()):
        for place, score in enumerate(scores):
            if score not in evaluation.scores:
                continue
            mean, low, high = evaluation.scores[score]
            axes.bar(
                place + (number - (len(teams) - 1) / 2) * width,
                mean,
                width,
                # The mean of means can lie outside a percentile interval by a rounding error.
                yerr=[[max(0.0, mean - low)], [max(0.0, high - mean)]],
                capsize=2.5,
                color=COLORS[number % len(COLORS)],
                label=title if place == 0 else None,
            )
    labels = [score.removesuffix("/local_reward") for score in scores]
    axes.set_xticks(range(len(scores)), labels)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float, dpi: int) -> Any:
    # Imported here: matplotlib takes most of a second, and other users of the package never draw.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    # A canvas of the figure's own: pyplot would keep every figure, and choose a back end for the
    # whole process.
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any, title: str) -> bytes:
    figure.suptitle(title, fontsize=11)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
