"""Which part of what training adds is a habit overcome, and which a skill learned?

    python -m benchmarks.priming.prime --out /tmp/base --keep-clean /tmp/clean
    python -m benchmarks.habit_or_skill --clean /tmp/clean

Plays first turns of test tasks with the checkpoint before the bad habits (`clean`), the embedded
base, and the trained teams of `benchmarks.learning`, apart for tasks with a part of the grammar
that priming shows seldom (`rare`) and the others. What a team wins back up to `clean` was in the
base and seldom used; what it wins above `clean` it has learned.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.evidence import Table, spread
from benchmarks.priming.coding import RARE
from pettingllms.data.coding import generate
from pettingllms.envs import coding_v0
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs import versions
from pettingllms.types import Request

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "habit_or_skill.json"
TASKS = 600
ROLES = ("coder", "tester")
RARE_CODE = ("x % 3 == 0", "x * x", "'e' in x")
"""How the rare parts look in a reference solution, in the order of `RARE`'s definition."""


def first_replies(policies: PolicySet, *, greedy: bool, tasks: int) -> dict[str, float]:
    """Mean local reward of each role's first reply, on rare and on common tasks."""
    template = coding_v0.env(split="test", prompt="compact", max_turns=1)
    scores: dict[str, list[float]] = defaultdict(list)
    for role in ROLES:
        games = []
        for seed in range(tasks):
            game = template.clone()
            game.reset(seed=seed)
            if role == "tester":
                game.step("no program: the tester is scored without one")
            games.append(game)
        agent = f"{role}_0"
        prompts = [policies.prompt_ids(role, game.observe(agent)["text"]) for game in games]
        replies = policies.sample(
            [
                Request(policies.policy_for(role), prompt, seed)
                for seed, prompt in enumerate(prompts)
            ],
            1,
            greedy=greedy,
            max_new_tokens=96,
        )
        for seed, (game, (reply,)) in enumerate(zip(games, replies, strict=True)):
            rare = any(code in generate(seed, "test").reference for code in RARE_CODE)
            game.step(reply.text)
            scores[f"{role}, {'rare' if rare else 'common'} parts"].append(
                game.infos[agent]["local_reward"]
            )
    return {name: sum(values) / len(values) for name, values in sorted(scores.items())} | {
        "rare tasks": sum(len(v) for k, v in scores.items() if "rare" in k) / len(ROLES)
    }


def table(result: Any) -> Table:
    """First replies before the habits, with them, and after training; rare parts apart."""
    results = result["teams"]
    trained = [team for name, team in results.items() if name.startswith("at_grpo-")]
    rows = []
    for name in results["base"]["sampled"]:
        if "parts" not in name:
            continue
        row = [name]
        for how in ("sampled", "greedy"):
            row += [f"{results[team][how][name]:.2f}" for team in ("clean", "base")]
            row.append(spread([team[how][name] for team in trained]))
        rows.append(row)
    header = [
        f"{team}, {how}" for how in ("sampled", "greedy") for team in ("clean", "base", "trained")
    ]
    return ["local reward, first completion", *header], rows


def main() -> None:
    """Play, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clean", type=Path, required=True, help="prime's --keep-clean folder")
    parser.add_argument("--runs", type=Path, default=HERE / "out" / "learning_coding")
    parser.add_argument("--tasks", type=int, default=TASKS)
    options = parser.parse_args()
    assert len(RARE) == len(RARE_CODE)
    torch.set_num_threads(1)
    teams: dict[str, tuple[Path, Path | None]] = {
        "clean": (options.clean, None),
        "base": (EMBEDDED, None),
    }
    for run in sorted(options.runs.glob("at_grpo-?")):
        teams[run.name] = (EMBEDDED, run / "adapters")
    results: dict[str, Any] = {"tasks": options.tasks, "versions": versions(), "teams": {}}
    for name, (model, adapters) in teams.items():
        policies = load_policies(model, {role: role for role in ROLES}, adapters=adapters)
        results["teams"][name] = {
            how: first_replies(policies, greedy=how == "greedy", tasks=options.tasks)
            for how in ("sampled", "greedy")
        }
        print(name, json.dumps(results["teams"][name]), flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
