r"""Finds the answer in a text and compares it with the reference.

Numbers, texts, lists and matrices are compared here, exactly; everything else goes to SymPy, if it is installed (`symbolic`). Both sides are answers, not the texts around them.
With brackets `()` and `[]` the order counts, `{}` and a bare `1, 2` are sets, and a row or column may stand for a tuple. A percentage is a hundredth, and a number in a base differs from one in another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from pettingllms.grading import notation
from pettingllms.grading.expressions import WORDS, Expression, regex
from pettingllms.grading.notation import Items, Relation, plain, split_list, split_relation
from pettingllms.grading.symbolic import Grade, symbolic_equal

MAX_ITEMS, MAX_NESTING = 32, 4
CPU_S, PAIR_S = 2.0, 0.0013  # for all work on one answer, and what a pair of items counts as
Texts = Sequence[str]


def grade(gold: str | Texts, answer: str, *, strict: bool = False) -> Grade:
    """Compares an answer, any text, with the reference; decimals to six places, and with `strict` to twelve.

    Several references are several answers, all of which are asked for, in any order. With `strict`
    a missing unit and other brackets count, so that answers fall into classes, whatever their order.
    """
    golds = [gold] if isinstance(gold, str) else list(gold) if isinstance(gold, Sequence) else []
    if not golds or not all(isinstance(text, str) for text in (*golds, answer)):
        return Grade(False)
    comparison = _Comparison(strict)
    if len(golds) == 1:
        return comparison.texts(golds[0], answer)
    items = split_list(plain(answer[: notation.MAX_CHARS]))
    return comparison.lists(golds, items.items) if items else Grade(False)


def same(gold: str | Texts, answer: str, *, strict: bool = False) -> bool:
    """Returns whether `answer` equals `gold`; see `grade`."""
    return grade(gold, answer, strict=strict).equal


# Brackets of two kinds that may hold the same list.
_ALIKE = [{a, b} for a in ("", "()", "[]") for b in ("row", "column")] + [{"", "()"}]
_SETS = ({""}, {"{}"}, {"", "{}"}, {"", "[]"})
_DECIMAL = regex(r"-?\d+[.,](?!\d{3}$)\d+")
_PRODUCT = re.compile("(?!no$|on$)(?:[a-z]{2}|[b-df-hj-np-tv-z]{2,4})")  # not a word


class _Comparison:
    """Compares one answer: how precisely, and the CPU time that is left for it."""

    def __init__(self, strict: bool) -> None:
        self.strict, self.places, self.left_s = strict, 12 if strict else 6, CPU_S

    def texts(self, gold: str, answer: str, depth: int = 0) -> Grade:
        """Compares two texts: as texts, as numbers, as lists, and else by algebra."""
        gold, answer = gold.strip(), answer.strip()
        if gold == answer:
            return Grade(bool(gold))  # two empty texts are no answer
        self.left_s -= PAIR_S
        if self.left_s < 0:
            return Grade(False, "undecided", "too many items, or too slow ones")
        if max(len(gold), len(answer)) > notation.MAX_CHARS or depth > MAX_NESTING:
            return Grade(False)
        if all(map(_DECIMAL.fullmatch, (gold, answer))) and ("," in gold) != ("," in answer):
            gold, answer = gold.replace(",", "."), answer.replace(",", ".")  # `3,14`
        gold, answer = plain(gold), plain(answer)
        if not gold or not answer or notation.squashed(gold) == notation.squashed(answer):
            return Grade(bool(gold and answer))
        if gold.isalpha() and answer.isalpha() and not {gold, answer} <= WORDS:
            return Grade(bool(_PRODUCT.fullmatch(gold)) and sorted(gold) == sorted(answer))
        return self._measured(*_without_names(gold, answer, self.strict), depth)

    def _measured(self, gold: str, answer: str, depth: int) -> Grade:
        """Two units that differ tell numbers apart; a missing one does not."""
        (left, unit, factor), (right, other, times) = map(notation.split_unit, (gold, answer))
        if unit == other:
            left = f"({left})*{factor}/({times})" if unit and factor != times else left
            return self._values(left, right, depth)
        if (unit and other) or self.strict:
            return Grade(False)
        # What looks like a unit is a variable, if the other side has it too.
        verdict = self._values(left, right, depth)
        return verdict if verdict.equal else self._values(gold, answer, depth)

    def _values(self, gold: str, answer: str, depth: int) -> Grade:
        one, other = (notation.read_number(text) or split_list(text) for text in (gold, answer))
        if isinstance(one, Expression) and isinstance(other, Expression):
            return self._numbers(one, other)
        if isinstance(one, Items) and isinstance(other, Items):
            brackets = {one.brackets, other.brackets}
            ordered = brackets not in _SETS or (self.strict and "[]" in brackets)
            if ordered and len(brackets) > 1 and (brackets not in _ALIKE or self.strict):
                return Grade(False)
            return self.lists(one.items, other.items, ordered, depth)
        # One answer is not several, and in a vote a condition is no set.
        apart = self.strict and bool(split_relation(gold)) != bool(split_relation(answer))
        if (one and other) or apart:
            return Grade(False)
        verdict = symbolic_equal(gold, answer, self.places)
        self.left_s -= verdict.cpu_s
        return verdict._replace(cpu_s=0.0)

    def _numbers(self, gold: Expression, answer: Expression) -> Grade:
        """Exactly, or to some places where one is written as a decimal."""
        if self.strict:
            return Grade(bool(round(gold.value, self.places) == round(answer.value, self.places)))
        largest = min(Fraction(1), max(abs(gold.value), abs(answer.value)))
        allowed = largest / 10**self.places if gold.decimal or answer.decimal else 0
        return Grade(bool(abs(gold.value - answer.value) <= allowed))

    def lists(self, gold: Texts, answer: Texts, ordered: bool = False, depth: int = 0) -> Grade:
        """Pairs each item of the reference with another item of the answer, or with the next."""
        left, verdict = list(answer), Grade(len(gold) == len(answer) <= MAX_ITEMS)
        for wanted in gold if verdict.equal else ():
            for item in left[:1] if ordered else left:
                verdict = self.texts(wanted, item, depth + 1)
                if verdict.equal or verdict.by == "undecided":
                    break  # one pair that takes too long is enough
            if not verdict.equal:
                return verdict
            left.remove(item)
        return verdict


def _without_names(gold: str, answer: str, always: bool) -> tuple[str, str]:
    """Removes `x =` from both, unless they are equations to compare: two names, or `x = 2` and `2 - x = 0`."""
    names, values = set(), []
    for text in (gold, answer):
        name, signs, sides = split_relation(text) or Relation("", (), (text,))
        named = name not in ("", "~") and signs == ("=",)
        names |= {name} if named else set()
        values.append(sides[1] if named else text)
    apart = len(names) > 1 or re.search("[^<>!]=", "".join(values))
    return (gold, answer) if apart and not always else (values[0], values[1])
