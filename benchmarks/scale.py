"""What do workers on Ray cost, do they scale, and do kills change a bit?

    python -m benchmarks.scale overhead --steps 4
    python -m benchmarks.scale chaos --runs 20
    python -m benchmarks.scale sleepers --workers 1 4 16 64

`overhead` compares CPU-seconds a step in one process and with one worker, after the first step, Ray's own
processes included. `chaos` kills and stops workers and learners at seeded moments of a short training, and
compares every record, weight and optimizer state with an undisturbed training in one process. `sleepers`
has workers whose model is a clock play shards of one step, to see what Ray and the driver add.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.sleeper import Sleeper
from pettingllms.assembly import build_policies
from pettingllms.distributed.cluster import connected
from pettingllms.runs import checkpoints
from pettingllms.session import plan_run
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

SMALL: dict[str, Any] = {"tasks_per_step": 3, "tasks_per_shard": 1, "num_generations": 4}
"""Settings of a training that is as short as one can be."""


def main() -> None:
    """Prints a row of JSON for each measurement, and writes all of them where asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=("overhead", "chaos", "sleepers"))
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--runs", type=int, default=20, help="of chaos")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64], help="sleepers")
    options.add_argument("--seconds", type=float, default=5.0, help="a sleeper's shard")
    options.add_argument("--shards", type=int, default=512, help="of the sleepers' step")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    given = options.parse_args()
    if given.what == "overhead":
        rows = overhead(given.steps)
    elif given.what == "chaos":
        rows = chaos(given.runs, given.steps)
    else:
        rows = sleepers(given.workers, given.shards, given.seconds)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


# ------------------------------------------------------------------------------------ trainings


def run(
    ray: Any, steps: int = 2, before: Callable[[ATGRPO], object] = lambda _: None, **settings: Any
) -> dict[str, Any]:
    """Trains some steps; what was recorded, and a digest of the state afterwards.

    Args:
        ray: connected; unused without workers.
        steps: of training.
        before: called before each step, and after the last.
        settings: over `SMALL`.
    """
    plan = plan_run(ATGRPOConfig(**{**SMALL, **settings}))
    with contextlib.ExitStack() as stack:
        policies = build_policies(plan.config, plan.roles_to_policies)
        stack.enter_context(contextlib.closing(policies))
        trainer = stack.enter_context(
            plan.trainer(policies, (), ray if plan.config.workers else None)
        )
        records: list[str] = []
        for _ in range(steps):
            before(trainer)
            trajectories, metrics = trainer.train_step()
            records += map(repr, trajectories)
            records.append(repr({k: v for k, v in metrics.items() if not _of_time(k)}))
        before(trainer)
        return {"records": records, "state": digest(checkpoints.capture(trainer))}


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


def actors(*kinds: str) -> list[int]:
    """Processes of workers or learners that this process has started, as Ray titles them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = "".join(process.cmdline()[:1])
            if title.startswith(tuple(f"ray::{kind}" for kind in kinds)):
                found.append(process.pid)
    return found


def _of_time(name: str) -> bool:
    return name.startswith(("time/", "tokens_per_second", "workers/"))


# --------------------------------------------------------------------------------- measurements


def overhead(steps: int) -> list[dict[str, Any]]:
    """CPU-seconds a step of the coding team, in one process and with one worker."""
    rows: list[dict[str, Any]] = []
    with connected(ATGRPOConfig(workers=3)) as ray:
        for workers in (0, 1):
            seconds: list[float] = []
            settings = {"env": "coding", "tasks_per_step": 16, "tasks_per_shard": 4}
            run(
                ray,
                steps,
                lambda _, seconds=seconds: seconds.append(_cpu_seconds()),  # type: ignore[misc]
                **settings,
                num_generations=8,
                workers=workers,
            )
            _print(
                rows, workers=workers, cpu_s_a_step=(seconds[-1] - seconds[1]) / (len(seconds) - 2)
            )
    _print(rows, ratio=rows[1]["cpu_s_a_step"] / rows[0]["cpu_s_a_step"])
    return rows


def _cpu_seconds() -> float:
    """Of this process, all below it, and those of them that have ended."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def chaos(runs: int, steps: int) -> list[dict[str, Any]]:
    """Trainings in which processes are killed and stopped, against one that is left alone."""
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {"env": "coding", "tasks_per_step": 2}
    alone = run(None, steps, **settings)
    with connected(ATGRPOConfig(workers=4)) as ray:
        for seed in range(runs):
            killer, began = _Killer(seed), time.perf_counter()
            try:
                hit = run(ray, steps, killer.begin, workers=2, worker_timeout=30.0, **settings)
            finally:
                killer.over.set()
            seconds = time.perf_counter() - began
            _print(rows, seed=seed, equal=hit == alone, hits=killer.hits, seconds=seconds)
    _print(rows, equal=sum(row["equal"] for row in rows), of=runs)
    return rows


class _Killer(threading.Thread):
    """Kills, or now and then stops, a worker or a learner at seeded intervals."""

    def __init__(self, seed: int, most: int = 3) -> None:
        super().__init__(daemon=True)
        self._random, self._most = random.Random(seed), most
        self.hits: list[str] = []
        self.over = threading.Event()

    def begin(self, _: ATGRPO) -> None:
        """Starts with the first step."""
        if not self.ident:
            self.start()

    def run(self) -> None:
        """Hits until it has done so often enough."""
        while len(self.hits) < self._most and not self.over.wait(self._random.uniform(0.1, 1.5)):
            kind = self._random.choice(("RolloutWorker", "Learner"))
            number = signal.SIGSTOP if self._random.random() < 0.2 else signal.SIGKILL
            if targets := actors(kind):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(targets), number)
                    self.hits.append(f"{number.name} {kind}")


def sleepers(sizes: list[int], shards: int, seconds: float) -> list[dict[str, Any]]:
    """Shards of some seconds each, by 1 to 64 workers; a shard's record has 100 kB."""
    from pettingllms.distributed.fleet import Fleet

    rows: list[dict[str, Any]] = []
    with connected(ATGRPOConfig(workers=max(sizes))) as ray:
        worker = ray.remote(num_cpus=1)(Sleeper)
        for size in sizes:
            fleet = Fleet(worker.remote, size, timeout=600.0)
            with contextlib.closing(fleet):
                # All of them are there once as many jobs run side by side.
                for job in [fleet.submit("play", 5.0, b"") for _ in range(size)]:
                    job.result()
                count, reply = max(8, shards * size // max(sizes)), os.urandom(100_000)
                before, began = time.process_time(), time.perf_counter()
                for job in [fleet.submit("play", seconds, reply) for _ in range(count)]:
                    job.result()
                rate = count / (time.perf_counter() - began)
                driver = (time.process_time() - before) / count
                _print(rows, workers=size, shards_a_second=rate, driver_cpu_s_a_shard=driver)
    _print(rows, gain=rows[-1]["shards_a_second"] / rows[0]["shards_a_second"])
    return rows


def _print(rows: list[dict[str, Any]], **row: Any) -> None:
    rows.append(row)
    print(json.dumps(row), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
