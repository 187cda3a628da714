"""Do credit methods leave the floor of `search` at rates of their own? As the experiment `methods` of `benchmarks.paper`, tuned alike.

    python -m benchmarks.method_rates [--minutes N] [--dry-run]

The rate of each arm is the one of `RATES` whose team of the seed `TUNING` solves most validation tasks. Teams of the seeds
`SEEDS` then play the test tasks. Finished trainings are kept in `results/method_rates.json` and not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, options_of, run_missing
from benchmarks.evidence import Table, shown, solved_digits
from benchmarks.method_table import MODELS
from pettingllms.assembly import build_policies, make_env
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.rollouts import held_out, roll_out
from pettingllms.names import parse_policies
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

RESULTS = Path(__file__).parent / "results" / "method_rates.json"
ARMS = ("grpo", "marshal", "max_rl", "ccpo", "sharp")
RATES = (4e-3, 1.3e-3, 1.2e-2, 3.6e-2)
"""The default comes first, and is taken where another is no better."""
TUNING, SEEDS = 10, (11, 12, 13)
"""Seeds 0 to 2 were seen at the default rate."""
TOKENS, TASKS = 25_000, 200


def trained(cell: Cell) -> dict[str, Any]:
    """Trains a team, and plays held-out tasks: of validation with the seed for tuning, else test tasks."""
    asked = ATGRPOConfig(
        env="search",
        model=MODELS["search"],
        policies="per-role",
        method=cell.arm,
        learning_rate=cell.rate,
        max_tokens=TOKENS,
        seed=cell.seed,
    )
    env = make_env(asked, "train")
    config = resolve(asked, env)
    policies = build_policies(config, parse_policies(config.policies, roles_of(env)))
    trainer = ATGRPO(config, env, policies)
    while trainer.tokens < TOKENS:
        trainer.train_step()
    split = "val" if cell.seed == TUNING else "test"
    env, episodes = make_env(config, split), []
    seats = {agent: policies.policy_for(agent) for agent in env.possible_agents}
    sampling = Sampling(config.max_completion_length, seed=cell.seed)
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(held_out(env, split, TASKS), sampling):
            episodes += roll_out(env, policies, seats, pool, chunk, sampling)
    policies.close()
    return {"tasks": solved_digits(episodes), "steps": trainer.step, "tokens": trainer.tokens}


def solved(cells: Mapping[str, Any], cell: Cell) -> float:
    """The share of held-out tasks that a team solves."""
    tasks = cells[cell.name]["tasks"]
    return float(tasks.count("1") / len(tasks))


def best_rate(cells: Mapping[str, Any], arm: str) -> float:
    """The rate that solves most validation tasks."""
    return max(RATES, key=lambda rate: solved(cells, Cell(arm, rate, TUNING)))


def due(cells: Mapping[str, Any]) -> list[Cell]:
    """The trainings that are missing and can be named now."""
    return [cell for cell in _wanted(cells) if cell.name not in cells]


def _wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    for arm in ARMS:
        sweep = [Cell(arm, rate, TUNING) for rate in RATES]
        yield from sweep
        if all(cell.name in cells for cell in sweep):
            yield from (Cell(arm, best_rate(cells, arm), seed) for seed in SEEDS)


def table(result: Mapping[str, Any]) -> Table:
    """Success on validation tasks at each rate, and on test tasks at the best."""
    cells, rows = result["cells"], []
    for arm in ARMS:
        rate = best_rate(cells, arm)
        runs = [cells[Cell(arm, rate, seed).name] for seed in SEEDS]
        success = over_seeds(np.array([[float(digit) for digit in run["tasks"]] for run in runs]))
        sweep = (f"{solved(cells, Cell(arm, one, TUNING)):.2f}" for one in sorted(RATES))
        steps = np.mean([run["steps"] for run in runs])
        rows.append([f"`{arm}`", *sweep, f"{rate:g}", shown(success), f"{steps:.0f}"])
    return ["method", *(f"{rate:g}" for rate in sorted(RATES)), "rate", "test tasks", "steps"], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, and prints the table."""
    options = options_of(__doc__.splitlines()[0], RESULTS).parse_args(argv)
    settings = {"tokens": TOKENS, "rates": RATES, "tuning": TUNING, "seeds": SEEDS}
    print(table(run_missing(options, due, trained, {"settings": settings})))


if __name__ == "__main__":
    main()
