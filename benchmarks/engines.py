"""What do vLLM engines in processes of their own cost, beside vLLM in the trainer's process?

    python -m benchmarks.engines --steps 6

A random model of 4 layers (`tests/vllm_policies.py`) plays a toy environment of two roles. Prints a row of
JSON for vLLM in process and for one and two replicas, in turns so that other load is shared: median seconds of
playing a step, of a whole step, and the idle share of engines; the first two steps are left out. On a machine
with two cores, engines, workers and learners compete for them: it shows what asking costs, not what
several engines gain.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from tests.vllm_policies import OPTIONS, save_model

SETTINGS: dict[str, Any] = {
    "env": "tests.letters_env:env",
    "sampler": "vllm",
    "vllm": json.dumps(OPTIONS),
    "tasks_per_step": 8,
    "num_generations": 4,
    "max_completion_length": 48,
    "tasks_per_shard": 2,
    "eval_steps": 0,
    "eval_tasks": 1,
    "save_steps": 100,
    "scoring_threads": 1,
    "learning_rate": 0.0,
}


def main() -> None:
    """Prints a row for each number of replicas; 0 is vLLM in process."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder, "model"))
        found: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
        for turn in range(given.rounds):
            for replicas, rows in found.items():
                run = Path(folder, f"{turn}-{replicas}")
                rows += measured(model, run, replicas, given.steps, given.workers)
        for replicas, rows in found.items():
            names = ("time/play", "time/sample", "time/step", "engines/idle")
            medians = {
                name: round(statistics.median(row[name] for row in rows), 3)
                for name in names
                if name in rows[0]
            }
            print(json.dumps({"replicas": replicas, "steps": len(rows), **medians}), flush=True)


def measured(
    model: Path, run: Path, replicas: int, steps: int, workers: int
) -> list[dict[str, Any]]:
    """The metrics of the steps of a training, without those in which things are done first."""
    settings = {**SETTINGS, "model": str(model), "output_dir": str(run), "max_steps": steps}
    if replicas:
        pools = {"engines": {"replicas": replicas}}
        settings |= {"workers": workers, "pools": json.dumps(pools)}
    with contextlib.redirect_stdout(sys.stderr):
        train(ATGRPOConfig(**settings))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"][2:]


if __name__ == "__main__":
    main()
