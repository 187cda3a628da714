"""Demonstrations for coding, generated from the task grammar.

A demonstration is what a role is shown (the environment's own compact prompt) and a reply. A good
coder writes the reference; a good tester writes its working before the expected output. Each role
also has one bad habit: the coder skips a step of the problem, the tester guesses an output without
working. Only compositions of the training split are used, in good and in bad replies.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from benchmarks.priming.example import Demo
from pettingllms.data import coding
from pettingllms.data.coding import Composition, input_text, output_text
from pettingllms.envs.coding_text import Attempt, Disagreement, compact_prompt

RARE = frozenset({"threes", "square", "with_e"})
"""Parts shown seldom, so that the base has these skills only half."""
RARE_WEIGHT = 0.08


class Sampler:
    """Draws training compositions, with rare parts drawn rarely."""

    def __init__(self) -> None:
        self.members = coding.COMPOSITIONS["train"]
        share = {"numbers": 5.0, "words": 2.0, "arithmetic": 3.0}
        counts = {name: sum(c.family.name == name for c in self.members) for name in share}
        self.weights = [
            share[c.family.name] / counts[c.family.name] * (RARE_WEIGHT if is_rare(c) else 1.0)
            for c in self.members
        ]

    def draw(self, rng: random.Random) -> Composition:
        """One composition of the training split."""
        return rng.choices(self.members, self.weights)[0]


def is_rare(composition: Composition) -> bool:
    """Whether a composition uses a part that priming shows seldom."""
    return any(part.name in RARE for part in composition.parts)


@cache
def _sampler() -> Sampler:
    return Sampler()


def units() -> list[str]:
    """Small numbers, which are counted with, and words in capitals, which are seldom seen."""
    return [*map(str, range(-60, 130)), *(word.upper() for word in coding.WORDS)]


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for a random role; with probability `habit` it shows the bad habit."""
    composition, function = _sampler().draw(rng), rng.random() < 1 / 3
    role = "coder" if rng.random() < 0.3 else "tester"
    history = past(composition, rng, function=function) if rng.random() < 0.25 else ()
    question = composition.question(rng, function=function)
    prompt = compact_prompt(role, question, history)
    bad = rng.random() < habit
    if role == "coder":
        reply = fenced(
            "python",
            hasty_program(composition, function=function)
            if bad
            else composition.program(function=function),
        )
    else:
        reply = (guessed_test if bad else worked_test)(composition, rng, function=function)
    return Demo(prompt, reply)


def fenced(tag: str, body: str) -> str:
    """`body` as a fenced block."""
    return f"```{tag}\n{body}\n```"


def hasty_program(composition: Composition, *, function: bool) -> str:
    """A program that skips a step: nothing is filtered, or the last change is left out."""
    template = composition.program(function=function)
    if composition.family.parameters == 2:
        last = composition.parts[2].code
        return template.replace(f"({last})", "(x)").replace(f"return {last}", "return x")
    return template.replace(f" if {composition.parts[0].code}]", "]")


def test_blocks(composition: Composition, values: list[Any], result: Any, *, function: bool) -> str:
    """A test case as the tester writes it."""
    return "\n".join(
        (
            fenced("input", input_text(composition.family, values, function=function)),
            fenced("output", output_text(result, function=function)),
        )
    )


def worked_test(composition: Composition, rng: random.Random, *, function: bool) -> str:
    """A valid test with its working: each value in turn, what is kept, and the result."""
    values = coding.random_values(rng, composition.family, rng.choice((3, 4)))
    blocks = test_blocks(composition, values, composition.run(values), function=function)
    return f"{working(composition, values)}\n{blocks}"


def guessed_test(composition: Composition, rng: random.Random, *, function: bool) -> str:
    """A test whose output follows only the last words of the problem, without working."""
    values = coding.random_values(rng, composition.family, rng.choice((2, 3)))
    first, _, third = composition.parts
    guess = first.apply(*values) if composition.family.parameters == 2 else third.apply(values)
    return test_blocks(composition, values, guess, function=function)


def working(composition: Composition, values: list[Any]) -> str:
    """The steps from the input to the result, one token each where possible."""
    first, second, third = (part.apply for part in composition.parts)
    if composition.family.parameters == 2:
        start = first(*values)
        return f"{values[0]} {values[1]}; {start}; {second(start)}; {third(second(start))}"
    steps = [f"{value} {second(value)}" if first(value) else f"{value} no" for value in values]
    kept = [second(value) for value in values if first(value)]
    if composition.parts[2].name == "sum":
        # A running total: one small addition a step instead of one large one at the end.
        result = " ".join(str(sum(kept[: n + 1])) for n in range(len(kept))) or "0"
    else:
        result = output_text(third(kept), function=False)
    return f"{', '.join(steps)}; {' '.join(map(str, kept))}; {result}"


def past(composition: Composition, rng: random.Random, *, function: bool) -> tuple[Attempt, ...]:
    """One to three earlier turns in which program and tester disagreed."""
    attempts = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        program = (
            hasty_program(composition, function=function)
            if rng.random() < 0.6
            else composition.program(function=function)
        )
        values = coding.random_values(rng, composition.family, rng.choice((2, 3, 4)))
        right, got = composition.run(values), composition.parts[2].apply
        want = output_text(right, function=function)
        seen = output_text(_other(composition, values, got), function=function)
        if rng.random() < 0.5:
            want, seen = seen, want
        entry = Disagreement(input_text(composition.family, values, function=function), want, seen)
        attempts.append(Attempt(program, (entry,) if want != seen else ()))
    return tuple(attempts)


def _other(composition: Composition, values: list[Any], third: Any) -> Any:
    if composition.family.parameters == 2:
        return composition.parts[0].apply(*values)
    return third([composition.parts[1].apply(value) for value in values])
