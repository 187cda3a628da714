"""MAPoRL: does it help to pay an answer for what comes of it in later rounds?

    python -m benchmarks.rounds [--seeds 0 1 2] [--tokens 120000] [--out FILE]

Math with a tool and two reasoners, two rounds. Both arms begin with the same short training (`benchmarks.warm`),
because the embedded base solves hardly any of these tasks, and then learn with as many generated tokens:
paid for later rounds too (gamma 0.3), or for their own answers alone (gamma 0). Beside the success on the same
test tasks: how often a reasoner's answer changed from wrong to right, and from right to wrong, between the
rounds. Writes `results/rounds.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import warm
from benchmarks.evidence import Table, spread
from pettingllms.rollout.trajectory import Trajectory

OUT = warm.HERE / "out" / "rounds"
RESULTS = warm.HERE / "results" / "rounds.json"
TEAM = {"reasoners": 2, "tools": 1, "max_turns": 2}
ARMS = {"maporl": 0.3, "maporl, own score": 0.0}
SCORES = ("success", "corrected", "spoilt")


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=120_000)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """Before, and after either arm."""
    first = warm.start(seed)
    start = {role: str(first / role) for role in ("tool", "reasoner")}
    spec = ",".join(f"{role}={folder}" for role, folder in start.items())
    folder = OUT / f"{tokens}-{seed}"
    teams: dict[str, str | Path] = {"before": spec}
    for n, (arm, gamma) in enumerate(ARMS.items()):
        teams[arm] = warm.train(
            folder / f"arm-{n}",
            seed,
            env_args=TEAM,
            adapters=spec,
            method="maporl",
            max_tokens=tokens,
            method_args={"gamma": gamma},
        )
    result: dict[str, Any] = {"seed": seed}
    for n, (name, team) in enumerate(teams.items()):
        played = warm.play(
            folder / f"play-{n}", seed, env_args=TEAM, adapters=team, base=False, limit=tasks
        )
        (episodes,) = played.values()
        result[name] = scored(episodes)
        if isinstance(team, Path):
            result[name]["tokens"] = warm.tokens_of(team)
    print(result, flush=True)
    return result


def scored(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Success, and the share of reasoners' answers that a second round corrected or spoilt."""
    changes = {"corrected": 0, "spoilt": 0}
    wrong = right = 0
    for episode in episodes:
        answers: dict[str, list[bool]] = {}
        for group in episode.groups:
            if group.key.role == "reasoner":
                answers.setdefault(group.key.agent, []).append(bool(group.chosen.info["right"]))
        for before, after in (pair for pair in answers.values() if len(pair) == 2):
            wrong, right = wrong + (not before), right + before
            changes["corrected"] += after and not before
            changes["spoilt"] += before and not after
    return {
        "success": sum(bool(trajectory.success) for trajectory in episodes) / len(episodes),
        "corrected": changes["corrected"] / max(1, wrong),
        "spoilt": changes["spoilt"] / max(1, right),
        "second answers": {"after a wrong one": wrong, "after a right one": right},
    }


def table(result: Any) -> Table:
    """Success, corrections and losses, by arm."""
    rows = [
        [name, *(spread([run[name][score] for run in result["runs"]]) for score in SCORES)]
        for name in ("before", *ARMS)
    ]
    return ["math, tool + 2 reasoners", "success", "wrong to right", "right to wrong"], rows


if __name__ == "__main__":
    main()
