"""Can a reward that is learned from a solver's play take the place of the environment's?

    python -m benchmarks.airl [--tokens N --tasks N --out FILE]

A team learns Plan-Path from the base `embedded:parts`, which was shown single steps, on boards as in `benchmarks.parts`. One arm is paid
the environment's reward (`at_grpo`), the other what `ma_airl` learns from 200 episodes of a solver that makes one move a turn, as the base
does; the environment's reward is then used for nothing. Both sample the next state and have equal tokens. The rate of each arm is the one
of `RATES` with which the seed `TUNING` solves most validation tasks. Seeds 31 to 33 play test tasks, beside the untrained base.
Also measured is how the ranks of learned rewards agree with those of the environment among the replies to one prompt. Writes
`results/airl.json`; finished cells are not repeated. One core, 15 CPU-minutes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.advice import spearman
from benchmarks.evidence import Table, gain_over_seeds, revision, shown, solved_digits, spread
from benchmarks.options import Options
from benchmarks.reading import cpu_seconds, share
from pettingllms.data import plan_path
from pettingllms.envs import plan_path_v0
from pettingllms.envs.boards import BoardState
from pettingllms.evaluation import held_out
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.report import as_text
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.models import PARTS
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import EMBEDDED as PRESET

RESULTS = Path(__file__).parent / "results" / "airl.json"
TOKENS, TASKS, VALIDATION_TASKS = 100_000, 300, 100
EPISODES = 200
"""Those of the solver that `ma_airl` learns from."""
TUNING, SEEDS = 30, (31, 32, 33)
RATES = (1e-3, 2e-3, 4e-3)
ARMS = ("at_grpo", "ma_airl")
BASE, ROLES = "base", ("tool", "planner")
LAST = 5
"""Steps at the beginning and the end over which agreement is averaged."""


class OneMove(plan_path_v0.raw_env):
    """Plan-Path whose solver makes one move a turn: the base was never shown more."""

    def _demonstrate(self, state: BoardState, agent: str) -> str:  # noqa: ARG002 - the same for both
        level, cell = state.level, state.position
        near = plan_path.neighbours(level.height, level.width)[cell].items()
        left = level.distances[cell] - 1
        return self._written(state, tuple(m for m, c in near if level.distances[c] == left)[:1])


def environment(split: str) -> OneMove:
    """The environment of all arms."""
    return OneMove(split=split, **OneMove.embedded_parts)


def measured(arm: str, rate: float, seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """Trains an arm, or leaves the base as it is, and plays held-out tasks."""
    changes: dict[str, Any] = {**PRESET, **OneMove.embedded_parts_training}
    changes |= {"learning_rate": rate, "seed": seed, "max_tokens": tokens, "branch": "sample"}
    changes["method"] = ARMS[0] if arm == BASE else arm
    if arm == "ma_airl":
        changes["method_args"] = {"episodes": EPISODES}
    policies = load_policies(PARTS, {role: role for role in ROLES}, seed=seed)
    trainer = ATGRPO(ATGRPOConfig(env="plan_path", **changes), environment("train"), policies)
    agreed: dict[str, list[float | None]] = {role: [] for role in ROLES}
    started = cpu_seconds()
    while arm != BASE and trainer.tokens < tokens:
        trajectories, _ = trainer.train_step()
        for role in ROLES if arm == "ma_airl" else ():
            agreed[role].append(agreement(trajectories, role))
    trained_s = cpu_seconds() - started
    split, count = ("val", min(tasks, VALIDATION_TASKS)) if seed == TUNING else ("test", tasks)
    env = environment(split)
    sampling = Sampling(changes["max_completion_length"], seed=seed)
    episodes: list[Trajectory] = []
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(held_out(env, split, count), sampling):
            episodes += roll_out(env, policies, {r: r for r in ROLES}, pool, chunk, sampling)
    policies.close()
    return {
        "tasks": solved_digits(episodes),
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "agreement": agreed,
        "training_cpu_s": round(trained_s, 1),
        "revision": revision(),
    }


def agreement(trajectories: Sequence[Trajectory], role: str) -> float | None:
    """Mean correlation of the ranks of learned and paid rewards, over prompts whose replies were paid differently."""
    ranks = []
    for group in (g for t in trajectories for g in t.groups if g.key.role == role):
        paid = [one.reward for one in group.candidates]
        learned = [one.reward if one.credited is None else one.credited for one in group.candidates]
        ranks.append(spearman(learned, paid))
    known = [rank for rank in ranks if rank is not None]
    return round(fmean(known), 4) if known else None


def best_rate(cells: Mapping[str, Any], arm: str) -> float:
    """The rate with which the tuning seed solves most; the lowest of several."""
    return max(RATES, key=lambda rate: (share(cells[f"{arm}/{rate:g}/{TUNING}"]["tasks"]), -rate))


def table(results: Mapping[str, Any]) -> Table:
    """Success of each arm, what `ma_airl` has more, and how its rewards agree with those of the environment."""
    cells, rows = results["cells"], list[list[str]]()
    runs: dict[str, list[Any]] = defaultdict(list)
    for arm in (BASE, *ARMS):
        rate = 0.0 if arm == BASE else best_rate(cells, arm)
        runs[arm] = [cells[f"{arm}/{rate:g}/{seed}"] for seed in results["seeds"]]
    solved = {
        arm: np.array([[float(digit) for digit in run["tasks"]] for run in of])
        for arm, of in runs.items()
    }
    for arm, of in runs.items():
        gain = shown_gain(solved["ma_airl"] - solved[arm]) if arm != "ma_airl" else ""
        agreed = [
            spread(
                [fmean(r for r in run["agreement"][role][-LAST:] if r is not None) for run in of]
            )
            if arm == "ma_airl"
            else ""
            for role in ROLES
        ]
        chosen = "" if arm == BASE else f"{best_rate(cells, arm):g}"
        updates = spread([run["steps"] for run in of], 0)
        rows.append(
            [
                f"`{arm}`" if arm in ARMS else arm,
                chosen,
                updates,
                shown(over_seeds(solved[arm])),
                gain,
                *agreed,
            ]
        )
    header = ["", "rate", "updates", "success", "`ma_airl` minus this"]
    return [*header, *(f"agreement, {role}" for role in ROLES)], rows


def shown_gain(gains: np.ndarray) -> str:
    """`+0.10 [+0.02, +0.18]`."""
    gain = gain_over_seeds(gains)
    return f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


def main() -> None:
    """Trains what is missing, writes it, and prints the table."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="generated in a training")
    parser.add_argument("--tasks", type=int, default=TASKS, help="test tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options = parser.parse_beside(RESULTS)
    torch.set_num_threads(1)
    settings = {"tokens": options.tokens, "tasks": options.tasks, "seeds": options.seeds}
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if {name: results.get(name) for name in settings} != settings:
        results = {"versions": versions(), **settings, "cells": {}}
    cells = results["cells"]

    def finish(arm: str, rate: float, seed: int) -> None:
        name = f"{arm}/{rate:g}/{seed}"
        if name not in cells:
            cells[name] = measured(arm, rate, seed, options.tokens, options.tasks)
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, share(cells[name]["tasks"]), cells[name]["training_cpu_s"], flush=True)

    for arm in ARMS:
        for rate in RATES:
            finish(arm, rate, TUNING)
    for seed in options.seeds:
        finish(BASE, 0.0, seed)
        for arm in ARMS:
            finish(arm, best_rate(cells, arm), seed)
    header, rows = table(results)
    print(as_text([header, *rows]))


if __name__ == "__main__":
    main()
