"""Does training with `hindsight` help a team, or the role whose replies it ranks right? SmolLM2 reads.

    python -m benchmarks.hindsight_training [--minutes N] [--dry-run]

A team with a policy for each role learns `read` until `TOKENS` are generated, otherwise with the settings of `benchmarks.reading`: with
`at_grpo`; with `hindsight` (weight 0.5); and with `hindsight` where only the finder's solution is known, so that the answerer learns as with
`at_grpo`. The rate of each arm is the one of `GRIDS` whose team of the seed `TUNING` solves most validation tasks. Teams of the seeds `SEEDS`
then play 200 test tasks. Finished cells are kept in `results/hindsight_training.json` and not repeated. One core, two CPU-minutes a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reading
from benchmarks.cells import Cell, options_of, run_missing
from benchmarks.evidence import Table, gain_over_seeds, shown
from benchmarks.reading import TEST_TASKS, VALIDATION_TASKS
from pettingllms.envs import make, read_v0
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.ablation import RoleTeam
from pettingllms.evaluation.report import as_text
from pettingllms.names import model_path, parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

RESULTS = Path(__file__).parent / "results" / "hindsight_training.json"
PLAIN, BOTH, FINDER = "at_grpo", "hindsight", "hindsight, finder alone"
RATES = (8e-4, 1.6e-3, 3.2e-3)
GRIDS: Mapping[str, Sequence[float]] = {PLAIN: RATES, BOTH: RATES, FINDER: RATES[:2]}
"""Arm -> its rates. At the highest one `hindsight` unlearns the finder's part, too."""
TUNING, SEEDS = 12, (13, 14, 15)
"""None of them is a seed of `benchmarks.reading`, where the rates of the grid come from."""
MODEL = reading.MODEL
TOKENS = 10_000
SETTINGS: Mapping[str, Any] = {**reading.SETTINGS, "max_steps": None, "max_tokens": TOKENS}
FIRST = 10
"""Steps over which the finder's reward is compared, before all of its replies are right."""


class FinderTold(read_v0.raw_env):
    """Reading, where the solution of the answerer is not known."""

    def _privileged(self, state: read_v0.ReadState, agent: str) -> str:
        return super()._privileged(state, agent) if agent == "finder_0" else ""


def trainer_of(cell: Cell) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    env = FinderTold() if cell.arm == FINDER else make("read")
    method = PLAIN if cell.arm == PLAIN else BOTH
    changes = {"method": method, "learning_rate": cell.rate, "seed": cell.seed}
    config = resolve(ATGRPOConfig(env="read", **{**SETTINGS, **changes}), env)
    policies = load_policies(
        model_path(MODEL),
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
    trainer, started, curve = trainer_of(cell), reading.cpu_seconds(), list[dict[str, float]]()
    while trainer.tokens < TOKENS:
        _, metrics = trainer.train_step()
        names = ("success/answerer", "reward/finder", "reward/answerer")
        curve.append({name: round(metrics[name], 3) for name in names})
        print(trainer.step, curve[-1], f"{reading.cpu_seconds() - started:.0f} s", flush=True)
    trained_s = reading.cpu_seconds() - started
    split, tasks = ("val", VALIDATION_TASKS) if cell.seed == TUNING else ("test", TEST_TASKS)
    of_reading = reading.Cell("read", reading.AT_GRPO, cell.rate, cell.seed)
    everyone = RoleTeam("both", trainer.trained, {})
    return {
        "solved": reading.played(of_reading, trainer, everyone, split, tasks),
        "curve": curve,
        "tokens": trainer.tokens,
        "training_cpu_s": round(trained_s, 1),
    }


def best_rate(cells: Mapping[str, Any], arm: str) -> float | None:
    """The rate of an arm that solves most validation tasks, the first of equals; None while cells are missing."""
    names = {rate: Cell(arm, rate, TUNING).name for rate in GRIDS[arm]}
    if any(name not in cells for name in names.values()):
        return None
    return max(names, key=lambda rate: reading.share(cells[names[rate]]["solved"]))


def missing(cells: Mapping[str, Any]) -> list[Cell]:
    """The cells that can be named now and are not finished."""
    return [cell for cell in _wanted(cells) if cell.name not in cells]


def _wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    for arm, grid in GRIDS.items():
        yield from (Cell(arm, rate, TUNING) for rate in grid)
    for arm in GRIDS:
        if (rate := best_rate(cells, arm)) is not None:
            yield from (Cell(arm, rate, seed) for seed in SEEDS)


def runs_of(results: Mapping[str, Any], arm: str) -> list[dict[str, Any]]:
    """The records of an arm at its best rate, by seed; empty where one is missing."""
    cells = results["cells"]
    names = [Cell(arm, best_rate(cells, arm) or 0.0, seed).name for seed in SEEDS]
    return [cells[name] for name in names] if all(name in cells for name in names) else []


def solved(results: Mapping[str, Any], arm: str) -> np.ndarray:
    """1 where a test task was solved, of shape (seeds, tasks)."""
    return np.array([[float(digit) for digit in r["solved"]] for r in runs_of(results, arm)])


def table(results: Mapping[str, Any]) -> Table:
    """Success on test tasks of each arm, what it adds to `at_grpo`, over seeds and tasks, and how its roles fare in training."""
    rows = []
    for arm in GRIDS:
        if not (runs := runs_of(results, arm)):
            continue
        of_arm = solved(results, arm)
        gain = reading.signed(gain_over_seeds(of_arm - solved(results, PLAIN)))
        curves = [run["curve"] for run in runs]
        finder = np.mean([[step["reward/finder"] for step in c[:FIRST]] for c in curves])
        answerer = np.mean([[step["reward/answerer"] for step in c[-FIRST:]] for c in curves])
        seconds = np.mean([run["training_cpu_s"] / len(run["curve"]) for run in runs])
        rows.append(
            [
                arm,
                f"{best_rate(results['cells'], arm):g}",
                ", ".join(f"{share:.2f}" for share in of_arm.mean(axis=1)),
                shown(over_seeds(of_arm)),
                "" if arm == PLAIN else gain,
                f"{finder:.2f}",
                f"{answerer:.2f}",
                f"{np.mean([len(curve) for curve in curves]):.0f}",
                f"{seconds:.1f}",
            ]
        )
    rewards = f"finder's reward, first {FIRST} steps", f"answerer's, last {FIRST}"
    heads = ("arm", "rate", "each seed", "mean", f"minus {PLAIN}", *rewards, "steps")
    return [*heads, "CPU-seconds a step"], rows


def sweep(results: Mapping[str, Any]) -> Table:
    """Success on validation tasks by rate, of the seed for tuning."""
    cells, rows = results["cells"], []
    for arm, grid in GRIDS.items():
        names = {rate: Cell(arm, rate, TUNING).name for rate in grid}
        solved = {rate: cells[name]["solved"] for rate, name in names.items() if name in cells}
        rows.append(
            [arm, *(f"{reading.share(solved[r]):.2f}" if r in solved else "" for r in RATES)]
        )
    return ["arm", *(f"{rate:g}" for rate in RATES)], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is missing."""
    options = options_of(__doc__.splitlines()[0], RESULTS).parse_args(argv)
    settings = {**SETTINGS, "rates": RATES, "tuning": TUNING, "seeds": SEEDS}
    result = run_missing(options, missing, measured, {"settings": settings})
    for made in (table, sweep):
        head, rows = made(result)
        print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
