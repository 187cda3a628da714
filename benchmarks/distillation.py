"""Can students be distilled from a team on a real model, and can one shared policy be, where rewards alone fail to train it?

    python -m benchmarks.distillation [--minutes N] [--dry-run]

A teacher is a team of SmolLM2 with a policy for each role, trained on rewards as in `benchmarks.reading`, with its rate and settings. Its
students begin with the base model and learn from its log-probabilities alone, without rewards, for as many updates and completions. The
rate of each arm is the one whose students of the teacher of `read` with the seed `TUNING` solve most validation tasks; where that is the
first or last of the grid, the grid is extended. Teachers and students of the seeds `SEEDS` play 200 test tasks. Finished cells are kept in
`results/distillation.json` and not repeated. One core, 3 CPU-minutes a cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import reading
from benchmarks.cells import options_of, run_missing
from benchmarks.evidence import Table, gain_over_seeds, shown
from benchmarks.reading import AT_GRPO, SETTINGS, SHARED, STEPS, TEST_TASKS, VALIDATION_TASKS
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.ablation import RoleTeam
from pettingllms.evaluation.report import as_text
from pettingllms.names import model_path, parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

RESULTS = Path(__file__).parent / "results" / "distillation.json"
TEACHERS = Path(__file__).parent / "out" / "distillation"
SWEPT = "read"
"""The task for which rates are chosen."""
TASKS = (SWEPT,)
TUNING, SEEDS = 0, (2, 3, 4)
RATES = (4e-4, 8e-4, 1.6e-3)
READ_AT = 10
"""Steps after which students play as well."""
TEACHER = "teacher"
ARMS: Mapping[str, Mapping[str, Any]] = {
    AT_GRPO: {"policies": "per-role"},
    SHARED: {"policies": "shared", "lora_r": 32, "lora_alpha": 64},
}
"""Students by arm; a shared policy has as many weights as two adapters."""
STUDENTS: Mapping[str, Any] = {"method": "distill", "branch": "sample"}
"""As many prompts and completions in a step as the teacher had."""


class Cell(reading.Cell):
    """A teacher, whose rate is that of `benchmarks.reading`, or a student."""

    @property
    def teacher(self) -> Path:
        """The folder of the teacher's adapters."""
        return TEACHERS / f"{self.task}-{self.seed}"


def trainer_of(cell: Cell) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    env = reading.environment(reading.Cell(cell.task, AT_GRPO, cell.rate, cell.seed), "train")
    changes: dict[str, Any] = {"learning_rate": cell.rate, "seed": cell.seed}
    if cell.arm != TEACHER:
        changes |= {
            **ARMS[cell.arm],
            **STUDENTS,
            "method_args": {"teacher": str(cell.teacher), "shape": "tree"},
        }
    config = resolve(ATGRPOConfig(env="read", **(dict(SETTINGS) | changes)), env)
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
    """Trains a cell, and plays held-out tasks after `READ_AT` steps and at the end."""
    trainer, started = trainer_of(cell), reading.cpu_seconds()
    everyone = RoleTeam("both", trainer.trained, {})
    split, count = ("val", VALIDATION_TASKS) if cell.seed == TUNING else ("test", TEST_TASKS)
    # As `reading` names it, so that both play the same tasks.
    played = reading.Cell(cell.task, AT_GRPO, cell.rate, cell.seed)
    solved, losses, trained_s = dict[str, str](), list[float](), 0.0
    while trainer.step < STEPS:
        before = reading.cpu_seconds()
        _, metrics = trainer.train_step()
        trained_s += reading.cpu_seconds() - before
        # A policy without a group that has a signal has no loss.
        of_policies = [value for key, value in metrics.items() if key.endswith("/loss")]
        losses.append(round(fmean(of_policies or [0.0]), 4))
        print(trainer.step, losses[-1], f"{reading.cpu_seconds() - started:.0f} s", flush=True)
        if trainer.step in (READ_AT, STEPS) and not (cell.arm == TEACHER and trainer.step < STEPS):
            solved[str(trainer.step)] = reading.played(played, trainer, everyone, split, count)
    if cell.arm == TEACHER:
        for policy in trainer.trained:
            trainer.policies.save(policy, cell.teacher / policy)
    return {
        "solved": solved,
        "losses": losses,
        "tokens": trainer.tokens,
        "training_cpu_s": round(trained_s, 1),
    }


def chosen_rate(cells: Mapping[str, Any], arm: str) -> tuple[list[float], float | None]:
    """The grid of an arm, and its best rate; None while cells of the grid are missing."""
    grid = list(RATES)
    while True:
        names = [Cell(SWEPT, arm, rate, TUNING).name for rate in grid]
        if any(name not in cells for name in names):
            return grid, None
        scores = [reading.share(cells[name]["solved"][str(STEPS)]) for name in names]
        best = scores.index(max(scores))
        if 0 < best < len(grid) - 1:
            return grid, grid[best]
        grid = [grid[0] / 2, *grid] if best == 0 else [*grid, 2 * grid[-1]]


def wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    """All cells that can be named now, teachers before their students."""
    rewarded = json.loads(reading.RESULTS.read_text())["cells"]
    best = {}
    for arm in ARMS:
        grid, best[arm] = chosen_rate(cells, arm)
        yield Cell(SWEPT, TEACHER, reading.rates(rewarded, SWEPT, AT_GRPO)[2] or 0.0, TUNING)
        yield from (Cell(SWEPT, arm, student, TUNING) for student in grid)
    for task in TASKS:
        for seed in SEEDS:
            yield Cell(task, TEACHER, reading.rates(rewarded, task, AT_GRPO)[2] or 0.0, seed)
            yield from (Cell(task, arm, r, seed) for arm, r in best.items() if r is not None)


def missing(cells: Mapping[str, Any]) -> list[Cell]:
    """Cells that are not finished, after teachers whose adapters they need and which are gone."""
    named = list(dict.fromkeys(wanted(cells)))
    due = [cell for cell in named if cell.name not in cells]
    needed = {cell.teacher for cell in due if cell.arm != TEACHER}
    teachers = [cell for cell in named if cell.arm == TEACHER and cell.name in cells]
    return [c for c in teachers if c.teacher in needed and not c.teacher.is_dir()] + due


def solved(results: Mapping[str, Any], task: str, arm: str, step: int) -> np.ndarray:
    """1 where a test task was solved after so many steps, of shape (seeds, tasks)."""
    cells = results["cells"]
    if arm == TEACHER:
        rate = next(float(n.split("/")[2]) for n in cells if n.startswith(f"{task}/{TEACHER}/"))
    else:
        best = chosen_rate(cells, arm)[1]
        assert best is not None
        rate = best
    rows = [cells[Cell(task, arm, rate, seed).name]["solved"][str(step)] for seed in SEEDS]
    return np.array([[float(digit) for digit in row] for row in rows])


def table(results: Mapping[str, Any]) -> Table:
    """Success on test tasks: of teachers, of students, and of the same arms trained on rewards."""
    rows, rewarded = [], json.loads(reading.RESULTS.read_text())["cells"]
    for task in TASKS:
        taught = over_seeds(solved(results, task, TEACHER, STEPS))
        rows.append([f"`{task}`", TEACHER, "", shown(taught), "", ""])
        for arm in ARMS:
            best = reading.rates(rewarded, task, arm)[2]
            # The seeds of `reading` begin with those of this experiment.
            trained = reading.played_at(rewarded, task, arm, best)["both"][: len(SEEDS)]
            early, late = (solved(results, task, arm, step) for step in (READ_AT, STEPS))
            gain = reading.signed(gain_over_seeds(late - trained))
            numbers = map(shown, map(over_seeds, (early, late, trained)))
            rows.append([f"`{task}`", arm, *numbers, gain])
    heads = (f"distilled, {READ_AT} steps", f"{STEPS} steps", "on rewards", "distilled minus that")
    return ["task", "policies", *heads], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is missing."""
    options = options_of(__doc__.splitlines()[0], RESULTS).parse_args(argv)
    settings = {**SETTINGS, "arms": ARMS, "students": STUDENTS, "tuning": TUNING, "seeds": SEEDS}
    head, rows = table(run_missing(options, missing, measured, {"settings": settings}))
    print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
