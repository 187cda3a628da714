"""iGRPO and CORY: what do a second turn and a partner teach an agent that then answers alone, once?

    python -m benchmarks.alone [--seeds 0 1 2] [--tokens 40000]

Math from the embedded base, which solves a tenth of the problems alone: few enough for drafts to matter. All
arms learn with as many generated tokens. The first three train the solver by itself: whole groups of 16 answers (`grpo`), 8 drafts of
which the best goes into the prompt of 8 refinements that alone are trained (`igrpo`), and the same tree with both
turns trained (`at_grpo`). The last two train a pair of solvers, of which the second sees what the first
said: with and without the exchange of places (`cory`). What is measured is one answer to the problem alone: of the
solver, and of the pair's first policy. Writes `results/alone.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import warm
from benchmarks.evidence import Table, spread

OUT = warm.HERE / "out" / "alone"
RESULTS = warm.HERE / "results" / "alone.json"
ONCE = {"agents": "single", "max_turns": 1}
TWICE = {"agents": "single", "max_turns": 2}
PAIR = {"reasoners": 2, "tools": 0, "topology": "chain", "max_turns": 1}
PLACES = "reasoner_0=a,reasoner_1=b"
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"env_args": ONCE, "method": "grpo", "num_generations": 16, "tasks_per_step": 8},
    "igrpo": {"env_args": TWICE, "method": "igrpo", "num_generations": 8, "tasks_per_step": 8},
    "at_grpo, two turns": {"env_args": TWICE, "num_generations": 8, "tasks_per_step": 8},
    "cory": {"env_args": PAIR, "method": "cory", "num_generations": 8, "tasks_per_step": 8},
}
ARMS["cory, no exchange"] = {**ARMS["cory"], "cast": "all"}


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=40_000)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """The base, and each arm after its training."""
    folder = OUT / f"{tokens}-{seed}"
    found: dict[str, Any] = {"seed": seed, "before": {"alone": alone(folder, seed, tasks)}}
    for name, settings in ARMS.items():
        pair = settings["env_args"] is PAIR
        run = warm.train(
            folder / name.replace(", ", "-").replace(" ", "-"),
            seed,
            max_tokens=tokens,
            **({"policies": PLACES} if pair else {}),
            **settings,
        )
        adapter = run / "adapters" / ("a" if pair else "solver")
        found[name] = {"alone": alone(folder, seed, tasks, adapter)}
        found[name]["tokens"] = warm.tokens_of(run)
    print(found, flush=True)
    return found


def alone(folder: Path, seed: int, tasks: int, adapter: Path | None = None) -> float:
    """Share of the test tasks that a solver, or the base, answers rightly in its only turn."""
    given: dict[str, Any] = {"limit": tasks}
    if adapter is not None:
        given |= {"adapters": f"solver={adapter}", "base": False}
    out = folder / f"play-{adapter.parents[1].name if adapter else 'base'}"
    (episodes,) = warm.play(out, seed, env_args=ONCE, **given).values()
    return sum(bool(each.success) for each in episodes) / len(episodes)


def table(result: Any) -> Table:
    """One answer alone, of the base and after each arm."""
    rows = [
        [name, spread([run[name]["alone"] for run in result["runs"]])] for name in ("before", *ARMS)
    ]
    return ["math, trained as", "success of one answer alone"], rows


if __name__ == "__main__":
    main()
