"""Checks of the arguments that environments are made with, each with an error that helps."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from pettingllms.errors import ConfigError, did_you_mean

Value = TypeVar("Value")


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Returns `value`.

    Raises:
        ConfigError: it is not among `allowed`.
    """
    if value not in allowed:
        hint = did_you_mean(str(value), allowed)
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}; {hint}")
    return value


def finite(name: str, value: float) -> float:
    """Returns `value` as a float.

    Raises:
        ConfigError: it is infinite or not a number.
    """
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value}")
    return float(value)


def free_keys(
    name: str, entries: Mapping[str, Value], reserved: AbstractSet[str]
) -> dict[str, Value]:
    """Returns a copy of `entries`.

    Raises:
        ConfigError: one of its keys is `reserved`.
    """
    if taken := sorted(reserved & entries.keys()):
        raise ConfigError(f"{name} must not use the reserved keys {taken}; rename them")
    return dict(entries)


def turn_limit(max_turns: int | None, max_cycles: int | None, default: int) -> int:
    """The number of turns, from whichever of its two names was given.

    Raises:
        ConfigError: both are given and differ, or the number is smaller than 1.
    """
    given = [operator.index(turns) for turns in (max_turns, max_cycles) if turns is not None]
    if len(set(given)) > 1:
        raise ConfigError(
            f"max_turns ({max_turns}) and max_cycles ({max_cycles}) mean the same; give one"
        )
    limit = given[0] if given else default
    if limit < 1:
        raise ConfigError(f"max_turns must be at least 1, got {limit}")
    return limit


def agent_names(roles: Sequence[str]) -> list[str]:
    """`<role>_0` for each role, `<role>_1` and so on where it occurs again.

    Raises:
        ConfigError: there is no role, or one is not a lower-case word.
    """
    seen: Counter[str] = Counter()
    names = []
    for role in roles:
        if not re.fullmatch("[a-z]+", role):
            raise ConfigError(f"a role must be a word of letters a-z, got {role!r}; rename it")
        names.append(f"{role}_{seen[role]}")
        seen[role] += 1
    if not names:
        raise ConfigError("roles must name at least one role, got none")
    return names
