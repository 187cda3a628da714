"""What is left of a team whose roles play with each other's policies?

    python -m benchmarks.role_swap [--envs coding math] [--seeds 0 1 2] [--jobs 2]

The team with a policy for each role of `main_table`; both roles exchanged, and one at a time (the matrix of
policies in roles).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import (
    Record,
    chosen,
    draw_bars,
    envs_of,
    gain,
    judged,
    mean_success,
    table_of,
)
from benchmarks.paper import ROLES, Lab, Wanted

BASE, OWN, SWAPPED = "base", "own policies", "exchanged"
FIRST, SECOND = "first role by the second's", "second role by the first's"
COLLAPSE = -0.5
"""A loss of half of what the team solved, or more."""


def wanted(env: str) -> list[Wanted]:
    """The team as it was trained, and the three ways to exchange its policies."""
    team, (one, two) = {"policies": "per-role"}, ROLES[env]
    every = ("--swap", "all")
    return [
        Wanted(env, BASE),
        Wanted(env, OWN, team),
        Wanted(env, SWAPPED, team, ("--swap", f"{one}={two}"), team="swapped"),
        Wanted(env, FIRST, team, every, team=f"{one} by {two}"),
        Wanted(env, SECOND, team, every, team=f"{two} by {one}"),
    ]


def verdict(records: Sequence[Record]) -> str:
    """Claim 2: a loss anywhere, and a collapse where half or more is lost."""
    envs = envs_of(records)
    losses = {env: gain(records, env, SWAPPED, OWN) for env in envs}
    kept = {env: mean_success(chosen(records, env, OWN)) for env in envs}
    collapsed = [env for env in envs if losses[env].high < COLLAPSE * kept[env]]
    said = judged(
        "Exchanging specialised policies costs success",
        {env: type(loss)(-loss.mean, -loss.high, -loss.low) for env, loss in losses.items()},
    )
    rest = [env for env in envs if env not in collapsed]
    return (
        f"{said} The collapse of claim 2 (half of it or more is lost) is seen in "
        f"{', '.join(collapsed) or 'none'}"
        + (f", not in {', '.join(rest)}, where both policies can play both roles." if rest else ".")
    )


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a way to give policies to roles."""
    return table_of(result, (BASE, OWN, SWAPPED, FIRST, SECOND))


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding", "math"))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(arms, verdict, partial(draw_bars, title="Roles played by other roles' policies"))


if __name__ == "__main__":
    main()
