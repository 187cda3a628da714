"""Experiments of cells: each is a training, kept in a file of JSON once it is finished, and not repeated."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evidence import revision
from benchmarks.options import Options
from pettingllms.runs import versions


class Cell(NamedTuple):
    """A training, or the untrained base, whose rate is 0."""

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"{self.arm}/{self.rate:g}/{self.seed}"


def options_of(about: str, results: Path) -> Options:
    """The options of an experiment that writes `results`."""
    parser = Options(about)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so long")
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument("--dry-run", action="store_true", help="print the cells that are due")
    return parser


def options_on(
    base: Path, maker: str, about: str, results: Path, tokens: int, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Those of an experiment on the folder `base`, which the module `maker` writes; has `--tokens`, too."""
    parser = options_of(about, results)
    parser.add_argument("--base", type=Path, default=base, help=f"what {maker} wrote")
    parser.add_argument("--tokens", type=int, default=tokens, help="generated tokens of a training")
    options = parser.parse_args(argv)
    if not (options.dry_run or options.base.is_dir()):
        parser.error(f"no base in {options.base}; python -m {maker} makes it")
    return options


def run_missing(
    options: argparse.Namespace,
    due: Callable[[Mapping[str, Any]], Sequence[Any]],
    measured: Callable[[Any], Mapping[str, Any]],
    facts: Mapping[str, Any],
    key: str = "cells",
) -> dict[str, Any]:
    """Measures the cells that the file of an experiment lacks, and keeps each at once.

    Args:
        options: those of `options_of`.
        due: the cells that can be named now and are missing, by what is there.
        measured: measures one.
        facts: what the file says besides, such as `settings`.
        key: under which cells are in the file.

    Returns:
        What is in the file, once nothing is missing.

    Raises:
        SystemExit: something is still missing, or was only listed.
    """
    file: Path = options.out
    result = json.loads(file.read_text()) if file.exists() else {key: {}}
    cells = result[key]
    if options.dry_run:
        print(*(cell.name for cell in due(cells)), sep="\n")
        raise SystemExit(0)
    torch.set_num_threads(1)
    result |= {"versions": versions(), "revision": revision(), **facts}
    until = time.monotonic() + 60 * options.minutes
    while missing := due(cells):
        if time.monotonic() > until:
            print(f"{len(missing)} cells are missing; run again", flush=True)
            raise SystemExit(0)
        name = missing[0].name
        print(name, flush=True)
        cells[name] = {**measured(missing[0]), "revision": result["revision"]}
        print(json.dumps(cells[name]), flush=True)
        write(file, result)
    return result


def write(file: Path, result: Mapping[str, Any]) -> None:
    """Writes the results."""
    file.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
