"""The self-check: behaviors that every back end must have, run on the real thing.

    for report in self_check(open_sandbox("embedded", workers=1)):
        ...

The tests run it on both back ends, and `pettingllms-sandbox check` shows it to users. With one
worker, what a program leaves behind is looked for where it would be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pettingllms.sandbox.selfcheck import forgery, honest, isolation, leftovers, limits
from pettingllms.sandbox.selfcheck.behaviour import Behaviour
from pettingllms.sandbox.types import Sandbox

__all__ = ["GROUPS", "Behaviour", "CheckReport", "self_check"]

GROUPS: dict[str, tuple[Behaviour, ...]] = {
    "limits": limits.BEHAVIOURS,
    "isolation": isolation.BEHAVIOURS,
    "forgery": forgery.BEHAVIOURS,
    "leftovers": leftovers.BEHAVIOURS,
    "honest": honest.BEHAVIOURS,
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of one behavior; `complaint` is empty if it is correct."""

    group: str
    name: str
    complaint: str


def self_check(sandbox: Sandbox) -> Iterator[CheckReport]:
    """Check every behavior on `sandbox`, one after the other."""
    for group, behaviours in GROUPS.items():
        for behaviour in behaviours:
            yield CheckReport(group, behaviour.name, behaviour.check(sandbox))
