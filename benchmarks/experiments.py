"""What `benchmarks.paper` runs: arms to compare, claims to judge, a table, a picture.

All arms of an experiment generate the same number of tokens in training and then play the same test tasks. The
experiments themselves are in `benchmarks.method_table`; those on the claims of the AT-GRPO paper are a runner of
their own, `benchmarks.claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evidence import (
    Record,
    Table,
    draw_bars,
    envs_of,
    gain,
    judged,
    table_of,
)

PER_ROLE: Mapping[str, Any] = {"policies": "per-role"}


class Arm(NamedTuple):
    """One of the teams that an experiment compares."""

    name: str
    settings: Mapping[str, Any] | None = None
    """Settings of its training; None where the base model plays."""
    options: tuple[str, ...] = ()
    """More options of `pettingllms-eval`."""


class Claim(NamedTuple):
    """`arm` solves more of the test tasks than `over`, by more than `least`."""

    text: str
    arm: str
    over: str
    least: float = 0.0


def bars(title: str, arms: Sequence[str] = ()) -> Callable[[Sequence[Record], Path], None]:
    """The picture of most experiments: success of each arm, or of these arms, by environment."""
    return partial(draw_bars, title=title, arms=arms)


class Experiment(NamedTuple):
    """One question to the method.

    `rows` makes the table from a published result; by default it is the success of each arm by environment.
    """

    question: str
    envs: tuple[str, ...]
    arms: Callable[[str], list[Arm]]
    """Environment -> what is compared in it."""
    claims: tuple[Claim, ...]
    draw: Callable[[Sequence[Record], Path], None]
    rows: Callable[[Mapping[str, Any]], Table] | None = None

    def verdict(self, records: Sequence[Record]) -> str:
        """Which of the claims hold, by environment."""
        envs = envs_of(records)
        parts = [
            judged(
                claim.text,
                {env: gain(records, env, claim.arm, claim.over) for env in envs},
                claim.least,
            )
            for claim in self.claims
        ]
        return " ".join(parts)

    def table(self, result: Mapping[str, Any]) -> Table:
        """Header and rows of a published result."""
        if self.rows is not None:
            return self.rows(result)
        env = envs_of(result["runs"])[0]
        return table_of(result, [arm.name for arm in self.arms(env)])
