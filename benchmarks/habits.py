"""How much of what training adds to the base with habits is a habit overcome?

    python -m benchmarks.habits [--only math sudoku] [--seeds 0 1 2]

A study of one base, not of reinforcement learning: `embedded` was primed with skills and then with bad habits, so
that a team can win by dropping them. Two checkpoints without habits are made first, hours of priming on a core,
and kept in `out/habits`:

* `clean`, the checkpoint before the habits: what a team of `benchmarks.learning` wins back up to its success was in
  the base and seldom used; what it wins above it, training has taught.
* `half`, primed for a third of the clean steps: what training adds to it is a skill that it had only in part.

Both play the test tasks of `benchmarks.learning`, and teams are trained from `half` with the settings of the
embedded model. Writes `results/habits.json` after each environment, with the digests of both checkpoints; what is
made, played or trained already is not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence import Table, estimate, revision, shown
from benchmarks.learning import HERE, SCORES, evaluate, timing, train, words_of
from benchmarks.options import Options
from benchmarks.priming import prime
from pettingllms.data.rows import digest
from pettingllms.envs.aec import creator_of
from pettingllms.runs import versions
from pettingllms.trainers.settings import EMBEDDED as PRESET

RESULTS = HERE / "results" / "habits.json"
OUT = HERE / "out" / "habits"
HALF = 1800
"""Steps of priming of the checkpoint `half`."""
HOW = ("sampled", "greedy")
MISSING = "not measured"
CLEAN, BEFORE, AFTER = "before the habits", "a third primed", "a third primed, then trained"


def checkpoints(out: Path) -> dict[str, Path]:
    """The two checkpoints without habits, made where they are missing."""
    folders = {}
    for name, steps in (("clean", prime.PHASES[0].steps), ("half", HALF)):
        folders[name] = out / name
        # Written last, so that a checkpoint with it is whole.
        if not (folders[name] / "tokenizer_config.json").exists():
            print(f"priming {name}, an hour or more", flush=True)
            prime.main(["--out", str(folders[name]), "--clean", str(steps)])
    return folders


def game(env: str, model: Path) -> dict[str, Any]:
    """What the embedded model is asked, and how long it may answer, for a checkpoint elsewhere."""
    length = PRESET["max_completion_length"]
    arguments = json.dumps(dict(creator_of(env).embedded))
    return {"env": env, "model": model, "env-args": arguments, "max-completion-length": length}


def played(out: Path, env: str, model: Path, *words: str) -> dict[str, str]:
    """A digit for each test task, sampled and greedy."""
    words = (*words_of(game(env, model)), *words)
    team = "adapters" if "--adapters" in words else "base"
    plain = evaluate(out / "sampled", *words)
    greedy = evaluate(out / "greedy", *words, "--greedy")
    return {how: scores["solved"][team] for how, scores in zip(HOW, (plain, greedy), strict=True)}


def settings(env: str, model: Path) -> dict[str, Any]:
    """Those of a training of the embedded model, for a checkpoint elsewhere, which has others by default."""
    declared = getattr(creator_of(env), "embedded_training", {})
    return {**PRESET, **declared, **game(env, model)}


def trained(env: str, model: Path, seed: int, out: Path) -> dict[str, Any]:
    """A team trained from a checkpoint."""
    run = out / f"{env}-{seed}"
    train(run, *words_of(settings(env, model)), "--seed", str(seed))
    digits = played(run / "eval", env, model, "--adapters", str(run))
    return {"timing": timing(run), **digits}


def table(result: Any) -> Table:
    """Success of both checkpoints and of the teams trained from one; a row for all that the benchmark runs."""
    models = result["models"]
    whose = {CLEAN: models["clean"], BEFORE: models["half"], AFTER: models["half"]}
    header = [f"{name}, {how}" for name in whose for how in HOW]
    rows = []
    for env in SCORES:
        record = result["environments"].get(env, {})
        runs = {CLEAN: record.get("clean"), BEFORE: record.get("half")}
        teams = {name: [run] if run else [] for name, run in runs.items()}
        teams[AFTER] = list(record.get("runs", {}).values())
        rows.append([f"`{env}`", *(_cell(teams[name], how) for name in whose for how in HOW)])
    rows.append(["digest", *(f"`{digest}`" for digest in whose.values() for _ in HOW)])
    return ["environment", *header], rows


def as_values(runs: Collection[Any], how: str = HOW[0]) -> np.ndarray:
    """Which test tasks were solved, of shape (runs, tasks)."""
    return np.array([[float(digit) for digit in run[how]] for run in runs])


def _cell(runs: Collection[Any], how: str) -> str:
    return shown(estimate(as_values(runs, how))) if runs else MISSING


def main() -> None:
    """Make checkpoints, play, train, write."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    models = checkpoints(OUT)
    digests = {name: digest(path) for name, path in models.items()}
    results: dict[str, Any] = {"environments": {}}
    if RESULTS.exists():
        before = json.loads(RESULTS.read_text(encoding="utf-8"))
        # What other checkpoints did is no part of this table.
        results = before if before["models"] == digests else results
    results |= {"versions": versions(), "revision": revision(), "models": digests}
    for env in options.only:
        record = results["environments"].setdefault(env, {"runs": {}})
        record["clean"] = played(OUT / f"clean-{env}", env, models["clean"])
        record["half"] = played(OUT / f"half-{env}", env, models["half"])
        for seed in options.seeds:
            record["runs"][str(seed)] = trained(env, models["half"], seed, OUT)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {env} to {RESULTS}", flush=True)


if __name__ == "__main__":
    main()
