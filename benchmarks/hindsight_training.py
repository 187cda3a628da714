"""Does training with `hindsight` help, where replies are rewarded at once and where only the end is? SmolLM2 reads.

    python -m benchmarks.hindsight_training [--minutes N] [--dry-run]

A team with a policy for each role learns `read` with `at_grpo` and with `hindsight` (weight 0.5) until `TOKENS` are generated, otherwise
with the settings of `benchmarks.reading`. The rate of each method is the one of a grid whose team of the seed `TUNING` solves most
validation tasks with dense rewards; where that is the first or last of the grid, the grid is extended. Teams of the seeds `SEEDS`, with
dense rewards and with the outcome alone, then play 200 test tasks. Finished cells are kept in `results/hindsight_training.json` and not
repeated. One core, two CPU-minutes a cell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import reading
from benchmarks.evidence import Table, gain_over_seeds, revision, shown
from benchmarks.options import Options
from pettingllms.envs import make
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.ablation import RoleTeam
from pettingllms.evaluation.report import as_text
from pettingllms.models import model_path
from pettingllms.policies.loading import load_policies
from pettingllms.policies.roles import parse_policies
from pettingllms.runs import versions
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

RESULTS = Path(__file__).parent / "results" / "hindsight_training.json"
METHODS = ("at_grpo", "hindsight")
SCHEMES = ("dense", "sparse")
RATES = (8e-4, 1.6e-3, 3.2e-3)
TUNING, SEEDS = 12, (13, 14, 15)
"""None of them is a seed of `benchmarks.reading`, where the rates of the grid come from."""
TOKENS = 10_000
SETTINGS: Mapping[str, Any] = {**reading.SETTINGS, "max_steps": None, "max_tokens": TOKENS}


class Cell(NamedTuple):
    """A training."""

    scheme: str
    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"{self.scheme}/{self.method}/{self.rate:g}/{self.seed}"


def trainer_of(cell: Cell) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    env = make("read", rewards=cell.scheme)
    changes = {"method": cell.method, "learning_rate": cell.rate, "seed": cell.seed}
    config = resolve(ATGRPOConfig(env="read", **{**SETTINGS, **changes}), env)
    policies = load_policies(
        model_path(reading.MODEL),
        parse_policies(config.policies, roles_of(env)),
        dtype=config.dtype,
        lora_r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_target_modules=config.lora_target_modules.split(","),
        seed=cell.seed,
    )
    return ATGRPO(config, env, policies)


def measured(cell: Cell) -> dict[str, Any]:
    """Trains a cell, and plays held-out tasks at the end."""
    torch.set_num_threads(1)
    trainer, started, curve = trainer_of(cell), reading.cpu_seconds(), list[float]()
    while trainer.tokens < TOKENS:
        curve.append(round(trainer.train_step()[1]["success/answerer"], 3))
        print(trainer.step, curve[-1], f"{reading.cpu_seconds() - started:.0f} s", flush=True)
    trained_s = reading.cpu_seconds() - started
    tuned = cell.seed == TUNING
    split, tasks = ("val", reading.VALIDATION_TASKS) if tuned else ("test", reading.TEST_TASKS)
    # Success is the same with either rewards, so that all teams play the same tasks.
    of_reading = reading.Cell("read", reading.AT_GRPO, cell.rate, cell.seed)
    everyone = RoleTeam("both", trainer.trained, {})
    return {
        "solved": reading.played(of_reading, trainer, everyone, split, tasks),
        "curve": curve,
        "tokens": trainer.tokens,
        "training_cpu_s": round(trained_s, 1),
        "revision": revision(),
    }


def tuned(cells: Mapping[str, Any], method: str) -> tuple[list[float], float | None]:
    """The grid of a method, and its best rate; None while cells of the grid are missing."""
    grid = list(RATES)
    while True:
        names = [Cell(SCHEMES[0], method, rate, TUNING).name for rate in grid]
        if any(name not in cells for name in names):
            return grid, None
        scores = [reading.share(cells[name]["solved"]) for name in names]
        best = scores.index(max(scores))
        if 0 < best < len(grid) - 1:
            return grid, grid[best]
        grid = [grid[0] / 2, *grid] if best == 0 else [*grid, 2 * grid[-1]]


def missing(cells: Mapping[str, Any]) -> list[Cell]:
    """The cells that can be named now and are not finished."""
    return [cell for cell in _wanted(cells) if cell.name not in cells]


def _wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    rates = dict[str, float]()
    for method in METHODS:
        grid, best = tuned(cells, method)
        yield from (Cell(SCHEMES[0], method, rate, TUNING) for rate in grid)
        if best is not None:
            rates[method] = best
    for scheme in SCHEMES:
        for seed in SEEDS:
            yield from (Cell(scheme, method, rate, seed) for method, rate in rates.items())


def table(results: Mapping[str, Any]) -> Table:
    """Success on test tasks of each method, and what `hindsight` adds, over seeds and tasks."""
    cells, rows = results["cells"], list[list[str]]()
    rates = {method: tuned(cells, method)[1] or 0.0 for method in METHODS}
    for scheme in SCHEMES:
        runs = {
            method: [cells[Cell(scheme, method, rate, seed).name] for seed in SEEDS]
            for method, rate in rates.items()
        }
        solved = {
            method: np.array([[float(digit) for digit in run["solved"]] for run in several])
            for method, several in runs.items()
        }
        cells_of = [
            cell
            for method in METHODS
            for cell in (
                ", ".join(f"{shares.mean():.2f}" for shares in solved[method]),
                shown(over_seeds(solved[method])),
            )
        ]
        gain = reading.signed(gain_over_seeds(solved["hindsight"] - solved["at_grpo"]))
        updates = ", ".join(f"{np.mean([len(r['curve']) for r in runs[m]]):.0f}" for m in METHODS)
        seconds = ", ".join(
            f"{np.mean([r['training_cpu_s'] / len(r['curve']) for r in runs[m]]):.1f}"
            for m in METHODS
        )
        rows.append([scheme, *cells_of, gain, updates, seconds])
    heads = (h for m in METHODS for h in (f"`{m}`, rate {rates[m]:g}, each seed", "mean"))
    return ["rewards", *heads, "difference", "updates", "CPU-seconds a step"], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is missing."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="print the cells that are due")
    options = parser.parse_args(argv)
    cells = json.loads(options.out.read_text())["cells"] if options.out.exists() else {}
    if options.dry_run:
        print("\n".join(cell.name for cell in missing(cells)))
        return
    until = time.monotonic() + 60 * options.minutes
    while (due := missing(cells)) and time.monotonic() < until:
        print(due[0].name, flush=True)
        record = cells[due[0].name] = measured(due[0])
        print(reading.share(record["solved"]), flush=True)
        settings = {**SETTINGS, "rates": RATES, "tuning": TUNING, "seeds": SEEDS}
        result = {"settings": settings, "versions": versions(), "cells": cells}
        options.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    if not due:
        head, rows = table({"cells": cells})
        print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
