"""Does a team learn? `pettingllms-train --env ENV` over several seeds.

    python -m benchmarks.learning --env coding [--seeds 0 1 2]
    python -m benchmarks.learning --env sokoban [--policies per-role shared] [--name NAME] [options of pettingllms-train]

Each run is the command a user types, in a process of its own; finished runs are not repeated and
stopped ones go on. Then the teams play test tasks, greedily, and with policies swapped. Writes
`results/learning_<env>.json` (`<name>` for other options) and a picture beside it; `benchmarks.tables` makes the tables of the README files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from benchmarks.evidence import COLORS, draw_curve, solved_digits
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.models import DEFAULT

HERE = Path(__file__).parent
BOARD = {
    "success": "team success",
    "tool/first_answer_solves": "tool: first proposal solves",
    "planner/first_answer_solves": "planner: first answer solves",
}
SCORES = {
    "coding": {
        "success": "team success",
        "coder/first_passed": "coder: hidden tests passed, first reply",
        "tester/first_local_reward": "tester: local reward, first reply",
        "tester/first_valid": "tester: tests that are right, first reply",
    },
    "math": {
        "success": "team success",
        "tool/first_right": "tool: right, first reply",
        "reasoner/first_right": "reasoner: right, first reply",
        "reasoner/first_follows_right": "tool right and followed, first turn",
        "reasoner/first_follows_wrong": "tool wrong and followed, first turn",
    },
    "plan_path": BOARD,
    "sokoban": BOARD,
    "sudoku": BOARD,
}
"""What is read off the curves of an environment, with its title."""
TASKS = 300
"""Test tasks of the final evaluations."""
SWAPS = {
    "coding": "coder=tester",
    "math": "tool=reasoner",
    **dict.fromkeys(("plan_path", "sokoban", "sudoku"), "tool=planner"),
}


class Run(NamedTuple):
    """One training run."""

    env: str
    policies: str
    seed: int

    @property
    def name(self) -> str:
        """How it is called in the results."""
        policies = "" if self.policies == "per-role" else f"{self.policies}-"
        return f"{policies}at_grpo-{self.seed}"


def train(run: Run, out: Path, extra: list[str]) -> Path:
    """Train one team unless it is trained already; returns its run folder."""
    folder = out / run.name
    if (folder / "summary.json").exists():
        return folder
    started = time.monotonic()
    if (folder / "config.yaml").exists():
        command = ["--resume", str(folder)]
    else:
        command = ["--env", run.env, "--policies", run.policies, "--seed", str(run.seed)]
        # The base with habits, also where an environment has another default.
        command += ["--output-dir", str(folder), "--model", DEFAULT, *extra]
    with (out / f"{run.name}.log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "pettingllms.cli.train", *command],
            check=True,
            stdout=log,
            stderr=log,
        )
    print(f"{run.env} {run.name}: {time.monotonic() - started:.0f} s", flush=True)
    return folder


def evaluate(folder: Path, *words: str) -> dict[str, Any]:
    """Scores of `pettingllms-eval` on the test tasks, kept beside the run.

    `solved` has, for each team, a digit for each task: intervals over seeds and tasks need them.
    """
    out = folder / "-".join(["eval", *(word.lstrip("-").replace("=", "-") for word in words)])
    if not (out / "results.json").exists():
        command = ["--adapters", str(folder), "--tasks", str(TASKS), "--out", str(out), *words]
        subprocess.run(
            [sys.executable, "-m", "pettingllms.cli.evaluate", *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    digits = {team: solved_digits(its) for team, its in read_trajectories(out).items()}
    return json.loads((out / "results.json").read_text()) | {"solved": digits}


def curve(folder: Path, scores: Iterable[str]) -> list[dict[str, float]]:
    """Validation scores against generated tokens and training seconds."""
    tokens = seconds = 0.0
    points = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("kind") == "train":
            tokens += row["num_tokens"]
            seconds += row["time/step"]
        elif row.get("when") == "validation":
            read = {name: row.get(f"eval/{name}", 0.0) for name in scores}
            points.append({"step": row["step"], "tokens": tokens, "seconds": seconds, **read})
    return points


def timing(folder: Path) -> dict[str, float]:
    """Training seconds by part, over the run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("kind") == "train"]
    parts = ("time/step", "time/sample", "time/score", "time/update", "num_tokens")
    return {part: sum(row[part] for row in steps) for part in parts} | {"steps": len(steps)}


def collect(run: Run, folder: Path) -> dict[str, Any]:
    """Everything that the tables and the picture need of one run."""
    swap = ["--swap", SWAPS[run.env]] if run.policies == "per-role" else []
    return {
        "config": (folder / "config.yaml").read_text(),
        "versions": json.loads((folder / "run.json").read_text()),
        "timing": timing(folder),
        "curve": curve(folder, SCORES[run.env]),
        "sampled": evaluate(folder, *swap),
        "greedy": evaluate(folder, "--greedy"),
    }


def draw(runs: dict[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Validation scores against generated tokens: the mean of the seeds and their range."""
    figure, axes = plt.subplots(1, len(titles), figsize=(4 * len(titles), 3.6), sharey=True)
    kinds = list(dict.fromkeys(name.rsplit("-", 1)[0] for name in runs))
    for axis, (score, title) in zip(axes, titles.items(), strict=True):
        for kind, color in zip(kinds, COLORS, strict=False):
            curves = [r["curve"] for name, r in runs.items() if name.rsplit("-", 1)[0] == kind]
            draw_curve(axis, curves, score, kind, color)
        axis.set(title=title, xlabel="generated tokens (thousands)", ylim=(0, 1))
    axes[0].set_ylabel("held-out tasks")
    axes[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", choices=SCORES, default="coding")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policies", nargs="+", default=["per-role"])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--name", help="of the results; default: learning_<env>")
    options, extra = parser.parse_known_args()
    name = options.name or f"learning_{options.env}"
    out, results = HERE / "out" / name, HERE / "results" / f"{name}.json"
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        Run(options.env, policies, seed) for policies in options.policies for seed in options.seeds
    ]

    def done(run: Run) -> dict[str, Any]:
        return collect(run, train(run, out, extra))

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = dict(zip([run.name for run in wanted], pool.map(done, wanted), strict=True))
    if results.exists():
        # Results of other seeds and policies stay.
        runs = json.loads(results.read_text()) | runs
    # Paths below the checkout, not those of this machine.
    text = json.dumps(runs, indent=1).replace(f"{HERE.parent}/", "")
    results.write_text(f"{text}\n", encoding="utf-8")
    draw(runs, SCORES[options.env], results.with_suffix(".png"))
    print(f"wrote {results} and {results.with_suffix('.png')}")


if __name__ == "__main__":
    main()
