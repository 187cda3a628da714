"""LiveCodeBench's rules, as its own harness has them (lcb_runner/evaluation/testing_util.py).

Names of the standard library are imported for every program, Python may recurse deeply, and
`SystemExit` is an end like any other. Printed text is stripped as a whole and line by line; lines are
equal as texts, or as decimals without any tolerance. Return values are compared with `==`.
"""

from __future__ import annotations

import json
from decimal import Decimal

_MODULES = ["string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"]
_MODULES += ["statistics", "itertools", "functools", "operator", "io", "sys", "json"]
_BEFORE = "\n".join(
    [
        *(f"from {name} import *" for name in _MODULES),
        "from builtins import *",
        "from typing import *",
        *(f"import {name}" for name in _MODULES),
        "sys.setrecursionlimit(50000)",
    ]
)


def beside(program: str) -> str:
    """Returns what runs a program as the harness does."""
    return (
        f"{_BEFORE}\ntry:\n    exec(compile({program!r}, 'solution.py', 'exec'))\n"
        "except SystemExit:\n    pass\n"
    )


def same_output(expected: str, actual: str) -> bool:
    """Tell whether printed text `actual` counts as `expected`."""
    left, right = expected.strip().split("\n"), actual.strip().split("\n")
    return len(left) == len(right) and all(map(_same_line, left, right))


def _same_line(expected: str, actual: str) -> bool:
    if expected.strip() == actual.strip():
        return True
    try:
        # The expected line first: it is short, and mostly words.
        return list(map(Decimal, expected.split())) == list(map(Decimal, actual.split()))
    except (ArithmeticError, ValueError):
        return False


def same_value(expected: str, actual: str | None) -> bool:
    """Tell whether the JSON value `actual` equals the JSON value `expected`; never raises."""
    try:
        return bool(json.loads(expected) == json.loads(actual or ""))
    except (ValueError, RecursionError):
        return False
