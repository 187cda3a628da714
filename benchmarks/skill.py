"""Habit or skill, on boards and in math (`habit_or_skill.py` is for coding), and skills that are half there.

    python -m benchmarks.priming.prime --out /tmp/base --keep-clean /tmp/clean
    python -m benchmarks.priming.prime --out /tmp/half --half 1800
    python -m benchmarks.skill --clean /tmp/clean --half /tmp/half [--seeds 0 1 2]

1. The checkpoint before the bad habits (`clean`) plays the same test tasks as the teams of
   `benchmarks.learning`: what a team wins back up to `clean` was in the base and seldom used.
2. Teams are trained from a base that was primed for a quarter of the time and has no habits (`half`):
   what they win is not a habit overcome, but a skill that the base had only half.

Writes `results/skill.json` after each environment, with the digests of both checkpoints; the table has a row for everything
above, `not measured` where nothing is published. Finished runs and evaluations are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table, spread
from benchmarks.learning import HERE, TASKS, timing
from pettingllms.envs import make
from pettingllms.evaluation.folder import digest
from pettingllms.runs import versions

RESULTS = HERE / "results" / "skill.json"
ENVIRONMENTS = ("plan_path", "sudoku", "sokoban", "math")
SKILLS = ENVIRONMENTS[:3]
"""Where teams are trained from the half-primed base."""
OPTIONS = {
    "learning-rate": 5e-4,
    "num-generations": 16,
    "tasks-per-step": 8,
    "max-steps": 150,
    "warmup-steps": 0,
    "max-completion-length": 96,
    "tokens-per-batch": 4096,
    "eval-steps": 25,
    "eval-tasks": 100,
    "scoring-threads": 4,
}
"""Those of the embedded model: a checkpoint elsewhere gets the defaults of large models."""


def command(module: str, *words: str) -> None:
    """Run a command of this package in a process of its own, with one thread."""
    subprocess.run(
        [sys.executable, "-m", f"pettingllms.cli.{module}", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def task(env: str, model: Path) -> list[str]:
    """The task that the embedded model plays, for a checkpoint elsewhere."""
    arguments = json.dumps(dict(make(env).embedded))
    return ["--env", env, "--model", str(model), "--env-args", arguments]


def played(out: Path, *words: str) -> dict[str, Any]:
    """Scores of test tasks, sampled and greedy."""
    scores = {}
    length = ["--max-completion-length", str(OPTIONS["max-completion-length"])]
    for how in ("sampled", "greedy"):
        folder = out / how
        if not (folder / "results.json").exists():
            greedy = ["--greedy"] if how == "greedy" else []
            limit = ["--limit", str(TASKS), "--out", str(folder)]
            command("evaluate", *words, *length, *limit, *greedy)
        results = json.loads((folder / "results.json").read_text())["results"]
        scores[how] = results.get("adapters", results["base"])[0]
    print(out.name, {how: round(row["eval/success"], 3) for how, row in scores.items()}, flush=True)
    return scores


def trained(env: str, half: Path, out: Path, seed: int) -> dict[str, Any]:
    """A team trained from the half-primed base."""
    run = out / f"{env}-{seed}"
    if not (run / "summary.json").exists():
        options = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
        new = [*task(env, half), *options, "--seed", str(seed), "--output-dir", str(run)]
        command("train", *(["--resume", str(run)] if (run / "config.yaml").exists() else new))
    scores = played(run / "eval", *task(env, half), "--adapters", str(run))
    return {**scores, "timing": timing(run)}


def table(results: Any) -> Table:
    """What the checkpoint before the habits does, and what training adds to a half-primed one."""
    rows = [
        [f"`{env}`, before the habits", *_cells(env, [results["clean"][env]])]
        if env in results["clean"]
        else [f"`{env}`, before the habits", *MISSING]
        for env in ENVIRONMENTS
    ]
    for env in SKILLS:
        if env not in results["half"]:
            rows.append([f"`{env}`, half primed", *MISSING])
            rows.append([f"`{env}`, half primed, then trained", *MISSING])
            continue
        runs = results["half"][env]
        teams = [scores for name, scores in runs.items() if name != "before"]
        rows.append([f"`{env}`, half primed", *_cells(env, [runs["before"]])])
        rows.append([f"`{env}`, half primed, then trained", *_cells(env, teams)])
    header = [
        "",
        "team, sampled",
        "team, greedy",
        "first completion, sampled",
        "first completion, greedy",
    ]
    return header, rows


MISSING = ["not measured"] * 4


def _cells(env: str, runs: Sequence[Any]) -> list[str]:
    roles = ("tool", "reasoner") if env == "math" else ("tool", "planner")
    first = "first_right" if env == "math" else "first_answer_solves"
    cells = [spread([run[how]["eval/success"] for run in runs]) for how in ("sampled", "greedy")]
    for how in ("sampled", "greedy"):
        by_role = [spread([run[how][f"eval/{role}/{first}"] for run in runs]) for role in roles]
        cells.append(" / ".join(by_role))
    return cells


def main() -> None:
    """Play, train, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clean", type=Path, required=True, help="prime's --keep-clean folder")
    parser.add_argument("--half", type=Path, required=True, help="what prime --half wrote")
    parser.add_argument(
        "--skills", nargs="+", choices=SKILLS, default=SKILLS, help="trained from half"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    out = HERE / "out" / "skill"
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"versions": versions(), "options": OPTIONS, "clean": {}, "half": {}}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8")) | {"versions": versions()}
    results["models"] = {"clean": digest(options.clean), "half": digest(options.half)}

    def publish() -> None:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    for env in ENVIRONMENTS:
        results["clean"][env] = played(out / f"clean-{env}", *task(env, options.clean))
        publish()
    for env in options.skills:
        before = played(out / f"half-{env}", *task(env, options.half))
        teams = {str(seed): trained(env, options.half, out, seed) for seed in options.seeds}
        results["half"][env] = {"before": before, **teams}
        publish()


if __name__ == "__main__":
    main()
