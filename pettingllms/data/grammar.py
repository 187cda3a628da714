"""A compositional grammar of small programming problems about lists, words and arithmetic.

Every problem is a pipeline of three parts: keep some values, change each of them, report one
result (lists and words), or combine two numbers and change the result twice (arithmetic). A part
knows several English phrases, one Python expression, and the function that the expression
computes, so that hidden tests need no sandbox. Train, validation and test problems use disjoint
*compositions*: a test problem combines known parts in a way never seen before.

The split of a composition depends on what it computes, not on its name or position, so that no
test problem is a training problem in other words.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pettingllms.data.splits import SPLITS, Split, split_of


class Part(NamedTuple):
    """One step of a pipeline: a name, its phrases, its expression, and what that computes."""

    name: str
    phrases: tuple[str, ...]
    code: str
    apply: Callable[..., Any]


def _parts(arguments: str, *rows: tuple[str, str, str, str]) -> tuple[Part, ...]:
    """Makes parts of (name, phrase, other phrase, expression), functions of the same arguments."""
    parts = []
    for name, *phrases, code in rows:
        # With a star, `print` writes the members apart by blanks; the value is a list.
        value = f"[{code}]" if code.startswith("*") else code
        function = eval(f"lambda {arguments}: {value}")  # noqa: S307 - an expression of this file
        parts.append(Part(name, tuple(phrases), code, function))
    return tuple(parts)


NUMBER_FILTERS = _parts(
    "x",
    ("even", "even numbers", "numbers divisible by 2", "x % 2 == 0"),
    ("odd", "odd numbers", "numbers that are not even", "x % 2 == 1"),
    ("positive", "positive numbers", "numbers over zero", "x > 0"),
    ("negative", "negative numbers", "numbers under zero", "x < 0"),
    ("threes", "multiples of 3", "numbers divisible by 3", "x % 3 == 0"),
    ("above2", "numbers above 2", "numbers greater than 2", "x > 2"),
    ("above4", "numbers above 4", "numbers greater than 4", "x > 4"),
    ("below3", "numbers below 3", "numbers less than 3", "x < 3"),
    ("below5", "numbers below 5", "numbers less than 5", "x < 5"),
)
NUMBER_MAPS = _parts(
    "x",
    ("double", "double {it}", "multiply {it} by 2", "x * 2"),
    ("triple", "triple {it}", "multiply {it} by 3", "x * 3"),
    ("square", "square {it}", "multiply {it} by itself", "x * x"),
    ("negate", "negate {it}", "flip the sign of {it}", "-x"),
    ("absolute", "drop the sign of {it}", "take the absolute value of {it}", "abs(x)"),
    ("add1", "add 1 to {it}", "increase {it} by 1", "x + 1"),
    ("add3", "add 3 to {it}", "increase {it} by 3", "x + 3"),
    ("add5", "add 5 to {it}", "increase {it} by 5", "x + 5"),
    ("sub2", "subtract 2 from {it}", "decrease {it} by 2", "x - 2"),
    ("sub4", "subtract 4 from {it}", "decrease {it} by 4", "x - 4"),
)
NUMBER_REDUCES = _parts(
    "a",
    ("sum", "the sum", "the total", "sum(a)"),
    ("max", "the largest", "the maximum", "max(a, default=0)"),
    ("min", "the smallest", "the minimum", "min(a, default=0)"),
    ("count", "how many there are", "the count", "len(a)"),
    ("first", "the first", "the first one", "a[0] if a else 0"),
    ("last", "the last", "the final one", "a[-1] if a else 0"),
    ("all", "all of them", "the list", "*a"),
    ("sorted", "them in order", "the sorted list", "*sorted(a)"),
)
WORDS = tuple(
    """
    ant bee cat dog elk fox hen owl pig rat bear crab deer duck frog goat hare lion mole swan
    apple bread eagle horse mouse olive otter sheep snail tiger
    """.split()  # noqa: SIM905 - a list of words reads better as words
)
WORD_FILTERS = _parts(
    "x",
    ("short", "short words of 3 letters", "words with exactly 3 letters", "len(x) == 3"),
    ("long", "words longer than 4 letters", "words of 5 letters or more", "len(x) > 4"),
    ("with_a", "words with an a", "words that contain a", "'a' in x"),
    ("with_e", "words with an e", "words that contain e", "'e' in x"),
    ("early", "words before m", "words that come before m", "x < 'm'"),
)
WORD_MAPS = _parts(
    "x",
    ("upper", "upper-case {it}", "write {it} in capitals", "x.upper()"),
    ("initial", "take the first letter of {it}", "keep the initial of {it}", "x[0]"),
    ("final", "take the last letter of {it}", "keep the final letter of {it}", "x[-1]"),
    ("length", "take the length of {it}", "count the letters of {it}", "str(len(x))"),
    ("mark", "add a mark ! to {it}", "put ! after {it}", "x + '!'"),
)
WORD_REDUCES = _parts(
    "a",
    ("dashes", "them joined by dashes", "all with - between", "'-'.join(a)"),
    ("number", "how many there are", "the count", "len(a)"),
    ("first", "the first", "the first one", "a[0] if a else 0"),
    ("last", "the last", "the final one", "a[-1] if a else 0"),
    ("back", "them backwards", "all in reverse order", "*a[::-1]"),
)
CHANGES = tuple(
    operation for operation in NUMBER_MAPS if operation.name not in ("triple", "square")
)
"""What is done to one number: without the maps that make large ones."""
COMBINES = _parts(
    "a, b",
    ("plus", "the sum of a and b", "a plus b", "a + b"),
    ("minus", "a minus b", "the difference of a and b", "a - b"),
    ("times", "the product of a and b", "a times b", "a * b"),
    ("larger", "the larger of a and b", "the maximum of a and b", "max(a, b)"),
    ("smaller", "the smaller of a and b", "the minimum of a and b", "min(a, b)"),
)


class Family(NamedTuple):
    """A kind of pipeline: its three stages, and how it is said and programmed."""

    name: str
    stages: tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, ...]]
    sentences: tuple[str, ...]
    """How to say it; {0} {1} {2} are the parts, {out} is print or return."""
    reads: tuple[str, str]
    """Opening sentence for standard input, and for a function."""
    stdin: str
    function: str
    parameters: int


_LIST_SENTENCES = (
    "Keep the {0}, {1}, and {out} {2}.",
    "Take only the {0}; {1}; {out} {2}.",
    "Ignore all but the {0}. Then {1} and {out} {2}.",
)
FAMILIES = (
    Family(
        "numbers",
        (NUMBER_FILTERS, NUMBER_MAPS, NUMBER_REDUCES),
        _LIST_SENTENCES,
        ("Read integers on one line.", "Write solve(a) for a list of integers."),
        "a = list(map(int, input().split()))\na = [{1} for x in a if {0}]\nprint({2})",
        "def solve(a):\n    a = [{1} for x in a if {0}]\n    return {2}",
        1,
    ),
    Family(
        "words",
        (WORD_FILTERS, WORD_MAPS, WORD_REDUCES),
        _LIST_SENTENCES,
        ("Read words on one line.", "Write solve(a) for a list of words."),
        "a = input().split()\na = [{1} for x in a if {0}]\nprint({2})",
        "def solve(a):\n    a = [{1} for x in a if {0}]\n    return {2}",
        1,
    ),
    Family(
        "arithmetic",
        (COMBINES, CHANGES, CHANGES),
        (
            "Start with {0}, {1}, then {2}, and {out} that.",
            "Compute {0}. Then {1}; {2}; {out} the result.",
        ),
        ("Read two integers a and b.", "Write solve(a, b) for two integers."),
        "a, b = map(int, input().split())\nx = {0}\nx = {1}\nprint({2})",
        "def solve(a, b):\n    x = {0}\n    x = {1}\n    return {2}",
        2,
    ),
)


def random_values(rng: random.Random, family: Family, length: int) -> list[Any]:
    """Values to feed a composition of `family`: two integers, or `length` integers or words."""
    if family.name == "words":
        return rng.sample(WORDS, length)
    if family.parameters == 2:
        return [rng.randint(-6, 6) for _ in range(2)]
    return [rng.randint(-9, 9) for _ in range(length)]


# Not to be changed: every problem's split follows from them, also that of tasks used for priming.
_PROBES = {
    family.name: [random_values(random.Random(f"probe {n}"), family, 3 + n % 4) for n in range(40)]
    for family in FAMILIES
}


@dataclass(frozen=True, slots=True)
class Composition:
    """A family and one part for each of its three stages."""

    family: Family
    parts: tuple[Part, Part, Part]

    @property
    def name(self) -> str:
        """The family and the parts, e.g. `numbers:even:double:sum`."""
        return ":".join((self.family.name, *(operation.name for operation in self.parts)))

    @property
    def split(self) -> Split:
        """The only split that may contain this composition: 70 % train, 10 % val, 20 % test.

        It depends on what the composition computes on fixed probes, so that two compositions
        that compute the same (add 1 then 3, add 3 then 1) share a split.
        """
        return _split(self)

    def program(self, *, function: bool) -> str:
        """The reference solution, as a function `solve` or as a program on standard input."""
        template = self.family.function if function else self.family.stdin
        first, second, third = (operation.code for operation in self.parts)
        if function and third.startswith("*"):
            # `return *a` would be a tuple; a function returns the list itself.
            third = third[1:]
        return template.format(first, second, third)

    def run(self, values: Sequence[Any]) -> Any:
        """Computes what the reference does for `values`, without running its text."""
        first, second, third = (operation.apply for operation in self.parts)
        if self.family.parameters == 2:
            return third(second(first(*values)))
        return third([second(value) for value in values if first(value)])

    def question(self, rng: random.Random, *, function: bool) -> str:
        """The problem in English, in one of several phrasings."""
        it = "it" if self.family.parameters == 2 else "each"
        phrases = [rng.choice(operation.phrases).format(it=it) for operation in self.parts]
        sentence = rng.choice(self.family.sentences)
        out = "return" if function else "print"
        return f"{self.family.reads[function]} {sentence.format(*phrases, out=out)}"

    def neighbours(self) -> list[Composition]:
        """All compositions that differ from this one in exactly one part."""
        return [
            Composition(self.family, (*self.parts[:stage], operation, *self.parts[stage + 1 :]))  # type: ignore[arg-type]
            for stage, parts in enumerate(self.family.stages)
            for operation in parts
            if operation is not self.parts[stage]
        ]


# It takes a run on each of forty probes.
@cache
def _split(composition: Composition) -> Split:
    return split_of_computation(composition.family, composition.run)


def split_of_computation(family: Family, run: Callable[[Sequence[Any]], Any]) -> Split:
    """The split of all problems of `family` that compute what `run` computes on fixed probes."""
    return split_of(repr([run(values) for values in _PROBES[family.name]]), domain="coding")


def _compositions() -> dict[Split, tuple[Composition, ...]]:
    by_split: dict[Split, list[Composition]] = {split: [] for split in SPLITS}
    for family in FAMILIES:
        for first in family.stages[0]:
            for second in family.stages[1]:
                for third in family.stages[2]:
                    composition = Composition(family, (first, second, third))
                    by_split[composition.split].append(composition)
    return {split: tuple(members) for split, members in by_split.items()}


COMPOSITIONS = _compositions()


def input_text(family: Family, values: list[Any], *, function: bool) -> str:
    """Formats `values` as standard input, or as a JSON list of arguments."""
    if function:
        return json.dumps(values if family.parameters == 2 else [values])
    return " ".join(map(str, values))


def output_text(value: Any, *, function: bool) -> str:
    """Formats a result as printed output, or as a JSON return value."""
    if function:
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
