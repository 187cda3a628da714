"""Do one scale for each environment, and replies of a stale copy, help a shared policy that learns two environments?

    python -m benchmarks.agentrl [--minutes N] [--dry-run]

One policy plays all roles of coding in one turn (two long replies an episode) and of Plan-Path in eight (up to sixteen short ones), half
of the tasks each, from `embedded:parts`. A training goes on until it has both `TOKENS` and `UPDATES`, at each of which its weights are
read, as in `benchmarks.claims`. The rate of each arm is the one of `RATES` with which the seed `TUNING` solves the most
validation tasks, the mean of both environments. The third arm adds a copy that is renewed every `STALE` updates. The seeds
`SEEDS` play 200 test tasks of each. Finished cells are kept in `results/agentrl.json` and not repeated. One core, a CPU-minute
a cell.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, options_of, run_missing
from benchmarks.claims.cells import FIXED, READINGS, trained
from benchmarks.evidence import Table, estimate, gain_over_seeds, shown, solved_digits
from pettingllms.envs import make
from pettingllms.envs.aec import creator_of
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.report import as_text
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.models import PARTS
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import EMBEDDED as PRESET
from pettingllms.types import Task

RESULTS = Path(__file__).parent / "results" / "agentrl.json"
SHORT, LONG = "coding", "plan_path"
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    SHORT: {**creator_of(SHORT).embedded_parts, "max_turns": 1},
    LONG: creator_of(LONG).embedded_parts,
}
STALE = 3
ARMS: Mapping[str, Mapping[str, Any]] = {
    "at_grpo": {"method": "at_grpo"},
    "agentrl": {"method": "agentrl"},
    "agentrl, stale": {"method": "agentrl", "method_args": {"stale": STALE}},
}
BASE = "base"
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
TUNING, SEEDS = 40, (41, 42, 43)
TOKENS, UPDATES = 90_000, 10
VALIDATION_TASKS, TEST_TASKS = 100, 200
SETTINGS: Mapping[str, Any] = {
    **PRESET,
    **FIXED,
    "env": f"{SHORT}={SHORT},{LONG}={LONG}",
    "policies": "shared",
    "model": str(PARTS),
    "tasks_per_step": 16,
}


def trainer_of(cell: Cell) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    changes = {"learning_rate": cell.rate or RATES[0], "seed": cell.seed}
    config = ATGRPOConfig(**{**SETTINGS, **ARMS.get(cell.arm, {}), **changes})
    env = make(config.env, **ARGUMENTS)
    policies = load_policies(PARTS, parse_policies(config.policies, roles_of(env)), seed=cell.seed)
    return ATGRPO(config, env, policies)


def played(policies: PolicySet, seed: int) -> dict[str, str]:
    """Environment -> a digit for each held-out task, 1 where the team solved it, sampled."""
    split, count = ("val", VALIDATION_TASKS) if seed == TUNING else ("test", TEST_TASKS)
    tasks = [Task(f"{split}:{number}", number) for number in range(count)]
    sampling, solved = Sampling(SETTINGS["max_completion_length"], seed=seed), dict[str, str]()
    for name, arguments in ARGUMENTS.items():
        env = make(name, split=split, **arguments)
        seats = {role: policies.policy_for(role) for role in roles_of(env)}
        with ThreadPoolExecutor(1) as pool:
            episodes = [
                episode
                for chunk in chunks(tasks, sampling)
                for episode in roll_out(env, policies, seats, pool, chunk, sampling)
            ]
        solved[name] = solved_digits(episodes)
    return solved


def measured(cell: Cell) -> dict[str, Any]:
    """Trains and plays a cell."""
    started, trainer = os.times(), trainer_of(cell)
    result: dict[str, Any] = {}
    if cell.arm == BASE:
        result["solved"] = played(trainer.policies, cell.seed)
    else:
        readings, _ = trained(trainer, TOKENS, UPDATES)
        digits: dict[int, dict[str, str]] = {}
        for name, reading in readings.items():
            if reading.steps not in digits:
                for policy, state in reading.state.items():
                    trainer.policies.load_state(policy, state)
                digits[reading.steps] = played(trainer.policies, cell.seed)
            result[name] = {
                "steps": reading.steps,
                "tokens": reading.tokens,
                "solved": digits[reading.steps],
            }
    return result | {"cpu_s": round(sum(os.times()[:4]) - sum(started[:4]))}


def success(digits: Mapping[str, str]) -> float:
    """The mean of both environments."""
    return float(np.mean([text.count("1") / len(text) for text in digits.values()]))


def chosen_rate(cells: Mapping[str, Any], arm: str) -> float | None:
    """The rate that solves the most validation tasks at equal tokens; None while one is missing."""
    names = {rate: Cell(arm, rate, TUNING).name for rate in RATES}
    if any(name not in cells for name in names.values()):
        return None
    return max(RATES, key=lambda rate: success(cells[names[rate]]["tokens"]["solved"]))


def missing(cells: Mapping[str, Any]) -> list[Cell]:
    """The cells that can be named now and are not finished."""
    return [cell for cell in _wanted(cells) if cell.name not in cells]


def _wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    for rate in RATES:
        yield from (Cell(arm, rate, TUNING) for arm in ARMS)
    yield Cell(BASE, 0.0, SEEDS[0])
    rates = {arm: chosen_rate(cells, arm) for arm in ARMS}
    for seed in SEEDS:
        yield from (Cell(arm, rate, seed) for arm, rate in rates.items() if rate is not None)


def table(results: Mapping[str, Any]) -> Table:
    """Success in each environment, and what each arm adds to the one before it, over seeds and tasks."""
    cells, rows = results["cells"], list[list[str]]()
    rates = {arm: chosen_rate(cells, arm) or 0.0 for arm in ARMS}
    for reading in READINGS:
        for env in ARGUMENTS:
            runs = {
                arm: [cells[Cell(arm, rate, seed).name][reading] for seed in SEEDS]
                for arm, rate in rates.items()
            }
            solved = {
                arm: np.array([[float(d) for d in run["solved"][env]] for run in several])
                for arm, several in runs.items()
            }
            untrained = cells[Cell(BASE, 0.0, SEEDS[0]).name]["solved"][env]
            base = estimate(np.array([[float(digit) for digit in untrained]]))
            gains = [
                gain_over_seeds(solved[arm] - solved[before])
                for before, arm in itertools.pairwise(ARMS)
            ]
            steps = {arm: f"{np.mean([r['steps'] for r in its]):.0f}" for arm, its in runs.items()}
            rows.append(
                [
                    f"equal {reading}",
                    f"`{env}`",
                    shown(base),
                    *(shown(estimate(solved[arm])) for arm in ARMS),
                    *(f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]" for gain in gains),
                    ", ".join(steps.values()),
                ]
            )
    arms = (f"`{arm}`, rate {rate:g}" for arm, rate in rates.items())
    differences = (f"`{arm}` - `{before}`" for before, arm in itertools.pairwise(ARMS))
    return ["", "environment", BASE, *arms, *differences, "updates"], rows


def sweep(results: Mapping[str, Any]) -> Table:
    """Success on validation tasks at equal tokens, by rate, of the seed for tuning."""
    rows = []
    for arm in ARMS:
        for rate in RATES:
            digits = results["cells"][Cell(arm, rate, TUNING).name]["tokens"]["solved"]
            shares = [f"{text.count('1') / len(text):.2f}" for text in digits.values()]
            rows.append([f"`{arm}`", f"{rate:g}", *shares, f"{success(digits):.2f}"])
    return ["method", "rate", *(f"`{env}`" for env in ARGUMENTS), "mean"], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is missing."""
    options = options_of(__doc__.splitlines()[0], RESULTS).parse_args(argv)
    settings = {**SETTINGS, "model": PARTS.name, "learning_rate": RATES, "arguments": ARGUMENTS}
    settings |= {"tuning": TUNING, "seeds": SEEDS}
    results = run_missing(options, missing, measured, {"settings": settings})
    for made in (table, sweep):
        head, rows = made(results)
        print(f"\n{as_text([head, *rows])}")


if __name__ == "__main__":
    main()
