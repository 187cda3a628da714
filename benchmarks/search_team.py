"""Does a mean for each agent help? The search team: dense rewards, and methods for an outcome at the end.

    python -m benchmarks.search_team               everything that is missing; --minutes 4 ends earlier and keeps what it has

A verifier, a searcher and an answerer with an adapter each, questions of two look-ups, on the base `embedded:search`, which
was shown single look-ups and, of questions of two, moves drawn by lot (`benchmarks.priming.search`). All arms train on the same number of
generated tokens. The learning rate of each is chosen on the seeds `TUNING` by validation tasks; the results are of the seeds of
its arm, and test tasks. Writes `results/search_team.json` and `docs/search_team.png`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evidence import solved_digits
from benchmarks.search_report import draw
from pettingllms.envs import make
from pettingllms.evaluation import held_out
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.folder import digest
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.models import SEARCH
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "search_team.json"
PICTURE = Path(__file__).parents[1] / "docs" / "search_team.png"
ROLES = {role: role for role in ("verifier", "searcher", "answerer")}
HOPS = (1, 2, 3)
"""Look-ups of the test questions; two are trained, three never seen by anyone."""
TASKS, VALIDATION = 200, 60
"""Test tasks of each number of look-ups, and validation tasks of each measurement."""
LENGTH = 20
"""Tokens of a completion; fourteen are needed."""
TOKENS = 250_000
POINTS = 5
"""Measurements on validation tasks during a training."""
COMMON: Mapping[str, Any] = {
    "warmup_steps": 0,
    "max_completion_length": LENGTH,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
    "max_steps": 1000,
    "max_tokens": TOKENS,
    "num_generations": 8,
    "tasks_per_step": 16,
    "lr_scheduler_type": "constant",
}


class Arm(NamedTuple):
    """What is compared: a method, what is paid, and the seeds of its results."""

    settings: Mapping[str, Any]
    rewards: str
    seeds: Sequence[int]


ARMS: Mapping[str, Arm] = {
    "at_grpo, dense": Arm({"method": "at_grpo"}, "dense", (0, 1, 2)),
    "at_grpo": Arm({"method": "at_grpo"}, "sparse", (0, 1, 2)),
    "look_ahead": Arm({"method": "look_ahead"}, "sparse", (0, 1, 2)),
    "grpo": Arm({"method": "grpo"}, "sparse", (0, 1, 2, 3, 4)),
    "dr_mas": Arm({"method": "dr_mas"}, "sparse", (0, 1, 2, 3, 4)),
}
RATES = (2e-3, 4e-3)
TUNING = (100,)


def played(
    policies: PolicySet, split: str, hops: int, tasks: int, seed: int = 0
) -> list[Trajectory]:
    """Episodes on held-out tasks, sampled, one completion a decision."""
    env = make("search", split=split, prompt="compact", hops=(hops, hops))
    sampling, episodes = Sampling(LENGTH, seed=seed), list[Trajectory]()
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(held_out(env, split, tasks), sampling):
            episodes += roll_out(env, policies, ROLES, pool, chunk, sampling)
    return episodes


def look_ups(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How far episodes come: share whose searches find the first fact, and all of the facts."""
    recalls = [
        max((c.info.get("recall", 0.0) for g in each.groups for c in g.candidates), default=0.0)
        for each in episodes
    ]
    found = {"some": [recall > 0 for recall in recalls], "all": [recall == 1 for recall in recalls]}
    return {name: round(sum(each) / len(each), 4) for name, each in found.items()}


def by_agent(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, float]]:
    """The mean advantage of each agent's completions in a step, and their mean square."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in trajectories:
        for group in each.groups:
            values = (c.advantage for c in group.candidates if c.advantage is not None)
            found[group.key.role] += [float(value) for value in values]
    return {
        role: (
            round(sum(values) / len(values), 4),
            round(sum(value * value for value in values) / len(values), 4),
        )
        for role, values in found.items()
        if values
    }


def train(base: Path, arm: Arm, rate: float, seed: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Trains a team; returns what it reached, on the way and at the end."""
    started = time.process_time()
    env = make("search", split="train", prompt="compact", hops=(2, 2), rewards=arm.rewards)
    policies = load_policies(base, ROLES, seed=seed)
    given = {**COMMON, **arm.settings, "learning_rate": rate, "max_tokens": tokens}
    config = ATGRPOConfig(env="search", model=str(base), policies="per-role", seed=seed, **given)
    trainer = ATGRPO(config, env, policies)
    curve: list[dict[str, float]] = []
    norms: dict[str, list[float]] = {role: [] for role in ROLES}
    advantages: dict[str, list[tuple[float, float]]] = {role: [] for role in ROLES}

    def note() -> None:
        episodes = played(policies, "val", 2, VALIDATION)
        success = sum(each.success is True for each in episodes) / len(episodes)
        curve.append({"tokens": trainer.tokens, "success": success, **look_ups(episodes)})

    note()
    while trainer.tokens < tokens:
        trajectories, metrics = trainer.train_step()
        for role in ROLES:
            norms[role].append(round(metrics.get(f"{role}/grad_norm", 0.0), 4))
        for role, values in by_agent(trajectories).items():
            advantages[role].append(values)
        if trainer.tokens >= len(curve) * tokens / POINTS:
            note()
    tests = {hops: played(policies, "test", hops, TASKS) for hops in HOPS}
    return {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "curve": curve,
        "grad_norm": norms,
        "advantages": advantages,
        "tasks": {str(hops): solved_digits(episodes) for hops, episodes in tests.items()},
        "found": {str(hops): look_ups(episodes) for hops, episodes in tests.items()},
        "cpu_s": round(time.process_time() - started),
    }


def key(arm: str, rate: float, seed: int) -> str:
    """Names a run."""
    return f"{arm}/{rate:g}/{seed}"


def chosen_rate(runs: Mapping[str, Any], arm: str) -> float:
    """The rate with the best last validation on the tuning seeds; the lower one where they are equal."""

    def score(rate: float) -> tuple[float, float]:
        found = (runs[key(arm, rate, seed)]["curve"][-1]["success"] for seed in TUNING)
        return sum(found), -rate

    return max(RATES, key=score)


def cells(runs: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """All runs that are due now; those of the results follow from those of the tuning."""
    due = [(arm, rate, seed) for seed in TUNING for rate in RATES for arm in ARMS]
    if any(key(*cell) not in runs for cell in due):
        return due
    rates = {arm: chosen_rate(runs, arm) for arm in ARMS}
    seeds = sorted({seed for arm in ARMS.values() for seed in arm.seeds})
    return due + [
        (name, rates[name], seed)
        for seed in seeds
        for name, arm in ARMS.items()
        if seed in arm.seeds
    ]


def start(base: Path) -> dict[str, Any]:
    """What the base reaches."""
    policies = load_policies(base, ROLES)
    tests = {str(hops): played(policies, "test", hops, TASKS) for hops in HOPS}
    return {
        "tasks": {hops: solved_digits(episodes) for hops, episodes in tests.items()},
        "found": {hops: look_ups(episodes) for hops, episodes in tests.items()},
    }


def main() -> None:
    """Trains what is missing, plays, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=SEARCH, help="another base, to be compared")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    result |= {"versions": versions(), "model": digest(options.base), "settings": dict(COMMON)}
    result |= {"roles": [*ROLES], "arms": {name: arm._asdict() for name, arm in ARMS.items()}}
    runs, until = result["runs"], time.monotonic() + 60 * options.minutes
    if "base" not in result:
        result["base"] = start(options.base)
    while missing := [cell for cell in cells(runs) if key(*cell) not in runs]:
        if time.monotonic() > until:
            print(f"{len(missing)} runs of this part are missing; run again", flush=True)
            break
        arm, rate, seed = missing[0]
        run = runs[key(arm, rate, seed)] = train(options.base, ARMS[arm], rate, seed)
        share = run["tasks"]["2"].count("1") / TASKS
        print(key(arm, rate, seed), share, run["found"]["2"], f"{run['cpu_s']} s", flush=True)
        options.out.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
    if not missing:
        result["rates"] = {arm: chosen_rate(runs, arm) for arm in ARMS}
        options.out.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
        draw(result, PICTURE)


if __name__ == "__main__":
    main()
