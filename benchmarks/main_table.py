"""The paper's main table: one agent, one agent with GRPO, a team, a team with AT-GRPO.

    python -m benchmarks.main_table [--envs coding math] [--seeds 0 1 2] [--jobs 2]

The single agent has as many turns as the team, which the paper's has not: it is the fairer control.
Its GRPO compares whole episodes of a task. Everything trained generates the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence import Record, at_ceiling, draw_bars, envs_of, gain, judged, table_of
from benchmarks.paper import Lab, Wanted

SINGLE, GRPO, TEAM = "single agent", "single agent + GRPO", "team, prompts only"
SHARED, PER_ROLE = "AT-GRPO, shared", "AT-GRPO, per role"
ONE = {"agents": "single"}


def wanted(env: str) -> list[Wanted]:
    """The five rows."""
    return [
        Wanted(env, SINGLE, words=("--agents", "single")),
        Wanted(env, GRPO, {"estimator": "grpo", "env_args": ONE}),
        Wanted(env, TEAM),
        Wanted(env, SHARED, {"policies": "shared"}),
        Wanted(env, PER_ROLE, {"policies": "per-role"}),
    ]


def verdict(records: Sequence[Record]) -> str:
    """Whether trained teams are better than a trained single agent, and than what they began as."""
    envs = envs_of(records)
    over_one = judged(
        "A team trained with AT-GRPO, per role, beats a single agent trained with GRPO at equal tokens",
        {env: gain(records, env, PER_ROLE, GRPO) for env in envs},
    )
    over_none = judged(
        "It beats the team that it began as",
        {env: gain(records, env, PER_ROLE, TEAM) for env in envs},
    )
    full = at_ceiling(records, (GRPO, PER_ROLE))
    return f"{over_one} {over_none}" + (
        f" Both are at the ceiling in {', '.join(full)}, where nothing can be told." if full else ""
    )


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row a method, one column an environment."""
    return table_of(result, (SINGLE, GRPO, TEAM, SHARED, PER_ROLE))


def main() -> None:
    """Train, play, write."""
    lab = Lab(__doc__, ("coding", "math", "sudoku", "sokoban", "plan_path"))
    arms = [each for env in lab.envs for each in wanted(env)]
    lab.publish(
        arms, verdict, partial(draw_bars, title="Test tasks solved, equal generated tokens")
    )


if __name__ == "__main__":
    main()
