"""Problems of the coding grammar with another number of steps than three.

A chain keeps some values, changes each of them as often as it has steps left, and reports one
result; of two steps it leaves one of these kinds out, of one step two. Arithmetic combines two
numbers and changes the result; with one or two steps it may change the first number instead. Parts, splits and test values are those of
`pettingllms.data.grammar`: a chain is in the split that its computation belongs to, so that no
chain computes on the split's probes what a problem of another split computes.

Programs of chains have one line for each step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pettingllms.data import grammar
from pettingllms.data.grammar import Family, Part
from pettingllms.data.splits import Split
from pettingllms.errors import ConfigError

STEPS = (2, 6)
"""Fewest and most steps of a task. Of the chains of one step, some families have none in a held-out split."""
FAMILIES = {"numbers": 5, "words": 2, "arithmetic": 3}
"""What problems are about -> how often, in proportion."""
TRIES = 2000
KEEP, CHANGE, REPORT = range(3)
"""Stages of a family of lists; arithmetic has two, `COMBINE` and `CHANGE`."""
COMBINE = 0


class Link(NamedTuple):
    """A step: the stage that it belongs to, and the part of the grammar."""

    stage: int
    part: Part


@dataclass(frozen=True, slots=True)
class Chain:
    """A family and its steps in order; the interface of `grammar.Composition`."""

    family: Family
    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        """The family and the parts, e.g. `numbers:even:double:add1:sum`."""
        return ":".join((self.family.name, *(link.part.name for link in self.links)))

    @property
    def split(self) -> Split:
        """The only split that may contain this chain."""
        return grammar.split_of_computation(self.family, self.run)

    @property
    def arithmetic(self) -> bool:
        """True if the chain computes with two numbers instead of a list."""
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
        """The results of the steps of an arithmetic chain, in order."""
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
            short: write the last step of arithmetic where the result is printed or returned.
            long: give the first number of arithmetic a line of its own, where a change comes first.
        """
        lines = list(self._lines(function=function))
        if long and self.arithmetic and self.links[0].stage != COMBINE:
            lines[:1] = ["x = a", f"x = {self.links[0].part.code}"]
        if short and self.arithmetic and len(self.links) > 1:
            *lines, step, end = lines
            lines.append(end.replace("x", step.removeprefix("x = ")))
        if function:
            arguments = "a, b" if self.arithmetic else "a"
            return "\n    ".join([f"def solve({arguments}):", *lines])
        read = {"arithmetic": "a, b = map(int, input().split())", "words": "a = input().split()"}
        first = read.get(self.family.name, "a = list(map(int, input().split()))")
        return "\n".join([first, *lines])

    def _lines(self, *, function: bool) -> Iterator[str]:
        last = "x" if self.arithmetic else "a" if function else "*a"
        for place, (stage, operation) in enumerate(self.links):
            if self.arithmetic:
                alone = place == 0 and stage != COMBINE
                # No code of a change has another x than the value in it: `abs(x)`, `x + 1`.
                yield f"x = {operation.code.replace('x', 'a') if alone else operation.code}"
            elif stage == KEEP:
                yield f"a = [x for x in a if {operation.code}]"
            elif stage == CHANGE:
                yield f"a = [{operation.code} for x in a]"
            else:
                last = operation.code.removeprefix("*") if function else operation.code
        yield f"return {last}" if function else f"print({last})"

    def question(self, rng: random.Random, *, function: bool) -> str:
        """The problem in English, in one of several phrasings."""
        out = "return" if function else "print"
        it = "it" if self.arithmetic else "each"
        phrases = [rng.choice(link.part.phrases).format(it=it) for link in self.links]
        if self.arithmetic:
            # A chain that begins with a change begins with the first number as it is.
            sentence = _arithmetic(
                rng, [*(() if self.links[0].stage == COMBINE else "a"), *phrases], out
            )
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

    def neighbours(self) -> list[Chain]:
        """All chains that differ from this one in exactly one part."""
        return [
            Chain(
                self.family,
                (*self.links[:place], Link(link.stage, operation), *self.links[place + 1 :]),
            )
            for place, link in enumerate(self.links)
            for operation in self.family.stages[link.stage]
            if operation is not link.part
        ]


def _arithmetic(rng: random.Random, phrases: list[str], out: str) -> str:
    first, *changes = phrases
    if rng.random() < 0.5:
        if len(changes) > 1:
            changes[-1] = f"then {changes[-1]}"
        return f"{', '.join([f'Start with {first}', *changes])}, and {out} that."
    middle = f"{'; '.join(changes)}; " if changes else ""
    return f"Compute {first}. Then {middle}{out} the result."


def draw(rng: random.Random, name: str, steps: int, split: Split) -> Chain:
    """Draws a chain of the family `name`, of that many steps and of that split.

    Raises:
        ConfigError: no chain of `split` in `TRIES` tries.
    """
    family = next(member for member in grammar.FAMILIES if member.name == name)
    for _ in range(TRIES):
        links = tuple(Link(s, rng.choice(family.stages[s])) for s in stages(rng, family, steps))
        chain = Chain(family, links)
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
) -> grammar.Composition | Chain:
    """Draws what a task computes: a chain of the split, or of three steps a composition of the grammar."""
    # A fixed number draws nothing: its tasks are those of versions that had no range.
    count = rng.randint(*steps) if steps[0] < steps[1] else steps[0]
    name = pick(rng, families)
    # Compositions of three steps are all known, with their splits; other chains are drawn until
    # one fits.
    if count != 3:
        return draw(rng, name, count, split)
    return rng.choice([c for c in grammar.COMPOSITIONS[split] if c.family.name == name])


def pick(rng: random.Random, families: Sequence[str]) -> str:
    """Picks one of `families`, as often as `FAMILIES` says."""
    return rng.choices(families, [FAMILIES[name] for name in families])[0]


def check_steps(steps: tuple[int, int]) -> None:
    """Refuses numbers of steps that no task has.

    Raises:
        ConfigError: names the values and the range.
    """
    least, most = STEPS
    if not (len(steps) == 2 and least <= steps[0] <= steps[1] <= most):
        raise ConfigError(f"steps must be two numbers {least} <= a <= b <= {most}, got {steps}")
