"""Scores the tests of one reply: they should be right, new, and tell programs apart.

The reference decides what is right; known-wrong programs (mutants) decide what tells programs apart. A
tester earns `precision**2 * power - WRONG_COST * (1 - precision)`, where

* `precision` is the share of its tests that are right, of those that count;
* `power` is the share of mutants that its right tests catch. Mutants that the examples of the problem
  statement catch already are no part of it (`coding_v0` leaves them out).

What counts:

* Tests of one input are one test. If they contradict each other, none of them is right, whichever of
  them happens to be: an answer is not guessed by giving all of them.
* A right test that the statement shows as an example counts neither for nor against. A wrong output for
  the input of an example is wrong.
* A test is wrong if the reference gives another output, fails, or does not end within `REFERENCE_SHARE` of
  a program's CPU limit. A reply ends at its first test of the last kind: those behind it are wrong, too.

Precision is squared so that one more guess pays only where most guesses are right: eight guesses of
which three are right earn less than one guess with three chances in eight. An all-wrong reply earns
less than a copied example, which earns 0, and more than one that cannot be read, so that a tester that
has learned nothing yet is drawn towards readable tests first, then right ones, then telling ones.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pettingllms.data.asserts import Test
from pettingllms.envs.coding_runs import is_example, passes
from pettingllms.sandbox import RunResult
from pettingllms.sandbox.types import RUNAWAY

WRONG_COST = 0.05
"""Half of the penalty for a reply that cannot be read."""


class Verdict(NamedTuple):
    """The outcome of the tests of one reply."""

    telling: tuple[Test, ...]
    """Right and not an example: those that mutants are run on."""
    right: int
    """Different inputs among `telling`."""
    wrong: int

    @property
    def precision(self) -> float:
        """Share of the tests that count that are right; 0 where none counts."""
        return self.right / (self.right + self.wrong) if self.right else 0.0


class Matrix(NamedTuple):
    """Which programs pass which tests, each pair run once."""

    passes: Mapping[int, tuple[bool, ...]]
    """Place of a coder's reply -> whether its program passes each test. None for unreadable replies."""
    tests: Mapping[int, tuple[int, ...]]
    """Place of a tester's reply -> its tests, as places in a row of `passes`. None for unreadable replies."""


def judged(
    tests: Sequence[Test], results: Mapping[str, RunResult], question: str, function: str | None
) -> Verdict:
    """Sort the tests of one reply; `results` are what the reference did with each input."""
    groups: dict[str, list[Test]] = defaultdict(list)
    for test in tests:
        groups[_key(test.input, function)].append(test)
    telling: list[Test] = []
    right = wrong = 0
    for group in groups.values():
        if not all(passes(test, results[test.input], function) for test in group):
            # Each different output is a guess of its own: several for one input cost as much as
            # one each for several.
            wrong += len({_key(test.output, function) for test in group})
        elif not any(is_example(question, test, function) for test in group):
            right += 1
            telling += group
    return Verdict(tuple(telling), right, wrong)


def up_to_a_hang(
    inputs: Sequence[str],
    known: dict[str, RunResult],
    run: Callable[[list[str]], Mapping[str, RunResult]],
) -> dict[str, RunResult]:
    """Runs the reference on the inputs of one reply, up to the first on which it hangs.

    Adds to `known` what it did on each. Inputs behind that one count as it does, in this reply alone.
    """
    hang = next((text for text in inputs if text in known and known[text].status in RUNAWAY), None)
    before = inputs if hang is None else inputs[: inputs.index(hang)]
    for text, result in run([text for text in before if text not in known]).items():
        known[text] = result
        if result.status in RUNAWAY:
            break
    results: dict[str, RunResult] = {}
    hung = None
    for text in inputs:
        results[text] = hung or known[text]
        hung = results[text] if results[text].status in RUNAWAY else None
    return results


def score(verdict: Verdict, power: float) -> float:
    """Returns what a reply is worth, between `-WRONG_COST` and 1."""
    if not verdict.right + verdict.wrong:
        return 0.0
    precision = verdict.precision
    return precision**2 * power - WRONG_COST * (1.0 - precision)


def _key(text: str, function: str | None) -> str:
    """The same for texts that differ in blanks alone, or in the way that one JSON value is written."""
    if function is not None:
        # What could be parsed before may be nested too deeply here, where the stack is deeper.
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(json.loads(text), sort_keys=True)
    return " ".join(text.split())
