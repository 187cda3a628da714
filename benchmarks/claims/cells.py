"""One cell: an arm trained on a ground with a rate and a seed, and the tasks that it then solves.

A training goes on until it has both its tokens and its updates. Its weights are read twice: after the
first step at which the tokens are reached, and after the last update that counts. The learning rate is constant, so that neither
reading depends on where the training ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from benchmarks.claims.experiments import (
    ARMS,
    EXCHANGED,
    MORE,
    SEEDS,
    TEST_TASKS,
    TUNING,
    VALIDATION_TASKS,
    Arm,
    Ground,
)
from benchmarks.evidence import solved_digits
from pettingllms.envs import make
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Task

READINGS = ("tokens", "updates")
FIXED: Mapping[str, Any] = {
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "scoring_threads": 1,
    "max_steps": 100_000,
}
"""Of all arms; steps are counted here."""
IDLE = (
    *FIXED,
    *("max_tokens", "eval_steps", "eval_tasks", "save_steps"),
    *("tokens_per_batch", "gradient_checkpointing"),
)
"""Settings of a ground that change nothing that is measured: overridden, or of what no cell does, or only how much is
computed at a time, by which results differ as much as they do by rounding."""
UNNAMED: Mapping[str, Any] = {
    "num_iterations": 1,
    "epsilon_high": None,
    "silent_groups": "drop",
    "temperature": 1.0,
}
"""What embedded models have where a setting is not named, so that naming one of them makes no other cell."""
State = Mapping[str, Mapping[str, torch.Tensor]]
"""Policy -> its tensors."""


class Cell(NamedTuple):
    """What is trained, and with which numbers."""

    ground: str
    arm: str
    scale: float
    """Its learning rate is this times that of the ground."""
    seed: int

    @property
    def name(self) -> str:
        """Names it on the command line and in the results."""
        return f"{self.ground}/{self.arm}/{self.scale:g}/{self.seed}"

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name.replace('/', '__').replace(' ', '-').replace(',', '').replace(':', '')}.json"


def cell_of(name: str) -> Cell:
    """The cell of a name.

    Raises:
        ValueError: it has not four parts, or the last two are not numbers.
    """
    try:
        ground, arm, scale, seed = name.split("/")
        return Cell(ground, arm, float(scale), int(seed))
    except ValueError as error:
        raise ValueError(
            f"a cell is GROUND/ARM/RATE/SEED, as in 'math/AT-GRPO/1/0', and not {name!r}"
        ) from error


def material(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a ground's or an arm's settings that can change what is measured."""
    return {
        name: value
        for name, value in settings.items()
        if name not in IDLE and not (name in UNNAMED and value == UNNAMED[name])
    }


class Reading(NamedTuple):
    """A team after some of its training."""

    state: State
    steps: int
    tokens: int


def measured(cell: Cell, ground: Ground) -> dict[str, Any]:
    """Trains and plays a cell.

    Returns:
        For each reading and line-up a digit for each task, 1 where it was solved; what the training
        took until then; tokens and decisions by step; CPU-seconds of all of it.
    """
    torch.set_num_threads(1)
    started, arm = os.times(), ARMS[cell.arm]
    env = make(ground.env, **_arguments(ground, arm))
    roles = roles_of(env)
    parts = [{"train_roles": role} for role in roles] if arm.apart else [{}]
    policies = None
    readings: dict[str, list[Reading]] = {name: [] for name in READINGS}
    curves = []
    for changes in parts:
        trainer = trainer_of(cell, ground, {**arm.settings, **changes})
        policies = trainer.policies
        last_readings, curve = trained(trainer, ground.tokens // len(parts), ground.updates)
        curves.append(curve)
        for name, reading in last_readings.items():
            readings[name].append(reading)
    assert policies is not None
    result: dict[str, Any] = {"cell": cell.name, "rate": _rate(cell, ground), "curves": curves}
    # By the updates of each part, since readings of the same weights need not be played twice.
    digits: dict[tuple[int, ...], str] = {}
    for name, several in readings.items():
        for reading in several:
            for policy, state in reading.state.items():
                policies.load_state(policy, state)
        weights = tuple(reading.steps for reading in several)
        if weights not in digits:
            digits[weights] = played(cell, ground, policies)
        result[name] = {
            "steps": max(reading.steps for reading in several),
            "tokens": sum(reading.tokens for reading in several),
            "own": digits[weights],
        }
        # An exchange is no matter of cost: it is played once.
        for lineup in arm.also if name == READINGS[0] and cell.seed not in TUNING else ():
            result[name][lineup] = played(cell, ground, policies, lineup)
    ended = os.times()
    result["cpu_s"] = round(sum(ended[:4]) - sum(started[:4]), 1)
    return result


def trainer_of(
    cell: Cell, ground: Ground, arm_settings: Mapping[str, Any], callbacks: Sequence[Callback] = ()
) -> ATGRPO:
    """The trainer of a cell, before its first step."""
    names = {field.name for field in fields(ATGRPOConfig)}
    settings = {"policies": "per-role", **ground.settings, **arm_settings, **FIXED}
    settings = {name: value for name, value in settings.items() if name in names - {"max_tokens"}}
    settings |= {"learning_rate": _rate(cell, ground), "seed": cell.seed}
    env = make(ground.env, **_arguments(ground, ARMS[cell.arm]))
    config = ATGRPOConfig(env=ground.env, model=str(ground.model), **settings)
    mapping = parse_policies(config.policies, roles_of(env))
    policies = load_policies(ground.model, mapping, seed=cell.seed)
    return ATGRPO(config, env, policies, callbacks=callbacks)


def trained(
    trainer: ATGRPO, tokens: int, updates: int
) -> tuple[dict[str, Reading], list[tuple[int, float]]]:
    """Trains until it has the tokens and the updates.

    Returns:
        The readings, and after each step the tokens so far and the decisions of an episode.
    """
    readings: dict[str, Reading] = {}
    curve = []
    while len(readings) < len(READINGS):
        _, metrics = trainer.train_step()
        curve.append((trainer.tokens, round(metrics["turns"], 2)))
        due = {"tokens": trainer.tokens >= tokens, "updates": trainer.step >= updates}
        for name in READINGS:
            if due[name] and name not in readings:
                state = {policy: trainer.policies.state(policy) for policy in trainer.trained}
                readings[name] = Reading(state, trainer.step, trainer.tokens)
    return readings, curve


def played(cell: Cell, ground: Ground, policies: PolicySet, lineup: str = "own") -> str:
    """A digit for each of the cell's tasks, 1 where the team solved it, sampled."""
    tuning = cell.seed in TUNING
    env = make(ground.env, split="val" if tuning else "test", **_arguments(ground, ARMS[cell.arm]))
    roles = roles_of(env)
    answers = [*roles[1:], roles[0]] if lineup == EXCHANGED else roles
    seats = {role: policies.policy_for(other) for role, other in zip(roles, answers, strict=True)}
    sampling = Sampling(ground.settings["max_completion_length"], seed=cell.seed)
    episodes = []
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(tasks_of(cell.seed), sampling):
            episodes += roll_out(env, policies, seats, pool, chunk, sampling)
    return solved_digits(episodes)


def tasks_of(seed: int) -> Sequence[Task]:
    """The tasks of a seed, which no other seed has: of the validation split for a tuning seed, else of the test split.

    Raises:
        ValueError: a seed that is neither.
    """
    seeds, split, count = (
        (TUNING, "val", VALIDATION_TASKS)
        if seed in TUNING
        else ((*SEEDS, *MORE), "test", TEST_TASKS)
    )
    first = seeds.index(seed) * count
    return [Task(f"{split}:{number}", number) for number in range(first, first + count)]


def _arguments(ground: Ground, arm: Arm) -> dict[str, Any]:
    return {**ground.arguments, **arm.arguments}


def _rate(cell: Cell, ground: Ground) -> float:
    return float(cell.scale * ground.settings["learning_rate"])
