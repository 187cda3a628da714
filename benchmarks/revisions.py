"""Training steps of the embedded model, of this revision against an earlier one.

    python -m benchmarks.revisions 6e5ef56

The earlier revision is checked out into a temporary folder, and both run with the installed libraries. They take turns,
run by run, each with its own embedded model and the same settings (`SETTINGS`); environments
are what each revision has by default. With one thread, the default, work is compared, also where other cores
are taken; `--threads 0` leaves each revision the cores that it takes by itself, on a machine without other work. Compared are seconds of a step and of a generated token, since rules of
environments and prompts changed between revisions, and with them how much a step generates. A step is
the median of those of a run but for the first two; reported are medians of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import publish

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
NOW, THEN = "now", "then"


def steps(tree: Path, env: str, options: argparse.Namespace, out: Path) -> Mapping[str, float]:
    """Run a training of the package in `tree` and return the medians over its steps."""
    settings = {**SETTINGS, "env": env, "max-steps": options.steps, "output-dir": out}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "pettingllms.cli.train", *words]
    place = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    if options.threads:
        place["OMP_NUM_THREADS"] = str(options.threads)
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree} ended with {done.stderr[-2000:]}")
    lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"][WARM:]
    medians = {
        name: statistics.median(row[f"time/{name}"] for row in rows)
        for name in ("step", "sample", "update")
    }
    tokens = statistics.median(row["num_tokens"] for row in rows)
    # Over all steps, since a step with more tokens takes longer.
    rate = sum(row["time/step"] for row in rows) / sum(row["num_tokens"] for row in rows)
    return medians | {"tokens": tokens, "token": rate}


def compare(env: str, earlier: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds in which both revisions train in turn."""
    found: dict[str, list[Mapping[str, float]]] = {NOW: [], THEN: []}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, tree in ((THEN, earlier), (NOW, HERE)):
                found[name].append(steps(tree, env, options, Path(folder) / name))
        pair = [found[name][-1]["step"] for name in (NOW, THEN)]
        print(f"{env}, round {number + 1} of {options.rounds}: {pair[0]:.2f} s, {pair[1]:.2f} s")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="an earlier commit of this repository")
    parser.add_argument("--envs", nargs="+", default=["sokoban", "plan_path", "math", "sudoku"])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run (default: 10)")
    parser.add_argument("--threads", type=int, default=1, help="0: as many as each takes by itself")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count; ask for more")
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--detach", str(earlier), options.revision], check=True)
        try:
            rows = [compare(env, earlier, options) for env in options.envs]
        finally:
            subprocess.run([*git, "remove", "--force", str(earlier)], check=True)
    publish("Training steps over those of an earlier revision", options, rows)


if __name__ == "__main__":
    main()
