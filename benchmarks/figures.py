"""The figures of docs/results/, from `results/*.json`: one question each.

    python -m benchmarks.figures

Points are means with 95 % intervals. Writes `docs/figures/*.png`; the page has the sentence that a figure is to show above it, and
its command, revision, model, seeds and cost below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

from benchmarks.claims import decisions
from benchmarks.claims.cells import READINGS
from benchmarks.claims.experiments import EXPERIMENTS
from benchmarks.claims.report import TAUS, of_experiment
from benchmarks.evidence import COLORS, draw_curve, estimate
from benchmarks.habits import AFTER, BEFORE, CLEAN, as_values
from benchmarks.parts import STORIES
from benchmarks.peers_report import TITLES, of
from benchmarks.reading import DYNAMIC
from benchmarks.reading import of_seeds as reading_curves
from benchmarks.reading import published as reading_teams
from benchmarks.tables import BLIND, blind_success, digits, larger_of, learned, load, published
from pettingllms.statistics import Estimate

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

OUT = Path(__file__).parents[1] / "docs" / "figures"
BLUE, ORANGE, GREEN, PINK = COLORS[:4]
GRAY = COLORS[6]
READING_TITLES = {"tokens": "at equal tokens", "updates": "at equal updates"}
VERDICT_COLORS = {"supported": BLUE, "refuted": ORANGE, "not decided": GRAY}


class Point(NamedTuple):
    """A row's value with its interval."""

    row: str
    found: Estimate
    kind: str
    """What the legend calls it."""
    color: str


def rows_of_points(axis: Any, points: Sequence[Point], *, label: str) -> None:
    """Draws points beside each other in rows, the first row on top; a legend names the kinds."""
    rows = list(dict.fromkeys(point.row for point in points))
    kinds = list(dict.fromkeys(point.kind for point in points))
    for point in points:
        offset = (kinds.index(point.kind) - (len(kinds) - 1) / 2) * 0.72 / max(1, len(kinds))
        y = rows.index(point.row) + offset
        mean, low, high = point.found
        axis.plot([low, high], [y, y], color=point.color, lw=2.2, solid_capstyle="butt", alpha=0.55)
        axis.plot([mean], [y], "o", color=point.color, ms=5)
    for kind in kinds:
        color = next(point.color for point in points if point.kind == kind)
        axis.plot([], [], "o", color=color, ms=5, label=kind)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.45, -0.55)
    axis.set_xlabel(label)
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _below(axis: Any, columns: int) -> None:
    """Puts the legend below the figure, where it hides no point."""
    axis.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=columns, frameon=False, fontsize="small"
    )  # fmt: skip


def draw_learned() -> Figure:
    """Success before and after training, and with policies exchanged, by environment; larger tasks beside it."""
    figure, (trained, larger) = plt.subplots(1, 2, figsize=(9.5, 3.6), sharex=True)
    points, beyond = [], []
    for env, kinds in learned().items():
        runs = kinds["per-role"]
        size = larger_of(runs)
        for name, team, color in (
            ("before training", "base", GRAY),
            ("after training", "adapters", BLUE),
            ("policies exchanged", "swapped", ORANGE),
        ):
            points.append(Point(env, estimate(digits(runs, team)), name, color))
            if size and team != "swapped":
                gain = estimate(digits(runs, team, "beyond"))
                beyond.append(Point(f"{env}, {size}", gain, name, color))
    rows_of_points(trained, points, label="share of 300 test tasks solved")
    rows_of_points(larger, beyond, label="share of 300 larger test tasks solved")
    rows = list(dict.fromkeys(point.row for point in points))
    blind = [(rows.index(env), blind_success(env)) for env in rows if env in BLIND]
    marks = [(row, share) for row, share in blind if share is not None]
    trained.plot(
        [share for _, share in marks], [row for row, _ in marks], "kx", ms=6, label="best constant answer"
    )  # fmt: skip
    trained.set(title="tasks as in training", xlim=(0, 1))
    larger.set(title="one step or size beyond training")
    _below(trained, 2)
    figure.tight_layout()
    return figure


def draw_habits() -> Figure:
    """Success of the base with habits, of checkpoints without, and of what was trained from both; by environment."""
    figure, axis = plt.subplots(figsize=(7.5, 6.5))
    points = []
    for env, habits in load("habits")["environments"].items():
        runs = learned()[env]["per-role"]
        for name, color, values in (
            (CLEAN, ORANGE, as_values([habits["clean"]])),
            ("with habits", GRAY, digits(runs, "base")),
            ("with habits, then trained", PINK, digits(runs, "adapters")),
            (BEFORE, GREEN, as_values([habits["half"]])),
            (AFTER, BLUE, as_values(habits["runs"].values())),
        ):
            points.append(Point(env, estimate(values), name, color))
    rows_of_points(axis, points, label="share of 300 test tasks solved")
    axis.set(xlim=(0, 1))
    _below(axis, 2)
    figure.tight_layout()
    return figure


def draw_parts() -> Figure:
    """A base without habits: base, trained, and the controls; what both roles learn of paths."""
    environments = load("parts")["environments"]
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 6.6))
    for axis, (env, world) in zip(axes.flat, environments.items(), strict=False):
        one, two = STORIES[env].roles
        runs = [run["teams"] for run in world["runs"].values()]
        other = next(iter(STORIES[env].others))
        names = {
            "base": "base",
            "trained": "trained",
            f"only {one}": f"only the {one} trained",
            f"only {two}": f"only the {two} trained",
            "exchanged": "policies exchanged",
            "shuffled": f"words of the {STORIES[env].speaker} shuffled",
            f"base, {other}": f"base, {other}",
            f"trained, {other}": f"trained, {other}",
        }
        points = []
        for name, title in names.items():
            teams = [world["base"][name]] if name in world["base"] else [run[name] for run in runs]
            values = np.array([[float(digit) for digit in team["tasks"]] for team in teams])
            color = BLUE if name.startswith("trained") else GRAY if "base" in name else ORANGE
            points.append(Point(title, estimate(values), "", color))
        rows_of_points(axis, points, label="share of test tasks solved")
        axis.set(title=env, xlim=(0, 1))
    paths = environments["paths"]["runs"].values()
    titles = {"success": "team success", **STORIES["paths"].scores}
    for (score, title), color in zip(titles.items(), (BLUE, ORANGE, GREEN), strict=True):
        draw_curve(axes[1, 1], [run["curve"] for run in paths], score, title, color)
    axes[1, 1].set(title="paths: validation", xlabel="generated tokens (thousands)", ylim=(0, 1))
    axes[1, 1].legend(frameon=False, fontsize="small", loc=(0.02, 0.5))
    figure.tight_layout()
    return figure


def draw_claims(experiment: str) -> Figure:
    """The differences that an experiment's claims are about, at equal tokens and at equal updates."""
    verdicts = of_experiment(load("claims"), experiment)
    several = len({verdict["claim"] for verdict in verdicts}) > 1
    rows = [
        f"{verdict['claim']}  ({verdict['ground']})" if several else verdict["ground"]
        for verdict in verdicts
    ]
    readings = [name for name in READINGS if any(name in verdict["gains"] for verdict in verdicts)]
    size = (11 if several else 8, 1.3 + 0.3 * len(verdicts))
    figure, axes = plt.subplots(1, len(readings), figsize=size, sharey=True, sharex=True)
    for axis, name in zip(np.atleast_1d(axes), readings, strict=True):
        points = [
            Point(row, Estimate(*verdict["gains"][name]), verdict["verdict"], VERDICT_COLORS[verdict["verdict"]])
            for row, verdict in zip(rows, verdicts, strict=True)
            if name in verdict["gains"]
        ]  # fmt: skip
        _differences(axis, points, rows)
        axis.set(title=READING_TITLES[name])
    first = np.atleast_1d(axes)[0]
    for word, color in VERDICT_COLORS.items():
        first.plot([], [], "o", color=color, ms=5, label=word)
    figure.legend(*first.get_legend_handles_labels(), loc="lower right", ncol=3, frameon=False, fontsize="small")  # fmt: skip
    figure.tight_layout(rect=(0, 0.25 / size[1], 1, 1))
    return figure


def _differences(axis: Any, points: Sequence[Point], rows: Sequence[str]) -> None:
    """Points in given rows, around a line of no difference."""
    for point in points:
        y = rows.index(point.row)
        mean, low, high = point.found
        axis.plot([low, high], [y, y], color=point.color, lw=2.2, solid_capstyle="butt", alpha=0.55)
        axis.plot([mean], [y], "o", color=point.color, ms=5)
    axis.axvline(0, color="black", lw=0.8)
    axis.locator_params(axis="x", nbins=5)  # more labels run into each other in narrow panels
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel("difference of success")
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def draw_decisions() -> Figure:
    """What AT-GRPO gains over one baseline for a task: by the decisions of an episode, and by what lies between prompts."""
    result, shares = load("claims"), load("between")["grounds"]
    trees = [point for point in decisions.points(result) if point.over == "tree, by task"]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    places: tuple[Callable[[decisions.Point], float], ...] = (
        lambda point: point.decisions,
        lambda point: float(shares[point.ground]["share"]),
    )
    for axis, at in zip(axes, places, strict=True):
        wide = max(map(at, trees)) - min(map(at, trees))
        for name, color, shift in zip(READINGS, (BLUE, ORANGE), (-0.006, 0.006), strict=True):
            for number, point in enumerate(trees):
                (mean, low, high), x = point.gains[name], at(point) + shift * wide
                label = None if number else READING_TITLES[name]
                axis.plot([x, x], [low, high], color=color, lw=2.2, alpha=0.55)
                axis.plot(x, mean, "o", color=color, ms=5, label=label)
        # Above and below in turn, so that names of neighbors do not run into each other.
        for number, point in enumerate(sorted(trees, key=at)):
            ends = [point.gains[name] for name in READINGS]
            y, side, ha, va = (
                (min(gain.low for gain in ends), -3, "right", "top")
                if number % 2
                else (max(gain.high for gain in ends), 3, "left", "bottom")
            )
            axis.annotate(point.ground, (at(point), y), xytext=(0, side), textcoords="offset points", rotation=60, fontsize=7, ha=ha, va=va)  # fmt: skip
        axis.axhline(0, color="black", lw=0.8)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    every = [point.gains[name] for point in trees for name in READINGS]
    low, top = min(gain.low for gain in every), max(gain.high for gain in every)
    ticks = [2, 4, 8, 16]
    axes[0].set(xlabel="decisions of an episode in training", ylabel="difference of success", ylim=(low - 0.2, top + 0.2), xscale="log", xticks=ticks, xticklabels=ticks)  # fmt: skip
    axes[0].minorticks_off()
    axes[1].set(xlabel="share of the rewards' variance that lies between prompts of a task")
    axes[0].legend(frameon=False, loc="upper right", fontsize="small")
    figure.suptitle("AT-GRPO over one baseline for a task, on the same trees", fontsize="medium")
    figure.tight_layout()
    return figure


def draw_arms() -> Figure:
    """Interquartile means of the arms, and the share of runs above each success, by rliable; a row a ground."""
    reading = READINGS[0]
    sets = {
        name.partition("/")[2]: arms
        for name, arms in load("claims")["rliable"].items()
        if name.startswith(reading) and len(arms) > 1
    }
    heights = [1.5 + 0.3 * len(arms) for arms in sets.values()]
    figure, axes = plt.subplots(
        len(sets), 2, figsize=(10, sum(heights)), squeeze=False, height_ratios=heights
    )
    names = list(dict.fromkeys(arm for arms in sets.values() for arm in arms))
    more = [f"C{number}" for number in range(1, 10)]  # matplotlib's own, which differ from these
    colors = dict(zip(names, (*COLORS, "#000000", *more, *COLORS), strict=False))
    for (left, right), (grounds, arms) in zip(axes, sets.items(), strict=True):
        points = [
            Point(arm, Estimate(*figures["iqm"]), "", colors[arm]) for arm, figures in arms.items()
        ]
        rows_of_points(left, points, label="interquartile mean of success")
        title = "all of them together" if ", " in grounds else grounds
        left.set(title=title, xlim=(0, 1))
        for arm, figures in arms.items():
            right.step(TAUS, figures["profile"], where="post", color=colors[arm], lw=1.6)
        right.set(
            title=title, xlabel="success", ylabel="runs above it", xlim=(0, 1), ylim=(0, 1.03)
        )
        right.grid(alpha=0.3)
    figure.tight_layout()
    return figure


def draw_peers() -> Figure:
    """Held-out success against CPU-seconds: each seed, both trainers."""
    results = load("peers")
    figure, axis = plt.subplots(figsize=(6.2, 3.4))
    for trainer, color in zip(TITLES, (ORANGE, BLUE), strict=True):
        for number, run in enumerate(of(results, trainer)):
            rows = [row for row in run["curve"] if "validation" in row]
            axis.plot(
                [row["cpu_seconds"] for row in rows],
                [row["validation"] for row in rows],
                "o-",
                color=color,
                ms=3,
                lw=1.4,
                alpha=0.8,
                label=None if number else TITLES[trainer].replace("`", ""),
            )
    level = results["config"]["level"]
    axis.axhline(level, color="black", lw=0.8, ls=":")
    axis.set(xlabel="CPU-seconds of training", ylabel="held-out success", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    return figure


def draw_reading() -> Figure:
    """A real pretrained model: each team's success on test tasks; success in training beside it."""
    results = load("reading")
    figure, (teams, curve) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(3, 2))
    colors = {"read": BLUE, "relay": ORANGE, "desk": GREEN}
    first, last = ("finder", "searcher", "sorter"), ("answerer", "speaker")
    titles = {f"only {role}": "only the first role" for role in first}
    titles |= {f"only {role}": "only the last role" for role in last}
    points = [
        Point(titles.get(team, team), estimate(solved), task, colors[task])
        for (task, team), solved in reading_teams(results).items()
        if team != f"both, {DYNAMIC}"  # a question of its own
    ]
    rows_of_points(teams, points, label="share of 200 test tasks solved")
    teams.set(xlim=(0, 1))
    teams.legend(frameon=False, fontsize="small")
    for (arm, shares), color in zip(reading_curves(results, "read").items(), (BLUE, GREEN, PINK), strict=False):  # fmt: skip
        # The mean of five steps of four tasks each, of all seeds.
        smooth = np.convolve(shares.mean(axis=0), np.ones(5) / 5, mode="valid")
        curve.plot(np.arange(len(smooth)) + 5, smooth, color=color, label=arm)
    curve.set(
        xlabel="step", ylabel="success in training, mean of 5 steps", ylim=(0, 1), title="read"
    )
    curve.legend(frameon=False, fontsize="small")
    curve.grid(alpha=0.3)
    curve.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


FIGURES: Mapping[str, tuple[str, Any]] = {
    "reading": ("reading", draw_reading),
    "learned": ("learning_coding", draw_learned),
    "habits": ("habits", draw_habits),
    "parts": ("parts", draw_parts),
    **{f"claims_{name}": ("claims", partial(draw_claims, name)) for name in EXPERIMENTS},
    "decisions": ("claims", draw_decisions),
    "arms": ("claims", draw_arms),
    "peers": ("peers", draw_peers),
}
"""Name of the file -> the result that it needs, and what draws it."""


def main() -> None:
    """Draws everything that is published."""
    OUT.mkdir(exist_ok=True)
    for name, (needed, draw) in FIGURES.items():
        if published(needed):
            figure = draw()
            figure.savefig(OUT / f"{name}.png", dpi=110, bbox_inches="tight")
            plt.close(figure)
            print(OUT / f"{name}.png")


if __name__ == "__main__":
    main()
