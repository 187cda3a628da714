"""Short trainings with and without Ray, and what two of them have to agree on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pettingllms.assembly import build_policies
from pettingllms.runs import checkpoints
from pettingllms.session import plan_run
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from tests.processes import descendants, eventually

SMALL: dict[str, Any] = {"tasks_per_step": 3, "tasks_per_shard": 1, "num_generations": 4}


def run(
    ray: Any, steps: int = 2, before: Callable[[ATGRPO], object] = lambda _: None, **settings: Any
) -> dict[str, Any]:
    """Trains some steps; what was recorded, and the state afterwards, as text that can be compared.

    Args:
        ray: connected; unused without workers.
        steps: of training.
        before: called before each step.
        settings: over `SMALL`.
    """
    plan = plan_run(ATGRPOConfig(**{**SMALL, **settings}))
    with contextlib.ExitStack() as stack:
        policies = build_policies(plan.config, plan.roles_to_policies)
        stack.enter_context(contextlib.closing(policies))
        trainer = stack.enter_context(
            plan._trainer(policies, (), ray if plan.config.workers else None)
        )
        records = []
        for _ in range(steps):
            before(trainer)
            trajectories, metrics = trainer.train_step()
            records += [repr(each) for each in trajectories]
            records.append(repr({k: v for k, v in metrics.items() if not is_time(k)}))
        state = checkpoints.capture(trainer)
        return {"records": records, "state": digest(state)}


def is_time(name: str) -> bool:
    return name.startswith(("time/", "tokens_per_second", "workers/"))


def digest(state: checkpoints.TrainerState) -> str:
    """Of every number of a trainer's state, those of the optimizers included."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            found.update(repr(value).encode())

    for part in (state.policies, state.optimizers, state.plugins, state.versions, state.tokens):
        add(part)
    return found.hexdigest()


def actors(kind: str) -> list[int]:
    """Processes of workers or learners that this process has started, as Ray titles them."""
    found = []
    for process in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_text().startswith(f"ray::{kind}"):
                found.append(process)
    return found


def hit(kind: str, number: signal.Signals) -> None:
    """Sends a signal to one actor, as soon as there is one."""
    os.kill(eventually(lambda: actors(kind))[0], number)
