"""Method x environment: what each method of `--method` is worth at equal generated tokens.

One experiment of `benchmarks.paper`:

    python -m benchmarks.paper methods [--envs plan_path coding] [--tokens 60000]

A method that an environment lacks something for is left out there, and so are those for teams of
their own form: `igrpo` (one agent with two turns), `mlpo` (a team with a judge), `cory` (two agents
of one role). All others keep the settings of the environment but for what the method sets; their
learning rates are not tuned apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import experiments
from benchmarks.evidence import Record, Table, chosen, envs_of, estimate, shown, solved
from benchmarks.experiments import PER_ROLE, Arm, Claim, Experiment, bars
from pettingllms.envs import load_env
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.needs import lacking
from pettingllms.trainers.methods import METHODS

OWN_TEAMS = ("igrpo", "mlpo", "cory")
BASE = "base"


def arms(env: str) -> list[Arm]:
    """The base model, and every method that fits the environment."""
    template = load_env(env)
    return [Arm(BASE)] + [
        Arm(name, {**PER_ROLE, "method": name})
        for name, method in METHODS.items()
        if name not in OWN_TEAMS
        and not lacking(ESTIMATORS.load(method.settings["estimator"]).needs, template)
    ]


def rows(result: Mapping[str, Any]) -> Table:
    """Success of each method by environment, and the mean number of updates."""
    records: Sequence[Record] = result["runs"]
    envs = envs_of(records)
    table = []
    for name in (BASE, *METHODS):
        found = [chosen(records, env, name) for env in envs]
        if any(found):
            cells = (shown(estimate(solved(each))) if each else "does not fit" for each in found)
            table.append([f"`{name}`", *cells])
    return ["method", *(f"`{env}`" for env in envs)], table


EXPERIMENTS: Mapping[str, Experiment] = {
    **experiments.EXPERIMENTS,
    "methods": Experiment(
        "What is each method of the literature worth at equal tokens?",
        ("plan_path", "coding", "math", "sudoku", "sokoban"),
        arms,
        (Claim("AT-GRPO solves more than GRPO over whole episodes", "at_grpo", "grpo"),),
        bars("Methods at equal tokens"),
        rows=rows,
    ),
}
"""All experiments of `benchmarks.paper`."""
