"""What an untrained SmolLM2 replies to each kind of prompt: `python -m benchmarks.prompts`.

Each environment with the sizes it declares for `smollm2`, each kind of prompt, at temperatures 0.7 and 1: shares of
replies that can be read, that earn something, and that are right, as `--probe` counts them. Replies to small prompts have at
most 16 tokens, those to the others, and programs, 48. One turn is played (two in `search`). Writes `results/prompts.json` and the
table in docs/environments.md. CPU only, about 20 minutes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from pettingllms.assembly import build_policies
from pettingllms.evaluation.probe import probe
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig

ENVS = ("coding", "math", "plan_path", "search", "sokoban", "sudoku", "read")
KINDS = ("full", "compact", "small")
RESULTS = Path(__file__).parent / "results" / "prompts.json"
SEED = 39
"""Of the tasks in the table; wordings were tried on those of seed 0."""


def measured(env: str, kind: str, replies: int, seed: int) -> list[dict[str, Any]]:
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
            seed=seed,
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


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: a row for each role, a column for each kind of prompt and temperature."""
    temperatures = sorted({row["temperature"] for row in rows})
    columns = [(kind, t) for kind in KINDS for t in temperatures]
    cells = {
        (row["env"], row["role"], row["prompt"], row["temperature"]): (
            f"{row['readable']:.2f} / {row['right']:.2f}"
        )
        for row in rows
    }
    names = ["environment", "role", *(f"{kind}, {t:g}" for kind, t in columns)]
    lines = [names, ["---"] * len(names)]
    for env, role in dict.fromkeys(key[:2] for key in cells):
        lines.append(
            [f"`{env}`", role, *(cells.get((env, role, *column), "") for column in columns)]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measures, writes the results, and prints them as a table."""
    options = Options(__doc__)
    options.add_argument("--replies", type=int, default=32, help="of each role in each cell")
    options.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--out", type=Path, default=RESULTS)
    chosen = options.parse_args()
    rows: list[dict[str, Any]] = []
    start = time.process_time()
    for env in chosen.envs:
        for kind in chosen.kinds:
            if env != "read" or kind == "small":
                rows += measured(env, kind, chosen.replies, chosen.seed)
                print(env, kind, f"{time.process_time() - start:.0f} s", flush=True)
    chosen.out.write_text(json.dumps({"replies": chosen.replies, "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
