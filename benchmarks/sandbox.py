"""Seconds of running one small program: both back ends, beside the other ways to do it.

    python -m benchmarks.sandbox

Contestants take turns on one core, so that a busy moment of the machine meets all of them. New
interpreters are started from an empty virtual environment made for the purpose, without the
caller's packages: what those add to the start of an interpreter is no property of any way to run
programs. What the others do is reimplemented from their sources: `python3 -X dev` is a new
interpreter with the flags of the paper's code (development mode, tracemalloc, the variables of the
caller, output to a file); `in process` forks the caller and runs the program by `exec` with an
alarm, without any isolation. Neither is safe for programs of a model. CPU is user and system time of everything that took part, where the
kernel tells.

The last rows go from one worker, which shares one core with its caller, to two workers and two
cores. `KEPT` shows what the machine allows: each worker and its caller, a thread of this
process, have a core of their own. In `PLACED` workers are as the sandbox starts them, and the kernel
moves callers as it likes. `TOGETHER` is one call of many programs, which the sandbox divides. The ratio
is the median over turns, in each of which both sides ran one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.speed_tables import KEPT, PLACED, TOGETHER, text
from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.together import SharedRuns
from pettingllms.sandbox.workers import ProcessChannel

PROGRAM = "print(int(input()) * 2)"
CASE = Case("21\n")
TESTS = [Case(f"{n}\n") for n in range(6)]
TURN, SLOW_TURN = 10, 2
"""Runs of a contestant in one turn; CPU time is only known to a hundredth of a second."""
SLOW = ("docker run --rm", "python3 -X dev")
TURN_RUNS = 128
"""Of one turn on the way from 1 core to 2: long against the start of a thread."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints the tables, and writes them as JSON where asked."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=20, help="turns of every contestant")
    options.add_argument("--core", type=int, default=0, help="the core that all share")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args()
    rows = speed(arguments)
    report("sandbox", arguments, rows)


def speed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a contestant, and one for each way of comparing two workers with one."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {arguments.core})
    try:
        with contextlib.ExitStack() as stack:
            rows = compare(dict(contestants(stack)), arguments.rounds)
    finally:
        os.sched_setaffinity(0, everywhere)
    return [*rows, *scaling(arguments.rounds, arguments.core)]


Contestant = tuple[Callable[[], object], Callable[[], float] | None, int]
"""What to do, CPU seconds used so far by the processes that do it, and the runs it counts for."""


def contestants(stack: contextlib.ExitStack) -> Iterator[tuple[str, Contestant]]:
    """Name -> what takes part."""
    python = plain_python(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    yield "python3 -I -S", (lambda: interpreter(python, "-I", "-S"), children_cpu, 1)
    yield "python3", (lambda: interpreter(python), children_cpu, 1)
    embedded = stack.enter_context(EmbeddedSandbox(1))
    yield "embedded", (lambda: embedded.run([PROGRAM], [CASE]), worker_cpu(embedded), 1)
    yield (
        "embedded, 6 tests",
        (lambda: embedded.run([PROGRAM], TESTS), worker_cpu(embedded), len(TESTS)),
    )
    yield (
        "embedded, 6 tests, shared",
        (lambda: SharedRuns(embedded)([PROGRAM], TESTS), worker_cpu(embedded), len(TESTS)),
    )
    try:
        from pettingllms.sandbox.docker import DockerSandbox, image_name

        pool = stack.enter_context(DockerSandbox(1))
    except SandboxUnavailable as error:
        print(f"without docker: {error}", file=sys.stderr)
    else:
        yield "docker pool", (lambda: pool.run([PROGRAM], [CASE]), None, 1)
        name = image_name()
        yield "docker run --rm", (lambda: docker_run(name), None, 1)
    yield "python3 -X dev", (lambda: development_mode(python), children_cpu, 1)
    yield "in process, 6 tests", (in_process, children_cpu, len(TESTS))


def compare(taking_part: dict[str, Contestant], rounds: int) -> list[dict[str, Any]]:
    """Let all take turns of several runs each; medians of wall-clock time, mean CPU."""
    seconds: dict[str, list[float]] = {name: [] for name in taking_part}
    cpu: dict[str, list[float]] = {name: [] for name in taking_part}
    for number in range(rounds + 1):
        for name, (act, used, _) in taking_part.items():
            times = SLOW_TURN if name in SLOW else TURN
            ours, theirs = cpu_of(resource.RUSAGE_SELF), used() if used else 0.0
            for _ in range(times):
                begun = time.perf_counter()
                act()
                if number:
                    seconds[name].append(time.perf_counter() - begun)
            if number:
                spent = cpu_of(resource.RUSAGE_SELF) - ours
                if used:
                    cpu[name].append((spent + used() - theirs) / times)
    first = next(iter(taking_part))
    rows = []
    for name, (_, _, runs) in taking_part.items():
        wall = statistics.median(seconds[name])
        rows.append(
            {
                "way": name,
                "runs": runs,
                "wall p50 ms": wall * 1000,
                "wall min ms": min(seconds[name]) * 1000,
                "wall p95 ms": float(np.quantile(seconds[name], 0.95, method="weibull")) * 1000,
                "CPU ms": mean(cpu[name], 0.001),
                "wall / python3": wall / statistics.median(seconds[first]),
                "CPU / python3": mean(cpu[name], statistics.mean(cpu[first])),
            }
        )
    return rows


def mean(values: list[float], unit: float) -> float | None:
    """Their mean in `unit`; None where the kernel does not tell."""
    return statistics.mean(values) / unit if values else None


def plain_python(folder: Path) -> str:
    """The interpreter of a new virtual environment without packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python3")


def plain_variables() -> dict[str, str]:
    """The caller's environment without what is about its own Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "COVERAGE"))
    }


def interpreter(python: str, *flags: str) -> None:
    """A new interpreter, with nothing around it."""
    subprocess.run(
        (python, *flags, "-c", PROGRAM),
        input=CASE.stdin.encode(),
        capture_output=True,
        env=plain_variables(),
        check=True,
    )


def development_mode(python: str) -> None:
    """As in the paper's code: development mode, tracemalloc, the whole environment, a file."""
    environment = {**plain_variables(), "PYTHONTRACEMALLOC": "5"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "out").open("wb") as out:
        script = Path(folder) / "script.py"
        script.write_text(PROGRAM)
        subprocess.run(
            (python, "-X", "dev", str(script)),
            input=CASE.stdin.encode(),
            stdout=out,
            stderr=out,
            env=environment,
            check=True,
        )


def in_process() -> None:
    """As in LiveCodeBench: one forked process that runs all tests by `exec`, with an alarm."""
    pid = os.fork()
    if pid == 0:
        for test in TESTS:
            signal.alarm(6)
            sys.stdin = io.StringIO(test.stdin)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(PROGRAM, "program", "exec"), {})  # noqa: S102 - what is measured
            signal.alarm(0)
        os._exit(0)
    os.waitpid(pid, 0)


def docker_run(image: str) -> None:
    """A container for one run, as a careful user would start it."""
    command = ["docker", "run", "--rm", "-i", "--network", "none", "--read-only"]
    command += ["--cap-drop", "ALL", "--entrypoint", "python3", image, "-I", "-S", "-c", PROGRAM]
    subprocess.run(command, input=CASE.stdin.encode(), capture_output=True, check=True)


def cpu_of(who: int) -> float:
    """User and system seconds."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def children_cpu() -> float:
    """CPU seconds of all processes that this one has waited for."""
    return cpu_of(resource.RUSAGE_CHILDREN)


def worker_cpu(sandbox: PooledSandbox) -> Callable[[], float]:
    """CPU seconds of the workers of `sandbox` and of the programs that they have waited for."""

    def used() -> float:
        channels = [link.channel for link in sandbox._pool._all]
        firsts = [c.pid for c in channels if isinstance(c, ProcessChannel)]
        # The first process, the worker and its fork server; programs come and go below them.
        return sum(cpu_of_process(pid) for first in firsts for pid in tree(first)[:3])

    return used


def worker_pids(sandbox: PooledSandbox) -> list[int]:
    """The processes of the workers that are running now."""
    channels = [link.channel for link in sandbox._pool._all]
    return [pid for c in channels if isinstance(c, ProcessChannel) for pid in tree(c.pid)]


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(other for child in below for other in tree(int(child)))]


def cpu_of_process(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) * TICK_S


Callers = list[tuple[PooledSandbox, set[int], int]]
"""For each caller: its sandbox, the cores it may use, and the programs of one call."""


def scaling(turns: int, core: int) -> list[dict[str, Any]]:
    """Runs a second of one worker on one core and of two on two, in turns: one row a way."""
    other = next(iter(os.sched_getaffinity(0) - {core}), core)
    here, there, both = {core}, {other}, {core, other}
    with EmbeddedSandbox(1) as one, EmbeddedSandbox(1) as second, EmbeddedSandbox(2) as two:
        two.run([PROGRAM] * 4, [CASE])
        for sandbox, cores in ((one, here), (second, there)):
            # Workers are started by a thread that lasts, so they have its cores and not their caller's.
            sandbox.run([PROGRAM] * 2, [CASE])
            for pid in worker_pids(sandbox):
                os.sched_setaffinity(pid, cores)
        alone: Callers = [(one, here, 1)]
        ways: dict[str, tuple[Callers, Callers]] = {
            KEPT: (alone, [*alone, (second, there, 1)]),
            PLACED: (alone, [(two, both, 1)] * 2),
            TOGETHER: ([(one, here, TURN_RUNS)], [(two, both, TURN_RUNS)]),
        }
        rates: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in ways}
        for turn in range(turns + 1):
            for way, sides in ways.items():
                for callers, rates_of_side in zip(sides, rates[way], strict=True):
                    rate = runs_a_second(callers)
                    if turn:
                        rates_of_side.append(rate)
    rows = []
    for way, (slower, faster) in rates.items():
        on_one, on_two = statistics.median(slower), statistics.median(faster)
        # Of neighbors in time: a machine that others use is now faster and now slower.
        ratios = [two / one for one, two in zip(slower, faster, strict=True)]
        row = {"way": way, "runs": turns * TURN_RUNS, "runs/s, 1 core": on_one}
        row |= {"runs/s, 2 cores": on_two, "2 / 1": statistics.median(ratios)}
        rows.append({**row, "2 / 1, middle half": quarters(ratios)})
    return rows


def quarters(values: list[float]) -> str:
    """The first and the third quarter."""
    low, high = np.quantile(values, (0.25, 0.75), method="weibull")
    return f"{low:.2f} to {high:.2f}"


def runs_a_second(callers: Callers) -> float:
    """The rate of these callers together, each of them a thread."""
    runs = TURN_RUNS // len(callers)
    threads = [threading.Thread(target=call, args=(*caller, runs)) for caller in callers]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return TURN_RUNS / (time.perf_counter() - begun)


def call(sandbox: PooledSandbox, cores: set[int], at_once: int, runs: int) -> None:
    """So many runs from this thread, which keeps to `cores`."""
    os.sched_setaffinity(0, cores)
    for _ in range(runs // at_once):
        sandbox.run([PROGRAM] * at_once, [CASE])


def report(title: str, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Prints the rows, and writes them as JSON where asked."""
    print(text(rows))
    if arguments.json:
        settings = {key: str(value) for key, value in vars(arguments).items() if key != "json"}
        versions = {
            "python": platform.python_version(),
            "kernel": platform.release().partition("-")[0],
        }
        content = {"title": title, "settings": settings, "versions": versions, "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
