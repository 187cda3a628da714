"""Does reinforcement learning teach what no demonstration shows? Teams on a base that was primed on parts.

    python -m benchmarks.parts [--only coding plan_path paths] [--seeds 21 22 23] [--out FILE]

The base, `embedded:parts`, has no planted habit: it was shown single steps and pairs of steps (`benchmarks.priming`, recipe
`parts`), and no problem of the length that is trained here. Each seed is one run of `pettingllms-train`; then all teams
play the same test tasks, sampled, one completion a decision:

* `base`, `trained`, and `exchanged`: the trained policies in each other's role;
* `only ROLE`: its trained policy beside the base's;
* `shuffled`: what the first role (coding: the second) says is swapped between tasks, so that it says nothing
  about this one.

Base and trained teams also play tasks of other sizes, one of them beyond training. `paths` is Plan-Path trained three
times as long, with two optimizer steps on a rollout, after which replies have several moves. Prints the table, and writes
`results/parts.json` or FILE; finished runs are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.evidence import (
    COLORS,
    PASS_TASKS,
    PASSES,
    Table,
    draw_curve,
    estimate,
    pass_cells,
    shown,
    solved_counts,
    solved_digits,
    spread,
)
from benchmarks.learning import HERE, curve, timing, train, words_of
from benchmarks.options import Options
from pettingllms.data.rows import digest
from pettingllms.envs import make
from pettingllms.envs.aec import creator_of
from pettingllms.evaluation import held_out
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.report import as_text
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.evaluation.scores import summarise
from pettingllms.models import PARTS
from pettingllms.names import BASE
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.samplers.base import Sampler
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import EMBEDDED as PRESET
from pettingllms.types import Completion, Request

RESULTS = HERE / "results" / "parts.json"
TASKS, CONTROL_TASKS = 300, 100
"""Test tasks of base and trained teams, and of the other teams."""
LENGTH = 96
"""Tokens of a completion."""


class Story(NamedTuple):
    """What is trained and tested in one environment."""

    env: str
    roles: tuple[str, str]
    speaker: str
    """The role whose words `shuffled` swaps between tasks."""
    others: Mapping[str, Mapping[str, Any]]
    """Other sizes than that of training -> what differs in them."""
    pass_at: Mapping[str, Any]
    """What differs where pass@k is measured."""
    scores: Mapping[str, str]
    """What is reported of first replies, with its title."""
    seeds: tuple[int, ...]
    """Of the published runs; no pilot used them."""
    own: Mapping[str, Any] = {}
    """Settings of its training beside those that the environment has for this base."""


_LISTENING = Story(
    "plan_path",
    ("tool", "planner"),
    "tool",
    {"6 to 10 moves": {"moves": (6, 10), "max_turns": 14}},
    {},
    {
        "tool/first_local_reward": "tool: local reward",
        "planner/first_local_reward": "planner: local reward",
    },
    (21, 22, 23),
)
STORIES: Mapping[str, Story] = {
    "coding": Story(
        "coding",
        ("coder", "tester"),
        "tester",
        {
            "4 steps": {"steps": (4, 4)},
            "all families": {"families": ("numbers", "words", "arithmetic")},
        },
        {"max_turns": 1},
        {
            "coder/first_passed": "coder: hidden tests passed",
            "tester/first_valid": "tester: tests that are right",
            "tester/first_local_reward": "tester: local reward",
            "tester/first_input_size": "tester: values in an input",
        },
        (24, 25, 26),
    ),
    "plan_path": _LISTENING,
    # With a lower rate or more tasks a step, a second move came late or hardly at all (pilots).
    "paths": _LISTENING._replace(
        seeds=(27, 28, 29),
        own={"num_iterations": 2, "epsilon_high": 0.28, "max_steps": 300, "eval_steps": 30},
    ),
}


def arguments(name: str) -> dict[str, Any]:
    """Those of the environment for this base, in training."""
    return dict(creator_of(STORIES[name].env).embedded_parts)


def settings(name: str) -> dict[str, Any]:
    """Those of a run that the environment and the embedded models have for this base, and the story's own.

    Given to every run, so that a base elsewhere is trained in the same way.
    """
    story = STORIES[name]
    return {**PRESET, **creator_of(story.env).embedded_parts_training, **story.own}


class Shuffled:
    """A sampler in which one policy's completions are handed on to the next prompt of its batch."""

    def __init__(self, policies: Sampler, policy: str) -> None:
        self.policies, self.policy = policies, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policies, name)

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        """Completes as the policies do, then rotates the completions of the one policy."""
        replies = self.policies.sample(requests, n, **settings)
        places = [i for i, request in enumerate(requests) if request.policy == self.policy]
        spoken = [replies[i] for i in places]
        for i, others in zip(places, [*spoken[1:], *spoken[:1]], strict=True):
            # The record holds a completion to its prompt.
            prompt = requests[i].prompt_ids
            replies[i] = [replace(other, prompt_ids=prompt) for other in others]
        return replies


def run_of(name: str, model: Path, seed: int, out: Path) -> Path:
    """The folder of a run of `pettingllms-train`, which is finished then."""
    run = out / f"{name}-{seed}"
    options = settings(name) | {"model": model, "seed": seed, "env": STORIES[name].env}
    options |= {"env-args": json.dumps(arguments(name))}
    train(run, *words_of(options))
    return run


def rolled_out(
    name: str, policies: Any, sampling: Sampling, tasks: int, **other: Any
) -> list[Trajectory]:
    """Episodes on test tasks, whose arguments differ from training in `other`."""
    story = STORIES[name]
    game = make(story.env, split="test", **{**arguments(name), **other})
    lineup = {role: policies.policy_for(role) for role in story.roles}
    episodes: list[Trajectory] = []
    with ThreadPoolExecutor(ATGRPOConfig.scoring_threads) as pool:
        for chunk in chunks(held_out(game, "test", tasks), sampling):
            episodes += roll_out(game, policies, lineup, pool, chunk, sampling)
    return episodes


def played(env: str, policies: Any, tasks: int = TASKS, **other: Any) -> dict[str, Any]:
    """A digit for each test task, 1 where it was solved, and the scores of first replies."""
    story = STORIES[env]
    episodes = rolled_out(env, policies, Sampling(LENGTH), tasks, **other)
    scores = summarise(episodes, story.roles, samples=1, greedy=False, seed=0).scores
    return {"tasks": solved_digits(episodes), **{name: scores[name].mean for name in story.scores}}


def passed(env: str, policies: Any) -> list[int]:
    """How many of `PASSES[-1]` episodes of each task succeed."""
    sampling = Sampling(LENGTH, PASSES[-1])
    return solved_counts(rolled_out(env, policies, sampling, PASS_TASKS, **STORIES[env].pass_at))


def teams(env: str, model: Path, run: Path | None, *, several: bool = True) -> dict[str, Any]:
    """The teams of one run, or that of the base, each with what it reached; `several`: also pass@k."""
    one, two = STORIES[env].roles
    seats = {one: one, two: two}
    if run is None:
        lineups = {"base": {one: BASE, two: BASE}}
    else:
        lineups = {
            "trained": seats,
            "exchanged": {one: two, two: one},
            f"only {one}": {one: one, two: BASE},
            f"only {two}": {one: BASE, two: two},
        }
    results: dict[str, Any] = {}
    for name, players in lineups.items():
        adapters = None if run is None else run / "adapters"
        policies = load_policies(model, players, adapters=adapters)
        tasks = TASKS if name in ("base", "trained") else CONTROL_TASKS
        results[name] = played(env, policies, tasks)
        if name in ("base", "trained"):
            for size, other in STORIES[env].others.items():
                results[f"{name}, {size}"] = played(env, policies, **other)
            if several:
                results[f"{name}, pass@k"] = passed(env, policies)
        if name == "trained":
            speaker = players[STORIES[env].speaker]
            results["shuffled"] = played(env, Shuffled(policies, speaker), CONTROL_TASKS)
        digits = results[name]["tasks"]
        whose = "base" if run is None else run.name
        success = digits.count("1") / len(digits)
        print(f"{env}: {whose}, {name}: {success:.2f} of {len(digits)} tasks", flush=True)
    return results


def table(result: Any) -> Table:
    """Success of each team, on tasks as trained and of other sizes."""
    rows = []
    for env, world in result["environments"].items():
        one, two = STORIES[env].roles
        runs = [run["teams"] for run in world["runs"].values()]
        columns = ("base", "trained", "exchanged", f"only {one}", f"only {two}", "shuffled")
        rows.append([f"`{env}`", *(_success(world["base"], runs, name) for name in columns)])
        for size in STORIES[env].others:
            cells = [_success(world["base"], runs, f"{name}, {size}") for name in columns[:2]]
            rows.append([f"`{env}`, {size}", *cells, "", "", "", ""])
    header = ["base", "trained", "exchanged", "only first role", "only second role", "shuffled"]
    return ["", *header], rows


def success(result: Any) -> tuple[float, float]:
    """Of one environment: of the base, and of the trained teams' mean."""
    digits = [run["teams"]["trained"]["tasks"] for run in result["runs"].values()]
    shares = [text.count("1") / len(text) for text in (result["base"]["base"]["tasks"], *digits)]
    return shares[0], float(np.mean(shares[1:]))


def _success(base: Any, runs: Sequence[Any], name: str) -> str:
    teams = [team[name] for team in (base, *runs) if name in team]
    return shown(estimate(np.array([[float(digit) for digit in team["tasks"]] for team in teams])))


def roles(result: Any) -> Table:
    """First replies of each role, before and after training."""
    rows = []
    for env, world in result["environments"].items():
        runs = [run["teams"] for run in world["runs"].values()]
        for size in ("", *(f", {size}" for size in STORIES[env].others)):
            for score, title in STORIES[env].scores.items():
                before = f"{world['base'][f'base{size}'][score]:.2f}"
                after = spread([run[f"trained{size}"][score] for run in runs])
                rows.append([f"`{env}`{size}", title, before, after])
    return ["", "first replies", "base", "trained"], rows


def passes(result: Any) -> Table:
    """pass@k of the base and of the first seed's trained team."""
    rows = []
    for env, world in result["environments"].items():
        counts = {
            "base": world["base"]["base, pass@k"],
            "trained": next(iter(world["runs"].values()))["teams"]["trained, pass@k"],
        }
        rows += [[f"`{env}`, {name}", *pass_cells(solved)] for name, solved in counts.items()]
    return ["", *(f"pass@{k}" for k in PASSES)], rows


def sweep(pilots: Any) -> Table:
    """Makes the table of what was swept for coding, from the pilots; the team on test tasks at the end."""
    scores = {"success": "team", **STORIES["coding"].scores}
    rows = [
        [
            row["training"],
            str(row["seed"]),
            f"{row['test']['tokens'] / 1000:,.0f}",
            *(f"{row['test'][score]:.2f}" for score in scores),
        ]
        for row in pilots["rows"]
        if "swept" in row
    ]
    return ["training", "seed", "thousand tokens", *scores.values()], rows


def draw(result: Any, path: Path) -> None:
    """Validation success and first replies against generated tokens."""
    environments = result["environments"]
    figure, axes = plt.subplots(1, len(environments), figsize=(5 * len(environments), 3.6))
    for axis, (env, world) in zip(np.atleast_1d(axes), environments.items(), strict=True):
        curves = [run["curve"] for run in world["runs"].values()]
        titles = {"success": "team success", **STORIES[env].scores}
        shares = [name for name in titles if not name.endswith("input_size")]
        for score, color in zip(shares, COLORS, strict=False):
            draw_curve(axis, curves, score, titles[score], color)
        axis.set(title=env, xlabel="generated tokens (thousands)", ylim=(0, 1))
        axis.legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Train what is missing, play, write."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=PARTS, help="another base, to be compared")
    parser.add_argument("--only", nargs="+", choices=STORIES, default=list(STORIES))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: the published ones")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="its name is that of the runs, in out/"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    file: Path = options.out
    out = HERE / "out" / file.stem
    for folder in (out, file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(file.read_text()) if file.exists() else {"environments": {}}
    results |= {"versions": versions(), "model": digest(options.model)}
    for env in options.only:
        story, world = STORIES[env], results["environments"].setdefault(env, {"runs": {}})
        world["arguments"] = {"train": arguments(env), **story.others}
        world["options"] = settings(env)
        if "base" not in world:
            world["base"] = teams(env, options.model, None)
        for seed in options.seeds or story.seeds:
            run = run_of(env, options.model, seed, out)
            if str(seed) not in world["runs"]:
                world["runs"][str(seed)] = {
                    "timing": timing(run),
                    "curve": curve(run, ("success", *story.scores)),
                    # pass@k is as dear as all else: of the first seed alone.
                    "teams": teams(env, options.model, run, several=not world["runs"]),
                }
                file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, file.with_suffix(".png"))
    for header, rows in (table(results), roles(results)):
        print(f"\n{as_text([header, *rows])}")


if __name__ == "__main__":
    main()
