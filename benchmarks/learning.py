"""Does a team learn? `pettingllms-train --env ENV` over several seeds.

    python -m benchmarks.learning --env coding [--seeds 0 1 2]
    python -m benchmarks.learning --env sokoban [--policies per-role shared] [--out FILE] [options of pettingllms-train]

Each run is the command a user types, in a process of its own; finished runs are not repeated and
stopped ones go on. Then base and trained teams play test tasks: sampled, also with policies swapped; greedily;
tasks that are larger than those of training (`BEYOND`); and, with the first seed, many episodes of a few tasks
for pass@k. Writes `results/learning_<env>.json`, or FILE for other options, and a picture beside it;
`benchmarks.tables` makes the tables of the pages. Rows of other revisions are not kept beside new ones.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from benchmarks.evidence import (
    COLORS,
    PASS_TASKS,
    PASSES,
    draw_curve,
    solved_counts,
    solved_digits,
)
from benchmarks.options import Options
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.models import DEFAULT
from pettingllms.rollout.trajectory import Trajectory

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
BEYOND: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "coding": ("4 steps", {"steps": (4, 4)}),
    "math": ("4 steps", {"depth": (4, 4)}),
    "plan_path": ("7 x 7", {"height": 7, "width": 7}),
    "sokoban": ("7 x 7", {"size": 7}),
    # A larger Sudoku has numbers that the embedded model was never shown.
    "sudoku": ("11 empty cells", {"clues": (5, 5)}),
}
"""Tasks one step longer, or one size larger, than any of training: what they are called, and what differs."""
CPU = "cpu_seconds"
"""A file in a run's folder: what its training took."""
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


def command(module: str, *words: str, log: Path | None = None) -> float:
    """Runs a command of this package with one thread; returns the CPU-seconds of it and its children.

    Args:
        module: of `pettingllms.cli`.
        words: the command line.
        log: a file to which all that it says is appended; None to show errors alone.
    """

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    with Path(os.devnull if log is None else log).open("a") as output:
        subprocess.run(
            [sys.executable, "-m", f"pettingllms.cli.{module}", *words],
            check=True,
            stdout=output,
            stderr=None if log is None else output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return spent() - before


def train(folder: Path, *words: str) -> None:
    """One run of `pettingllms-train`, unless it is finished; one that was begun goes on.

    Notes its CPU-seconds in the folder, except of a run that went on: those of its first part are unknown.
    """
    if (folder / "summary.json").exists():
        return
    log = folder.with_name(f"{folder.name}.log")
    print(f"training {folder.name}, a minute or more; log: {log}", flush=True)
    if (folder / "config.yaml").exists():
        command("train", "--resume", str(folder), log=log)
        return
    seconds = command("train", *words, "--output-dir", str(folder), log=log)
    (folder / CPU).write_text(f"{seconds:.1f}\n", encoding="utf-8")


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Settings by name as a command line; those that are None are left open."""
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        elif value is not None:
            words += [f"--{option}", str(value)]
    return words


def evaluate(
    out: Path,
    *words: str,
    tasks: int | None = None,
    read: Callable[[Sequence[Trajectory]], Any] = solved_digits,
) -> dict[str, Any]:
    """Scores of `pettingllms-eval` on test tasks, by default `TASKS` of them, kept in `out`.

    `solved` has what `read` makes of each team's episodes, by default a digit for each task: intervals over
    seeds and tasks need them.
    """
    if not (out / "results.json").exists():
        command("evaluate", *words, "--limit", str(tasks or TASKS), "--out", str(out))
    solved = {team: read(its) for team, its in read_trajectories(out).items()}
    return json.loads((out / "results.json").read_text()) | {"solved": solved}


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
    """Training seconds by part, over the run; and CPU-seconds of all of it, where they were measured."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("kind") == "train"]
    parts = ("time/step", "time/sample", "time/score", "time/update", "num_tokens")
    sums = {column: sum(row[column] for row in steps) for column in parts} | {"steps": len(steps)}
    return sums | ({CPU: float((folder / CPU).read_text())} if (folder / CPU).exists() else {})


def collect(run: Run, folder: Path, *, several: bool) -> dict[str, Any]:
    """Everything that the tables and the picture need of one run; `several`: also pass@k."""
    swap = ["--swap", SWAPS[run.env]] if run.policies == "per-role" else []
    size, larger = BEYOND[run.env]

    def played(name: str, *words: str, **other: Any) -> dict[str, Any]:
        return evaluate(folder / f"eval-{name}", "--adapters", str(folder), *words, **other)

    results = {
        "config": (folder / "config.yaml").read_text(),
        "versions": json.loads((folder / "run.json").read_text()),
        "timing": timing(folder),
        "curve": curve(folder, SCORES[run.env]),
        "sampled": played("sampled", *swap),
        "greedy": played("greedy", "--greedy"),
        "beyond": played("beyond", "--env-args", json.dumps(larger)) | {"size": size},
    }
    if several:
        samples = ["--samples", str(PASSES[-1])]
        results["passes"] = played("passes", *samples, tasks=PASS_TASKS, read=solved_counts)
    return results


def beside(before: Mapping[str, Any], name: str, result: Any) -> dict[str, Any]:
    """A run and those of before that were played at its revision: a table of two would hide which row is whose."""

    def commit(run: Any) -> str | None:
        revision = run["sampled"]["revision"]  # None outside a checkout
        return revision and str(revision["commit"])

    return {other: run for other, run in before.items() if commit(run) == commit(result)} | {
        name: result
    }


def draw(runs: dict[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Validation scores against generated tokens: the mean of the seeds and their range."""
    figure, axes = plt.subplots(1, len(titles), figsize=(4 * len(titles), 3.6), sharey=True)
    kinds = list(dict.fromkeys(name.rsplit("-", 1)[0] for name in runs))
    for axis, (score, title) in zip(axes, titles.items(), strict=True):
        for arm, color in zip(kinds, COLORS, strict=False):
            curves = [r["curve"] for name, r in runs.items() if name.rsplit("-", 1)[0] == arm]
            draw_curve(axis, curves, score, arm, color)
        axis.set(title=title, xlabel="generated tokens (thousands)", ylim=(0, 1))
    axes[0].set_ylabel("held-out tasks")
    axes[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run what is missing, write the results after each run."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--env", choices=SCORES, default="coding")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policies", nargs="+", default=["per-role"])
    parser.add_argument(
        "--out", type=Path, help="its name is that of the runs, in out/; default: learning_<env>"
    )
    options, extra = parser.parse_known_args()
    file: Path = options.out or HERE / "results" / f"learning_{options.env}.json"
    out = HERE / "out" / file.stem
    for folder in (out, file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    runs = json.loads(file.read_text()) if file.exists() else {}
    for policies in options.policies:
        for seed in options.seeds:
            run = Run(options.env, policies, seed)
            words = ["--env", run.env, "--policies", policies, "--seed", str(seed)]
            # The base with habits, also where an environment has another default.
            train(out / run.name, *words, "--model", DEFAULT, *extra)
            result = collect(run, out / run.name, several=seed == options.seeds[0])
            runs = beside(runs, run.name, result)
            # Paths below the checkout, not those of this machine.
            text = json.dumps(runs, indent=1).replace(f"{HERE.parent}/", "")
            file.write_text(f"{text}\n", encoding="utf-8")
            print(f"wrote {run.name} to {file}", flush=True)
    draw(runs, SCORES[options.env], file.with_suffix(".png"))


if __name__ == "__main__":
    main()
