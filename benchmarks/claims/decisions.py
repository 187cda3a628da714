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
        found = [
            Point(
                each["ground"],
                over,
                result["arms"][each["ground"]][AT_GRPO]["decisions"],
                {name: Estimate(*each["gains"][name]) for name in READINGS},
                each["verdict"],
            )
            for each in result["verdicts"]
            if each["claim"] == f"{AT_GRPO} beats {over}"
        ]
        yield from sorted(found, key=lambda point: point.decisions)


def table(result: Mapping[str, Any], shares: Mapping[str, Any]) -> Table:
    """A row for each ground, by the number of decisions; empty where an arm was not run.

    Args:
        result: of the claims.
        shares: ground -> what `benchmarks.between` measured there.
    """
    found = list(points(result))
    rows = []
    for ground in dict.fromkeys(
        point.ground for point in sorted(found, key=lambda each: each.decisions)
    ):
        own = {point.over: point for point in found if point.ground == ground}
        share = f"{shares[ground]['share']:.2f}" if ground in shares else ""
        gains = [
            _shown(own[over].gains[n]) if over in own else "" for over in OTHERS for n in READINGS
        ]
        rows.append([f"`{ground}`", f"{next(iter(own.values())).decisions:.1f}", share, *gains])
    heads = [
        f"AT-GRPO over {title}, at equal {name}" if number == 0 else f"at equal {name}"
        for title in OTHERS.values()
        for number, name in enumerate(READINGS)
    ]
    return ["where", "decisions of an episode", "rewards' variance between prompts", *heads], rows


def _shown(found: Estimate) -> str:
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
