"""What do workers on Ray cost, do they scale, and do kills change a bit?

    python -m benchmarks.scale overhead --steps 4
    python -m benchmarks.scale chaos --runs 20
    python -m benchmarks.scale sleepers --workers 1 4 16 64
    python -m benchmarks.scale simulate

`overhead` compares CPU-seconds a step in one process and with one worker, after the first step, Ray's own
processes included. `chaos` kills and stops workers, learners, nodes and drivers at seeded moments of a short training, and
compares every record, weight and optimizer state with an undisturbed training in one process. `sleepers`
has workers whose model is a clock play shards of one step, to see what Ray and the driver add. `simulate`: `benchmarks.schedules`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch

from benchmarks.options import Options
from benchmarks.schedules import simulate
from benchmarks.sleeper import Sleeper
from pettingllms.assembly import build_policies, plan_run
from pettingllms.distributed.cluster import connected
from pettingllms.runs import checkpoints
from pettingllms.session import trainer_of
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve

SMALL: dict[str, Any] = {
    "tasks_per_step": 3,
    "tasks_per_shard": 1,
    "num_generations": 4,
    "num_iterations": 1,
}
"""Settings of a training that is as short as one can be."""
CODING: dict[str, Any] = {
    "env": "coding",
    "tasks_per_step": 16,
    "tasks_per_shard": 4,
    "num_generations": 8,
}
"""What `overhead` trains."""
KILLS = 3
"""How often a run of `chaos` that keeps its nodes and its driver is hit."""


def main() -> None:
    """Prints a row of JSON for each measurement, and writes all of them where asked."""
    options = Options(__doc__.splitlines()[0])
    kinds = ("overhead", "chaos", "sleepers", "simulate")
    options.add_argument("what", choices=kinds)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--runs", type=int, default=20, help="of chaos")
    options.add_argument("--seed", type=int, default=0, help="of the first run of chaos")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64], help="sleepers")
    options.add_argument("--seconds", type=float, default=5.0, help="a sleeper's shard")
    options.add_argument("--shards", type=int, default=512, help="of the sleepers' step")
    options.add_argument("--tasks", type=int, default=128, help="of a simulated step")
    options.add_argument("--at-once", type=int, help="of them that are played at a time")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args()
    if arguments.what == "overhead" and arguments.steps < 2:
        options.error(f"--steps {arguments.steps}: the first does not count; ask for 2 or more")
    measured: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "overhead": lambda: overhead(arguments.steps),
        "chaos": lambda: chaos(arguments.seed, arguments.runs, arguments.steps),
        "sleepers": lambda: sleepers(arguments.workers, arguments.shards, arguments.seconds),
        "simulate": lambda: simulated(arguments.tasks, arguments.at_once),
    }
    rows = measured[arguments.what]()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


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
            trainer_of(plan, policies, (), ray if plan.config.workers else None)
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
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                sha.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for entry in value:
                add(entry)
        else:
            sha.update(repr(value).encode())

    for value in (
        state.policies,
        state.optimizers,
        state.plugins,
        state.versions,
        state.tokens,
    ):
        add(value)
    return sha.hexdigest()


def actors(*kinds: str) -> list[int]:
    """Processes of workers or learners that this process has started, as Ray titles them."""
    pids = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = "".join(process.cmdline()[:1])
            if title.startswith(tuple(f"ray::{actor}" for actor in kinds)):
                pids.append(process.pid)
    return pids


def _of_time(name: str) -> bool:
    return name.startswith(("time/", "tokens_per_second", "workers/", "learners/"))


# --------------------------------------------------------------------------------- measurements


def overhead(steps: int) -> list[dict[str, Any]]:
    """CPU-seconds a step of the coding team, in one process and with one worker."""
    rows: list[dict[str, Any]] = []
    with connected(resolve(ATGRPOConfig(workers=3))) as ray:
        for workers in (0, 1):
            seconds: list[float] = []
            run(
                ray,
                steps,
                lambda _, seconds=seconds: seconds.append(_cpu_seconds()),  # type: ignore[misc]
                **CODING,
                workers=workers,
            )
            _print(
                rows, workers=workers, cpu_s_a_step=(seconds[-1] - seconds[1]) / (len(seconds) - 2)
            )
    _print(rows, ratio=rows[1]["cpu_s_a_step"] / rows[0]["cpu_s_a_step"])
    return rows


def simulated(tasks: int, at_once: int | None) -> list[dict[str, Any]]:
    """A step of an 8B model on 8 GPUs under several schedules."""
    rows: list[dict[str, Any]] = []
    for row in simulate(tasks, at_once):
        _print(rows, **row)
    return rows


def _cpu_seconds() -> float:
    """Of this process, all below it, and those of them that have ended."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def chaos(first: int, runs: int, steps: int) -> list[dict[str, Any]]:
    """Trainings in which processes are killed and stopped, against one that is left alone.

    Every fourth one has its driver killed and resumed, and every fourth one loses a node of a cluster.
    """
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {"env": "coding", "tasks_per_step": 2}
    alone = run(None, steps, **settings)
    command = cache(lambda: restarted(None, steps)[0])
    for seed in range(first, first + runs):
        began = time.perf_counter()
        if seed % 4 == 3:
            files_digest, hits = restarted(seed, steps)
            equal = files_digest == command()
        elif seed % 4 == 2:
            with losing_a_node(seed) as (ray, lose, hits):
                hit = run(ray, steps, lose, workers=2, worker_timeout=30.0, **settings)
            equal = hit == alone
        else:
            killer = _Killer(seed)
            try:
                with connected(resolve(ATGRPOConfig(workers=4))) as ray:
                    hit = run(ray, steps, killer.begin, workers=2, worker_timeout=30.0, **settings)
            finally:
                killer.over.set()
            equal, hits = hit == alone, killer.hits
        seconds = time.perf_counter() - began
        _print(rows, seed=seed, equal=equal, hits=hits, seconds=seconds)
    _print(rows, equal=sum(row["equal"] for row in rows), of=runs)
    return rows


def restarted(seed: int | None, steps: int) -> tuple[str, list[str]]:
    """The command, its driver killed twice and resumed; a digest of its files, and the kills.

    Args:
        seed: of the moments; None lets it run, in one process.
        steps: of training.
    """
    chance, hits = random.Random(seed), list[str]()
    with tempfile.TemporaryDirectory(prefix="p-") as name:
        folder, train = Path(name) / "run", [sys.executable, "-m", "pettingllms.cli.train"]
        options = {"max-steps": steps, "eval-steps": 0, "save-steps": 1, "tasks-per-step": 2}
        options |= {"tasks-per-shard": 1, "eval-tasks": 1, "workers": 0 if seed is None else 2}
        options |= {"num-iterations": SMALL["num_iterations"]}
        words = [*train, "--env", "coding", "--output-dir", str(folder)]
        words += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        while True:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                kill = seed is not None and len(hits) < 2
                process.wait(chance.uniform(5, 40) if kill else None)
                if process.returncode:
                    raise RuntimeError(f"{words} ended with {process.returncode}")
                break
            process.kill()
            process.wait()
            hits.append("SIGKILL driver")
            if any(folder.glob("checkpoints/step-*")):
                words = [*train, "--resume", str(folder)]
            else:
                shutil.rmtree(folder, ignore_errors=True)
        files = [*sorted(folder.glob("adapters/*/*.safetensors")), folder / "trajectories.jsonl"]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(), hits


@contextlib.contextmanager
def nodes() -> Iterator[Any]:
    """Ray's `Cluster` on this machine, whose head only drives: processes are on nodes that are added."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        # It notes its address in Ray's default folder, whatever temp_dir is, and does not make that
        # folder: on a machine that never ran Ray there is none.
        (Path(folder) / "ray").mkdir()
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
        with mock.patch.dict(os.environ, RAY_TMPDIR=folder):
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                yield cluster
            finally:
                cluster.shutdown()


@contextlib.contextmanager
def losing_a_node(seed: int) -> Iterator[tuple[Any, Callable[[ATGRPO], object], list[str]]]:
    """A cluster that loses one of its two nodes at a seeded moment.

    Yields:
        `ray`, connected to it; what is to be called before each step; what was hit.
    """
    import ray

    chance, hits, steps = random.Random(seed), list[str](), itertools.count()
    with nodes() as cluster:
        # Three have room for all learners and one worker: the other one waits.
        both = [cluster.add_node(num_cpus=3) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        at, which, delay = chance.randrange(2), chance.randrange(2), chance.uniform(0, 2)

        def lose() -> None:
            time.sleep(delay)
            cluster.remove_node(both[which], allow_graceful=False)
            hits.append(f"loss of node {which} in step {at}")

        losing = threading.Thread(target=lose)

        def before(_: ATGRPO) -> None:
            if next(steps) == at:
                losing.start()

        try:
            yield ray, before, hits
        finally:
            if losing.ident:
                losing.join()
            ray.shutdown()


class _Killer(threading.Thread):
    """Kills, or now and then stops, a worker or a learner at seeded intervals."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self._random = random.Random(seed)
        self.hits: list[str] = []
        self.over = threading.Event()

    def begin(self, _: ATGRPO) -> None:
        """Starts with the first step."""
        if not self.ident:
            self.start()

    def run(self) -> None:
        """Hits until it has done so often enough."""
        while len(self.hits) < KILLS and not self.over.wait(self._random.uniform(0.1, 1.5)):
            actor = self._random.choice(("RolloutWorker", "Learner"))
            number = signal.SIGSTOP if self._random.random() < 0.2 else signal.SIGKILL
            if targets := actors(actor):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(targets), number)
                    self.hits.append(f"{number.name} {actor}")


def sleepers(sizes: list[int], shards: int, seconds: float) -> list[dict[str, Any]]:
    """Shards of some seconds each, by 1 to 64 workers; a shard's record has 100 kB."""
    from pettingllms.distributed.fleet import Fleet

    rows: list[dict[str, Any]] = []
    with connected(resolve(ATGRPOConfig(workers=max(sizes)))) as ray:
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
