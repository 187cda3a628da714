"""iGRPO and CORY: what do a second turn and a partner teach an agent that then answers alone, once?

    python -m benchmarks.alone [--seeds 0 1 2] [--tokens 40000] [--out FILE]

Math from the embedded base, which solves few of the problems alone: few enough for drafts to matter. All arms
learn with as many generated tokens. A solver, who writes programs, learns from groups of 16 answers (`grpo`), from 8
refinements of the best of 8 drafts, the drafts not trained (`igrpo`), or from the same tree with both turns trained
(`at_grpo`). A reasoner learns by itself (`grpo`), or as one of a pair of which the second sees what the first
said, with and without the exchange of places (`cory`). What is measured is one answer to the problem alone, of the
pair that of its first policy. Writes `results/alone.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import warm
from benchmarks.evidence import Table, spread

OUT = warm.HERE / "out" / "alone"
RESULTS = warm.HERE / "results" / "alone.json"
SOLVER = {"agents": "single", "max_turns": 1}
REASONER = {"reasoners": 1, "tools": 0, "max_turns": 1}
PAIR = {"reasoners": 2, "tools": 0, "topology": "chain", "max_turns": 1}
WIDE = {"tasks_per_step": 8, "num_generations": 16, "method": "grpo"}
NARROW = {"tasks_per_step": 8, "num_generations": 8}
CORY = {**NARROW, "method": "cory", "env_args": PAIR, "policies": "reasoner_0=a,reasoner_1=b"}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "solver": {
        "grpo": {**WIDE, "env_args": SOLVER},
        "igrpo": {**NARROW, "method": "igrpo", "env_args": SOLVER | {"max_turns": 2}},
        "at_grpo, two turns": {**NARROW, "env_args": SOLVER | {"max_turns": 2}},
    },
    "reasoner": {
        "grpo, by itself": {**WIDE, "env_args": REASONER},
        "cory": CORY,
        "cory, no exchange": {**CORY, "method": "shared+dr_mas"},
    },
}
ALONE = {"solver": SOLVER, "reasoner": REASONER}
BEFORE = "before"


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=40_000)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """The base in both roles, and each arm after its training."""
    result: dict[str, Any] = {"seed": seed}
    for role, arms in ARMS.items():
        folder = OUT / f"{tokens}-{seed}" / role
        scores = result[role] = {BEFORE: {"alone": alone(folder, role, seed, tasks)}}
        for name, settings in arms.items():
            run = warm.train(
                folder / name.replace(", ", "-").replace(" ", "-"),
                seed,
                max_tokens=tokens,
                **settings,
            )
            adapter = run / "adapters" / ("a" if settings["env_args"] is PAIR else role)
            scores[name] = {"alone": alone(folder, role, seed, tasks, adapter)}
            scores[name]["tokens"] = warm.tokens_of(run)
    print(result, flush=True)
    return result


def alone(folder: Path, role: str, seed: int, tasks: int, adapter: Path | None = None) -> float:
    """Share of the test tasks that the role, or the base in it, answers rightly in its only turn."""
    options: dict[str, Any] = {"limit": tasks}
    if adapter is not None:
        options |= {"adapters": f"{role}={adapter}", "base": False}
    out = folder / f"play-{adapter.parents[1].name if adapter else 'base'}"
    (episodes,) = warm.play(out, seed, env_args=ALONE[role], **options).values()
    return sum(bool(episode.success) for episode in episodes) / len(episodes)


def table(result: Any) -> Table:
    """One answer alone, of the base and after each arm."""
    rows = [
        [role, name, spread([run[role][name]["alone"] for run in result["runs"]])]
        for role, arms in ARMS.items()
        for name in (BEFORE, *arms)
    ]
    return ["math, alone", "trained as", "success of one answer"], rows


if __name__ == "__main__":
    main()
