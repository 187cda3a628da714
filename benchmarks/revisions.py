"""Training steps of the embedded model, of this revision against an earlier one.

    python -m benchmarks.revisions 6e5ef56

The earlier revision is checked out into a temporary folder, and both run with the installed libraries, each with its
own embedded model and the same settings (`SETTINGS`); environments are what each revision has by default. They take
turns step by step, and the one whose turn it is not stands still: a machine whose speed changes within
minutes meets both. With one thread, the default, work is compared, also where other cores are taken;
`--threads 0` leaves each revision the cores that it takes by itself, on a machine without other work. Compared are
seconds of a step and of a generated token, since rules of environments and prompts changed between revisions, and with
them how much a step generates. A step is the median of those of a run but for the first two; sampling is what is left
of a step without its update, scoring included. Reported are medians of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import publish
from benchmarks.options import Options

HERE = Path(__file__).parent.parent
SETTINGS = {
    "policies": "per-role",
    "model": "pettingllms/models/tiny",
    "num-generations": 8,
    "tasks-per-step": 16,
    "max-completion-length": 96,
    "eval-tasks": 1,
    "eval-steps": 0,
}
WARM = 2
"""Steps at the start of a run that do not count."""
POLL = 0.01
"""Seconds between two looks for a new row."""
NOW, THEN = "now", "then"


class Training:
    """A training in a process of its own, which stands still but while it is its turn."""

    def __init__(self, tree: Path, settings: Mapping[str, Any], threads: int, out: Path) -> None:
        words = [
            word
            for name, value in {**settings, "output-dir": out}.items()
            for word in (f"--{name}", str(value))
        ]
        place = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        if threads:
            place["OMP_NUM_THREADS"] = str(threads)
        self.command = [sys.executable, "-m", "pettingllms.cli.train", *words]
        self.metrics = out / "metrics.jsonl"
        self.seconds: list[float] = []
        self.done = False
        self.errors = out.with_suffix(".err").open("w+")
        # A session of its own: workers that grade and play stop and continue with it.
        self.process = subprocess.Popen(
            self.command,
            cwd=tree,
            env={**os.environ, **place},
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )

    def step(self) -> None:
        """Let it run until it has written the row of one more step, and time that; or to its end."""
        os.killpg(self.process.pid, signal.SIGCONT)
        start, wanted = time.perf_counter(), len(self.seconds) + 1
        size = -1
        while True:
            ended = self.process.poll() is not None
            found = self.metrics.stat().st_size if self.metrics.exists() else 0
            if found != size and len(self.rows()) >= wanted:
                break
            if ended:
                self._conclude()
                return
            size = found
            time.sleep(POLL)
        self.seconds.append(time.perf_counter() - start)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGSTOP)

    def _conclude(self) -> None:
        self.done = True
        if self.process.returncode:
            self.errors.seek(0)
            message = self.errors.read()[-2000:]
            raise SystemExit(f"{' '.join(self.command)} ended with {message}")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of training steps so far; a line is written at once."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == "train"]

    def medians(self) -> Mapping[str, float]:
        """Seconds of a step and of its parts, its tokens, and seconds of a token."""
        rows, seconds = self.rows()[WARM:], self.seconds[WARM:]
        updates = [row["time/update"] for row in rows]
        tokens = [row["num_tokens"] for row in rows]
        return {
            "step": statistics.median(seconds),
            "update": statistics.median(updates),
            # The clock of sampling would count the pause before it.
            "sample": statistics.median(
                step - update for step, update in zip(seconds, updates, strict=True)
            ),
            "tokens": statistics.median(tokens),
            # Over all steps, since a step with more tokens takes longer.
            "token": sum(seconds) / sum(tokens),
        }

    def end(self) -> None:
        """End a training that has not ended by itself."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()


@contextlib.contextmanager
def in_turn(
    earlier: Path, settings: Mapping[str, Any], threads: int
) -> Iterator[Mapping[str, Training]]:
    """Yield a training of each revision, which have taken turns to the last step of both."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pair = {}
        for name, tree in ((THEN, earlier), (NOW, HERE)):
            pair[name] = Training(tree, settings, threads, Path(folder) / name)
            stack.callback(pair[name].end)
            pair[name].step()
        while left := [training for training in pair.values() if not training.done]:
            for training in left:
                training.step()
        yield pair


def main_job(earlier: Path, threads: int) -> dict[str, Any]:
    """Train once with the options of each revision's own README, from the first step to the last."""
    with in_turn(earlier, {"env": "coding", "policies": "per-role"}, threads) as pair:
        # The time of the first step holds the start and the evaluation before it as well.
        seconds = {name: sum(each.seconds[1:]) for name, each in pair.items()}
        print(f"main job: {seconds[NOW]:.0f} s, {seconds[THEN]:.0f} s", flush=True)
        return {
            "environment": "main job",
            **{f"{name}, s": seconds[name] for name in (THEN, NOW)},
            **{f"{name}, steps": len(pair[name].seconds) for name in (THEN, NOW)},
            "whole": round(seconds[NOW] / seconds[THEN], 3),
        }


def compare(env: str, earlier: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds in which both revisions train in turn."""
    found: dict[str, list[Mapping[str, float]]] = {NOW: [], THEN: []}
    for number in range(options.rounds):
        settings = {**SETTINGS, "env": env, "max-steps": options.steps}
        with in_turn(earlier, settings, options.threads) as pair:
            for name, training in pair.items():
                found[name].append(training.medians())
        now, then = (found[name][-1]["step"] for name in (NOW, THEN))
        print(
            f"{env}, round {number + 1} of {options.rounds}: {now:.2f} s, {then:.2f} s", flush=True
        )
    return {
        "environment": env,
        **{f"{name}, s": _median(found[name], "step") for name in (THEN, NOW)},
        **{f"{name}, tokens": round(_median(found[name], "tokens")) for name in (THEN, NOW)},
        **{part: _ratios(found, part) for part in ("step", "sample", "update")},
        "token": _ratios(found, "token"),
    }


def _median(found: Sequence[Mapping[str, float]], part: str) -> float:
    return statistics.median(one[part] for one in found)


def _ratios(found: Mapping[str, Sequence[Mapping[str, float]]], part: str) -> list[float]:
    """Median, least and greatest of the rounds' ratios."""
    pairs = zip(found[NOW], found[THEN], strict=True)
    ratios = [now[part] / then[part] for now, then in pairs]
    return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]


def main() -> None:
    """Parse the arguments, check the earlier revision out, and print and write the table."""
    parser = Options(__doc__)
    parser.add_argument("revision", help="an earlier commit of this repository")
    parser.add_argument("--envs", nargs="+", default=["sokoban", "plan_path", "math", "sudoku"])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run (default: 10)")
    parser.add_argument("--threads", type=int, default=1, help="0: as many as each takes by itself")
    parser.add_argument(
        "--main-job", action="store_true", help="the whole training of each README, once"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count; ask for more")
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--detach", str(earlier), options.revision], check=True)
        try:
            if options.main_job:
                rows = [main_job(earlier, options.threads)]
            else:
                rows = [compare(env, earlier, options) for env in options.envs]
        finally:
            subprocess.run([*git, "remove", "--force", str(earlier)], check=True)
    publish("Training steps over those of an earlier revision", options, rows)


if __name__ == "__main__":
    main()
