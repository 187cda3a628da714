r"""Finds the answer in a text and compares it with the reference.

Numbers, texts, lists and matrices are compared here, exactly: rational numbers by value (`1,000`,
`0.5`, `\frac12`, `1 1/2`, `12.5\%`, `1.2 \times 10^5`, `2^{10}`, each with a unit), lists and matrices
entry by entry. Everything else is algebra and goes to math-verify, if it is installed, in a process
that can be killed (`symbolic`). Both sides are answers, not the texts around them: prose, such as
the error message of a program, is never searched for numbers.

Ordered pairs are not sets: with brackets `()` and `[]` the order counts, `{}` and a bare `1, 2` are
sets, and brackets of two kinds differ. A row or column vector may stand for a tuple.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from pettingllms.grading import notation
from pettingllms.grading.notation import Items, Number, plain, split_list, squashed
from pettingllms.grading.symbolic import symbolic_equal

MAX_ITEMS = 32
MAX_NESTING = 4
MAX_PAIRS = 1500  # of items of an answer, also within sets of sets
PLACES = 6
"""Decimal places, and digits of numbers below 1, to which a decimal stands for a number."""
CPU_S = 2.0
"""Time for all of math-verify's work on one answer; what is undecided by then is unequal."""


class Grade(NamedTuple):
    """Result of a comparison: equal or not, what decided it, and why nothing could."""

    equal: bool
    by: Literal["exact", "math-verify", "undecided"] = "exact"
    note: str = ""


def grade(gold: str | Sequence[str], answer: str, *, places: int = PLACES) -> Grade:
    """Compares an answer with the reference.

    Args:
        gold: the reference. Several texts are several answers, all of which are asked for, in
            any order.
        answer: what is judged; any text.
        places: decimals are compared to this many places.
    """
    comparison = _Comparison(places)
    golds = (gold,) if isinstance(gold, str) else tuple(gold)
    if len(golds) == 1:
        verdict = comparison.texts(golds[0], answer)
    else:
        found = split_list(plain(answer)) if len(answer) <= notation.MAX_CHARS else None
        verdict = comparison.unordered(golds, found.items) if found else Grade(False)
    if comparison.asked and verdict.by == "exact":
        return verdict._replace(by="math-verify")  # only the last item of a list was decided here
    return verdict


def same(gold: str | Sequence[str], answer: str) -> bool:
    """Returns whether `answer` equals `gold`; see `grade`."""
    return grade(gold, answer).equal


# Brackets of two kinds that may hold the same list.
_ALIKE = [{a, b} for a in ("", "()", "[]") for b in ("row", "column")]
_ALIKE += [{"", brackets} for brackets in ("()", "[]", "(]", "[)")]
_INTEGER = re.compile(rf"-?[0-9]{{1,{notation.MAX_DIGITS}}}")


class _Comparison:
    """Compares one answer: how precisely, and the CPU time that has gone into algebra so far."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.pairs = 0
        self.asked = False
        self.cpu_s = 0.0

    def texts(self, gold: str, answer: str, depth: int = 0) -> Grade:
        """Compares two texts: as texts, as numbers, as lists, and else by algebra."""
        gold, answer = gold.strip(), answer.strip()
        if gold == answer:
            # Two empty texts are no answer.
            return Grade(bool(gold))
        self.pairs += 1
        if self.pairs > MAX_PAIRS:
            return Grade(False, "undecided", "too many items")
        if max(len(gold), len(answer)) > notation.MAX_CHARS or depth > MAX_NESTING:
            return Grade(False)
        if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
            return Grade(int(gold) == int(answer))
        gold, answer = _without_names(plain(gold), plain(answer))
        if not gold or not answer or squashed(gold) == squashed(answer):
            return Grade(bool(gold and answer))
        return self._read(gold, answer, depth)

    def _read(self, gold: str, answer: str, depth: int) -> Grade:
        gold_number, number = notation.read_number(gold), notation.read_number(answer)
        if gold_number and number:
            return Grade(self._same_number(gold_number, number))
        if gold_number and gold_number.decimal and answer.replace(",", ".") == gold:
            return Grade(True)  # `3,14`: no list is expected where the reference is a decimal
        gold_items = None if gold_number else split_list(gold)
        items = None if number else split_list(answer)
        if gold_items and items:
            return self._items(gold_items, items, depth)
        # One answer is not several, though math-verify makes one of `x, x`.
        sides = (gold_items, number), (items, gold_number)
        if any(found and (one or not found.brackets) for found, one in sides):
            return Grade(False)
        return self._algebra(gold, answer)

    def _same_number(self, gold: Number, answer: Number) -> bool:
        """Exactly, or to some places where one is written as a decimal.

        A percentage is a hundredth, but `9%` and `9` are the same answer to a question for a
        percentage. Two units that differ tell numbers apart; a missing one does not.
        """
        if gold.unit and answer.unit and gold.unit != answer.unit:
            return False
        pairs = [(gold.value, answer.value)]
        if gold.percent != answer.percent:
            pairs.append((100**gold.percent * gold.value, 100**answer.percent * answer.value))
        if any(left == right for left, right in pairs):
            return True
        return (gold.decimal or answer.decimal) and any(
            abs(left - right)
            <= Fraction(1, 10**self.places) * min(Fraction(1), max(abs(left), abs(right)))
            for left, right in pairs
        )

    def _items(self, gold: Items, answer: Items, depth: int) -> Grade:
        kinds = {gold.brackets, answer.brackets}
        if kinds <= {"", "{}"}:
            return self.unordered(gold.items, answer.items, depth)
        if len(kinds) > 1 and kinds not in _ALIKE:
            return Grade(False)
        if len(gold.items) != len(answer.items) or len(gold.items) > MAX_ITEMS:
            return Grade(False)
        verdict = Grade(True)
        for left, right in zip(gold.items, answer.items, strict=True):
            verdict = self.texts(left, right, depth + 1)
            if not verdict.equal:
                break
        return verdict

    def unordered(self, gold: tuple[str, ...], answer: tuple[str, ...], depth: int = 0) -> Grade:
        """Pairs each item of the reference with another item of the answer."""
        if len(gold) != len(answer) or len(gold) > MAX_ITEMS:
            return Grade(False)
        left, verdict = list(answer), Grade(True)
        for wanted in gold:
            for at, item in enumerate(left):
                verdict = self.texts(wanted, item, depth + 1)
                if verdict.by == "undecided":
                    return verdict  # one pair that takes too long is enough
                if verdict.equal:
                    del left[at]
                    break
            else:
                return verdict._replace(equal=False)
        return verdict

    def _algebra(self, gold: str, answer: str) -> Grade:
        (gold, unit), (answer, other) = notation.split_unit(gold), notation.split_unit(answer)
        if unit and other and unit != other:
            return Grade(False)
        if any(_is_hopeless(text) for text in (gold, answer)):
            return Grade(False)
        if self.cpu_s > CPU_S:
            return Grade(False, "undecided", "math-verify took too long for the whole answer")
        asked = symbolic_equal(gold, answer, self.places)
        self.asked = True
        self.cpu_s += asked.cpu_s
        return Grade(asked.equal, asked.by, asked.note)


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Removes `x =` from both, unless they are equations to compare: two names, or `x = 2` and `2 - x = 0`."""
    (gold_name, gold_value), (name, value) = notation.split_name(gold), notation.split_name(answer)
    if (gold_name and name and gold_name != name) or ("=" in gold_value + value):
        return gold, answer
    return gold_value, value


# ------------------------------------------------------------------------------- the box

# One match per box or brace; an escaped brace opens and closes nothing.
_TOKEN = re.compile(r"\\(?:boxed|fbox)[ \t\n]*+\{|\\[^a-zA-Z]|[{}]")


def boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}` or `\fbox{...}` whose braces close, or None.

    Of boxes within a box, the outermost counts. Linear in the text.
    """
    found: tuple[int, int] | None = None
    opened: list[int | None] = []  # where the content of each open box begins; None: a plain brace
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if len(mark) > 2:
            opened.append(token.end())
        elif mark == "{":
            opened.append(None)
        elif mark == "}" and opened and (start := opened.pop()) is not None:
            # A box that closes later and began earlier replaces those within it.
            found = (start, token.start())
    return text[found[0] : found[1]] if found else None


# ------------------------------------------------------------------------------- what algebra can do

# Words, beside the commands of LaTeX and the names of functions.
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]*\}")
# Towers and long factorials only cost time. Of two numbers side by side math-verify makes a sum.
_HOPELESS = re.compile(
    r"(?:\^|\*\*)[\s({]*[0-9]+[\s)}]*(?:\^|\*\*)|[0-9]{5,}\s*\}?\s*!|!\s*!"
    r"|(?:\^|\*\*)[\s({]*-?[0-9]{4,}|;"
    r"|(?<![_^0-9.])[0-9.]++\s+[0-9]"
)


def _is_hopeless(text: str) -> bool:
    """Returns whether `text` is prose, has unbalanced brackets, or is beyond algebra."""
    words = _WORD.findall(_ENVIRONMENT.sub(" ", text))
    if _HOPELESS.search(text) or any(word.lower() not in notation.FUNCTIONS for word in words):
        return True
    depth = 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        if not 0 <= depth <= 20:
            break
    return depth != 0
