"""Method x environment: what each method of `--method` is worth at equal generated tokens.

One experiment of `benchmarks.paper`:

    python -m benchmarks.paper methods --envs plan_path --tokens 70000
    python -m benchmarks.paper methods --envs search --tokens 25000

A method that an environment lacks something for is left out there, and so are those for teams of
their own form: `igrpo` (one agent with two turns), `mlpo` (a team with a judge), `cory` (two agents
of one role), `maporl` (a debate), and `malt`, which only records. All others keep the settings of the
environment but for what the method sets; their learning rates are not tuned apart. A method with one
episode a task (`rae`) takes many more steps for the same tokens; two arms with an eighth of the tasks a
step show what that alone does.

More experiments are for single methods:

    python -m benchmarks.paper calls     # a planner and a worker, `benchmarks.calling`
    python -m benchmarks.paper judges    # programs and tests that judge each other
    python -m benchmarks.paper debate    # answers paid for what comes of them
    python -m benchmarks.paper local     # a tester whose local reward is scaled apart
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.evidence import Record, Table, chosen, envs_of, estimate, shown, solved, spread
from benchmarks.experiments import PER_ROLE, Arm, Claim, Experiment, bars
from pettingllms.envs import load_env
from pettingllms.trainers.method import lacking
from pettingllms.trainers.method_names import METHODS, PARTS

OWN_TEAMS = ("igrpo", "mlpo", "cory", "maporl", "malt", "c3")
NAMES = [
    name for name in METHODS.own if name not in (*PARTS, "decision", "turn", "agent_turn", "gae")
]
BASE = "base"
MODELS = {"search": "embedded:search"}
"""Environment -> its base, where the embedded model does not know it."""
SMALL = {f"{name}, small steps": name for name in ("at_grpo", "grpo")}
"""Arms whose steps have as many episodes as those of a method with one episode a task."""


def arms(env: str) -> list[Arm]:
    """The base model, every method that fits the environment, and two of them in small steps."""
    template = load_env(env)
    model = {"model": MODELS[env]} if env in MODELS else {}
    team, few = {**PER_ROLE, **model}, {"tasks_per_step": 2}
    play = ("--model", MODELS[env]) if env in MODELS else ()
    small = [Arm(title, {**team, "method": name, **few}) for title, name in SMALL.items()]
    return [Arm(BASE, None, play), *small] + [
        Arm(name, {**team, "method": name})
        for name in NAMES
        if name not in OWN_TEAMS and not lacking(METHODS.load(name).needs, template)
    ]


def rows(result: Mapping[str, Any]) -> Table:
    """Success of each method by environment, and how many steps its tokens were enough for."""
    records: Sequence[Record] = result["runs"]
    envs = envs_of(records)
    table = []
    for name in (BASE, *NAMES, *SMALL):
        records_by_env = [chosen(records, env, name) for env in envs]
        if any(records_by_env):
            cells = [
                cell
                for env, records_of_env in zip(envs, records_by_env, strict=True)
                for cell in _cells(env, name, records_of_env)
            ]
            table.append([f"`{name}`", *cells])
    return ["method", *(head for env in envs for head in (f"`{env}`", "steps"))], table


def _cells(env: str, name: str, runs: Sequence[Record]) -> tuple[str, str]:
    if not runs:
        fits = any(arm.name == name for arm in arms(env))
        return "not run" if fits else "does not fit", ""
    # A step of few episodes has few tokens, so that a method gets more updates for the same tokens.
    steps = [run["tokens"] / run["late"]["num_tokens"] for run in runs if "tokens" in run]
    return shown(estimate(solved(runs))), f"{sum(steps) / len(steps):.0f}" if steps else ""


PLANNER_ALONE = "matpo, planner alone"
LOCAL = ("local_reward", "valid")
"""Of a tester's first reply."""
CALLERS = ("grpo", "dr_mas", "m_grpo", "matpo", "mhgpo")


def _calls(_: str) -> list[Arm]:
    short = {"max_completion_length": 8, "tasks_per_step": 8, "num_generations": 8}
    play = ("--max-completion-length", "8")
    players = {name: {"policies": "shared"} if name == "matpo" else PER_ROLE for name in CALLERS}
    alone = {**PER_ROLE, **short, "method": "matpo", "train_roles": "planner"}
    return [
        Arm(BASE, None, play),
        *(Arm(name, {**players[name], **short, "method": name}, play) for name in CALLERS),
        Arm(PLANNER_ALONE, alone, play),
    ]


def _local(_: str) -> list[Arm]:
    return [Arm(BASE), *(Arm(name, {**PER_ROLE, "method": name}) for name in ("at_grpo", "gdpo"))]


def _local_rows(result: Mapping[str, Any]) -> Table:
    """Success, and what a tester's first reply earns by itself."""
    table = []
    for arm in _local("coding"):
        runs = chosen(result["runs"], "coding", arm.name)
        first = [spread([run["scores"][f"tester/first_{name}"] for run in runs]) for name in LOCAL]
        table.append([arm.name, shown(estimate(solved(runs))), *first])
    return ["coding", "success", "tester's local reward", "tests that are right"], table


def _judges(_: str) -> list[Arm]:
    # One turn: programs and tests are drawn apart.
    apart = {**PER_ROLE, "env_args": {"max_turns": 1}}
    play = ("--env-args.max_turns", "1")
    return [
        Arm(BASE, None, play),
        Arm("at_grpo", {**apart, "method": "at_grpo", "branch": "sample"}, play),
        Arm("cure", {**apart, "method": "cure"}, play),
    ]


def _debate(_: str) -> list[Arm]:
    team = {"reasoners": 2, "tools": 1, "max_turns": 2}
    play = ("--env-args", json.dumps(team))
    debate = {**PER_ROLE, "env_args": team, "method": "maporl"}
    return [
        Arm(BASE, None, play),
        Arm("maporl", debate, play),
        Arm("maporl, own score", {**debate, "method_args": {"gamma": 0.0}}, play),
    ]


def _silent(_: str) -> list[Arm]:
    return [Arm("base")] + [
        Arm(name, {**PER_ROLE, "silent_groups": name}) for name in ("drop", "count")
    ]


EXPERIMENTS: Mapping[str, Experiment] = {
    "methods": Experiment(
        "What is each method of the literature worth at equal tokens?",
        ("plan_path", "search", "coding", "math", "sudoku", "sokoban"),
        arms,
        (Claim("AT-GRPO solves more than GRPO over whole episodes", "at_grpo", "grpo"),),
        bars("Methods at equal tokens"),
        rows=rows,
    ),
    "calls": Experiment(
        "Who learns when a planner calls a worker, and is paid at the end?",
        ("benchmarks.calling:env",),
        _calls,
        (
            Claim("Aligned calls solve more than GRPO over whole episodes", "m_grpo", "grpo"),
            Claim(
                "Workers that learn, too, solve more than a planner alone", "matpo", PLANNER_ALONE
            ),
        ),
        bars("A planner that calls a worker"),
    ),
    "judges": Experiment(
        "Does a tester that judges the step's own programs catch as many known-wrong ones?",
        ("coding",),
        _judges,
        (Claim("CURE solves more than AT-GRPO", "cure", "at_grpo"),),
        bars("Programs and tests that judge each other"),
    ),
    "debate": Experiment(
        "Does it help to pay an answer for what comes of it in later rounds?",
        ("math",),
        _debate,
        (Claim("Paying for later rounds solves more", "maporl", "maporl, own score"),),
        bars("Debates"),
    ),
    "local": Experiment(
        "Does a tester learn more where team and local reward are scaled apart?",
        ("coding",),
        _local,
        (Claim("GDPO solves more than AT-GRPO", "gdpo", "at_grpo"),),
        bars("Team and local rewards scaled apart"),
        rows=_local_rows,
    ),
    "silent_groups": Experiment(
        "Do groups that earned the same belong in the means of the loss, as in TRL, or not?",
        ("coding",),
        _silent,
        (Claim("Leaving silent groups out solves more than counting them", "drop", "count"),),
        bars("Groups that earned the same"),
    ),
}
"""All experiments of `benchmarks.paper`."""
