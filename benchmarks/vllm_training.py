"""The main job sampled with vLLM, beside the same job sampled with transformers: curves and cost.

    .venv-vllm/bin/python -m benchmarks.vllm_training --json benchmarks/results/vllm_training.json

The embedded model, a coder and a tester, the same tasks in the same order; one run for each
sampler and seed. Reports the mean success and reward of executed and sampled replies at the start
and the end, how far apart the samplers and how far apart the seeds are, the greatest mismatch of
log-probabilities that any step logged, and seconds of sampling. On a CPU, vLLM 0.32 is slower with
adapters than this package's own sampler; what is compared here is what is learned.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table
from benchmarks.options import Options
from pettingllms.runs import versions
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig

SAMPLERS = ("transformers", "vllm")
GAP = "sampling/sampling_logp_difference/max"


def main() -> None:
    """Trains, prints a table and writes the curves."""
    parser = Options(__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=8, help="tasks of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path, help="also write curves and settings to this file")
    options = parser.parse_args()
    runs = {
        sampler: [_run(sampler, seed, options) for seed in options.seeds] for sampler in SAMPLERS
    }
    summary = {sampler: _summary(rows) for sampler, rows in runs.items()}
    for sampler, values in summary.items():
        print(sampler, json.dumps(values))
    if options.json:
        settings = {"steps": options.steps, "tasks": options.tasks, "seeds": options.seeds}
        content = {
            "title": "vllm_training",
            "settings": settings,
            "versions": versions(),
            "summary": summary,
            "curves": runs,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def table(result: Any) -> Table:
    """Rewards of a short training run on either sampler, and their mismatch."""
    summary = result["summary"]
    keys = [key for key in summary["vllm"] if isinstance(summary["vllm"][key], list)]
    shown = [
        [key, *("{:.2f} [{:.2f}, {:.2f}]".format(*summary[name][key]) for name in summary)]
        for key in keys
    ]
    mismatch = "greatest mismatch, nats"
    shown.append([mismatch, *(f"{summary[name][mismatch]:.1e}" for name in summary)])
    return ["reward", *summary], shown


def _run(sampler: str, seed: int, options: argparse.Namespace) -> dict[str, list[float]]:
    folder = Path(tempfile.mkdtemp())
    try:
        config = ATGRPOConfig(
            env="coding",
            sampler=sampler,
            seed=seed,
            output_dir=str(folder / "run"),
            max_steps=options.steps,
            tasks_per_step=options.tasks,
            eval_steps=0,
            eval_tasks=1,
            save_steps=options.steps,
        )
        train(config)
        lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        shutil.rmtree(folder)
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return {
        "coder": [row["reward/coder"] for row in rows],
        "tester": [row["reward/tester"] for row in rows],
        "success": [row["success"] for row in rows],
        "mismatch": [_greatest(row) for row in rows],
        "sampling_seconds": [row["time/sample"] for row in rows],
        "tokens": [row["num_tokens"] for row in rows],
    }


def _greatest(row: dict[str, Any]) -> float:
    """Of all policies that were updated; 0 where none was."""
    return max((value for name, value in row.items() if name.endswith(GAP)), default=0.0)


def _summary(runs: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """First and last fifth of the steps: mean [least, greatest] over seeds."""
    part = max(1, len(runs[0]["coder"]) // 5)
    found: dict[str, Any] = {}
    for name in ("coder", "tester", "success"):
        for when, place in (("first", slice(part)), ("last", slice(-part, None))):
            means = [statistics.mean(run[name][place]) for run in runs]
            found[f"{name}, {when} {part} steps"] = [statistics.mean(means), min(means), max(means)]
    found["greatest mismatch, nats"] = max(max(run["mismatch"]) for run in runs)
    seconds = sum(sum(run["sampling_seconds"]) for run in runs)
    found["sampled tokens a second of wall time"] = sum(sum(r["tokens"]) for r in runs) / seconds
    return found


if __name__ == "__main__":
    main()
