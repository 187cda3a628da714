"""Math teams of two to seven agents, and who sees whom.

    python -m benchmarks.team_size [--seeds 0 1 2] [--jobs 2]

Agents of one role share a policy (tool, reasoner, judge). All teams generate the same number of tokens in
training, so that larger ones play fewer problems.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import (
    Record,
    chosen,
    draw_bars,
    envs_of,
    estimate,
    gain,
    judged,
    shown,
    solved,
    spread,
)
from benchmarks.paper import Lab, Wanted

TEAMS: Mapping[str, Mapping[str, Any]] = {
    "2: tool, reasoner": {},
    "3: and a judge": {"judge": True},
    "4: two tools": {"tools": 2, "judge": True},
    "5: two reasoners": {"tools": 2, "reasoners": 2, "judge": True},
    "6: three tools": {"tools": 3, "reasoners": 2, "judge": True},
    "7: three reasoners": {"tools": 3, "reasoners": 3, "judge": True},
    "5, star": {"tools": 2, "reasoners": 2, "judge": True, "topology": "star"},
    "5, chain": {"tools": 2, "reasoners": 2, "judge": True, "topology": "chain"},
}
PAIR, *LARGER = TEAMS


def wanted(env: str) -> list[Wanted]:
    """One arm a team, and each team of base models."""
    arms = []
    for name, members in TEAMS.items():
        own = {"policies": "per-role"}
        words = ("--env-args", json.dumps(members)) if members else ()
        arms.append(Wanted(env, f"base, {name}", words=words))
        arms.append(Wanted(env, name, own | {"env_args": members} if members else own))
    return arms


def verdict(records: Sequence[Record]) -> str:
    """An open question of the paper (7)."""
    (env,) = envs_of(records)
    gains = {name: gain(records, env, name, PAIR) for name in LARGER}
    said = judged("A larger team beats the pair at equal tokens (open in the paper, 7)", gains)
    return re.sub("(supported|fails|not decided) in ", r"\1 for ", said)


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a team."""
    records = result["runs"]
    rows = []
    for name in TEAMS:
        base, trained = chosen(records, "math", f"base, {name}"), chosen(records, "math", name)
        if trained:
            steps = [len(next(iter(run["grad_norm"].values()))) for run in trained]
            seconds = [run["seconds"] for run in trained]
            before, after = shown(estimate(solved(base))), shown(estimate(solved(trained)))
            tokens = spread([run["scores"]["tokens"] for run in trained], 0)
            rows.append([name, before, after, tokens, spread(steps, 0), spread(seconds, 0)])
    header = ["", "base", "trained", "tokens of a game", "steps of training", "seconds of training"]
    return header, rows


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("math",))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(
        arms, verdict, partial(draw_bars, title="Math teams of two to seven", arms=tuple(TEAMS))
    )


if __name__ == "__main__":
    main()
