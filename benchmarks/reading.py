"""Do two roles of a real pretrained model learn as a team, on a CPU? SmolLM2 (135M) in the environment `read`.

    python -m benchmarks.reading [--seeds 2 3 4] [--out FILE]

Each seed is one run of `pettingllms-train --env read --model smollm2` with the defaults of the environment. It ends with
the table of `pettingllms.evaluation.ablation`: the base, each trained role alone, both, and both exchanged, on 100 test
tasks with people and cities that are in no training task. Prints the table, and writes `results/reading.json` or
FILE; finished runs are not repeated. `python -m benchmarks.figures` draws it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table
from benchmarks.learning import CPU, HERE, timing, train
from benchmarks.options import Options
from pettingllms.evaluation.report import as_text, interval
from pettingllms.runs import versions
from pettingllms.statistics import Estimate

RESULTS = HERE / "results" / "reading.json"
SEEDS = (2, 3, 4)
"""Of the published runs; seeds 0 and 1 were used to choose the settings."""
TEAMS = ("base", "only finder", "only answerer", "both", "exchanged")


def learned(folder: Path) -> list[float]:
    """Share of the tasks of each training step that the executed replies solved."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["success"] for row in rows if row["kind"] == "train"]


def collected(folder: Path) -> dict[str, Any]:
    """What is published of a finished run."""
    lines = (folder / "config.yaml").read_text().splitlines()
    settings = "\n".join(line for line in lines if not line.startswith("output_dir:"))
    return {
        "config": settings,
        "timing": timing(folder),
        "training": learned(folder),
        **json.loads((folder / "roles.json").read_text()),
    }


def table(results: dict[str, Any]) -> Table:
    """A row for each seed, a column for each team."""
    rows = []
    for seed, run in results["runs"].items():
        cells = [interval(Estimate(*run["teams"][team]["mean"])) for team in TEAMS]
        rows.append([seed, *cells, f"{run['timing'][CPU]:.0f}"])
    return ["seed", *TEAMS, "CPU-seconds"], rows


def main() -> None:
    """Trains and reports what is not there yet."""
    parser = Options(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    file: Path = options.out
    runs = HERE / "out" / file.stem
    for folder in (runs, file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(file.read_text()) if file.exists() else {"runs": {}}
    results |= {"versions": versions()}
    for seed in map(str, options.seeds):
        if seed not in results["runs"]:
            run = runs / f"read-{seed}"
            train(run, "--env", "read", "--model", "smollm2", "--seed", seed)
            results["runs"][seed] = collected(run)
            file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    header, rows = table(results)
    print(f"\n{as_text([header, *rows])}")


if __name__ == "__main__":
    main()
