"""Does a conductor that chooses whom to call need fewer calls than a fixed order, at the same success? `crew`, with the embedded architecture.

    python -m benchmarks.priming.crew    the base: workers that look up, a conductor that knows forms
    python -m benchmarks.crew            everything that is missing; --minutes 4 ends earlier and keeps what it has
    python -m benchmarks.crew --dry-run  the trainings that are due

In the fixed order every worker is called once, about a person that the conductor names, and then the conductor answers. Arms have the same base, prompts,
turns, method (the default), rewards, and number of generated tokens, and a policy for each role. The
rate of each arm is that of the grid with the most success on validation tasks with the seed `TUNING`. Teams of the seeds `SEEDS` then
play 200 test tasks, whose people are in no training task. Writes `results/crew.json`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, options_on, run_missing
from benchmarks.environments.crew_v0 import ANSWER, CONDUCTOR, CrewState, raw_env
from benchmarks.evidence import Table, gain_over_seeds, shown, solved_digits
from benchmarks.priming.crew import OUT as BASE
from pettingllms.envs.base import Outcome
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.search_text import SearchReply
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.rollouts import held_out, roll_out
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

RESULTS = Path(__file__).parent / "results" / "crew.json"
TUNING, SEEDS = 100, (0, 1, 2)
RATES = (1e-3, 3e-3, 1e-2)
TOKENS = 120_000
TASKS = 200
FIXED = "fixed order"
ARMS: Mapping[str, float] = {FIXED: 0.05, "chosen, no price": 0.0, "chosen, price 0.05": 0.05}
"""Arm -> price of a call."""
SETTINGS: Mapping[str, Any] = {
    "policies": "per-role",
    "num_generations": 8,
    "tasks_per_step": 12,
    "max_completion_length": 4,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "temperature": 1.0,
    "lora_r": 16,
    "lora_alpha": 32,
    "max_steps": 100_000,
    "eval_steps": 0,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
}


class FixedOrder(raw_env):
    """Every worker once in the order of the pool, whoever is named, and then the answer."""

    def _led(self, state: CrewState, reply: SearchReply | ParseError) -> Outcome:
        if isinstance(reply, SearchReply):
            due = self.pool[state.turns] if state.turns < len(self.pool) else ANSWER
            if (reply.kind == ANSWER) != (due == ANSWER):
                reply = ParseError(f"the next reply goes to {due}")
            else:
                reply = reply._replace(kind=due)
        return super()._led(state, reply)


def environment(arm: str, split: str) -> raw_env:
    """The environment of an arm; calls and answer of the fixed order take all turns."""
    kind = FixedOrder if arm == FIXED else raw_env
    return kind(prompt="compact", max_turns=4, call_price=ARMS[arm], split=split)


def played(trainer: ATGRPO, arm: str, split: str, tasks: int, seed: int) -> dict[str, Any]:
    """Success of each task as a digit, and calls of each; sampled as in training."""
    env, policies = environment(arm, split), trainer.policies
    seats = {agent: policies.policy_for(agent) for agent in env.possible_agents}
    sampling = Sampling(SETTINGS["max_completion_length"], temperature=1.0, seed=seed, at_once=100)
    episodes = []
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(held_out(env, split, tasks), sampling):
            episodes += roll_out(env, policies, seats, pool, chunk, sampling)
    calls = [sum(g.key.agent != CONDUCTOR for g in episode.groups) for episode in episodes]
    return {"solved": solved_digits(episodes), "calls": "".join(map(str, calls))}


def trained(base: Path, cell: Cell, tokens: int, tasks: int) -> dict[str, Any]:
    """Trains a cell and plays held-out tasks, before and after."""
    started, env = time.process_time(), environment(cell.arm, "train")
    settings = {**SETTINGS, "learning_rate": cell.rate, "seed": cell.seed}
    config = resolve(ATGRPOConfig(env="crew", model=str(base), **settings), env)
    policies = load_policies(
        base,
        parse_policies(config.policies, roles_of(env)),
        lora_r=config.lora_r,
        lora_alpha=config.lora_alpha,
        seed=cell.seed,
    )
    trainer = ATGRPO(config, env, policies)
    split = "val" if cell.seed == TUNING else "test"
    record = {"before": played(trainer, cell.arm, split, tasks, cell.seed)}
    while trainer.tokens < tokens:
        trainer.train_step()
    record["after"] = played(trainer, cell.arm, split, tasks, cell.seed)
    cpu_s = round(time.process_time() - started, 1)
    return {**record, "steps": trainer.step, "tokens": trainer.tokens, "cpu_s": cpu_s}


def rate_of(runs: Mapping[str, Any], arm: str) -> float:
    """The rate with the most success on validation tasks."""
    return max(RATES, key=lambda r: runs[Cell(arm, r, TUNING).name]["after"]["solved"].count("1"))


def due(runs: Mapping[str, Any]) -> list[Cell]:
    """The trainings that are missing and can be named now."""
    cells = [Cell(arm, rate, TUNING) for rate in RATES for arm in ARMS]
    if all(cell.name in runs for cell in cells):
        cells = [Cell(arm, rate_of(runs, arm), seed) for seed in SEEDS for arm in ARMS]
    return [cell for cell in cells if cell.name not in runs]


def measured(runs: Mapping[str, Any], arm: str, when: str, what: str) -> np.ndarray:
    """Success or calls of an arm, of shape (seeds, tasks)."""
    rate = rate_of(runs, arm)
    return np.array(
        [[float(d) for d in runs[Cell(arm, rate, seed).name][when][what]] for seed in SEEDS]
    )


def by_need(values: np.ndarray, split: str) -> str:
    """Means over the tasks that need no call, one, and two; `values` has the shape (seeds, tasks)."""
    env, needs = environment(FIXED, split), []
    for task in held_out(env, split, values.shape[1]):
        env.reset(seed=task.seed)
        needs.append(env._state.missing)
    places = [[n for n, need in enumerate(needs) if need == kind] for kind in env.kinds]
    return ", ".join(f"{values[:, place].mean():.2f}" if place else "-" for place in places)


def table(result: Mapping[str, Any]) -> Table:
    """Success and calls of each arm before and after training, and success against the fixed order."""
    runs, rows = result["runs"], []
    for arm in ARMS:
        success = [over_seeds(measured(runs, arm, when, "solved")) for when in ("before", "after")]
        calls = [
            over_seeds(measured(runs, arm, when, "calls"), share=False)
            for when in ("before", "after")
        ]
        solved = measured(runs, arm, "after", "solved") - measured(runs, FIXED, "after", "solved")
        gain = gain_over_seeds(solved)
        gained = "" if arm == FIXED else f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
        needs = [
            by_need(measured(runs, arm, "after", what), "test") for what in ("solved", "calls")
        ]
        row = [*map(shown, success), needs[0], *map(shown, calls), needs[1], gained]
        rows.append([arm, f"{rate_of(runs, arm):g}", *row])
    heads = [
        f"{what}{more}"
        for what in ("success", "calls")
        for more in (" before", " after", ", tasks that need 0, 1, 2 calls")
    ]
    return ["", "rate", *heads, "success above the fixed order"], rows


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing and writes the results."""
    options = options_on(
        BASE, "benchmarks.priming.crew", __doc__.splitlines()[0], RESULTS, TOKENS, argv
    )
    settings = {**SETTINGS, "tokens": options.tokens, "rates": RATES, "seeds": SEEDS}

    def measure(cell: Cell) -> dict[str, Any]:
        return trained(options.base, cell, options.tokens, TASKS)

    result = run_missing(options, due, measure, {"settings": settings}, key="runs")
    print(*table(result)[1], sep="\n")


if __name__ == "__main__":
    main()
