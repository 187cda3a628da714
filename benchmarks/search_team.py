"""Does a mean for each agent help? The search team: dense rewards, and methods for an outcome at the end.

    python -m benchmarks.search_team               everything that is missing; what is finished in out/search_team is not repeated
    python -m benchmarks.search_team --only grpo   these arms, as a process beside others; --minutes 4 begins no run after so long

A verifier, a searcher and an answerer with an adapter each, questions of two look-ups, on the base `embedded:search`, which
was shown single look-ups and, of questions of two, moves drawn by lot (`benchmarks.priming.search`). It solves none in 200, so that an outcome at
the end teaches nothing from there. Arms that are paid at the end alone begin with one and the same team, `START`: a few steps with dense rewards, on
a seed of its own. All arms train on the same number of
generated tokens. The learning rate of each is chosen on the seeds `TUNING` by validation tasks; the results are of the seeds of
its arm, and test tasks. Writes `results/search_team.json` and `docs/search_team.png`.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evidence import solved_digits
from benchmarks.options import Options
from benchmarks.search_report import draw
from pettingllms.data.rows import digest
from pettingllms.envs import make
from pettingllms.evaluation import held_out
from pettingllms.evaluation.chunks import Sampling, chunks
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
OUT = Path(__file__).parent / "out" / "search_team"
START = OUT / "start"
"""Adapters of the team with which arms begin that are paid at the end."""
START_SEED, START_RATE, START_TOKENS = 99, 4e-3, 30_000
ROLES = {role: role for role in ("verifier", "searcher", "answerer")}
HOPS = (1, 2, 3)
"""Look-ups of the test questions; two are trained, three never seen by anyone."""
TASKS, OTHER_TASKS, VALIDATION = 200, 100, 60
"""Test tasks of two look-ups and of each other number, and validation tasks of each measurement."""
LENGTH = 20
"""Tokens of a completion; fourteen are needed."""
TOKENS = 100_000
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
    "tasks_per_step": 8,
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
    "grpo": Arm({"method": "grpo"}, "sparse", tuple(range(15))),
    "dr_mas": Arm({"method": "dr_mas"}, "sparse", tuple(range(15))),
    "mhgpo": Arm({"method": "mhgpo"}, "sparse", (0, 1, 2)),
    "mhgpo, fork on first": Arm(
        {"method": "mhgpo", "method_args": {"shape": "fork_on_first"}}, "sparse", (0, 1, 2)
    ),
}
RATES = (1e-3, 2e-3, 4e-3)
TUNING = (100, 101, 102)


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
        max((c.info.get("recall", 0.0) for g in episode.groups for c in g.candidates), default=0.0)
        for episode in episodes
    ]
    hits = {"some": [recall > 0 for recall in recalls], "all": [recall == 1 for recall in recalls]}
    return {name: round(sum(episode) / len(episode), 4) for name, episode in hits.items()}


def by_agent(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, float]]:
    """The mean advantage of each agent's completions in a step, and their mean square."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for group in trajectory.groups:
            values = (c.advantage for c in group.candidates)
            rewards[group.key.role] += [value for value in values if isinstance(value, float)]
    return {
        role: (
            round(sum(values) / len(values), 4),
            round(sum(value * value for value in values) / len(values), 4),
        )
        for role, values in rewards.items()
        if values
    }


def begun(base: Path, arm: Arm, rate: float, seed: int, tokens: int) -> ATGRPO:
    """A trainer of an arm before its first step."""
    env = make("search", split="train", prompt="compact", hops=(2, 2), rewards=arm.rewards)
    adapters = START if arm.rewards == "sparse" else None
    policies = load_policies(base, ROLES, seed=seed, adapters=adapters)
    values = {**COMMON, **arm.settings, "learning_rate": rate, "max_tokens": tokens}
    config = ATGRPOConfig(env="search", model=str(base), policies="per-role", seed=seed, **values)
    return ATGRPO(config, env, policies)


def begin(base: Path) -> None:
    """Makes the team with which arms begin that are paid at the end, unless it is there."""
    if START.exists():
        return
    trainer = begun(base, ARMS["at_grpo, dense"], START_RATE, START_SEED, START_TOKENS)
    while trainer.tokens < START_TOKENS:
        trainer.train_step()
    made = START.with_name(f"{START.name}-unfinished")
    for role in ROLES:
        trainer.policies.save(role, made / role)
    made.rename(START)


def train(base: Path, arm: Arm, rate: float, seed: int, tokens: int) -> dict[str, Any]:
    """Trains a team; returns what it reached, on the way and at the end."""
    started = time.process_time()
    trainer = begun(base, arm, rate, seed, tokens)
    policies = trainer.policies
    curve: list[dict[str, float]] = []
    norms: dict[str, list[float]] = {role: [] for role in ROLES}
    advantages: dict[str, list[tuple[float, float]]] = {role: [] for role in ROLES}

    def note() -> None:
        episodes = played(policies, "val", 2, VALIDATION)
        success = sum(episode.success is True for episode in episodes) / len(episodes)
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
    return {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "curve": curve,
        "grad_norm": norms,
        "advantages": advantages,
        **tested(policies),
        "cpu_s": round(time.process_time() - started),
    }


def tested(policies: PolicySet) -> dict[str, Any]:
    """Which test tasks a team solves, and how far its searches come, by number of look-ups."""
    tests = {
        str(hops): played(policies, "test", hops, TASKS if hops == 2 else OTHER_TASKS)
        for hops in HOPS
    }
    return {
        "tasks": {hops: solved_digits(episodes) for hops, episodes in tests.items()},
        "found": {hops: look_ups(episodes) for hops, episodes in tests.items()},
    }


def run(base: Path, arm: str, rate: float, seed: int, until: float) -> dict[str, Any]:
    """A run, which is trained unless it is finished.

    Raises:
        SystemExit: it is missing, and `until`, in seconds of `time.monotonic`, is over.
    """
    path = OUT / f"{re.sub('[/, ]+', '-', key(arm, rate, seed))}.json"
    if not path.exists():
        if time.monotonic() > until:
            raise SystemExit("runs are missing; run again")
        record = train(base, ARMS[arm], rate, seed, TOKENS)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(record), encoding="utf-8")
        unfinished.rename(path)
        share = record["tasks"]["2"].count("1") / TASKS
        print(key(arm, rate, seed), share, record["found"]["2"], f"{record['cpu_s']} s", flush=True)
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def key(arm: str, rate: float, seed: int) -> str:
    """Names a run."""
    return f"{arm}/{rate:g}/{seed}"


def runs_of(base: Path, arm: str, until: float) -> tuple[float, dict[str, Any]]:
    """The rate of an arm, with the best last validation on the tuning seeds, and all its runs."""
    runs = {
        key(arm, rate, seed): run(base, arm, rate, seed, until) for rate in RATES for seed in TUNING
    }

    def score(rate: float) -> tuple[float, float]:
        successes = (runs[key(arm, rate, seed)]["curve"][-1]["success"] for seed in TUNING)
        return sum(successes), -rate  # the lower one where they are equal

    best = max(RATES, key=score)
    runs |= {key(arm, best, seed): run(base, arm, best, seed, until) for seed in ARMS[arm].seeds}
    return best, runs


def main() -> None:
    """Trains what is missing, plays, writes."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=SEARCH, help="another base, to be compared")
    parser.add_argument("--only", nargs="+", choices=ARMS, help="train these arms; publish nothing")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    begin(options.base)
    until = time.monotonic() + 60 * options.minutes
    chosen = {arm: runs_of(options.base, arm, until) for arm in options.only or ARMS}
    if options.only:
        return
    result = {
        "versions": versions(),
        "model": digest(options.base),
        "settings": dict(COMMON),
        "roles": [*ROLES],
        "arms": {name: arm._asdict() for name, arm in ARMS.items()},
        "base": tested(load_policies(options.base, ROLES)),
        "start": tested(load_policies(options.base, ROLES, adapters=START)),
        "rates": {arm: rate for arm, (rate, _) in chosen.items()},
        "runs": {name: run for _, runs in chosen.values() for name, run in runs.items()},
    }
    options.out.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
    draw(result, PICTURE)


if __name__ == "__main__":
    main()
