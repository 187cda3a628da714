"""Main program of the process in which SymPy runs: `python -P worker.py`, started by `symbolic`.

It answers a line [gold, answer, places] with [equal, CPU seconds]. Values are compared at random points, equations
and inequalities up to a factor, or as sets.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import sympy
from sympy import Rational, S

sys.path.insert(0, str(Path(__file__).parents[2]))
from pettingllms.grading import notation
from pettingllms.grading.expressions import Expression, Unreadable, regex
from pettingllms.grading.notation import Relation, cut, plain, split_list, split_relation
from pettingllms.grading.symbolic import CPU_S, MEMORY_BYTES

_JOINS = dict.fromkeys(["and", "And", "&", r"\land", r"\cap"], sympy.Intersection)
_JOINS |= dict.fromkeys([r"\setminus", "Complement"], lambda one, other: one - other)
_UNION = r"\\(?:cup|cap|setminus)\>|(?<=[)\]}]) *U *(?=[(\[{\\])"
_SET = regex(rf"{_UNION}|[<>]|\\R\>|!=|^(?:Union|Interval|Complement|Or|And|Ne|FiniteSet|Reals)")  # fmt: skip

_MEANT = {
    "degree": sympy.pi / 180,
    "Function": lambda letter, *args: sympy.Function(letter)(*args),
    "Antiderivative": sympy.Function("Antiderivative"),
    "Log": lambda *args: sympy.log(*args) * sympy.Symbol("of an unknown base"),
    "Limit": lambda *args: sympy.limit(*args[:3], ("+-", "+", "-")[sum(args[3:])]),
}


def main() -> None:
    """Answers pairs until the pipe is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for question in sys.stdin:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends the process
        try:
            verdict = equal(*json.loads(question))
        except Exception:  # noqa: BLE001 - it is a verdict that this pair cannot be compared
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)  # what is left must not end the next pair
        sys.stdout.write(json.dumps([verdict, time.process_time() - began]) + "\n")
        sys.stdout.flush()


def equal(gold: str, answer: str, places: int) -> bool:
    """Compares two equations, two sets, two values, or a value with a statement of it."""
    wanted, answered = split_relation(gold), split_relation(answer)
    if wanted and answered and (wanted.name != answered.name or wanted.name in ("", "~")):
        one, other = links(wanted), links(answered)
        # A chain may be written from either end: 0 < x < 1 is 1 > x > 0.
        ways = (other, other[::-1]) if len(one) == len(other) else ()
        if any(all(map(related, one, way)) for way in ways):
            return True
        if {*wanted.signs, *answered.signs} <= {"=", "≈"}:
            return False
    if _SET.search(gold) or _SET.search(answer):
        names: set[Any] = set()
        left, right = as_set(gold, names), as_set(answer, names)
        return len(names) < 2 and bool(left == right or left.symmetric_difference(right).is_empty)
    golds, answers = stated(wanted, gold, places), stated(answered, answer, places)
    several = wanted is not None and wanted.name == "~"  # unknowns, which one value does not give
    return not several and any(same(one, other, places) for one in golds for other in answers)


def same(gold: str, answer: str, places: int) -> bool:
    """Compares two values, at random points where they have variables."""
    one, other = read(gold), read(answer)
    decimal, gold_value, value = one.decimal or other.decimal, one.value, other.value
    if gold_value == value:
        return value not in (S.NaN, S.ComplexInfinity)
    names = sorted(gold_value.free_symbols | value.free_symbols, key=str)
    if not names:
        return near(gold_value, value, places if decimal else None) is True
    chosen, agreed = random.Random(17), 0
    # Positive points first, then all signs: a root or a logarithm may have no real value there.
    for signs in [(1, 1)] * 3 + [(-1, -1)] + [(1, -1)] * 3:
        point = {n: chosen.choice(signs) * Rational(chosen.randint(100, 9000), 2003) for n in names}
        two = gold_value.subs(point), value.subs(point)
        verdict = near(*two, min(-places, -6) if decimal else None, real=-1 in signs)
        if verdict is False:
            return False
        agreed += verdict is True
    return agreed > 2


def near(gold: Any, answer: Any, places: int | None, real: bool = False) -> bool | None:
    """Compares two numbers; None where neither has a value, or a real one if it has to be."""
    one, other = (sympy.N(side, 40) for side in (gold, answer))
    if one.is_infinite or other.is_infinite:
        return bool(one == other) and one is not S.ComplexInfinity
    valued = one.is_number and other.is_number and S.NaN not in (one, other)
    if not valued or (real and not (one.is_real or other.is_real)):
        return None
    largest = max(abs(one), abs(other))
    allowed = largest / 10**30 + Rational(1, 10**60)
    if places is not None:
        allowed = largest / 10**-places if places < 0 else min(1, largest) * Rational(10) ** -places
    return bool(abs(sympy.N(gold - answer, 40)) <= allowed)


def stated(relation: Relation | None, text: str, places: int) -> tuple[str, ...]:
    """The value that a statement such as `x = 5` or `2 + 3 = 5` is about, if all its sides agree."""
    name, signs, sides = relation or Relation("", (), (text,))
    if name:
        sides, signs = sides[1:], signs[1:]
    for sign, side in zip(signs, sides[1:], strict=True):
        # What is about equal is rounded to the places that are written.
        decimal = re.fullmatch(r"-?[0-9]*\.([0-9]+)", side) if sign == "≈" else None
        off = abs(read(sides[0]).value - Rational(side)) * 10 ** len(decimal[1]) if decimal else 1
        if not (off < Rational(501, 1000) or same(sides[0], side, places)):
            return ()
    return sides[0], sides[-1]


def read(text: str) -> Expression:
    """The expression of SymPy that a text stands for."""
    return Expression(text, Rational, call)


def call(name: str, *args: Any) -> Any:
    """A function, a symbol or a constant of SymPy."""
    if name in ("factorial", "binomial") and any(n.is_Rational and abs(n) > 3000 for n in args):
        raise Unreadable
    if name == "root" and args[0].is_negative and args[1].is_odd:
        return -sympy.root(-args[0], args[1])
    if name in ("Sum", "Product", "Integral"):
        return getattr(sympy, name)(args[0], args[1:]).doit()
    meant = _MEANT.get(name) or getattr(sympy, name, None) or getattr(S, name)
    return meant(*args) if args else meant


def links(relation: Relation) -> list[tuple[str, Any]]:
    """Each relation of a chain: its kind, and what it compares with 0."""
    sides = [read(side).value for side in relation.sides]
    linked = zip(relation.signs, sides, sides[1:], strict=False)
    return [(sign.replace(">", "<"), b - a if ">" in sign else a - b) for sign, a, b in linked]


def related(gold: tuple[str, Any], answer: tuple[str, Any]) -> bool:
    """Returns whether one relation is the other, rearranged or multiplied by a number."""
    (sign, wanted), (other, answered) = gold, answer
    if sign != other or not wanted.free_symbols or wanted.free_symbols != answered.free_symbols:
        return False
    if "<" not in sign:
        # An equation with 0 holds where the numerator is 0, in forms with a fraction and without.
        wanted, answered = (sympy.fraction(sympy.together(side))[0] for side in (wanted, answered))
    factor = sympy.simplify(wanted / answered)
    # A negative factor would turn an inequality around.
    fits = factor.is_positive if "<" in sign else factor.is_nonzero
    return bool(factor.is_number and factor.is_finite and fits)


def as_set(text: str, names: set[Any]) -> Any:
    """The set that a union, an interval or a condition stands for; adds the variable to `names`."""
    text = plain(text)
    if notation.encloses(text) and split_relation(text[1:-1]):
        text = text[1:-1]
    joined = re.fullmatch(r"(Union|Or|And|Complement)\((.*)\)", text)
    pieces, marks = cut(joined[2] if joined else text, rf"{notation.AND}|{_UNION}")
    marks = [joined[1]] if joined else marks
    listed, relation = split_list(text), split_relation(text)
    if listed is None and any(marks):
        (join,) = {_JOINS.get(mark, sympy.Union) for mark in marks if mark}
        return join(*(as_set(piece, names) for piece in pieces))
    texts = listed.items if listed else () if relation else (text,)
    items = [read(plain(item)).value for item in texts]
    if listed and listed.brackets in ("()", "(]", "[)", "[]") and len(items) == 2:
        return sympy.Interval(*items, listed.brackets[0] == "(", listed.brackets[1] == ")")
    if not relation:
        return items[0] if isinstance(items[0], sympy.Set) else sympy.FiniteSet(*items)
    conditions = []
    for sign, side in links(relation):
        if not side.free_symbols:
            raise Unreadable  # `0 < 1` is about nothing
        names |= side.free_symbols
        real = side.subs(dict.fromkeys(names, sympy.Dummy(real=True)))
        conditions.append(sympy.Rel(real, 0, "==" if sign == "=" else sign).as_set())
    return sympy.Intersection(*conditions)


if __name__ == "__main__":
    main()
