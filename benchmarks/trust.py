"""When does the reasoner follow the tool? Trained reasoners beside the tool of the base.

    python -m benchmarks.learning --env math
    python -m benchmarks.trust

At the end of training the tool is nearly always right, so that what the reasoner does with a wrong
program is seldom seen. Here the tool stays as the base has it, mostly wrong, and the reasoner is
that of the base or a trained one: first turns of test tasks, sampled. Writes `results/trust.json`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.evidence import Table, spread
from benchmarks.learning import HERE, TASKS
from pettingllms.envs import make
from pettingllms.evaluation import evaluate, held_out
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.runs import versions

RESULTS = HERE / "results" / "trust.json"
PLAYERS = {"tool": "tool", "reasoner": "reasoner"}


def trust(adapters: Path) -> dict[str, float]:
    """How often the reasoner gives the tool's answer where it is right, and where it is wrong."""
    env = make("math", split="test", max_turns=1, **make("math").embedded)
    policies = load_policies(EMBEDDED, PLAYERS, adapters=adapters)
    tasks = held_out(env, "test", TASKS)
    scores = evaluate(env, policies, tasks=tasks, max_new_tokens=96).scores
    right = scores["reasoner/first_tool_right"].mean
    return {
        "tool right": right,
        "follows a tool that is right": scores["reasoner/first_follows_right"].mean / right,
        "follows a tool that is wrong": scores["reasoner/first_follows_wrong"].mean / (1 - right),
        "reasoner right": scores["reasoner/first_right"].mean,
    }


def table(result: Any) -> Table:
    """When the reasoner of the math team follows the tool of the base."""
    reasoners = result["reasoners"]
    teams = {
        "base": [reasoners["base"]],
        "trained": [v for k, v in reasoners.items() if k != "base"],
    }
    rows = [
        [f"{name} reasoner", *(spread([row[key] for row in runs]) for key in reasoners["base"])]
        for name, runs in teams.items()
    ]
    return ["beside the base's tool", *reasoners["base"]], rows


def main() -> None:
    """Play, and write the results."""
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder)
        fresh = load_policies(EMBEDDED, PLAYERS)
        for policy in PLAYERS.values():
            fresh.save(policy, team / policy)
        results["base"] = trust(team)
        for run in sorted((HERE / "out" / "learning_math").glob("at_grpo-?")):
            shutil.rmtree(team / "reasoner")
            shutil.copytree(run / "adapters" / "reasoner", team / "reasoner")
            results[run.name] = trust(team)
    for name, row in results.items():
        print(name, {key: round(value, 3) for key, value in row.items()})
    text = json.dumps({"versions": versions(), "reasoners": results}, indent=1)
    RESULTS.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
