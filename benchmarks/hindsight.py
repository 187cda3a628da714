"""Does knowing the solution say which replies are good? Scores of `--method hindsight` against rewards, before any training.

    python -m benchmarks.hindsight [--envs read math] [--tasks N] [--out FILE]

SmolLM2 replies eight times to each prompt of a turn. Of replies to the same prompt that earned differently, the ranks of both are
correlated, and the reply with the highest score is compared with the mean one. The same is done with the length of replies in place
of the score. Writes `results/hindsight.json`. One core, seven CPU-minutes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.advice import spearman
from benchmarks.evidence import Table, revision
from benchmarks.options import Options
from pettingllms.assembly import build_policies, plan_run
from pettingllms.evaluation.report import as_text
from pettingllms.runs import versions
from pettingllms.statistics import bootstrap
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Group

RESULTS = Path(__file__).parent / "results" / "hindsight.json"
ENVS = ("read", "math")
TASKS = 40
SEED = 4
SCORES = ("hindsight", "length")


def groups_of(env: str, tasks: int) -> list[Group]:
    """The decisions of a step, with the score of each reply, above the mean of its prompt, as its advantage."""
    plan = plan_run(
        ATGRPOConfig(
            env=env,
            env_args={"max_turns": 1},
            model="smollm2",
            method="hindsight",
            method_args={"weight": 1.0},
            num_generations=8,
            scale_rewards="none",
            tasks_per_step=tasks,
            max_steps=1,
            seed=SEED,
        )
    )
    policies = build_policies(plan.config, plan.roles_to_policies)
    try:
        trajectories, _ = ATGRPO(plan.config, plan.env, policies).train_step()
    finally:
        policies.close()
    return [group for trajectory in trajectories for group in trajectory.groups]


def agreement(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Role -> prompts with unlike rewards, and for each score its correlations, and what its best reply earns more."""
    roles: dict[str, dict[str, Any]] = {}
    by_role = defaultdict[str, list[Group]](list)
    for group in groups:
        by_role[group.key.role].append(group)
    for role, own in by_role.items():
        rows = defaultdict[str, list[tuple[float, float]]](list)
        for group in own:
            rewards = [candidate.reward for candidate in group.candidates]
            by_score = {
                "hindsight": [float(str(candidate.advantage)) for candidate in group.candidates],
                "length": [float(len(c.completion.token_ids)) for c in group.candidates],
            }
            for name, scores in by_score.items():
                if (rank := spearman(scores, rewards)) is not None:
                    best = rewards[int(np.argmax(scores))]
                    rows[name].append((rank, best - fmean(rewards)))
        roles[role] = {"prompts": len(own)} | {name: rows[name] for name in SCORES}
    return roles


def table(results: Mapping[str, Any]) -> Table:
    """A row for each role: correlation of ranks, and the reward of the best reply above the mean one."""
    lines = []
    for env, roles in results["environments"].items():
        for role, measured in roles.items():
            cells = [cell for name in SCORES for cell in cells_of(measured[name])]
            unlike = len(measured["hindsight"])
            lines.append([f"`{env}`", role, f"{unlike} of {measured['prompts']}", *cells])
    titles = [f"{name}, {what}" for name in SCORES for what in ("ranks", "best above mean")]
    return ["environment", "role", "prompts", *titles], lines


def cells_of(pairs: Sequence[Sequence[float]]) -> list[str]:
    """The means of the columns, with their intervals."""
    if not pairs:
        return ["none", "none"]
    columns = np.array(pairs).T
    return [
        f"{values.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
        for values in columns
        for low, high in [bootstrap(values, seed=0)]
    ]


def main() -> None:
    """Plays, scores, writes and prints."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--tasks", type=int, default=TASKS)
    options = parser.parse_beside(RESULTS)
    torch.set_num_threads(1)
    environments = {env: agreement(groups_of(env, options.tasks)) for env in options.envs}
    results = {
        "versions": versions(),
        "revision": revision(),
        "tasks": options.tasks,
        "environments": environments,
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    header, rows = table(results)
    print(as_text([header, *rows]))


if __name__ == "__main__":
    main()
