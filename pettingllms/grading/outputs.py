"""Compares outputs with the expected ones, outside the sandbox; programs never see these.

Printed text: equal line by line after trailing blanks and trailing empty lines are dropped, else
token by token, where a token may differ by rounding only if the *expected* one is written as a
float (absolute or relative error at most 1e-6). Integers are exact, letters keep their case, and
nothing is ever compared as a set. Return values: the same, recursively, with tuples as lists.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

TOLERANCE = 1e-6
_READABLE_DIGITS = 4000
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def same_output(expected: str, actual: str) -> bool:
    """Tell whether printed text `actual` counts as `expected`."""
    expected_lines, actual_lines = _lines(expected), _lines(actual)
    if expected_lines == actual_lines:
        return True
    if len(expected_lines) != len(actual_lines):
        return False
    return all(
        _same_tokens(left.split(), right.split())
        for left, right in zip(expected_lines, actual_lines, strict=True)
    )


def same_value(expected: str, actual: str | None) -> bool:
    """Tell whether the JSON value `actual` equals the JSON value `expected`; never raises."""
    if actual is None:
        return False
    try:
        return _same_json(*(json.loads(text, parse_int=_whole) for text in (expected, actual)))
    except (ValueError, RecursionError, OverflowError):  # an integer may be too large for a float
        return False


class _LongInteger(str):
    """The digits of an integer that is too long for `int` to read by default."""


def _whole(text: str) -> int | _LongInteger:
    # JSON writes each integer in one way only, so that equal digits are equal numbers.
    return int(text) if len(text) <= _READABLE_DIGITS else _LongInteger(text)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(expected: list[str], actual: list[str]) -> bool:
    return len(expected) == len(actual) and all(
        left == right or _close_text(left, right)
        for left, right in zip(expected, actual, strict=True)
    )


def _close_text(expected: str, actual: str) -> bool:
    if len(expected) > 64 or len(actual) > 64:
        return False
    if not (_FLOAT.fullmatch(expected) and _NUMBER.fullmatch(actual)):
        return False
    return _close(float(expected), float(actual))


def _close(expected: float, actual: float) -> bool:
    return math.isfinite(actual) and math.isclose(
        expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


def _same_json(expected: Any, actual: Any) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, float) and isinstance(actual, int | float):
        return _close(expected, float(actual))
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_same_json, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(
            _same_json(value, actual[key]) for key, value in expected.items()
        )
    return bool(type(expected) is type(actual) and expected == actual)
