"""MLPO: a leader that learns to use frozen peers, before and after, in the team and alone.

    python -m benchmarks.leader [--seeds 0 1 2] [--tokens 120000] [--out FILE]

Math with three tools as peers and a judge as the leader. Peers and leader begin with the same short training
(`benchmarks.warm`); the peers answer 200 training tasks four times each and 200 test tasks once, and are not
asked again. Then the judge alone learns. On the test tasks: how many peer answers are right, the team's success
with the leader as it was and after, and the leader's as the single agent of the same tasks. Writes
`results/leader.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import warm
from benchmarks.evidence import Table, spread

OUT = warm.HERE / "out" / "leader"
RESULTS = warm.HERE / "results" / "leader.json"
TEAM = {"tools": 3, "reasoners": 0, "judge": True, "topology": "star", "max_turns": 1}
ALONE = {"agents": "single", "max_turns": 1}
SCORES = ("peers right", "team", "alone")


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=120_000)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """The leader before and after."""
    first, folder = warm.start(seed), OUT / f"{tokens}-{seed}"
    peers = folder / "peers.jsonl"
    if not peers.exists():
        text = "".join(recorded(folder, first, seed, tasks, s) for s in ("train", "test"))
        peers.write_text(text, encoding="utf-8")
    rows = [json.loads(line) for line in peers.read_text(encoding="utf-8").splitlines()]
    with_peers = TEAM | {"peers": str(peers)}
    run = warm.train(
        folder / "leader",
        seed,
        env_args=with_peers,
        adapters=f"judge={first / 'judge'}",
        method="mlpo",
        max_tokens=tokens,
    )
    result: dict[str, Any] = {"seed": seed, "tokens": warm.tokens_of(run)}
    result["left out"] = sum(r["split"] == "train" and r["right"] >= 0.75 for r in rows)
    right = [r["right"] for r in rows if r["split"] == "test"]
    for name, judge in (("before", first / "judge"), ("after", run / "adapters" / "judge")):
        result[name] = {"peers right": sum(right) / len(right)}
        for score, team, role in (("team", with_peers, "judge"), ("alone", ALONE, "solver")):
            played = warm.play(
                folder / f"{score}-{name}",
                seed,
                env_args=team,
                adapters=f"{role}={judge}",
                base=False,
                limit=tasks,
            )
            (episodes,) = played.values()
            result[name][score] = sum(bool(e.success) for e in episodes) / len(episodes)
    print(result, flush=True)
    return result


def recorded(folder: Path, adapters: Path, seed: int, tasks: int, split: str) -> str:
    """The peers' replies of a split, as `pettingllms-data peers` writes them."""
    team, file = folder / f"peers-{split}", folder / f"peers-{split}.jsonl"
    spec = ",".join(f"{role}={adapters / role}" for role in ("tool", "judge"))
    samples = 4 if split == "train" else 1
    options: dict[str, Any] = {"split": split, "limit": tasks, "samples": samples, "base": False}
    warm.play(team, seed, env_args=TEAM, adapters=spec, **options)
    file.unlink(missing_ok=True)
    warm.run(["pettingllms.cli.data", "peers", str(team), "--out", str(file)], folder / "log")
    return file.read_text(encoding="utf-8")


def table(result: Any) -> Table:
    """What the peers know, and the leader with them and alone."""
    rows = [
        [name, *(spread([run[name][score] for run in result["runs"]]) for score in SCORES)]
        for name in ("before", "after")
    ]
    return ["leader", "peer answers that are right", "success with peers", "success alone"], rows


if __name__ == "__main__":
    main()
