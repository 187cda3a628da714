"""Demonstrations of parts for coding: problems of one and two steps, and nothing else.

A good coder writes a line for each step. A good tester works step by step before the expected
output: `keep` each value with yes or no, `each` value beside what becomes of it, `so` the result. Programs, workings
and problems of three steps are never shown, and there are no bad replies.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.priming import coding
from benchmarks.priming.coding import fenced
from benchmarks.priming.example import Demo
from pettingllms.data import coding as grammar
from pettingllms.data.coding import CHANGE, KEEP, Composition, input_text, output_text
from pettingllms.envs.coding_text import Attempt, Disagreement, compact_prompt

SINGLE = 0.3
"""Share of problems of one step; the others have two."""
CODER = 0.25
PAST = 0.25
SHORT = 0.5
"""Share of arithmetic whose last step is part of the result, and not a line of its own."""
LONG = 0.5
"""Share of changes of one number that first give it a name. Without several ways to write the same, nothing would
be left to explore: of 272 programs asked for three steps of arithmetic, a pilot gave none three lines."""


def units() -> list[str]:
    """What has to be a single token each."""
    return [*coding.units(), "keep", "each", "so", "yes", "no"]


def demo(rng: random.Random, habit: float = 0.0) -> Demo:  # noqa: ARG001 - it has none
    """A demonstration for a random role."""
    chain, function = draw(rng), rng.random() < 1 / 3
    role = "coder" if rng.random() < CODER else "tester"
    history = past(chain, rng, function=function) if rng.random() < PAST else ()
    prompt = compact_prompt(role, chain.question(rng, function=function), history)
    if role == "coder":
        program = chain.program(
            function=function, short=rng.random() < SHORT, long=rng.random() < LONG
        )
        return Demo(prompt, fenced("python", program))
    values = grammar.random_values(rng, chain.family, rng.choice((3, 4)))
    result = output_text(chain.run(values), function=function)
    blocks = (
        fenced("input", input_text(chain.family, values, function=function)),
        fenced("output", result),
    )
    return Demo(prompt, "\n".join([working(chain, values, short=rng.random() < SHORT), *blocks]))


def draw(rng: random.Random) -> Composition:
    """A chain of one or two steps of the training split."""
    name = grammar.pick(rng, list(grammar.SHARES))
    return grammar.draw(rng, name, 1 if rng.random() < SINGLE else 2, "train")


def working(chain: Composition, values: list[Any], *, short: bool) -> str:
    """The steps from the input to the result; `short`: of arithmetic without the last."""
    if chain.arithmetic:
        steps = [f"so {value}" for value in chain.values(*values)]
        if short and len(steps) > 1:
            del steps[-1]
        return " ".join([*map(str, values), *steps])
    words, now = [], list(values)
    for stage, part in chain.links:
        if stage == KEEP:
            marks = ((value, "yes" if part.apply(value) else "no") for value in now)
            words += ["keep", *(word for pair in marks for word in pair)]
            now = [value for value in now if part.apply(value)]
        elif stage == CHANGE:
            words += ["each", *(word for value in now for word in (value, part.apply(value)))]
            now = [part.apply(value) for value in now]
        else:
            words += ["so", *now]
            if part.name == "sum":  # a running total: small additions
                words += ["so", *(sum(now[: n + 1]) for n in range(len(now)))]
    return " ".join(map(str, words))


def past(chain: Composition, rng: random.Random, *, function: bool) -> tuple[Attempt, ...]:
    """One to three earlier turns in which program and tester disagreed; wrong programs differ in a part."""
    attempts = []
    others = [other for other in chain.neighbours() if other.split == "train"] or [chain]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        wrong = rng.choice(others)
        program = (wrong if rng.random() < 0.6 else chain).program(function=function)
        values = grammar.random_values(rng, chain.family, rng.choice((2, 3, 4)))
        want, seen = (
            output_text(composition.run(values), function=function)
            for composition in rng.sample((chain, wrong), 2)
        )
        entry = Disagreement(input_text(chain.family, values, function=function), want, seen)
        attempts.append(Attempt(program, (entry,) if want != seen else ()))
    return tuple(attempts)
