"""What an untrained SmolLM2 replies to each kind of prompt: `python -m benchmarks.prompts`.

Each environment with the sizes it declares for `smollm2`, each kind of prompt, at temperatures 0.7 and 1: shares of
replies that can be read, that earn something, and that are right, as `--probe` counts them. Replies to small prompts have at
most 16 tokens, those to the others, and programs, 48. One turn is played (two in `search`). Writes `results/prompts.json`; what it
has is not repeated. `python -m benchmarks.tables --write` puts the table into results/tables.md. CPU only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table
from benchmarks.options import Options
from pettingllms.assembly import build_policies, plan_run
from pettingllms.evaluation.probe import probe
from pettingllms.evaluation.report import as_text
from pettingllms.trainers.config import ATGRPOConfig

ENVS = ("plan_path", "math", "search", "sudoku", "sokoban", "read", "coding")
KINDS = ("small", "full", "compact")
RESULTS = Path(__file__).parent / "results" / "prompts.json"
SEED = 39
"""Of the tasks in the table; wordings were tried on others."""


def measured(env: str, kind: str, replies: int) -> list[dict[str, Any]]:
    """The rows of an environment under one kind of prompt: one for each role and temperature."""
    short = kind == "small" and env != "coding"
    arguments: dict[str, Any] = {"max_turns": 2 if env == "search" else 1}
    if env != "read":  # its prompts are small ones
        arguments["prompt"] = kind
    plan = plan_run(
        ATGRPOConfig(
            env=env,
            env_args=arguments,
            model="smollm2",
            policies="shared",
            num_generations=8,
            max_completion_length=16 if short else 48,
            seed=SEED,
        )
    )
    policies = build_policies(plan.config, plan.roles_to_policies)
    try:
        shares = probe(plan.config, plan.env, policies, replies)
    finally:
        policies.close()
    return [
        {"env": env, "prompt": kind, "role": role, "temperature": temperature} | row._asdict()
        for temperature, roles in shares.items()
        for role, row in roles.items()
    ]


def table(results: dict[str, Any]) -> Table:
    """Shares of readable and of right replies: a row for each role, a column for each kind and temperature."""
    rows = [row for cell in results["cells"].values() for row in cell]
    temperatures = sorted({row["temperature"] for row in rows})
    columns = [(kind, temperature) for kind in KINDS for temperature in temperatures]
    shares = {
        (row["env"], row["role"], row["prompt"], row["temperature"]): (
            f"{row['readable']:.2f} / {row['right']:.2f}"
        )
        for row in rows
    }
    roles = dict.fromkeys(key[:2] for key in shares)
    return (
        ["environment", "role", *(f"{kind}, {temperature:g}" for kind, temperature in columns)],
        [
            [f"`{env}`", role, *(shares.get((env, role, *column), "") for column in columns)]
            for env, role in roles
        ],
    )


def main() -> None:
    """Measures what is not measured yet, writes the results, and prints them as a table."""
    options = Options(__doc__)
    options.add_argument("--replies", type=int, default=32, help="of each role in each cell")
    options.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--out", type=Path, default=RESULTS)
    chosen = options.parse_args()
    results: dict[str, Any] = {"replies": chosen.replies, "cells": {}}
    if chosen.out.exists():
        results = json.loads(chosen.out.read_text(encoding="utf-8"))
    for kind in chosen.kinds:
        for env in chosen.envs:
            cell = f"{env} {kind}"
            if cell in results["cells"] or (env == "read" and kind != "small"):
                continue
            results["cells"][cell] = measured(env, kind, results["replies"])
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(as_text([table(results)[0], *table(results)[1]]))


if __name__ == "__main__":
    main()
