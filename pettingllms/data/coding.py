"""Programming tasks with hidden tests: the record, a grammar of problems, and tasks generated from it.

`pettingllms.data.coding_schemas` reads tasks from files and published data sets;
`pettingllms.envs.coding_judge` runs and judges programs.

Every problem of the grammar is a pipeline of three parts: keep some values, change each of them, report one
result (lists and words), or combine two numbers and change the result twice (arithmetic). A part
knows several English phrases, one Python expression, and the function that the expression
computes, so that hidden tests need no sandbox. Train, validation and test problems use disjoint
*compositions*: a test problem combines known parts in a way never seen before. The split of a composition depends
on what it computes, not on its name or position, so that no test problem is a training problem in other words.

With another number of steps, a problem changes values as often as it has steps left; with two steps it leaves one of
the three parts out, with one step two. Arithmetic of one or two steps may change the first number instead. Such a chain
is in the split of its computation, so that no chain computes on the split's probes what a problem of another split
computes.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pettingllms.data.asserts import Test
from pettingllms.data.splits import SPLITS, Split, split_of
from pettingllms.errors import ConfigError


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
    """A kind of pipeline: its three stages, and how its input is said and read."""

    name: str
    stages: tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, ...]]
    reads: tuple[str, str]
    """Opening sentence for standard input, and for a function."""
    stdin: str
    parameters: int


FAMILIES = (
    Family(
        "numbers",
        (NUMBER_FILTERS, NUMBER_MAPS, NUMBER_REDUCES),
        ("Read integers on one line.", "Write solve(a) for a list of integers."),
        "a = list(map(int, input().split()))",
        1,
    ),
    Family(
        "words",
        (WORD_FILTERS, WORD_MAPS, WORD_REDUCES),
        ("Read words on one line.", "Write solve(a) for a list of words."),
        "a = input().split()",
        1,
    ),
    Family(
        "arithmetic",
        (COMBINES, CHANGES, CHANGES),
        ("Read two integers a and b.", "Write solve(a, b) for two integers."),
        "a, b = map(int, input().split())",
        2,
    ),
)
KEEP, CHANGE, REPORT = range(3)
"""Stages of a family of lists; arithmetic has two, `COMBINE` and `CHANGE`."""
COMBINE = 0


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


class Link(NamedTuple):
    """A step: the stage that it belongs to, and the part of the"""

    stage: int
    part: Part


@dataclass(frozen=True, slots=True)
class Composition:
    """A family and its steps in order, mostly three; a program has one line for each step of other numbers."""

    family: Family
    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        """The family and the parts, e.g. `numbers:even:double:add1:sum`."""
        return ":".join((self.family.name, *(link.part.name for link in self.links)))

    @property
    def split(self) -> Split:
        """The only split that may contain this composition: 70 % train, 10 % val, 20 % test.

        It depends on what the composition computes on fixed probes, so that two compositions
        that compute the same (add 1 then 3, add 3 then 1) share a split.
        """
        return _split(self)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its steps."""
        return tuple(link.part for link in self.links)

    @property
    def arithmetic(self) -> bool:
        """True if it computes with two numbers instead of a list."""
        return self.family.parameters == 2

    def run(self, values: Sequence[Any]) -> Any:
        """Computes what the reference does for `values`, without running its text."""
        if self.arithmetic:
            return self.values(*values)[-1]
        kept: Any = list(values)
        for stage, operation in self.links:
            if stage == KEEP:
                kept = [value for value in kept if operation.apply(value)]
            elif stage == CHANGE:
                kept = [operation.apply(value) for value in kept]
            else:
                return operation.apply(kept)
        return kept

    def values(self, a: int, b: int) -> list[int]:
        """The results of the steps of arithmetic, in order."""
        results: list[int] = []
        for stage, operation in self.links:
            results.append(
                operation.apply(a, b) if stage == COMBINE else operation.apply([a, *results][-1])
            )
        return results

    def program(self, *, function: bool, short: bool = False, long: bool = False) -> str:
        """The reference solution, as a function `solve` or as a program on standard input.

        Args:
            function: a function `solve`.
            short: write the last step of arithmetic where the result is printed or returned, as with
                three steps.
            long: give the first number of arithmetic a line of its own, where a change comes first.
        """
        lines = list(self._lines(function=function))
        if long and self.arithmetic and self.links[0].stage != COMBINE:
            lines[:1] = ["x = a", f"x = {self.links[0].part.code}"]
        if (short or len(self.links) == 3) and self.arithmetic and len(self.links) > 1:
            *lines, step, end = lines
            lines.append(end.replace("x", step.removeprefix("x = ")))
        if function:
            arguments = "a, b" if self.arithmetic else "a"
            return "\n    ".join([f"def solve({arguments}):", *lines])
        return "\n".join([self.family.stdin, *lines])

    def _lines(self, *, function: bool) -> Iterator[str]:
        last = "x" if self.arithmetic else "a" if function else "*a"
        one_line = len(self.links) == 3 and not self.arithmetic
        for place, (stage, operation) in enumerate(self.links):
            if self.arithmetic:
                alone = place == 0 and stage != COMBINE
                # No code of a change has another x than the value in it: `abs(x)`, `x + 1`.
                yield f"x = {operation.code.replace('x', 'a') if alone else operation.code}"
            elif stage == KEEP and not one_line:
                yield f"a = [x for x in a if {operation.code}]"
            elif stage == CHANGE and one_line:
                yield f"a = [{operation.code} for x in a if {self.parts[0].code}]"
            elif stage == CHANGE:
                yield f"a = [{operation.code} for x in a]"
            elif stage == REPORT:
                last = operation.code.removeprefix("*") if function else operation.code
        yield f"return {last}" if function else f"print({last})"

    def question(self, rng: random.Random, *, function: bool) -> str:
        """The problem in English, in one of several phrasings."""
        out = "return" if function else "print"
        it = "it" if self.arithmetic else "each"
        phrases = [rng.choice(link.part.phrases).format(it=it) for link in self.links]
        if self.arithmetic:
            # What begins with a change begins with the first number as it is.
            start = () if self.links[0].stage == COMBINE else ("a",)
            # Drawn in two ways, so that the tasks of a seed stay what they were.
            at_once = rng.choice((True, False)) if len(self.links) == 3 else rng.random() < 0.5
            sentence = _arithmetic([*start, *phrases], out, at_once=at_once)
        else:
            sentence = self._of_list(rng, phrases, out)
        return f"{self.family.reads[function]} {sentence}"

    def _of_list(self, rng: random.Random, phrases: list[str], out: str) -> str:
        filtered = phrases.pop(0) if self.links[0].stage == KEEP else None
        result = phrases.pop() if self.links[-1].stage == REPORT else "them"
        style = rng.randrange(3)
        if style == 0:
            start = "Keep all" if filtered is None else f"Keep the {filtered}"
            return f"{', '.join([start, *phrases])}, and {out} {result}."
        if style == 1:
            start = "Take all" if filtered is None else f"Take only the {filtered}"
            return f"{'; '.join([start, *phrases])}; {out} {result}."
        start = "Ignore none" if filtered is None else f"Ignore all but the {filtered}"
        between = f"{', '.join(phrases)} and " if phrases else ""
        return f"{start}. Then {between}{out} {result}."

    def neighbours(self) -> list[Composition]:
        """All compositions that differ from this one in exactly one part."""
        return [
            Composition(
                self.family,
                (*self.links[:place], Link(link.stage, operation), *self.links[place + 1 :]),
            )
            for place, link in enumerate(self.links)
            for operation in self.family.stages[link.stage]
            if operation is not link.part
        ]


def _arithmetic(phrases: list[str], out: str, *, at_once: bool) -> str:
    first, *changes = phrases
    if at_once:
        if len(changes) > 1:
            changes[-1] = f"then {changes[-1]}"
        return f"{', '.join([f'Start with {first}', *changes])}, and {out} that."
    middle = f"{'; '.join(changes)}; " if changes else ""
    return f"Compute {first}. Then {middle}{out} the result."


# It takes a run on each of forty probes. The compositions of three steps fit.
@lru_cache(maxsize=4096)
def _split(composition: Composition) -> Split:
    """The split of all problems that compute the same on fixed probes."""
    probes = _PROBES[composition.family.name]
    return split_of(repr([composition.run(values) for values in probes]), domain="coding")


def composed(family: Family, parts: Sequence[Part]) -> Composition:
    """A composition of three steps."""
    stages = (COMBINE, CHANGE, CHANGE) if family.parameters == 2 else (KEEP, CHANGE, REPORT)
    return Composition(family, tuple(map(Link, stages, parts)))


_MEMBERS = [composed(f, parts) for f in FAMILIES for parts in itertools.product(*f.stages)]
COMPOSITIONS = {split: tuple(c for c in _MEMBERS if c.split == split) for split in SPLITS}
"""All compositions of three steps."""


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


# ------------------------------------------------------------------------------------ problems

STEPS = (2, 6)
"""Fewest and most steps of a task. Of the chains of one step, some families have none in a held-out split."""
SHARES = {"numbers": 5, "words": 2, "arithmetic": 3}
"""What problems are about -> how often, in proportion."""
TRIES = 2000


def draw(rng: random.Random, name: str, steps: int, split: Split) -> Composition:
    """Draws a composition of the family `name`, of that many steps and of that split.

    Raises:
        ConfigError: no chain of `split` in `TRIES` tries.
    """
    family = next(member for member in FAMILIES if member.name == name)
    for _ in range(TRIES):
        links = tuple(Link(s, rng.choice(family.stages[s])) for s in stages(rng, family, steps))
        chain = Composition(family, links)
        if chain.split == split:
            return chain
    raise ConfigError(
        f"found no problem about {name} of {steps} steps that is of the split {split!r} "
        f"in {TRIES} tries; ask for more steps"
    )


def stages(rng: random.Random, family: Family, steps: int) -> tuple[int, ...]:
    """The stages of a random chain of that many steps, in order."""
    if family.parameters == 2:
        first = rng.choice((COMBINE, CHANGE)) if steps < 3 else COMBINE
        return (first, *[CHANGE] * (steps - 1))
    if steps == 1:
        return (rng.choice((KEEP, CHANGE, REPORT)),)
    if steps == 2:
        return rng.choice(((KEEP, CHANGE), (KEEP, REPORT), (CHANGE, REPORT)))
    return (KEEP, *[CHANGE] * (steps - 2), REPORT)


def problem(
    rng: random.Random, steps: tuple[int, int], families: Sequence[str], split: Split
) -> Composition:
    """Draws what a task computes: a chain of the split, or of three steps a known composition."""
    # A fixed number draws nothing: its tasks are those of versions that had no range.
    count = rng.randint(*steps) if steps[0] < steps[1] else steps[0]
    name = pick(rng, families)
    # Compositions of three steps are all known, with their splits; other chains are drawn until
    # one fits.
    if count != 3:
        return draw(rng, name, count, split)
    return rng.choice([c for c in COMPOSITIONS[split] if c.family.name == name])


def pick(rng: random.Random, families: Sequence[str]) -> str:
    """Picks one of `families`, as often as `SHARES` says."""
    return rng.choices(families, [SHARES[name] for name in families])[0]


# --------------------------------------------------------------------------------------- tasks

HIDDEN_TESTS = 6
MUTANTS = 6


@dataclass(frozen=True, slots=True)
class CodingTask:
    """A programming problem with hidden tests, a reference solution and known-wrong programs."""

    id: str
    question: str
    tests: tuple[Test, ...]
    reference: str
    """A correct program; empty where the data set has none that runs here."""
    mutants: tuple[str, ...] = ()
    function: str | None = None
    difficulty: str | None = None
    """In the words of the data set."""
    limits: tuple[tuple[str, float], ...] = ()
    """Fields of `Limits`, with values, that a test of this task needs."""
    setup: str = ""
    """Python that runs after a program, before the calls of assertions."""
    example: str = ""
    """What only the coder is shown beside the question, so that a tester can earn by finding it."""


def generate(
    seed: int,
    split: Split,
    steps: tuple[int, int] = (3, 3),
    families: Sequence[str] = tuple(SHARES),
) -> CodingTask:
    """Generates the task of `seed`, of steps within that range; stable across versions."""
    rng = random.Random(f"coding {split} {seed}")
    composition = problem(rng, steps, families, split)
    return from_composition(composition, rng, function=rng.random() < 1 / 3, id=f"{split}-{seed}")


def from_composition(
    composition: Composition, rng: random.Random, *, function: bool, id: str
) -> CodingTask:
    """Makes a task of one composition; draws phrasing, tests and mutants from `rng`."""
    inputs = [random_values(rng, composition.family, 3 + n % 4) for n in range(HIDDEN_TESTS)]
    expected = [composition.run(values) for values in inputs]
    # A mutant changes one part and fails at least one hidden test. Those of other held-out splits are
    # left out: they are the solutions of tasks there.
    wrong = [
        other
        for other in composition.neighbours()
        if other.split in ("train", composition.split)
        and any(other.run(v) != e for v, e in zip(inputs, expected, strict=True))
    ]
    mutants = rng.sample(wrong, min(MUTANTS, len(wrong)))
    return CodingTask(
        id=id,
        question=composition.question(rng, function=function),
        tests=tuple(
            Test(
                input_text(composition.family, values, function=function),
                output_text(e, function=function),
            )
            for values, e in zip(inputs, expected, strict=True)
        ),
        reference=composition.program(function=function),
        mutants=tuple(mutant.program(function=function) for mutant in mutants),
        function="solve" if function else None,
    )
