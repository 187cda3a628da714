"""How much should the team's reward count? `reward = alpha * team + local` for several alpha.

python -m benchmarks.alpha [--envs math] [--seeds 0 1 2] [--jobs 2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import Record, draw_bars, envs_of, gain, judged, table_of
from benchmarks.paper import Lab, Wanted

VALUES = (0.0, 0.25, 0.5, 1.0, 2.0)
DEFAULT = 1.0


def name(value: float) -> str:
    """How an arm is called."""
    return f"alpha = {value:g}"


def wanted(env: str) -> list[Wanted]:
    """One arm a value."""
    own = {"policies": "per-role"}
    return [
        Wanted(env, name(value), own if value == DEFAULT else own | {"alpha": value})
        for value in VALUES
    ]


def verdict(records: Sequence[Record]) -> str:
    """An open question of the paper (6): whether any other value is better or worse than 1."""
    envs = envs_of(records)
    parts = [
        judged(
            f"{name(value)} is worse than {name(DEFAULT)}",
            {env: gain(records, env, name(DEFAULT), name(value)) for env in envs},
        )
        for value in VALUES
        if value != DEFAULT
    ]
    return f"How success depends on alpha (open in the paper, 6). {' '.join(parts)}"


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a value."""
    return table_of(result, [name(value) for value in VALUES])


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("math",))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(arms, verdict, partial(draw_bars, title="Weight of the team's reward"))


if __name__ == "__main__":
    main()
