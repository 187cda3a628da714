"""One policy for all roles, or one for each? And does it depend on how different the roles are?

    python -m benchmarks.shared_or_specialised [--envs coding math] [--seeds 0 1 2] [--jobs 2]

How different two roles are is measured by what their team loses when their policies are exchanged (`role_swap`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.evidence import (
    Record,
    chosen,
    draw_bars,
    envs_of,
    gain,
    judged,
    mean_success,
    shown,
    table_of,
)
from benchmarks.main_table import PER_ROLE, SHARED
from benchmarks.paper import Lab, Wanted
from benchmarks.role_swap import SWAPPED
from benchmarks.role_swap import wanted as swaps


def wanted(env: str) -> list[Wanted]:
    """Shared, per role, and per role exchanged."""
    exchanged = [each for each in swaps(env) if each.arm == SWAPPED]
    return [
        Wanted(env, SHARED, {"policies": "shared"}),
        Wanted(env, PER_ROLE, {"policies": "per-role"}),
        *exchanged,
    ]


def verdict(records: Sequence[Record]) -> str:
    """Claim 4: which is better where; and whether that goes with the loss by an exchange."""
    envs = envs_of(records)
    gains = {env: gain(records, env, PER_ROLE, SHARED) for env in envs}
    said = judged("A policy for each role beats a shared one at equal tokens", gains)
    losses = [_loss(records, env) for env in envs]
    order = np.corrcoef(_ranks(losses), _ranks([gains[env].mean for env in envs]))[0, 1]
    clear = [env for env in envs if gains[env].low > 0 or gains[env].high < 0]
    return (
        f"{said} Claim 4 (it depends on how different the roles are): over {len(envs)} environments the rank "
        f"correlation of that gain with the loss by an exchange is {order:+.2f}; with "
        f"{len(clear)} clear differences, this cannot decide it."
    )


def _loss(records: Sequence[Record], env: str) -> float:
    return mean_success(chosen(records, env, PER_ROLE)) - mean_success(
        chosen(records, env, SWAPPED)
    )


def _ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The two, their difference, and the loss by an exchange."""
    records = result["runs"]
    header, rows = table_of(result, (SHARED, PER_ROLE))
    envs = header[1:]
    rows.append(["difference", *(shown(gain(records, env, PER_ROLE, SHARED)) for env in envs)])
    rows.append(["lost by an exchange of policies", *(f"{_loss(records, e):.2f}" for e in envs)])
    return header, rows


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding", "math", "sudoku", "sokoban"))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(
        arms,
        verdict,
        partial(draw_bars, title="One policy, or one for each role", arms=(SHARED, PER_ROLE)),
    )


if __name__ == "__main__":
    main()
