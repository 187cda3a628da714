"""Does the team learn? `make train` over several seeds, beside trajectory groups (`grpo`).

    python -m benchmarks.learning [--seeds 0 1 2] [--estimators at_grpo grpo] [--jobs 2]

Each run is the command a user types, in a process of its own; finished runs are not repeated and
stopped ones go on. Then the `at_grpo` teams play test tasks, also with policies swapped. Writes
`results/learning.json` and `results/learning.png`; `--table` prints the Markdown of the README.

The estimators are compared at equal numbers of generated tokens and with equal rewards: the return of `grpo` is
the sum of the very rewards that `at_grpo` compares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "learning.json"
SCORES = ("success", "coder/first_passed", "tester/first_local_reward", "tester/first_valid")
TASKS = 300
"""Test tasks of the final evaluations."""
SHORTER = {"grpo": ["--max-steps", "24", "--eval-steps", "6"]}
"""Estimators that play K whole episodes generate two to three times the tokens in a step."""


def run(estimator: str, seed: int, out: Path, extra: list[str]) -> Path:
    """Train one team unless it is trained already; returns its run folder."""
    folder = out / f"{estimator}-{seed}"
    if (folder / "summary.json").exists():
        return folder
    started = time.monotonic()
    if (folder / "config.yaml").exists():
        command = ["--resume", str(folder)]
    else:
        command = ["--env", "coding", "--policies", "per-role", "--estimator", estimator]
        command += ["--seed", str(seed), "--output-dir", str(folder)]
        command += [*SHORTER.get(estimator, []), *extra]
    with (out / f"{estimator}-{seed}.log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "pettingllms.cli.train", *command],
            check=True,
            stdout=log,
            stderr=log,
        )
    print(f"{estimator} seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
    return folder


def evaluate(folder: Path, *words: str) -> dict[str, Any]:
    """Scores of `pettingllms-eval` on the test tasks, kept beside the run."""
    out = folder / "-".join(["eval", *(word.lstrip("-").replace("=", "-") for word in words)])
    if not (out / "results.json").exists():
        command = ["--adapters", str(folder), "--tasks", str(TASKS), "--out", str(out), *words]
        subprocess.run(
            [sys.executable, "-m", "pettingllms.cli.evaluate", *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return dict(json.loads((out / "results.json").read_text()))


def curve(folder: Path) -> list[dict[str, float]]:
    """Validation scores against generated tokens and training seconds."""
    tokens = seconds = 0.0
    points = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("kind") == "train":
            tokens += row["num_tokens"]
            seconds += row["time/step"]
        elif row.get("when") == "validation":
            scores = {name: row[f"eval/{name}"] for name in SCORES}
            points.append({"step": row["step"], "tokens": tokens, "seconds": seconds, **scores})
    return points


def timing(folder: Path) -> dict[str, float]:
    """Training seconds by part, over the run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("kind") == "train"]
    parts = ("time/step", "time/sample", "time/score", "time/update", "num_tokens")
    return {part: sum(row[part] for row in steps) for part in parts} | {"steps": len(steps)}


def collect(folder: Path) -> dict[str, Any]:
    """Everything that the table and the picture need of one run."""
    results = {
        "config": (folder / "config.yaml").read_text(),
        "versions": json.loads((folder / "run.json").read_text()),
        "timing": timing(folder),
        "curve": curve(folder),
    }
    if folder.name.startswith("at_grpo"):
        results["sampled"] = evaluate(folder, "--swap", "coder=tester")
        results["greedy"] = evaluate(folder, "--greedy")
    return results


def at_budget(points: list[dict[str, float]], tokens: float, score: str) -> float:
    """A score of a curve at a number of generated tokens, between its validations."""
    return float(np.interp(tokens, [p["tokens"] for p in points], [p[score] for p in points]))


def draw(runs: dict[str, Any], path: Path) -> None:
    """Validation scores against generated tokens: the mean of the seeds and their range."""
    titles = {
        "success": "team success",
        "coder/first_passed": "coder: hidden tests passed, first reply",
        "tester/first_local_reward": "tester: local reward, first reply",
    }
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    for axis, (score, title) in zip(axes, titles.items(), strict=True):
        for estimator, colour in (("at_grpo", "#0072b2"), ("grpo", "#d55e00")):
            curves = [r["curve"] for name, r in runs.items() if name.startswith(f"{estimator}-")]
            if not curves:
                continue
            grid = np.linspace(0, min(points[-1]["tokens"] for points in curves), 60)
            values = np.array([[at_budget(points, x, score) for x in grid] for points in curves])
            axis.plot(grid / 1e3, values.mean(0), color=colour, label=estimator)
            axis.fill_between(
                grid / 1e3, values.min(0), values.max(0), color=colour, alpha=0.2, lw=0
            )
        axis.set(title=title, xlabel="generated tokens (thousands)", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out tasks")
    axes[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--estimators", nargs="+", default=["at_grpo", "grpo"])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=HERE / "out" / "learning")
    options, extra = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [(name, seed) for name in options.estimators for seed in options.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = list(pool.map(lambda w: run(w[0], w[1], options.out, extra), wanted))
        runs = dict(zip([f"{n}-{s}" for n, s in wanted], pool.map(collect, folders), strict=True))
    if RESULTS.exists():
        # Results of other seeds and estimators stay.
        runs = json.loads(RESULTS.read_text()) | runs
    # Paths below the checkout, not those of this machine.
    text = json.dumps(runs, indent=1).replace(f"{HERE.parent}/", "")
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
    draw(runs, RESULTS.with_suffix(".png"))
    print(f"wrote {RESULTS} and {RESULTS.with_suffix('.png')}")


if __name__ == "__main__":
    main()
