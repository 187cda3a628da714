"""Claims on a real pretrained model: SmolLM2 (135M) learns tasks that need two roles, on one core of a CPU.

    python -m benchmarks.reading [--minutes N] [--only read relay] [--dry-run]

A cell is an arm that is trained on a task with a learning rate and a seed. Arms have the same number of updates
and completions; dynamic sampling and difficulty pools have the same tokens. In the tasks `SWEPT`, the rate of each is the one whose team solves most
validation tasks, the mean of the seeds `TUNING`; where that is the first or last one of the grid, the grid is extended. Other tasks
take the rate of `read`, and arms in `UNTUNED` have no sweep. Teams of the seeds `SEEDS` then play 200 test tasks, with names that are in no training task.
The shared policy's gradients are read as `--advise` reads them, which changes nothing. Finished cells are kept in
`results/reading.json` and not repeated; several processes share the cells. `python -m benchmarks.figures` draws the figure.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import errands, relay
from benchmarks.advice import Watch
from benchmarks.evidence import Table, gain_over_seeds, revision, shown, solved_digits
from benchmarks.options import Options
from pettingllms.assembly import training_env
from pettingllms.envs import make, program_v0, read_v0
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.ablation import RoleTeam, role_teams, switched_off
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.report import as_text
from pettingllms.evaluation.rollouts import held_out, roll_out
from pettingllms.names import model_path, parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.runs import versions
from pettingllms.statistics import Estimate, holm, over_seeds, p_value
from pettingllms.trainers.advice import BLOCKS
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "reading.json"
MODEL = "smollm2"
SEEDS = tuple(range(2, 12))
"""Of what is published; three of each task are measured first, and two of tasks that a stranger wrote."""
SWEPT = ("read", "relay")
"""Tasks with a sweep of rates of their own, and with all seeds."""
TUNING = (0, 1)
"""The seeds of the sweep of learning rates."""
READ_AT = (10, 30)
"""Steps after which the signals of a shared policy are read."""
TEST_TASKS, VALIDATION_TASKS = 200, 100
RATES = (8e-4, 1.6e-3, 3.2e-3)
"""The grid of every arm; further rates are twice the last one, or half the first one."""
BOUNDS = (5e-5, 1.3e-2)
"""Rates beyond which no grid goes on."""
STEPS = 30
SETTINGS: Mapping[str, Any] = {
    "model": MODEL,
    "policies": "per-role",
    "dtype": "bfloat16",
    # A third of the time of a step on a CPU is that of adapters; these two matrices of each layer suffice.
    "lora_target_modules": "q_proj,v_proj",
    "max_completion_length": 10,
    "max_steps": STEPS,
    "scoring_threads": 8,
    "eval_steps": 0,
}
AT_GRPO, SHARED, EPISODES = "policy for each role", "one shared policy", "whole episodes"
DYNAMIC, COLD, WARM = "dynamic sampling", "no warm start", "after a warm start"
NEITHER, POOLS = "neither", "difficulty pools"
ARMS: Mapping[str, Mapping[str, Any]] = {
    AT_GRPO: {},
    # As many weights as two adapters have, and a word in each prompt that says whose it is.
    SHARED: {"policies": "shared", "lora_r": 32, "lora_alpha": 64},
    EPISODES: {"method": "grpo"},
    # Ends at the tokens of the policy for each role with the same seed.
    DYNAMIC: {"max_num_gen_batches": 4},
    NEITHER: {},
    POOLS: {"difficulty_pools": {"sentences": [2, 3, 4, 5, 6]}},
    # As the command trains by default: a warm start makes adapters of all linear layers.
    COLD: {"lora_target_modules": "all-linear"},
    WARM: {"lora_target_modules": "all-linear"},
}
UNTUNED: Mapping[str, float] = {
    DYNAMIC: 1.6e-3,
    NEITHER: 1.6e-3,
    POOLS: 1.6e-3,
    COLD: 2e-4,
    WARM: 2e-4,
}
"""Rates of arms that have no sweep: that of the arm they are compared with, and the command's default."""
TASK_ARMS: Mapping[str, Sequence[str]] = {
    "read": (AT_GRPO, SHARED, EPISODES, DYNAMIC),
    "relay": (AT_GRPO, SHARED, EPISODES),
    "desk": (AT_GRPO,),
    "rooms": (COLD, WARM),
    "prices": (COLD, WARM),
    "sizes": (NEITHER, DYNAMIC, POOLS),
}
STRANGERS = ("rooms", "prices")
APART = (*STRANGERS, "sizes")
"""Tasks that have a table of their own."""
OTHER_TASKS: Mapping[str, Callable[..., Any]] = {
    "desk": errands.Desk,
    "rooms": errands.Rooms,
    "prices": errands.Prices,
}


class Sizes(read_v0.raw_env):
    """Reading of two to six sentences, which are equally likely."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.games = [make("read", sentences=count, split=self.split) for count in range(2, 7)]

    def _start(self, seed: int, options: dict[str, Any]) -> read_v0.ReadState:
        state: read_v0.ReadState = self.games[seed % 5]._start(seed, options)
        return state


class RoleWords(read_v0.raw_env):
    """Reading, with the role in front of each prompt."""

    def _text(self, state: read_v0.ReadState, agent: str) -> str:
        role = agent.rpartition("_")[0].capitalize()
        return f"{role}: {super()._text(state, agent)}"


class Cell(NamedTuple):
    """What is trained."""

    task: str
    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"{self.task}/{self.arm}/{self.rate:g}/{self.seed}"


def environment(cell: Cell, split: str) -> Any:
    """The environment of a cell."""
    if cell.task == "relay":
        if not relay.TASKS.exists():
            relay.write(relay.tasks())
        return program_v0.env(
            relay.solve_with_role_words if cell.arm == SHARED else relay.solve,
            roles="searcher,answerer",
            dataset=relay.TASKS,
            pays="early",
            settle=0.0,
            split=split,
        )
    if cell.task == "sizes":
        if cell.arm == POOLS and split == "train":
            return training_env(ATGRPOConfig(env="read", model=MODEL, **ARMS[POOLS]), None, ())
        return Sizes(split=split)
    if cell.task in OTHER_TASKS:
        return OTHER_TASKS[cell.task](split=split)
    return RoleWords(split=split) if cell.arm == SHARED else make("read", split=split)


def trainer_of(cell: Cell) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    env = environment(cell, "train")
    settings = {**SETTINGS, **ARMS[cell.arm], "learning_rate": cell.rate, "seed": cell.seed}
    config = resolve(ATGRPOConfig(env="read", **settings), env)
    targets = config.lora_target_modules
    policies = load_policies(
        model_path(MODEL),
        parse_policies(config.policies, roles_of(env)),
        dtype=config.dtype,
        lora_r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_target_modules=targets if targets == "all-linear" else targets.split(","),
        seed=cell.seed,
        adapters=errands.warm_adapters(MODEL) if cell.arm == WARM else None,
    )
    return ATGRPO(config, env, policies)


def played(cell: Cell, trainer: ATGRPO, team: RoleTeam, split: str, tasks: int) -> str:
    """A digit for each task, 1 where the team solved it; sampled as in training."""
    env, policies = environment(cell, split), trainer.policies
    policy_of = {str(agent): policies.policy_for(str(agent)) for agent in env.possible_agents}
    seats = {agent: team.played.get(policy, policy) for agent, policy in policy_of.items()}
    sampling = Sampling(
        trainer.config.max_completion_length,
        temperature=trainer.config.temperature,
        seed=cell.seed,
        at_once=100,
    )
    off = [name for name in trainer.trained if name not in team.trained]
    episodes = []
    with ThreadPoolExecutor(8) as pool, switched_off(policies, off):
        for chunk in chunks(held_out(env, split, tasks), sampling):
            episodes += roll_out(env, policies, seats, pool, chunk, sampling)
    return solved_digits(episodes)


def measured(cell: Cell, base: str | None, tokens: float = math.inf) -> dict[str, Any]:
    """Trains a cell and plays its teams.

    Args:
        cell: what is trained.
        base: the untrained team's result, where it is known.
        tokens: after which training ends before its last step.
    """
    torch.set_num_threads(1)
    trainer = trainer_of(cell)
    watch = Watch(roles_of(trainer.env))
    trainer.callbacks = [watch] if cell.arm == SHARED else []
    every = RoleTeam("both", trainer.trained, {})
    if cell.arm in (COLD, WARM) and base is None:
        base = played(cell, trainer, every, "test", TEST_TASKS)
    started, last, curve = cpu_seconds(), roles_of(trainer.env)[-1], []
    signals = dict[int, Any]()
    while trainer.step < STEPS and trainer.tokens < tokens:
        _, metrics = trainer.train_step()
        rewards = {k: round(v, 3) for k, v in metrics.items() if k.startswith("reward/")}
        success, sampled = metrics[f"success/{last}"], int(metrics["num_tokens"])
        curve.append({"success": round(success, 3), "tokens": sampled, **rewards})
        if trainer.step in READ_AT and watch.sums.steps >= BLOCKS:
            signals[trainer.step] = watch.signals()
        print(trainer.step, curve[-1], f"{cpu_seconds() - started:.0f} s", flush=True)
    record: dict[str, Any] = {
        "tokens": trainer.tokens,
        "training_cpu_s": round(cpu_seconds() - started, 1),
        "curve": curve,
    }
    if signals:
        record["signals"] = signals
    if cell.seed in TUNING:
        record["teams"] = {"both": played(cell, trainer, every, "val", VALIDATION_TASKS)}
    else:
        teams = role_teams(trainer.trained) if cell.arm == AT_GRPO else [every]
        if cell.arm in (COLD, WARM):
            teams = [RoleTeam("base", (), {}), every]
        record["teams"] = {
            team.title: base
            if team.title == "base" and base
            else played(cell, trainer, team, "test", TEST_TASKS)
            for team in teams
        }
    return record | {"cpu_s": round(cpu_seconds() - started, 1), "revision": revision()}


def cpu_seconds() -> float:
    """Of this process."""
    return sum(os.times()[:2])


def share(digits: str) -> float:
    """The share of solved tasks."""
    return digits.count("1") / len(digits)


def rates(cells: Mapping[str, Any], task: str, arm: str) -> tuple[str, list[float], float | None]:
    """The task whose sweep decides, its grid of rates, and the best one; None while cells of the grid are missing."""
    swept, grid = task if task in SWEPT else "read", list(RATES)
    if arm in UNTUNED:
        return swept, [], UNTUNED[arm]
    while True:
        names = {rate: [Cell(swept, arm, rate, seed).name for seed in TUNING] for rate in grid}
        if any(name not in cells for of_rate in names.values() for name in of_rate):
            return swept, grid, None
        solved = {
            rate: np.mean([share(cells[name]["teams"]["both"]) for name in of_rate])
            for rate, of_rate in names.items()
        }
        best = max(grid, key=lambda rate: (solved[rate], -rate))
        if best == grid[-1] and 2 * best < BOUNDS[1]:
            grid.append(2 * best)
        elif best == grid[0] and best / 2 > BOUNDS[0] and solved[best]:
            grid.insert(0, best / 2)
        else:
            return swept, grid, best


class Lab:
    """The cells, and where they are kept."""

    def __init__(self, file: Path, only: Sequence[str]) -> None:
        self.file, self.only = file, only
        self.locks = HERE / "out" / file.stem
        self.locks.mkdir(parents=True, exist_ok=True)

    @property
    def cells(self) -> dict[str, Any]:
        """Name -> record of those that are finished."""
        names: dict[str, Any] = (
            json.loads(self.file.read_text())["cells"] if self.file.exists() else {}
        )
        return names

    def wanted(self) -> Iterator[Cell]:
        """All cells that can be named now: of each arm its sweep, then its first seeds."""
        cells, named = self.cells, dict[Cell, None]()
        blocks = [
            (task, arm, seeds)
            for seeds in (SEEDS[:3], SEEDS[3:])
            for task in self.only
            for arm in TASK_ARMS[task]
            if seeds == SEEDS[:3] or (task in SWEPT and arm not in UNTUNED)
        ]
        for task, arm, seeds in blocks:
            swept, grid, best = rates(cells, task, arm)
            named |= {Cell(swept, arm, rate, seed): None for rate in grid for seed in TUNING}
            if best is not None:
                few = seeds[:2] if arm in (COLD, WARM) else seeds
                named |= dict.fromkeys(Cell(task, arm, best, seed) for seed in few)
        yield from named

    def missing(self) -> list[Cell]:
        """Those that are not finished."""
        cells = self.cells
        return [cell for cell in self.wanted() if cell.name not in cells]

    def run(self, minutes: float) -> None:
        """Measures what is missing; begins nothing after `minutes`."""
        until = time.monotonic() + 60 * minutes
        while (missing := self.missing()) and time.monotonic() < until:
            if not any(self.measure(cell) for cell in missing):
                return  # other processes have them all

    def measure(self, cell: Cell) -> bool:
        """Runs a cell and keeps it, unless another process does."""
        with (self.locks / f"{cell.name.replace('/', '-').replace(' ', '-')}.lock").open(
            "w"
        ) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            print(cell.name, flush=True)
            record = measured(cell, self._base(cell), self._tokens(cell))
            self.keep(cell.name, record)
            print(
                {team: share(digits) for team, digits in record["teams"].items()},
                record["cpu_s"],
                flush=True,
            )
        return True

    def _base(self, cell: Cell) -> str | None:
        """The untrained team's result, which is measured once."""
        # A warm start has another one.
        start = f"{cell.task}/{cell.arm}/" if cell.arm in (COLD, WARM) else f"{cell.task}/"
        of_task = (record for name, record in self.cells.items() if name.startswith(start))
        return next(
            (record["teams"]["base"] for record in of_task if "base" in record["teams"]), None
        )

    def _tokens(self, cell: Cell) -> float:
        """Those after which a cell ends."""
        if cell.arm not in (DYNAMIC, POOLS):
            return math.inf
        plain = cell._replace(arm=NEITHER if cell.task == "sizes" else AT_GRPO)
        return float(self.cells[plain.name]["tokens"])

    def keep(self, name: str, record: Mapping[str, Any]) -> None:
        """Adds a finished cell to the results."""
        with (self.locks / "results.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            cells = {**self.cells, name: record}
            settings = {**SETTINGS, "arms": ARMS, "tuning": TUNING, "seeds": SEEDS}
            text = json.dumps(
                {"settings": settings, "versions": versions(), "cells": cells}, indent=1
            )
            self.file.write_text(f"{text}\n", encoding="utf-8")


Solved = dict[tuple[str, str], np.ndarray]
"""Task and team -> which test tasks it solved, of shape (seeds, tasks)."""


def published(results: Mapping[str, Any], *, apart: bool = False) -> Solved:
    """All teams of the seeds that count, of the tasks `APART` or of the others; the untrained one has one row."""
    cells, teams = results["cells"], Solved()
    for task, arms in TASK_ARMS.items():
        for arm in arms if apart == (task in APART) else ():
            for team, of_seed in played_at(cells, task, arm, rates(cells, task, arm)[2]).items():
                title = team if arm == AT_GRPO else f"{team}, {arm}"
                teams[task, title] = of_seed[:1] if team == "base" else of_seed
    return teams


def played_at(
    cells: Mapping[str, Any], task: str, arm: str, rate: float | None
) -> dict[str, np.ndarray]:
    """Team -> which test tasks it solved, of shape (seeds, tasks), at a rate, or at any."""
    rows: dict[str, dict[int, list[float]]] = {}
    for name, record in cells.items():
        *which, of_rate, seed = name.split("/")
        if which == [task, arm] and int(seed) not in TUNING and rate in (None, float(of_rate)):
            for team, digits in record["teams"].items():
                rows.setdefault(team, {})[int(seed)] = [float(digit) for digit in digits]
    return {
        team: np.array([of_team[seed] for seed in sorted(of_team)])
        for team, of_team in rows.items()
    }


def of_seeds(results: Mapping[str, Any], task: str) -> dict[str, np.ndarray]:
    """Success in training by arm of equal steps, of shape (seeds, steps), of the seeds that count."""
    curves: dict[str, list[list[float]]] = {}
    for name, record in results["cells"].items():
        of_task, arm, rate, seed = name.split("/")
        best = rates(results["cells"], of_task, arm)[2]
        counts = int(seed) not in TUNING and arm not in UNTUNED and best in (None, float(rate))
        if of_task == task and counts:
            curves.setdefault(arm, []).append([step["success"] for step in record["curve"]])
    return {arm: np.array(curve) for arm, curve in curves.items()}


def table(results: Mapping[str, Any]) -> Table:
    """A row for each team: the share of test tasks by seed, and over seeds and tasks."""
    rows = []
    for (task, team), solved in published(results).items():
        numbers = ", ".join(f"{shares.mean():.2f}" for shares in solved)
        rows.append([f"`{task}`", team, numbers, shown(over_seeds(solved))])
    return ["task", "team", "each seed", "mean"], rows


def claims(results: Mapping[str, Any]) -> Table:
    """How much more `both` solve than other teams.

    p-values are of tests over tasks, corrected for their number. Arms that were trained otherwise have none: of those
    the intervals, which are over seeds as well, decide.
    """
    solved, gains = published(results), dict[tuple[str, str], np.ndarray]()
    for (task, team), other in solved.items():
        if team != "both" and (task, "both") in solved:
            both = solved[task, "both"]
            if team == f"both, {DYNAMIC}":  # which has this rate
                both = played_at(results["cells"], task, AT_GRPO, UNTUNED[DYNAMIC])["both"]
            seeds = len(both) if team == "base" else min(len(both), len(other))
            gains[task, team] = both[:seeds] - other[:seeds]
    of_parts = {key: gain for key, gain in gains.items() if ", " not in key[1]}
    p = holm({key: p_value(gain.mean(axis=0)) for key, gain in of_parts.items()})
    rows = [
        [f"`{task}`", team, signed(gain_over_seeds(gain)), small(p.get((task, team)))]
        for (task, team), gain in gains.items()
    ]
    return ["task", "both minus", "difference", "p (Holm)"], rows


def strangers(results: Mapping[str, Any]) -> Table:
    """A row for each task and start: success before training, of each seed after it, and the mean."""
    solved, rows = published(results, apart=True), []
    for task in STRANGERS:
        for arm in TASK_ARMS[task]:
            if (task, f"both, {arm}") in solved:
                before, after = solved[task, f"base, {arm}"], solved[task, f"both, {arm}"]
                numbers = ", ".join(f"{share.mean():.2f}" for share in after)
                rows.append(
                    [f"`{task}`", arm, shown(over_seeds(before)), numbers, shown(over_seeds(after))]
                )
    return ["task", "start", "untrained", "trained, each seed", "mean"], rows


def signals(results: Mapping[str, Any]) -> Table:
    """A row for each way to have fewer silent groups: success of each seed, the mean, and what it adds."""
    solved, rows = published(results, apart=True), []
    for arm in TASK_ARMS["sizes"]:
        if ("sizes", f"both, {arm}") in solved:
            after, plain = solved["sizes", f"both, {arm}"], solved["sizes", f"both, {NEITHER}"]
            numbers = ", ".join(f"{shares.mean():.2f}" for shares in after)
            gain = "" if arm == NEITHER else signed(gain_over_seeds(after - plain[: len(after)]))
            rows.append([arm, numbers, shown(over_seeds(after)), gain])
    return ["", "each seed", "mean", "more than neither"], rows


def sweep(results: Mapping[str, Any]) -> Table:
    """Validation success of each arm at each rate, of each seed of the sweep."""
    solved = dict[tuple[str, str], dict[float, list[float]]]()
    for name, record in results["cells"].items():
        task, arm, rate, seed = name.split("/")
        if int(seed) in TUNING:
            of_arm = solved.setdefault((task, arm), {})
            of_arm.setdefault(float(rate), []).append(share(record["teams"]["both"]))
    columns = sorted({rate for of_arm in solved.values() for rate in of_arm})
    rows = [
        [f"`{task}`", arm]
        + [", ".join(f"{one:.2f}" for one in of_arm.get(rate, [])) for rate in columns]
        for (task, arm), of_arm in solved.items()
    ]
    return ["task", "arm", *(f"{rate:g}" for rate in columns)], rows


def advice(results: Mapping[str, Any]) -> Table:
    """What the shared policy's gradients say, and how much more a policy for each role solves with the same seed.

    Success is of validation tasks on the seeds of the sweep, and of test tasks on the others.
    """
    rows, cells = [], results["cells"]
    for name, record in cells.items():
        task, _, rate, seed = name.split("/")
        best = rates(cells, task, AT_GRPO)[2]
        apart = cells.get(Cell(task, AT_GRPO, best or 0, int(seed)).name)
        if "signals" in record and apart:
            solved, shared = (share(one["teams"]["both"]) for one in (apart, record))
            signals = [record["signals"].get(str(step)) for step in READ_AT]
            texts = [_signal(signal) if signal else "" for signal in signals]
            rows.append([f"`{task}`", rate, seed, *texts, f"{solved - shared:+.2f}"])
    return ["task", "rate", "seed", *(f"after {step} steps" for step in READ_AT), "measured"], rows


def _signal(signal: Mapping[str, Any]) -> str:
    low, high = signal["interval"]
    return f"G {signal['G']:+.2f} [{low:+.2f}, {high:+.2f}]: {signal['recommendation']}"


def small(p: float | None) -> str:
    """A p-value, as far as 2000 random sign flips tell it; nothing for None."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def signed(gain: Estimate) -> str:
    """`+0.45 [+0.31, +0.58]`."""
    return f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


def main() -> None:
    """Measures what is missing and shows the tables."""
    parser = Options(__doc__)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--only", nargs="+", choices=TASK_ARMS, default=list(TASK_ARMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="list the cells; run nothing")
    options = parser.parse_args()
    lab = Lab(options.out, options.only)
    if options.dry_run:
        cells = lab.cells
        for cell in lab.wanted():
            print("done " if cell.name in cells else "to do", cell.name)
        return
    lab.run(options.minutes)
    results = json.loads(options.out.read_text())
    for rows in (table, claims, sweep, strangers, signals, advice):
        head, lines = rows(results)
        print(f"\n{as_text([head, *lines])}")


if __name__ == "__main__":
    main()
