"""Where does it matter which completions are compared: in long episodes, or where prompts of a task pay differently?

A point is a ground: how many decisions an episode of its trainings has, how much of the rewards' variance lies between the prompts of
a task (`benchmarks.between`), and what AT-GRPO, which compares completions of one prompt, solves more than with the same trees and
one baseline for a whole task. The grounds of Plan-Path differ in the
distance of the goal, and so in turns and tokens; other grounds differ in much else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.claims.cells import READINGS
from benchmarks.claims.experiments import AT_GRPO
from benchmarks.evidence import Table
from pettingllms.statistics import Estimate

OTHERS = {"tree, by task": "one baseline for a task", "GRPO, by episode": "whole episodes"}
"""Arms that AT-GRPO is compared with, and what they are called here."""


class Point(NamedTuple):
    """A ground on which AT-GRPO is compared with another arm."""

    ground: str
    over: str
    decisions: float
    """Of an episode in the last quarter of AT-GRPO's training; both readings have the same."""
    gains: Mapping[str, Estimate]
    """Reading -> the difference of success with its interval, not corrected for their number."""
    verdict: str


def points(result: Mapping[str, Any]) -> Iterator[Point]:
    """The points of what is published, by arm and then by the number of decisions."""
    for over in OTHERS:
        arm_points = [
            Point(
                verdict["ground"],
                over,
                result["arms"][verdict["ground"]][AT_GRPO]["decisions"],
                {name: Estimate(*verdict["gains"][name]) for name in READINGS},
                verdict["verdict"],
            )
            for verdict in result["verdicts"]
            if verdict["claim"] == f"{AT_GRPO} beats {over}"
        ]
        yield from sorted(arm_points, key=lambda point: point.decisions)


def table(result: Mapping[str, Any], shares: Mapping[str, Any]) -> Table:
    """A row for each ground, by the number of decisions; empty where an arm was not run.

    Args:
        result: of the claims.
        shares: ground -> what `benchmarks.between` measured there.
    """
    all_points = list(points(result))
    rows = []
    for ground in dict.fromkeys(
        point.ground for point in sorted(all_points, key=lambda point: point.decisions)
    ):
        by_arm = {point.over: point for point in all_points if point.ground == ground}
        share = f"{shares[ground]['share']:.2f}" if ground in shares else ""
        gains = [
            _shown(by_arm[over].gains[n]) if over in by_arm else ""
            for over in OTHERS
            for n in READINGS
        ]
        rows.append([f"`{ground}`", f"{next(iter(by_arm.values())).decisions:.1f}", share, *gains])
    heads = [
        f"AT-GRPO over {title}, at equal {name}" if number == 0 else f"at equal {name}"
        for title in OTHERS.values()
        for number, name in enumerate(READINGS)
    ]
    return ["where", "decisions of an episode", "rewards' variance between prompts", *heads], rows


def _shown(gain: Estimate) -> str:
    return f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
