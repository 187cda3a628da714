"""What `--advise` says in the environments of claim 4, where a shared policy and one for each role end alike, and what it costs.

    python -m benchmarks.advice_grounds                      everything that is missing
    python -m benchmarks.advice_grounds --only plan_path --steps 8 --seeds 20

Trains the arm `SHARED` of `benchmarks/claims` with the learning rate that was chosen there, on seeds of its own. Gradients are read in
every other step, so that steps with and without are compared in one run; the signals are those after
`--steps` steps that were read, and after three times as many. Writes `results/advice_grounds.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.advice import Watch
from benchmarks.cells import write
from benchmarks.claims.cells import Cell, trainer_of
from benchmarks.claims.experiments import ARMS, SHARED, SHORT
from benchmarks.evidence import Table, revision
from benchmarks.options import Options
from pettingllms.envs import make
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.report import as_text
from pettingllms.runs import versions

RESULTS = Path(__file__).parent / "results" / "advice_grounds.json"
CLAIMS = RESULTS.with_name("claims.json")
GROUNDS = ("coding", "math", "plan_path", "search", "sokoban", "sudoku")
STEPS, SEEDS = 10, (20, 21, 22)
MOST = 4
"""Steps for each that is to be read, before a run is given up: of silent groups nothing is read."""


def measured(ground_name: str, scale: float, seed: int, steps: int) -> dict[str, Any]:
    """Trains; returns the signals by the number of steps that were read, and CPU-seconds of steps with and without."""
    ground, cell = SHORT[ground_name], Cell(ground_name, SHARED, scale, seed)
    watch = Watch(roles_of(make(ground.env, **ground.arguments)))
    trainer = trainer_of(cell, ground, ARMS[SHARED].settings, callbacks=[watch])
    signals, seconds = dict[str, Any](), {True: list[float](), False: list[float]()}
    while watch.sums.steps < 3 * steps and trainer.step < MOST * 6 * steps:
        watch.wants_gradients, began, before = (
            trainer.step % 2 == 0,
            time.process_time(),
            watch.sums.steps,
        )
        tokens = trainer.tokens
        trainer.train_step()
        if not watch.wants_gradients or watch.sums.steps > before:
            # By token, because steps differ in how much they play.
            update = time.process_time() - began
            seconds[watch.wants_gradients].append(update / (trainer.tokens - tokens))
        if watch.sums.steps in (steps, 3 * steps) and str(watch.sums.steps) not in signals:
            signals[str(watch.sums.steps)] = watch.signals()
    cost = statistics.median(seconds[True]) / statistics.median(seconds[False])
    return {"signals": signals, "steps": trainer.step, "cost": cost, "tokens": trainer.tokens}


def table(result: Mapping[str, Any], claims: Mapping[str, Any]) -> Table:
    """For each environment what was said on each seed, what the arms differ by at the end, and the cost of a step."""
    gains = {
        row["ground"]: row["gains"]["tokens"]
        for row in claims["verdicts"]
        if row["experiment"] == "shared"
    }
    rows = []
    for ground, by_seed in result["runs"].items():
        texts: dict[str, list[str]] = {"first": [], "last": []}
        for run in by_seed.values():
            for read, signal in zip(texts, run["signals"].values(), strict=False):
                low, high = signal["interval"]
                texts[read].append(
                    f"{signal['G']:+.2f} [{low:+.2f}, {high:+.2f}] {signal['recommendation']}"
                )
        mean, low, high = gains[ground]
        cost = statistics.median(run["cost"] for run in by_seed.values())
        rows.append(
            [
                ground,
                *map("; ".join, texts.values()),
                f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]",
                f"{cost:.2f}",
            ]
        )
    return ["environment", "after 10 steps", "after 30 steps", "measured", "CPU of a step"], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, writes, and prints the table."""
    parser = Options(__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUNDS, default=GROUNDS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="steps that are read first, at least 8"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    claims = json.loads(CLAIMS.read_text())
    result = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    result |= {"versions": versions(), "revision": revision()}
    for seed in options.seeds:
        for ground in options.only:
            runs = result["runs"].setdefault(ground, {})
            if str(seed) in runs:
                continue
            began, scale = os.times(), claims["arms"][ground][SHARED]["scale"]
            runs[str(seed)] = run = measured(ground, scale, seed, options.steps)
            ended = os.times()
            run["cpu_s"] = round(sum(ended[:4]) - sum(began[:4]), 1)
            print(ground, seed, json.dumps(run), flush=True)
            write(options.out, result)
    head, rows = table(result, claims)
    print(as_text([head, *rows]))


if __name__ == "__main__":
    main()
