"""Main program of the process in which math-verify runs: `python -P worker.py CPU_S BYTES`, started by `symbolic`.

It says `ready`. Then each line of standard input is a JSON list [gold, answer, places], and each
line of output is a JSON list [equal, CPU seconds]. The kernel ends the process where a pair takes
more CPU time or memory than it may: only that stops a computer algebra system for certain.

math-verify reads the LaTeX and compares values and sets. Relations are compared here: it takes the
right-hand side of any equation for the answer (`7 = 5` for 5), and solves both sides where it
cannot compare them, so that a relation without a solution (`1 = 0`) equals any other.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import resource
import signal
import sys
import time
from typing import Any

import sympy
from latex2sympy2_extended.logic import And  # type: ignore[import-untyped]  # no stubs exist
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

_CONFIG = [LatexExtractionConfig()]
# Without their own time limits, which need signals; this process has the kernel's.
_parse = functools.partial(parse, fallback_mode="no_fallback", parsing_timeout=None)
_verify = functools.partial(verify, timeout_seconds=None, allow_set_relation_comp=True)
_FLIPPED = {sympy.Gt: sympy.Lt, sympy.Ge: sympy.Le}
_PYTHON = (
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    (r"(?<!\\)\bsqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"\(([^(),]*)\)\s*(?=\([^(),]*\))", r"(\1)\\cdot "),
    (r"!=", r"\\ne "),
    (r"\\cr(?![a-zA-Z])", r"\\\\"),
    (r"(?<![\\a-zA-Z])(pi|sin|cos|tan|log)(?![a-zA-Z])", r"\\\1 "),
)


def latex(text: str) -> str:
    """Turns what a program printed into LaTeX; LaTeX stays as it is."""
    for pattern, replacement in _PYTHON:
        text = re.sub(pattern, replacement, text)
    return text


def main() -> None:
    """Answers pairs until the input ends."""
    # Whatever a library writes to standard output must not be read as a verdict.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    logging.disable()
    cpu_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    equal(r"\frac{1}{2}", "x", 6)  # the first call builds the parser
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process
        try:
            verdict = bool(equal(*json.loads(line)))
        except Exception:  # noqa: BLE001 - it is a verdict that this pair cannot be compared
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps([verdict, round(time.process_time() - began, 3)]) + "\n")
        answers.flush()


def equal(gold: str, answer: str, places: int) -> bool:
    """Returns whether an answer equals the reference; both are LaTeX or what a program prints."""
    left, right = (_parse(f"${latex(text)}$", _CONFIG) for text in (gold, answer))
    return bool(left and right) and expressions(left[0], right[0], places)


def expressions(gold: Any, answer: Any, places: int) -> bool:
    """Compares two relations, two values, or a value with a relation that states it."""
    wanted, given = links(gold), links(answer)
    if wanted and given:
        return len(wanted) == len(given) and (
            # A chain may be written from either end: 0 < x < 1 is 1 > x > 0.
            all(map(relations, wanted, given)) or all(map(relations, wanted, given[::-1]))
        )
    if given and not isinstance(gold, sympy.Set):
        # Without a name, as in `2 + 3 = 5`, every member has to be the answer.
        members = [given[0].lhs, *(link.rhs for link in given)]
        if is_name(members[0]):
            members = members[-1:]
        return all(isinstance(link, sympy.Eq) for link in given) and all(
            values(gold, member, places) for member in members
        )
    # A reference such as `x = 5` may be answered by 5 alone.
    if wanted and isinstance(wanted[0], sympy.Eq) and wanted[0].lhs.is_Symbol:
        return values(wanted[-1].rhs, answer, places)
    return values(gold, answer, places)


def links(expression: Any) -> list[Any]:
    """The relations of a chain such as `0 < x < 1`; none for anything else."""
    found = [expression]
    if isinstance(expression, And):
        found = list(expression._unsorted_args)
        if all(isinstance(link, sympy.Eq) for link in found) and is_name(found[0].lhs):
            # What is said of `a` in `a = 2 \cdot 3 = 6` is that it is 6.
            found = [sympy.Eq(found[0].lhs, found[-1].rhs, evaluate=False)]
    return found if all(isinstance(link, Relational) for link in found) else []


def is_name(expression: Any) -> bool:
    """Returns whether an expression can stand for a result: `x`, `f(2)`, `x + y`, but not `2x`."""
    if isinstance(expression, AppliedUndef) or len(expression.free_symbols) > 1:
        return True
    return expression.is_Symbol or (
        bool(expression.free_symbols) and not expression.atoms(sympy.Number)
    )


def relations(gold: Any, answer: Any) -> bool:
    """Returns whether one relation is the other, rearranged or multiplied by a number."""
    (kind, wanted), (other, given) = normal(gold), normal(answer)
    if kind is not other or not wanted.free_symbols or wanted.free_symbols != given.free_symbols:
        return False
    if kind in (sympy.Eq, sympy.Ne):
        # An equation with 0 holds where the numerator is 0, in forms with a fraction and without.
        wanted, given = (sympy.fraction(sympy.together(side))[0] for side in (wanted, given))
    factor = sympy.simplify(wanted / given)
    # A negative factor would turn an inequality around.
    return bool(factor.is_number and factor.is_finite) and bool(
        factor.is_nonzero if kind in (sympy.Eq, sympy.Ne) else factor.is_positive
    )


def normal(relation: Any) -> tuple[Any, Any]:
    """The kind of a relation, with `>` as `<`, and what it compares with 0; exact."""
    side = sympy.nsimplify(relation.lhs - relation.rhs, rational=True)
    return (_FLIPPED[relation.func], -side) if relation.func in _FLIPPED else (relation.func, side)


def values(gold: Any, answer: Any, places: int) -> bool:
    """Compares expressions that are not relations: by value where there is one, else by math-verify."""
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        gold, answer = gold.doit(), answer.doit()
        if not (gold.is_Symbol or answer.is_Symbol):
            rounded = bool(gold.atoms(sympy.Float) | answer.atoms(sympy.Float))
            near = probe(gold, answer, places if rounded else None)
            constant = not gold.free_symbols | answer.free_symbols
            if near is False or (near and rounded and constant):
                return near
    return bool(_verify(gold, answer, float_rounding=places))


def probe(gold: Any, answer: Any, places: int | None) -> bool | None:
    """Returns whether two expressions have one value at some point; None where they have no value.

    Decimals are compared to `places`. math-verify rounds the difference of any tiny numbers to 0.
    """
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    point = {name: sympy.Rational(7 + 6 * n, 5 + n) for n, name in enumerate(symbols)}
    try:
        one, other = (complex(side.subs(point).evalf(30)) for side in (gold, answer))
    except (TypeError, ValueError, OverflowError):
        return None
    # Only NaN differs from itself.
    if one != one or other != other:
        return None
    allowed = largest = max(abs(one), abs(other))
    if places is None or symbols:
        allowed *= 1e-9 if places is None else 1e-6
    else:
        allowed = 10.0**-places * min(1.0, largest)
    return abs(one - other) <= allowed


if __name__ == "__main__":
    main()
