"""From the records of `benchmarks.paper` to statements: intervals, verdicts, tables, pictures."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from pettingllms.evaluation.scores import pass_at_k, scores_by_task
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.statistics import Estimate, over_seeds, variance_over_seeds, wilson_of

mpl.use("Agg")
import matplotlib.pyplot as plt

CEILING = 0.97
"""Success above which a team solves nearly everything, and no other can be better."""
PASSES = (1, 4, 16, 64)
"""For which k pass@k is reported; the last is the number of episodes of a task."""
PASS_TASKS = 32
"""Test tasks of which so many episodes are played."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#f0e442")

Table = tuple[list[str], list[list[str]]]
"""Header and rows."""
Record = dict[str, Any]
"""One arm, one seed: what it was trained with, what it reached. `tasks` has a digit for each test task: 1 solved."""


def gain_over_seeds(gains: np.ndarray) -> Estimate:
    """The mean of paired differences, of shape (seeds, tasks), with its 95 % interval over both."""
    mean = float(gains.mean())
    variance, quantile = variance_over_seeds(gains)
    if not variance:  # all pairs agree: as many tasks could still hide a rare difference
        reach = wilson_of(0.0, gains.shape[1])[1]
    else:
        reach = quantile * variance**0.5
    return Estimate(mean, max(-1.0, mean - reach), min(1.0, mean + reach))


estimate, difference = over_seeds, gain_over_seeds


def revision() -> str:
    """The commit of this code; with a plus sign where it was changed since."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def envs_of(records: Sequence[Record]) -> list[str]:
    """The environments, in the order of the records."""
    return list(dict.fromkeys(record["env"] for record in records))


def chosen(records: Sequence[Record], env: str, arm: str) -> list[Record]:
    """The seeds of an arm, in order."""
    runs = [r for r in records if r["env"] == env and r["arm"] == arm]
    return sorted(runs, key=lambda record: int(record["seed"]))


def solved(records: Sequence[Record]) -> np.ndarray:
    """Which tasks were solved, of shape (seeds, tasks)."""
    return np.array([[float(digit) for digit in record["tasks"]] for record in records])


def solved_digits(episodes: Sequence[Trajectory]) -> str:
    """A digit for each task, in order: 1 where it was solved; the tasks were played once each."""
    tasks = scores_by_task(episodes).values()
    return "".join(f"{scores['success']:.0f}" for scores in tasks)


def solved_counts(episodes: Sequence[Trajectory]) -> list[int]:
    """How many episodes of each task succeed; tasks in order."""
    counts = Counter(episode.task.id for episode in episodes if episode.success)
    return [counts[task] for task in dict.fromkeys(episode.task.id for episode in episodes)]


def gain(records: Sequence[Record], env: str, arm: str, over: str) -> Estimate:
    """How much more of the test tasks `arm` solves than `over`, paired by seed and by task."""
    return difference(solved(chosen(records, env, arm)) - solved(chosen(records, env, over)))


def judged(claim: str, gains: Mapping[str, Estimate], least: float = 0.0) -> str:
    """Whether a claim holds, by environment: all of the interval above `least`, below it, or neither."""
    verdicts: dict[str, list[str]] = {"supported": [], "fails": [], "not decided": []}
    for env, (mean, low, high) in gains.items():
        verdict = "supported" if low > least else "fails" if high < least else "not decided"
        verdicts[verdict].append(f"{env} ({mean:+.2f} [{low:+.2f}, {high:+.2f}])")
    parts = [f"{verdict} in {', '.join(places)}" for verdict, places in verdicts.items() if places]
    return f"{claim}: {'; '.join(parts)}."


# ------------------------------------------------------------------------------- tables, pictures


def shown(value: Estimate) -> str:
    """`0.93 [0.90, 0.95]`."""
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean over seeds, with the least and the greatest."""
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def pass_cells(counts: Sequence[int]) -> list[str]:
    """pass@k for each of `PASSES`, from how many of `PASSES[-1]` episodes of each task succeed."""
    shares = [[pass_at_k(PASSES[-1], successes, k) for successes in counts] for k in PASSES]
    return [f"{sum(values) / len(values):.2f}" for values in shares]


def table_of(result: Mapping[str, Any], arms: Sequence[str]) -> Table:
    """Header and rows: success of each arm in each environment."""
    records = result["runs"]
    envs = envs_of(records)
    rows = []
    for arm in arms:
        by_env = [chosen(records, env, arm) for env in envs]
        rows.append([arm, *(shown(estimate(solved(runs))) if runs else "" for runs in by_env)])
    return ["", *envs], rows


def at_tokens(points: Sequence[Mapping[str, float]], tokens: float, score: str) -> float:
    """A score of a curve at a number of generated tokens, between its validations."""
    return float(
        np.interp(tokens, [p["tokens"] for p in points], [p.get(score, 0.0) for p in points])
    )


def draw_curve(
    axis: Any, curves: Sequence[Sequence[Mapping[str, float]]], score: str, label: str, color: str
) -> None:
    """A score against generated tokens: the mean of the seeds and their range."""
    grid = np.linspace(0, min(points[-1]["tokens"] for points in curves), 60)
    values = np.array([[at_tokens(points, x, score) for x in grid] for points in curves])
    axis.plot(grid / 1e3, values.mean(0), color=color, label=label)
    axis.fill_between(grid / 1e3, values.min(0), values.max(0), color=color, alpha=0.2, lw=0)
    axis.grid(alpha=0.3)


def draw_bars(
    records: Sequence[Record], path: Path, *, title: str, arms: Sequence[str] = ()
) -> None:
    """Success of each arm, or of these arms, grouped by environment, with intervals."""
    envs = envs_of(records)
    arms = arms or list(dict.fromkeys(record["arm"] for record in records))
    figure, axis = plt.subplots(figsize=(2 + 1.8 * len(envs) + 0.3 * len(arms), 3.8))
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        again, color = place // len(COLORS), COLORS[place % len(COLORS)]
        for x, env in enumerate(envs):
            if not (runs := chosen(records, env, arm)):
                continue
            mean, low, high = estimate(solved(runs))
            at = x + (place - (len(arms) - 1) / 2) * width
            label = arm if x == 0 else None
            axis.bar(at, mean, width * 0.9, color=color, hatch="/" * 3 * again, label=label)
            axis.errorbar(at, mean, [[mean - low], [high - mean]], color="black", lw=1)
    axis.set(title=title, ylabel="test tasks solved", ylim=(0, 1))
    axis.set_xticks(range(len(envs)), envs)
    columns = 1 + (len(arms) > 16)  # of a figure of this height
    axis.legend(frameon=False, fontsize="small", bbox_to_anchor=(1, 1), loc="upper left", ncol=columns)  # fmt: skip
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
