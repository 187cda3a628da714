"""What `benchmarks.peers` notes of a training: both clocks by part, the curve, memory, adapters."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

State = dict[str, Any]


class Meter:
    """Wall and CPU seconds of the parts of training."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Adds the time of the block to `part`."""
        begun = self.now()
        yield
        self.add(part, begun)

    def add(self, part: str, begun: tuple[float, float]) -> None:
        """Adds the time since `begun` to `part`."""
        for which, (now, then) in enumerate(zip(self.now(), begun, strict=True)):
            self.spent[part][which] += now - then

    def wrap(self, owner: object, method: str, part: str) -> None:
        """Times a method of one object."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.time(part):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)

    @staticmethod
    def now() -> tuple[float, float]:
        """Both clocks."""
        return time.perf_counter(), time.process_time()


class Record:
    """The curve of a run, and the adapters along it."""

    def __init__(self, limit: int, every: int, state: Callable[[], State]) -> None:
        self.meter, self.limit, self.every, self.state = Meter(), limit, every, state
        self.rows: list[dict[str, Any]] = [
            {"step": 0, "tokens": 0, "seconds": 0.0, "cpu_seconds": 0.0, "success": None}
        ]
        self.states = {0: state()}
        self.start_mib, self.peak_mib = memory("VmRSS"), 0.0
        self.begun = self.meter.now()

    def step(self, tokens: int, success: float, rate: float) -> bool:
        """Takes note of a finished step; whether that was the last."""
        self.meter.add("training", self.begun)
        last = self.rows[-1]
        seconds, cpu = self.meter.spent["training"]
        row = {"step": last["step"] + 1, "tokens": last["tokens"] + tokens}
        row |= {"seconds": seconds, "cpu_seconds": cpu, "success": success, "learning_rate": rate}
        self.rows.append(row)
        self.peak_mib, done = memory("VmHWM"), row["tokens"] >= self.limit
        if done or row["tokens"] // self.every > last["tokens"] // self.every:
            self.states[row["step"]] = self.state()
            print(f"  {row['tokens']:,} tokens, {cpu:.0f} CPU-s, {success:.2f}", flush=True)
        self.begun = self.meter.now()
        return done


def memory(field: str) -> float:
    """MiB of this process: `VmRSS` is what it has, `VmHWM` the most it had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
