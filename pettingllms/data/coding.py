"""Programming tasks with hidden tests: the record, and tasks generated from the grammar.

`pettingllms.data.coding_schemas` reads tasks from files and published data sets;
`pettingllms.envs.coding_runs` runs and judges programs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pettingllms.data import chains, grammar
from pettingllms.data.asserts import Test
from pettingllms.data.grammar import Composition
from pettingllms.data.splits import Split

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
    families: Sequence[str] = tuple(chains.FAMILIES),
) -> CodingTask:
    """Generates the task of `seed`, of steps within that range; stable across versions."""
    rng = random.Random(f"coding {split} {seed}")
    composition = chains.problem(rng, steps, families, split)
    return from_composition(composition, rng, function=rng.random() < 1 / 3, id=f"{split}-{seed}")


def from_composition(
    composition: Composition, rng: random.Random, *, function: bool, id: str
) -> CodingTask:
    """Makes a task of one composition; draws phrasing, tests and mutants from `rng`."""
    inputs = [
        grammar.random_values(rng, composition.family, 3 + n % 4) for n in range(HIDDEN_TESTS)
    ]
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
                grammar.input_text(composition.family, values, function=function),
                grammar.output_text(e, function=function),
            )
            for values, e in zip(inputs, expected, strict=True)
        ),
        reference=composition.program(function=function),
        mutants=tuple(mutant.program(function=function) for mutant in mutants),
        function="solve" if function else None,
    )
