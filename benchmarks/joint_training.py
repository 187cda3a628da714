"""Roles trained together against roles trained alone and then combined.

    python -m benchmarks.joint_training [--envs coding math] [--seeds 0 1 2] [--jobs 2]

"Alone": one role is trained while the other stays as the base model is, with half of the tokens each, so that both
teams cost the same; then the two adapters play together. (The paper trains its roles alone as single agents, which not every
role can be: a tester alone has no program to test.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import Record, draw_bars, envs_of, gain, judged, table_of
from benchmarks.paper import ROLES, Lab, Wanted

BASE, ALONE, JOINT = "base", "trained alone, combined", "trained together"


def wanted(lab: Lab, env: str) -> list[Wanted]:
    """The base, the combined team, the team trained as one."""
    half = {"policies": "per-role", "max_tokens": lab.tokens(env) // 2}
    alone = tuple(half | {"train_roles": role} for role in ROLES[env])
    return [
        Wanted(env, BASE),
        Wanted(env, ALONE, combine=alone),
        Wanted(env, JOINT, {"policies": "per-role"}),
    ]


def verdict(records: Sequence[Record]) -> str:
    """Claim 1."""
    envs = envs_of(records)
    return judged(
        "Joint training beats combining roles trained alone, at equal tokens (claim 1)",
        {env: gain(records, env, JOINT, ALONE) for env in envs},
    )


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a way of training."""
    return table_of(result, (BASE, ALONE, JOINT))


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding", "math"))
    arms = [each for env in lab.envs for each in wanted(lab, env)]
    lab.publish(arms, verdict, partial(draw_bars, title="Roles trained alone and together"))


if __name__ == "__main__":
    main()
