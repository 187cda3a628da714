"""The self-check: behaviours that every back end must have, run on the real thing.

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

__all__ = ["GROUPS", "Behaviour", "Report", "self_check"]

GROUPS: dict[str, tuple[Behaviour, ...]] = {
    "limits": limits.BEHAVIOURS,
    "isolation": isolation.BEHAVIOURS,
    "forgery": forgery.BEHAVIOURS,
    "leftovers": leftovers.BEHAVIOURS,
    "honest": honest.BEHAVIOURS,
}


@dataclass(frozen=True, slots=True)
class Report:
    """How one behaviour fared; `complaint` is empty where it is as it should be."""

    group: str
    name: str
    complaint: str


def self_check(sandbox: Sandbox) -> Iterator[Report]:
    """Check every behaviour on `sandbox`, one after the other."""
    for group, behaviours in GROUPS.items():
        for behaviour in behaviours:
            yield Report(group, behaviour.name, behaviour.check(sandbox))
