"""All behaviors that every back end must have: the self-check's, and those that only we need to know."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import GROUPS, ISOLATION, Behavior
from tests.behaviors import forgery, honest, isolation, leftovers, limits, programs

MORE: dict[str, tuple[Behavior, ...]] = {
    "limits": limits.BEHAVIORS,
    "isolation": isolation.BEHAVIORS,
    "forgery": forgery.BEHAVIORS,
    "leftovers": leftovers.BEHAVIORS,
    "honest": honest.BEHAVIORS,
    "programs": programs.BEHAVIORS,
}
ALL = [
    (group, behavior) for table in (GROUPS, MORE) for group in table for behavior in table[group]
]
ATTACKS = (*ISOLATION, *isolation.BEHAVIORS)
"""Attacks on what is around a program."""
