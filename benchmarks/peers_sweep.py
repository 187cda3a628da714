"""Each trainer of `benchmarks.peers` at its best settings: a sweep on a seed of its own, then the seeds that count.

    python -m benchmarks.peers_sweep [--dry-run]

Swept are the learning rate of both, and of TRL's trainer the rows of a micro-batch and continuous batching ("paged"). The best is
what first reaches the held-out success; time is that of the process on the CPU. Writes `results/peers_sweep.json`, and `results/peers.json` of
the best settings. Finished runs are not repeated; one that fails is reported with its last line.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table
from benchmarks.options import Options
from benchmarks.peers_report import reached

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "peers_sweep.json"
OUT = HERE / "out" / "peers_sweep"
SEED, LEVEL = 100, 0.8
RATES = (2.5e-3, 5e-3, 1e-2)
SETTINGS: dict[str, list[str]] = {
    **{f"ours, rate {rate:g}": ["--rate", f"{rate:g}"] for rate in RATES},
    **{f"trl, rate {rate:g}": ["--trl-rate", f"{rate:g}"] for rate in RATES},
    "trl, 64 rows": ["--trl-rows", "64"],
    "trl, 128 rows": ["--trl-rows", "128"],
    "trl, paged": ["--trl-paged"],
}
"""What is tried; 5e-3, 16 rows and TRL's plain `generate` are the rest's."""


def tried(name: str, words: Sequence[str]) -> dict[str, Any]:
    """One run: what it took to the level; `failed` with the last line of its log if it ended early."""
    slug = name.replace(", ", "-").replace(" ", "-")
    path, log = OUT / f"{slug}.json", OUT / f"{slug}.log"
    command = ["--trainers", name.partition(",")[0], "--seeds", str(SEED), *words]
    command += ["--out", str(OUT / slug), "--json", str(path)]
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers", *command], stdout=file, stderr=file
        )
    if ended.returncode:
        return {"options": list(words), "failed": log.read_text().strip().splitlines()[-1][:300]}
    (run,) = json.loads(path.read_text())["runs"].values()
    point = reached(run, LEVEL, "held-out")
    return {
        "options": list(words),
        "cpu_seconds": round(point["cpu_seconds"], 2) if point else None,
        "tokens": point.get("tokens"),
        "training_cpu_seconds": round(run["training_cpu_seconds"], 1),
        "test": run["test"][0],
    }


def best(rows: dict[str, Any], trainer: str) -> str:
    """The settings with which a trainer is first at the level."""
    names = [name for name in rows if name.startswith(trainer)]
    return min(names, key=lambda name: rows[name].get("cpu_seconds") or math.inf)


def table(result: Any) -> Table:
    """What each setting took."""
    rows = []
    for name, row in result["rows"].items():
        if "failed" in row:
            rows.append([name, f"did not run: `{row['failed']}`", "", ""])
            continue
        seconds = "not reached" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.0f}"
        tokens = f"{row['tokens']:,}" if row["tokens"] else ""
        mark = " (best)" if name in result["best"] else ""
        rows.append([f"{name}{mark}", seconds, tokens, f"{row['test']:.2f}"])
    return ["", "CPU-seconds to held-out success 0.8", "tokens then", "test at the end"], rows


def main() -> None:
    """Sweeps, then compares the best of both."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="name the settings; run nothing")
    if parser.parse_args().dry_run:
        print("\n".join(f"{name}: {' '.join(words)}" for name, words in SETTINGS.items()))
        return
    OUT.mkdir(parents=True, exist_ok=True)
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
    rows = result["rows"]
    for name, words in SETTINGS.items():
        if rows.get(name, {}).get("options") != words:
            rows[name] = tried(name, words)
            print(name, rows[name], flush=True)
            RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    result |= {"seed": SEED, "level": LEVEL, "best": [best(rows, name) for name in ("trl", "ours")]}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    words = [word for name in result["best"] for word in rows[name]["options"]]
    subprocess.run([sys.executable, "-m", "benchmarks.peers", *words], check=True)


if __name__ == "__main__":
    main()
