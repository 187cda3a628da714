"""Runs programs on the tests of coding tasks, judges what they give, and scores the tests that a tester writes.

Programs run in the sandbox and outputs are compared outside of it; programs never see the expected
ones. Printed text: equal line by line after trailing blanks and trailing empty lines are dropped, else
token by token, where a token may differ by rounding only if the *expected* one is written as a
float (absolute or relative error at most 1e-6). Integers are exact, letters keep their case, and
nothing is ever compared as a set. Return values: the same, recursively, with tuples as lists.
Tests of LiveCodeBench are judged by its own rules (`pettingllms.envs.contest`).

`verified` and `known_wrong` run the reference first: it decides which generated tests are right, so it
has to pass the task's own tests, in this Python and within these limits, which not all published solutions do.

The tests of a reply should be right, new, and tell programs apart.

The reference decides what is right; known-wrong programs (mutants) decide what tells programs apart. A
tester earns `precision**2 * power - WRONG_COST * (1 - precision)`, where

* `precision` is the share of its tests that are right, of those that count;
* `power` is the share of mutants that its right tests catch. Mutants that the examples of the problem
  statement catch already are no part of it (`coding_v0` leaves them out).

What counts:

* Tests of one input are one test, and so are right ones on which the reference and every mutant do the
  same: their inputs may differ in a line that no program reads. If tests of one input contradict each other, none
  of them is right, whichever of them happens to be: an answer is not guessed by giving all of them.
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

import ast
import contextlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from pettingllms.data.asserts import Test, as_json
from pettingllms.data.coding import CodingTask
from pettingllms.data.rows import tree_of
from pettingllms.envs import assertions, contest
from pettingllms.envs.assertions import Run
from pettingllms.errors import DatasetError
from pettingllms.registry import names_in
from pettingllms.sandbox import Case, Limits, RunResult, Sandbox
from pettingllms.sandbox.together import SharedRuns
from pettingllms.sandbox.types import RUNAWAY

_TOKEN = re.compile(r"[^\W\d]+|\d+(?:\.\d+)?|[^\w\s\"'`]")
_AS_JSON = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
TOLERANCE = 1e-6
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_GAP = 12  # tokens that a statement may have between an input and its output
CANDIDATES = 40  # the most mutants that are tried


def has_assertions(task: CodingTask) -> bool:
    """Returns whether any of the task's tests is an assertion in Python."""
    return any(test.asserts for test in task.tests)


def is_contest(task: CodingTask) -> bool:
    """Returns whether LiveCodeBench's rules decide."""
    return any(test.contest for test in task.tests)


def run_tests(task: CodingTask, programs: Sequence[str], run: Run) -> list[list[RunResult]]:
    """Runs every program on every hidden test of a `prepared` task; `passes` judges the results."""
    if has_assertions(task):
        return assertions.run_tests(
            programs,
            task.tests,
            function=task.function or "",
            setup=task.setup,
            reference=task.reference,
            run=run,
        )
    return run_inputs(task, programs, [test.input for test in task.tests], run)


def run_inputs(
    task: CodingTask, programs: Sequence[str], inputs: Sequence[str], run: Run
) -> list[list[RunResult]]:
    """Runs every program on inputs as agents write them: standard input, or JSON arguments."""
    if not has_assertions(task) or task.function is None:
        beside = contest.beside if is_contest(task) else str
        return run(list(map(beside, programs)), cases(task, inputs))
    # Agents write JSON; a published call shows which of its lists have to be tuples or sets.
    like = next((test.input for test in task.tests if test.input), "").partition("\n")[0]
    calls = assertions.calls_of(inputs, task.function, task.setup, like)
    return run([assertions.beside(program) for program in programs], calls)


def cases(task: CodingTask, inputs: Sequence[str]) -> list[Case]:
    """Returns the sandbox's cases of inputs: standard input, or JSON arguments of the function."""
    if task.function is None:
        return [Case(stdin=text) for text in inputs]
    return [Case(function=task.function, args=text) for text in inputs]


def prepared(task: CodingTask, run: Run) -> CodingTask:
    """Returns the task with the calls of all its assertions, run with the reference if need be.

    Raises:
        DatasetError: a test does not run with the reference.
    """
    if all(test.input or not test.asserts for test in task.tests):
        return task
    recorded = assertions.recorded(task.tests, task.function or "", task.setup, task.reference, run)
    if isinstance(recorded, str):
        missing = re.search(r"No module named '(\w+)", recorded)
        hint = f"; give --sandbox.packages {missing[1]}" if missing else ""
        raise DatasetError(f"task {task.id}: {recorded}{hint}")
    return replace(task, tests=tuple(recorded))


def passes(test: Test, result: RunResult, function: str | None) -> bool:
    """Returns whether a run succeeded and gave the expected output or return value.

    For an assertion the status decides, see `pettingllms.envs.assertions.run_tests`.
    """
    if result.status != "ok":
        return False
    if test.asserts:
        return True
    if test.contest and function is None:
        return contest.same_output(test.output, result.stdout)
    if test.contest:
        return contest.same_value(test.output, result.value)
    if function is None:
        return same_output(test.output, result.stdout)
    return same_value(test.output, result.value)


def same_output(expected: str, actual: str) -> bool:
    """Tell whether printed text `actual` counts as `expected`."""
    expected_lines, actual_lines = _lines(expected), _lines(actual)
    if expected_lines == actual_lines:
        return True
    if len(expected_lines) != len(actual_lines):
        return False
    return all(
        _same_tokens(left.split(), right.split())
        for left, right in zip(expected_lines, actual_lines, strict=True)
    )


def same_value(expected: str, actual: str | None) -> bool:
    """Tell whether the JSON value `actual` equals the JSON value `expected`; never raises."""
    if actual is None:
        return False
    try:
        return _same_json(json.loads(expected), json.loads(actual))
    except (ValueError, RecursionError, OverflowError):  # an integer may be too large for a float
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(expected: list[str], actual: list[str]) -> bool:
    return len(expected) == len(actual) and all(
        left == right or _close_text(left, right)
        for left, right in zip(expected, actual, strict=True)
    )


def _close_text(expected: str, actual: str) -> bool:
    # A program may print a megabyte of digits; no float of a test is as long as this.
    if len(expected) > 64 or len(actual) > 64:
        return False
    if not (_FLOAT.fullmatch(expected) and _NUMBER.fullmatch(actual)):
        return False
    return _close(float(expected), float(actual))


def _close(expected: float, actual: float) -> bool:
    # `1e999` reads as infinity, which would be close to itself.
    return math.isfinite(actual) and math.isclose(
        expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


def _same_json(expected: Any, actual: Any) -> bool:
    # Before the numbers, because `True` is 1 in Python.
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, float) and isinstance(actual, int | float):
        return _close(expected, float(actual))
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_same_json, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(
            _same_json(value, actual[key]) for key, value in expected.items()
        )
    # Types differ, too: 2 is not 2.0, and digits that are too long to read are no text.
    return bool(type(expected) is type(actual) and expected == actual)


def is_example(question: str, test: Test, function: str | None) -> bool:
    """Returns whether the problem statement shows this test: its input, closely followed by its output.

    Texts are compared as tokens, without blanks and quotes. Of a function, the arguments have to
    follow each other, with at most a name between them; Python's literals are read as JSON's.
    """
    if test.asserts:
        pair = as_json(test, function or "")
        if pair is None:
            return False
        test = Test(*pair)
    parts = [test.input]
    if function is not None:
        try:
            arguments = json.loads(test.input)
            parts = [json.dumps(argument) for argument in arguments]
        except (ValueError, TypeError, RecursionError):  # not JSON, or not a list
            return False
    first, *others = (_joined(fragment, function) for fragment in (*parts, test.output))
    if not parts or not first.strip():
        return False
    text = _joined(question, function)
    start = text.find(first)
    while start >= 0:
        # Tokens share the blank between them, so that the next part may begin with this one's
        # last.
        if _followed(text, start + len(first) - 1, others):
            return True
        start = text.find(first, start + 1)
    return False


def _followed(text: str, end: int, others: list[str]) -> bool:
    for other in others:
        start = text.find(other, end)
        if start < 0 or text.count(" ", end, start) > _GAP:
            return False
        end = start + len(other) - 1
    return True


def _joined(text: str, function: str | None) -> str:
    """Tokens with a blank before, between and after them."""
    words = {} if function is None else _AS_JSON
    # A statement may show 2 where the test has 2.0.
    tokens = (token.removesuffix(".0") for token in _TOKEN.findall(text))
    return " ".join(["", *(words.get(token, token) for token in tokens), ""])


def known_wrong(task: CodingTask, run: Run) -> tuple[str, ...]:
    """Returns the task's own known-wrong programs or, where it has none, mutants of its reference.

    Each mutant fails at least one hidden test, without hanging. The reference is run on
    the hidden tests in any case: all rewards depend on it. A task that was published without a
    solution has none of either.

    Raises:
        DatasetError: the reference is not Python, or fails one of the hidden tests itself.
        SandboxUnavailable: the sandbox failed.
    """
    if not task.reference:
        return task.mutants
    try:
        changed = iter(()) if task.mutants else mutants(task.reference)
        candidates = list(islice(changed, CANDIDATES))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DatasetError(f"task {task.id}: field 'reference' is not Python: {error}") from error
    # The reference in the same request, so that its verdict costs no round of its own.
    reference, *results = run_tests(task, [task.reference, *candidates], run)
    if failure := _failure(task, reference):
        raise DatasetError(
            f"task {task.id}: the reference {failure}; "
            "pettingllms-data check --write makes a file without such tasks"
        )
    if task.mutants:
        return task.mutants
    return tuple(
        program
        for program, result in zip(candidates, results, strict=True)
        if _failure(task, result)
        # One that hangs would cost its limit on every test that a tester writes.
        and not any(r.status in RUNAWAY for r in result)
    )


def _failure(task: CodingTask, results: Sequence[RunResult]) -> str | None:
    """Describes the first hidden test that a program fails; None where it passes all."""
    for number, (test, got) in enumerate(zip(task.tests, results, strict=True)):
        if not passes(test, got, task.function):
            # The end of a traceback names the error.
            gave = (got.value or got.stdout)[:200] or got.stderr[-200:]
            return (
                f"fails tests[{number}]: {got.status}, gave {gave!r}, "
                f"expected {test.output[:200]!r}"
            )
    return None


def verified(task: CodingTask, sandbox: Sandbox, limits: Limits) -> CodingTask | str:
    """Returns the task with those mutants that fail a test, or why its reference cannot be used.

    Raises:
        SandboxUnavailable: the sandbox failed, which says nothing about the task.
    """
    if not task.reference:
        return "has no reference solution"
    run = SharedRuns(sandbox, limits)
    try:
        task = prepared(task, run)
    except DatasetError as error:
        return str(error).removeprefix(f"task {task.id}: ")
    reference, *mutants = run_tests(task, [task.reference, *task.mutants], run)
    if failure := _failure(task, reference):
        return f"its reference {failure}"
    wrong = [m for m, results in zip(task.mutants, mutants, strict=True) if _failure(task, results)]
    return replace(task, mutants=tuple(wrong))


# Known-wrong programs, made from a reference: a tester is worth what its tests catch. One place is changed with
# classic mutation operators (DeMillo, Lipton, Sayward 1978, https://doi.org/10.1109/C-M.1978.218136).

_OPERATORS = dict(
    pair.split(":")
    for pair in names_in(
        "Add:Sub Sub:Add Mult:Add FloorDiv:Mult Div:Mult Mod:FloorDiv Lt:LtE LtE:Lt Gt:GtE GtE:Gt "
        "Eq:NotEq NotEq:Eq In:NotIn NotIn:In And:Or Or:And"
    )
)
"""Operator -> the one in its place, by their names in `ast`."""
_NAMES = {"max": "min", "min": "max", "sum": "len", "sorted": "list", "any": "all", "all": "any"}


def mutants(program: str) -> Iterator[str]:
    """Yields all programs with one changed place, in source order, without repetition.

    Raises:
        SyntaxError: `program` is not Python.
    """
    tree = tree_of(program)
    # As `unparse` writes it: a change that only changes the spelling is no mutant.
    seen = {ast.unparse(tree)}
    for node in list(ast.walk(tree)):
        for field, value in _changes(node):
            original = getattr(node, field)
            setattr(node, field, value)
            text = ast.unparse(tree)
            setattr(node, field, original)
            if text not in seen:
                seen.add(text)
                yield text


def _other(operator: ast.AST) -> ast.AST | None:
    name = _OPERATORS.get(type(operator).__name__)
    return None if name is None else getattr(ast, name)()


def _changes(node: ast.AST) -> list[tuple[str, object]]:
    """Returns the fields of a node that can change, each with its new value."""
    match node:
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if other := _other(operator):
            return [("op", other)]
        case ast.Compare(ops=[first, *others]) if other := _other(first):
            return [("ops", [other, *others])]
        # `True` is an `int`, too, and has no neighbors.
        case ast.Constant(value=number) if type(number) is int:
            return [("value", number + 1), ("value", number - 1)]
        case ast.Name(id=name) if name in _NAMES:
            return [("id", _NAMES[name])]
        case ast.comprehension(ifs=[_, *conditions]):
            return [("ifs", conditions)]
        case ast.If(test=condition) | ast.IfExp(test=condition):
            return [("test", ast.UnaryOp(ast.Not(), condition))]
    return []


# ---------------------------------------------------------------------------- tests of a tester

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


def told_apart(
    verdict: Verdict, rows: Sequence[Sequence[RunResult]], function: str | None
) -> Verdict:
    """Counts right tests as one on which every mutant does the same; `rows` are their results on `telling`."""
    kinds = {
        (_key(test.output, function), *((r.status, r.stdout_bytes, r.value_bytes) for r in results))
        for test, *results in zip(verdict.telling, *rows, strict=True)
    }
    return verdict._replace(right=min(verdict.right, len(kinds)))


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
