"""From how many decisions on does it matter which completions are compared?

A point is a ground: how many decisions an episode of its trainings has, and what AT-GRPO, which compares completions of
one prompt, solves more than with the same trees and one baseline for a whole task. On the grounds of Plan-Path only the distance
of the goal differs; other grounds differ in much else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.claims.cells import READINGS
from benchmarks.claims.experiments import AT_GRPO
from benchmarks.evidence import Table
from pettingllms.evaluation.scores import Estimate

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


def table(result: Mapping[str, Any]) -> Table:
    """A row for each ground, by the number of decisions; empty where an arm was not run."""
    rows: dict[str, list[str]] = {}
    width = len(READINGS)
    for number, over in enumerate(OTHERS):
        for point in points(result):
            if point.over == over:
                empty = [f"`{point.ground}`", f"{point.decisions:.1f}", *[""] * width * len(OTHERS)]
                row = rows.setdefault(point.ground, empty)
                first = 2 + number * width
                row[first : first + width] = [_shown(point.gains[name]) for name in READINGS]
    heads = [
        f"over {title}, at equal {name}" if number == 0 else f"at equal {name}"
        for title in OTHERS.values()
        for number, name in enumerate(READINGS)
    ]
    ordered = sorted(rows.values(), key=lambda row: float(row[1]))
    return ["where", "decisions of an episode", *heads], ordered


def _shown(found: Estimate) -> str:
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
