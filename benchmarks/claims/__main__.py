"""Runs the experiments on the paper's claims, judges them, and writes `results/claims.json`.

    python -m benchmarks.priming.protocol                      the base of `signal`
    python -m benchmarks.claims --small                        about two CPU-hours
    python -m benchmarks.claims --medium                       what is published
    python -m benchmarks.claims [--only grouping] [--dry-run]  long trainings

Every cell is a command (`--cell NAME`, as `--dry-run` lists them) and is run once: a killed run goes on where it
was, and the same command in a second shell takes cells that nobody works on. What the published results hold with
the same settings is not run again, also on another machine; `--afresh` does. `--minutes 0` judges what is there.
All arms are swept over the same learning rates with seeds and tasks of their own; the best rate of each is then
trained with the seeds that count. Judging needs `benchmarks/requirements.txt`, in an environment of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims import experiments, report
from benchmarks.claims.cells import READINGS, Cell, cell_of, material, measured
from benchmarks.claims.experiments import (
    ARMS,
    EXPERIMENTS,
    RATES,
    SEEDS,
    TEST_TASKS,
    TUNING,
    VALIDATION_TASKS,
    Ground,
)
from benchmarks.evidence import revision
from benchmarks.options import Options, known
from pettingllms.data.rows import digest
from pettingllms.runs import versions

OUT = Path(__file__).parents[1] / "out" / "claims"
RESULTS = Path(__file__).parents[1] / "results" / "claims.json"
BUDGETS = {
    "small": "short trainings where they cost least: about two CPU-hours",
    "medium": "the same, and short trainings elsewhere: what is published",
}
"""Option -> what it says; without one, trainings are long."""


class Lab:
    """The cells of a set of experiments.

    Args:
        names: of the experiments.
        budget: small, medium or full.
        out: the folder of the cells.
        wanted: arms and grounds to leave all others out.
        before: published results, whose cells count as run.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        budget: str,
        out: Path,
        wanted: Sequence[str] = (),
        before: Path | None = None,
    ) -> None:
        # Small trainings are some of the medium ones; longer ones have the same names.
        self.budget, self.out = budget, out / ("long" if budget == "full" else "short")
        self.before: dict[str, Any] = {}
        if before is not None and before.is_file():
            self.before = json.loads(before.read_text(encoding="utf-8"))
        self.pairs: dict[tuple[str, str], Ground] = {}
        """Every ground with every arm that some experiment has there."""
        for name in names:
            for ground, arm, record in experiments.pairs(EXPERIMENTS[name], budget):
                if not wanted or {ground, arm} <= set(wanted):
                    self.pairs.setdefault((ground, arm), record)

    def found(self, cell: Cell) -> dict[str, Any] | None:
        """What a cell measured, if it has, with the settings of today."""
        path, record = self.out / cell.file, dict[str, Any]()
        if path.is_file():
            record = json.loads(path.read_text(encoding="utf-8"))
            return record if record["settings"] == self._settings(cell) else None
        if not self.before or self.before["given"].get(_group(cell)) != self._given(cell):
            return None
        now = self._base(self.pairs[cell.ground, cell.arm])
        if now and now != (self._base_before(cell.ground) or now):
            return None
        return self._published(cell)

    def _base(self, ground: Ground) -> str | None:
        """The digest of a ground's base; None where it is not here."""
        return _digest(ground.model) if ground.model.exists() else None

    def _base_before(self, name: str) -> str | None:
        """The digest of the published base; None where the results were judged without it."""
        ground: dict[str, str] = self.before.get("settings", {}).get("grounds", {}).get(name, {})
        return ground.get("model")

    def _published(self, cell: Cell) -> dict[str, Any] | None:
        """What the results hold of a cell; of a sweep that is the share of solved tasks, in no order."""
        rate = self.pairs[cell.ground, cell.arm].settings["learning_rate"] * cell.scale
        head = {"cell": cell.name, "rate": rate}
        if success := self.before["cells"].get(cell.name):
            return {**head, **success}
        if swept := self.before["sweeps"].get(cell.name):
            digits = {
                name: {"own": "1" * round(swept[name] * VALIDATION_TASKS)} for name in READINGS
            }
            for record in digits.values():
                record["own"] = record["own"].ljust(VALIDATION_TASKS, "0")
            return {**head, **swept, **digits}
        return None

    def rate(self, ground: str, arm: str) -> float | None:
        """The scale of the learning rate that solves most validation tasks; None before the sweep is done."""
        means = {}
        for scale in RATES:
            sweep = [self.found(Cell(ground, arm, scale, seed)) for seed in TUNING]
            if not all(sweep):
                return None
            means[scale] = np.mean([share(result[name]["own"]) for result in sweep if result for name in READINGS])  # fmt: skip
        return max(RATES, key=lambda scale: (means[scale], -scale))

    def cells(self) -> Iterator[Cell]:
        """All cells that can be named now, arm by arm: those of its sweep, then those that count."""
        for ground, arm in self.pairs:
            yield from (Cell(ground, arm, scale, seed) for seed in TUNING for scale in RATES)
            scale = self.rate(ground, arm)
            if scale is not None:
                seeds = experiments.seeds_of(self.pairs[ground, arm], self.budget)
                yield from (Cell(ground, arm, scale, seed) for seed in seeds)

    def run(self, minutes: float) -> int:
        """Measures what is missing; begins nothing after `minutes`.

        Returns:
            How many of the cells that can be named are missing then.
        """
        until = time.monotonic() + 60 * minutes
        while missing := [cell for cell in self.cells() if self.found(cell) is None]:
            if time.monotonic() > until:
                return len(missing)
            if not any(self.measure(cell) for cell in missing):
                time.sleep(2)  # other processes have them all
        return 0

    def measure(self, cell: Cell) -> bool:
        """Runs one cell and writes it, unless another process does."""
        path = self.out / cell.file
        self.out.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self.found(cell) is None:
                record = measured(cell, self.pairs[cell.ground, cell.arm])
                record |= {"settings": self._settings(cell), "revision": revision()}
                text = json.dumps(record) + "\n"
                path.with_suffix(".part").write_text(text, encoding="utf-8")
                path.with_suffix(".part").rename(path)
                shares = [round(share(record[name]["own"]), 3) for name in READINGS]
                print(cell.name, *shares, f"{record['cpu_s']} s", flush=True)
        return True

    def publish(self, names: Sequence[str], path: Path) -> None:
        """Judges what is there, and writes it.

        Raises:
            SystemExit: the file holds cells that are not among these.
        """
        done: dict[tuple[str, str], list[dict[str, Any]]] = {}
        sweeps: dict[str, Any] = {}
        for cell in self.cells():
            record = self.found(cell)
            if record and cell.seed not in TUNING:
                done.setdefault((cell.ground, cell.arm), []).append(record)
            elif record:
                sweeps[cell.name] = {name: share(record[name]["own"]) for name in READINGS}
                sweeps[cell.name]["cpu_s"] = record["cpu_s"]
        runs = report.complete(
            done,
            {key: experiments.seeds_of(ground, self.budget) for key, ground in self.pairs.items()},
        )
        grounds = {ground: self.pairs[ground, arm] for ground, arm in runs}
        habits = {name: ground.habits for name, ground in grounds.items()}
        arms, verdicts, correlation = report.published(runs, names, habits)
        every = [cell for row in runs.values() for cell in row]
        _refuse_to_lose(path, {cell["cell"] for cell in every})
        spent = sum(cell["cpu_s"] for cell in (*every, *sweeps.values()))
        result = {
            "settings": {
                "budget": self.budget,
                "seeds": SEEDS,
                "tuning_seeds": TUNING,
                "rates": RATES,
                "test_tasks": TEST_TASKS,
                "validation_tasks": VALIDATION_TASKS,
                "grounds": {name: self._budget_of(name, ground) for name, ground in grounds.items()},
            },
            "versions": versions(),
            # Cells of earlier results are of the revisions that these name.
            "revision": sorted(
                {cell["revision"] for cell in every if "revision" in cell}
                | set(self.before.get("revision", ()))
            ),
            "given": {_group(cell): self._given(cell) for cell in self.cells()},
            "cpu_minutes": round(spent / 60, 1),
            "verdicts": verdicts,
            "difference": correlation,
            "arms": arms,
            "rliable": report.rliable_scores(runs),
            "sweeps": sweeps,
            "cells": {cell["cell"]: {key: cell[key] for key in (*READINGS, "curves", "cpu_s")} for cell in every},
        }  # fmt: skip
        path.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
        for row in verdicts:
            print(f"{row['verdict']:12} {row['ground']:10} {row['claim']} (p {row['p_holm']})")
        print(f"{len(verdicts)} verdicts, {len(every)} cells, {result['cpu_minutes']} CPU-minutes")

    def _budget_of(self, name: str, ground: Ground) -> dict[str, Any]:
        """What a ground's trainings had, as the results say it."""
        return {
            "tokens": ground.tokens,
            "updates": ground.updates,
            "seeds": experiments.seeds_of(ground, self.budget),
            "model": self._base(ground) or self._base_before(name),
        }

    def dry(self) -> None:
        """Prints the commands that are missing, and what all of it costs."""
        budget = "" if self.budget == "full" else f" --{self.budget}"
        for cell in self.cells():
            done = "done" if self.found(cell) else "to do"
            print(f"{done:5}  python -m benchmarks.claims{budget} --cell '{cell.name}'")
        sizes = [
            (ground, len(RATES) * len(TUNING) + len(experiments.seeds_of(ground, self.budget)))
            for ground in self.pairs.values()
        ]
        hours = sum(ground.seconds * count for ground, count in sizes) / 3600
        print(
            f"{len(sizes)} arms, {sum(count for _, count in sizes)} cells, about {hours:.1f} CPU-hours; "
            "the cells that count are listed once the sweep of their arm is done"
        )

    def _given(self, cell: Cell) -> str:
        """Tells the settings of a ground and an arm from others."""
        text = json.dumps(self._settings(cell), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _settings(self, cell: Cell) -> Any:
        """Everything that what a cell measures depends on but its name, as JSON gives it back."""
        ground, arm = self.pairs[cell.ground, cell.arm], ARMS[cell.arm]
        settings = {"ground": ground._asdict(), "arm": arm._asdict()}
        for values in settings.values():
            values["settings"] = material(values["settings"])
        settings["ground"]["model"] = ground.model.name
        for name in ("seconds", "arms", "habits", "more"):
            del settings["ground"][name]
        return json.loads(json.dumps(settings, default=dict))


def _refuse_to_lose(path: Path, kept: Collection[str]) -> None:
    lost = json.loads(path.read_text(encoding="utf-8"))["cells"].keys() - kept if path.is_file() else ()  # fmt: skip
    if lost:
        raise SystemExit(
            f"{path} holds {len(lost)} cells that these options leave out, {min(lost)!r} for one: "
            "give --results another file"
        )


@cache
def _digest(model: Path) -> str:
    return digest(model)


def _group(cell: Cell) -> str:
    return f"{cell.ground}/{cell.arm}"


def share(digits: str) -> float:
    """The share of solved tasks."""
    return digits.count("1") / len(digits)


def main() -> None:
    """Runs what is missing, and publishes."""
    parser = Options(__doc__)
    budgets = parser.add_mutually_exclusive_group()
    for name, text in BUDGETS.items():
        budgets.add_argument(
            f"--{name}", dest="budget", action="store_const", const=name, help=text
        )
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--arms", nargs="+", default=[], help="these arms and grounds alone")
    parser.add_argument("--cell", help="one cell; see --dry-run")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--afresh", action="store_true", help="run also what the results hold")
    parser.add_argument("--dry-run", action="store_true", help="list the cells; run nothing")
    options = parser.parse_args()
    budget = options.budget or "full"
    places = [
        pair for name in options.only for pair in experiments.pairs(EXPERIMENTS[name], budget)
    ]
    known("--arms", options.arms, [name for ground, arm, _ in places for name in (ground, arm)])
    before = None if options.afresh else options.results
    lab = Lab(
        options.only,
        budget=budget,
        out=options.out,
        wanted=options.arms,
        before=before,
    )
    if not lab.pairs:
        raise SystemExit("--arms takes arms and the grounds that have them; --dry-run lists both")
    if options.dry_run:
        lab.dry()
    elif options.cell:
        try:
            cell = cell_of(options.cell)
        except ValueError as error:
            parser.error(f"--cell: {error}")
        known("--cell", [_group(cell)], [f"{ground}/{arm}" for ground, arm in lab.pairs])
        lab.measure(cell)
    else:
        missing = lab.run(options.minutes)
        print(f"{missing} cells missing", flush=True)
        lab.publish(options.only, options.results)


if __name__ == "__main__":
    main()
