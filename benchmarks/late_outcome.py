"""Who learns from an outcome that is paid at the end? A tree, a look-ahead tree, whole episodes.

    python -m benchmarks.late_outcome [--minutes N] [--dry-run]

Three agents with an adapter each act one after another, once. Each is right if its reply names the
number in its prompt, and nobody is paid before the last reply: then the team earns the share of the
three that were right. A tree compares what a completion earns right away, which is nothing for the
first two; the others can find out what a reply was worth. All have the same number of generated
tokens. The rate of each method is the one of `RATES` with the most right replies in the last steps of the seed `TUNING`;
the outer rates are tried where the best is next to them. Seeds `SEEDS` then count. Finished
trainings are kept in `results/late_outcome.json` and not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, options_of, run_missing
from benchmarks.evidence import Table, spread
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "late_outcome.json"
ROLES = ("first", "second", "third")
METHODS = ("at_grpo", "q_tree", "look_ahead", "c3", "grpo", "dr_mas")
GENERATIONS = {"c3": 3}
"""A full tree of three agents has K + K^2 + K^3 completions: with K = 8 a step would take all tokens of a run."""
RATES = (5e-4, 1.5e-3, 5e-3, 1.5e-2, 5e-2)
"""The default in the middle."""
TUNING, SEEDS = 10, (11, 12, 13)
"""Seeds 0 to 2 were seen at the default rate."""
TOKENS = 30_000
LAST = 5
"""Steps at the end over which replies are averaged."""


class Relay(TextEnv):
    """Three agents that each have to say a number, and learn at the end how many did."""

    metadata = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "relay_v0",
        "render_modes": ["ansi"],
        "is_parallelizable": False,
    }
    default_turns = 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=ROLES, **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[int, ...]:  # noqa: ARG002
        return (seed % 4,)

    def _text(self, state: tuple[int, ...], agent: str) -> str:  # noqa: ARG002
        return f"a = {state[0]}"

    def _act(self, state: tuple[int, ...], agent: str, text: str) -> Outcome:
        after = (*state, int(str(state[0]) in text[:8]))
        team = sum(after[1:]) / len(ROLES) if agent == "third_0" else 0.0
        info = {"right": after[-1]}
        return Outcome(after, team=team, local=0.0, success=team == 1.0, info=info)

    def _view(self, state: tuple[int, ...]) -> str:
        return str(state)


def train(cell: Cell) -> dict[str, list[float]]:
    """Trains a team; returns for each role the share of right replies, step by step."""
    method, rate, seed = cell
    config = ATGRPOConfig(
        method=method,
        learning_rate=rate,
        max_tokens=TOKENS,
        seed=seed,
        tasks_per_step=8,
        max_completion_length=8,
        eval_tasks=1,
        num_generations=GENERATIONS.get(method),
    )
    policies = load_policies(EMBEDDED, {role: role for role in ROLES}, seed=seed)
    trainer = ATGRPO(replace(config, env="relay"), Relay(), policies)
    right: dict[str, list[float]] = {role: [] for role in ROLES}
    while trainer.tokens < TOKENS:
        played, _ = trainer.train_step()
        for role in ROLES:
            right[role].append(round(share(played, role), 4))
    return right


def share(played: list[Trajectory], role: str) -> float:
    """The share of right replies among all candidates of a role."""
    marks = [
        candidate.info["right"]
        for episode in played
        for group in episode.groups
        if group.key.role == role
        for candidate in group.candidates
    ]
    return sum(marks) / len(marks)


def end(run: Mapping[str, Any], role: str) -> float:
    """The share of a role's right replies in the last steps."""
    return float(sum(run[role][-LAST:]) / LAST)


def tried(cells: Mapping[str, Any], method: str) -> dict[float, float]:
    """Rate -> the share of right replies of all roles at the end, with the seed for tuning."""
    runs = {rate: cells.get(Cell(method, rate, TUNING).name) for rate in RATES}
    return {
        rate: sum(end(run, role) for role in ROLES) / len(ROLES)
        for rate, run in runs.items()
        if run
    }


def best_rate(cells: Mapping[str, Any], method: str) -> float:
    """The rate with most right replies, the lowest of equals."""
    shares = tried(cells, method)
    return max(shares, key=shares.__getitem__)


def due(cells: Mapping[str, Any]) -> list[Cell]:
    """The trainings that are missing and can be named now."""
    return [cell for cell in _wanted(cells) if cell.name not in cells]


def _wanted(cells: Mapping[str, Any]) -> Iterator[Cell]:
    lowest, low, _, high, highest = RATES
    for method in METHODS:
        yield from (Cell(method, rate, TUNING) for rate in RATES[1:-1])
        if len(shares := tried(cells, method)) < len(RATES[1:-1]):
            continue
        edge = {low: lowest, high: highest}.get(best_rate(cells, method))
        if edge and edge not in shares:
            yield Cell(method, edge, TUNING)
        else:
            yield from (Cell(method, best_rate(cells, method), seed) for seed in SEEDS)


def table(result: Mapping[str, Any]) -> Table:
    """Right replies of each role in the last steps, by method, and those of all roles against the first method, paired by seed."""
    cells, rows, of_tree = result["cells"], [], None
    for method in METHODS:
        rate = best_rate(cells, method)
        runs = [cells[Cell(method, rate, seed).name] for seed in SEEDS]
        ends = np.array([[end(run, role) for role in ROLES] for run in runs])
        of_all = ends.mean(axis=1, keepdims=True)
        of_tree = of_all if of_tree is None else of_tree
        gain = over_seeds(of_all - of_tree, share=False)
        gained = (
            "" if of_all is of_tree else f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
        )
        rows.append([f"`{method}`", f"{rate:g}", *map(spread, ends.T), gained])
    heads = ("method", "rate", *(f"{role} agent" for role in ROLES))
    return [*heads, f"all, minus `{METHODS[0]}`"], rows


def sweep(result: Mapping[str, Any]) -> Table:
    """Right replies of all roles in the last steps by rate, of the seed for tuning."""
    shares = {method: tried(result["cells"], method) for method in METHODS}
    rates = [rate for rate in RATES if any(rate in of_method for of_method in shares.values())]
    rows = [
        [f"`{method}`", *(f"{of_method[rate]:.2f}" if rate in of_method else "" for rate in rates)]
        for method, of_method in shares.items()
    ]
    return ["method", *(f"{rate:g}" for rate in rates)], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, and prints the tables."""
    options = options_of(__doc__.splitlines()[0], RESULTS).parse_args(argv)
    settings = {"tokens": TOKENS, "rates": RATES, "tuning": TUNING, "seeds": SEEDS}
    result = run_missing(options, due, train, {"settings": settings})
    print(table(result), sweep(result), sep="\n")


if __name__ == "__main__":
    main()
