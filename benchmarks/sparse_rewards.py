"""What is lost without local rewards? `rewards="sparse"` pays for the outcome alone.

python -m benchmarks.sparse_rewards [--envs coding math] [--seeds 0 1 2] [--jobs 2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import Record, draw_bars, envs_of, gain, judged, table_of
from benchmarks.paper import Lab, Wanted

BASE, SPARSE, PAPER = "base", "outcome only", "with local rewards"
LITTLE = 0.05
"""The paper loses 0 to 4 points of 100."""


def wanted(env: str) -> list[Wanted]:
    """The base, outcome only, and the default."""
    own = {"policies": "per-role"}
    return [
        Wanted(env, BASE),
        Wanted(env, SPARSE, own | {"env_args": {"rewards": "sparse"}}),
        Wanted(env, PAPER, own),
    ]


def verdict(records: Sequence[Record]) -> str:
    """Claim 5."""
    envs = envs_of(records)
    return judged(
        f"Rewards for the outcome alone lose at most {LITTLE:.2f} at equal tokens (claim 5)",
        {env: gain(records, env, SPARSE, PAPER) for env in envs},
        least=-LITTLE,
    )


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a scheme of rewards."""
    return table_of(result, (BASE, SPARSE, PAPER))


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding", "math"))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(arms, verdict, partial(draw_bars, title="Rewards for the outcome alone"))


if __name__ == "__main__":
    main()
