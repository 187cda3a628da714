"""LLM-Ens: a router over trained teams against its members and a vote among them.

    python -m benchmarks.ensemble [--seeds 0 1 2] [--out FILE]

Coding. An ensemble has five teams that AT-GRPO trained from the embedded base: three seeds with 20,000
generated tokens, and two more with half of and with twice as many. The table of who is best in which situation is
made on 100 training tasks; then every member, the router and the vote play the same 200 test tasks. A routed
decision costs one completion, as a member's does, and a vote five. Three ensembles, of other seeds each. Writes
`results/ensemble.json`.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import warm
from benchmarks.evidence import Table, spread

OUT = warm.HERE / "out" / "ensemble"
RESULTS = warm.HERE / "results" / "ensemble.json"
TOKENS = 20_000
TABLE_TASKS = 100
ROWS = {
    "mean": "a member, mean",
    "chosen": "the member that was best on training tasks",
    "best": "the member that is best on test tasks",
    "routed": "router",
    "vote": "vote of all five",
}


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=None)


def one(seed: int, tasks: int) -> dict[str, Any]:
    """An ensemble: what its members solve, alone and together."""
    folder = OUT / str(seed)
    budgets = {"a": TOKENS, "b": TOKENS, "c": TOKENS, "half": TOKENS // 2, "twice": 2 * TOKENS}
    members = {
        name: warm.train(folder / name, 10 * seed + n, env="coding", max_tokens=tokens)
        for n, (name, tokens) in enumerate(budgets.items())
    }
    spec = ",".join(f"{name}={run}" for name, run in members.items())
    file = folder / "route.json"
    training = warm.play(
        folder / "train",
        seed,
        env="coding",
        members=spec,
        split="train",
        limit=TABLE_TASKS,
        route_out=file,
    )
    played = warm.play(
        folder / "test", seed, env="coding", members=spec, route=file, vote=True, limit=tasks
    )
    before, after = (
        {
            team: sum(bool(e.success) for e in episodes) / len(episodes)
            for team, episodes in by_team.items()
        }
        for by_team in (training, played)
    )
    chosen = max(members, key=lambda name: before[name])
    table = json.loads(file.read_text(encoding="utf-8"))["roles"]
    result = {
        "seed": seed,
        "tokens": TOKENS,
        "train": before,
        "test": after,
        "routes": {role: row["best"] for role, row in table.items()},
        "mean": sum(after[name] for name in members) / len(members),
        "chosen": after[chosen],
        "best": max(after[name] for name in members),
        "routed": after["routed"],
        "vote": after["vote"],
    }
    print(result, flush=True)
    return result


def table(result: Any) -> Table:
    """Success on test tasks."""
    rows = [
        [title, spread([run[name] for run in result["runs"]]), "5" if name == "vote" else "1"]
        for name, title in ROWS.items()
    ]
    return ["coding", "success", "completions a decision"], rows


if __name__ == "__main__":
    main()
