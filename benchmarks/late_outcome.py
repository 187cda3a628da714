"""Who learns from an outcome that is paid at the end? A tree, a look-ahead tree, whole episodes.

    python -m benchmarks.late_outcome

Three agents with an adapter each act one after another, once. Each is right if its reply names the
number in its prompt, and nobody is paid before the last reply: then the team earns the share of the
three that were right. A tree compares what a completion earns right away, which is nothing for the
first two; the others can find out what a reply was worth. All have the same number of generated
tokens. Seeds 0 to 2; writes `results/late_outcome.json`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.evidence import Table, spread
from benchmarks.options import Options
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "late_outcome.json"
ROLES = ("first", "second", "third")
METHODS = ("at_grpo", "q_tree", "look_ahead", "c3", "grpo", "dr_mas")
GENERATIONS = {"c3": 3}
"""A full tree of three agents has K + K^2 + K^3 completions: with K = 8 a step would take all tokens of a run."""
LAST = 5
"""Steps at the beginning and the end over which rewards are averaged."""


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


def train(method: str, seed: int, tokens: int) -> dict[str, list[float]]:
    """Trains a team; returns for each role the share of right replies, step by step."""
    config = ATGRPOConfig(
        method=method,
        max_tokens=tokens,
        seed=seed,
        tasks_per_step=8,
        max_completion_length=8,
        eval_tasks=1,
        num_generations=GENERATIONS.get(method),
    )
    policies = load_policies(EMBEDDED, {role: role for role in ROLES}, seed=seed)
    trainer = ATGRPO(replace(config, env="relay"), Relay(), policies)
    right: dict[str, list[float]] = {role: [] for role in ROLES}
    while trainer.tokens < tokens:
        played, _ = trainer.train_step()
        for role in ROLES:
            right[role].append(share(played, role))
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


def table(result: Any) -> Table:
    """Right replies of each role in the last steps, by method."""
    rows = []
    for method, runs in result["methods"].items():
        ends = [[sum(run[role][-LAST:]) / LAST for run in runs] for role in ROLES]
        rows.append([f"`{method}`", *(spread(values) for values in ends)])
    return ["method", *(f"{role} agent" for role in ROLES)], rows


def main() -> None:
    """Trains all, prints the table, and writes the results."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=30_000, help="generated tokens of a run")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    arguments = options.parse_beside(RESULTS)
    torch.set_num_threads(1)
    runs: dict[str, list[dict[str, list[float]]]] = {}
    for method in arguments.methods:
        for seed in arguments.seeds:
            run = train(method, seed, arguments.tokens)
            runs.setdefault(method, []).append(run)
            ends = {role: round(sum(run[role][-LAST:]) / LAST, 2) for role in ROLES}
            first = {role: round(sum(run[role][:LAST]) / LAST, 2) for role in ROLES}
            print(method, seed, len(run["first"]), "steps", first, "->", ends, flush=True)
    file = arguments.out
    published = json.loads(file.read_text())["methods"] if file.exists() else {}
    methods = {
        name: {**published, **runs}[name] for name in METHODS if name in {**published, **runs}
    }
    result = {"versions": versions(), "tokens": arguments.tokens, "methods": methods}
    file.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
