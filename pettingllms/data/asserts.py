"""Published tests in Python (MBPP's asserts, HumanEval's `check`), judged by their own rule.

An assert that ran beside a program would show it the expected value, and a program that ends its
process early, or returns an object that equals everything, would pass. So a test is run in two
processes, and any test can be: tuples, sets, tolerances, loops, random inputs, classes.

1. The program runs, then the calls of the test (`f((1, 2))`), in the program's own namespace. What
   they return leaves the process as data; what is no data leaves as an opaque object.
2. The test runs as it was published, in a process that has not seen the program, with a function
   that returns these values in order. The reference stands beside it for what tests use of it (a
   class, HumanEval's `encode_cyclic`). A test passes where it ends without an exception.

The calls of an assert are read off its text. Where they depend on something else (a loop, a random
input) `recorded` runs the test with the reference first, and notes them; one seed serves both.
"""

from __future__ import annotations

import ast
import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pettingllms.data.rows import RowError, UnsupportedRow
from pettingllms.sandbox import Case, RunResult
from pettingllms.sandbox.types import RUNAWAY

Run = Callable[[list[str], list[Case]], list[list[RunResult]]]
"""Runs every program on every case, in the sandbox."""

_MOST_VALUES = 4 << 20  # bytes of the values of all tests of a program; tests beyond them fail


class Test(NamedTuple):
    """One test case."""

    input: str
    """Standard input, or a JSON list of arguments; of an assertion the calls that it makes, an
    expression on each line, or nothing where they have to be recorded."""
    output: str
    """The expected output or JSON value; of an assertion the Python that is run."""
    asserts: bool = False
    contest: bool = False
    """Whether this is a published assertion in Python, or is judged by LiveCodeBench's rules."""


def parse(program: str, field: str) -> ast.Module:
    """Parses a program.

    Raises:
        RowError: it is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in published programs
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError(field, f"is not Python: {str(error)[:80]}") from error


def is_python(program: str) -> bool:
    """Returns whether a program is valid syntax for the Python that runs here."""
    with contextlib.suppress(RowError):
        return bool(parse(program, ""))
    return False


def signature(program: str, function: str) -> str | None:
    """Returns `def f(a, b)` as the program writes it; None if it defines no such function."""
    for node in ast.walk(parse(program, "code")):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return f"def {function}({ast.unparse(node.args)})"
    return None


def tested_function(program: str, asserts: Sequence[str], field: str) -> str:
    """Returns the function of the program that the asserts call, the first of several.

    Raises:
        RowError: they call none, or one of them is not Python.
    """
    defined = {n.name for n in ast.walk(parse(program, "code")) if isinstance(n, ast.FunctionDef)}
    for number, text in enumerate(asserts):
        for node in ast.walk(parse(text, f"{field}[{number}]")):
            match node:
                case ast.Call(ast.Name(name)) if name in defined:
                    return name
    raise RowError("code", "does not define a function that the asserts call")


def of_list(asserts: Sequence[str], function: str, field: str) -> list[Test]:
    """Reads a list of statements such as MBPP's `test_list`, each a test.

    Raises:
        RowError: one of them is not Python.
        UnsupportedRow: there is none, or one does not call the function.
    """
    found = []
    for number, text in enumerate(asserts):
        body = parse(text, f"{field}[{number}]").body
        if not any(_mentions(node, function) for node in body):
            raise UnsupportedRow(field, f"has a statement that does not call {function}")
        found += _assertions(body, function)
    if not found:
        raise UnsupportedRow(field, "has no assert")
    return found


def of_check(test: str, function: str, field: str) -> list[Test]:
    """Reads HumanEval's `def check(candidate)`; each of its statements that tests is a test.

    Raises:
        RowError: there is no such definition, or it is not Python.
        UnsupportedRow: it calls nothing.
    """
    module = parse(test, field)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            around = [n for n in module.body if n is not node and not _mentions(n, "METADATA")]
            renamed = _Renamed(node.args.args[0].arg, function)
            body = [renamed.visit(statement) for statement in node.body]
            found = _assertions([*around, *body], function)
            if not found:
                raise UnsupportedRow(field, f"does not call {node.args.args[0].arg}")
            return found
    raise RowError(field, "has no 'def check(candidate)'")


class _Renamed(ast.NodeTransformer):
    """Gives the parameter of `check` the name of the function that is passed."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def helpers(prompt: str, function: str) -> str:
    """Returns what a prompt defines beside the function, for programs that leave it out."""
    kept: list[ast.stmt] = []
    for node in parse(prompt, "prompt").body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            kept.append(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != function:
            # A program that brings this definition along keeps its own.
            absent = ast.parse(f"{node.name!r} not in globals()", mode="eval").body
            kept.append(ast.If(absent, [node], []))
    return "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in kept)


def needs(text: str, program: str) -> bool:
    """Returns whether a call uses a class that the program defines."""
    classes = {n.name for n in ast.walk(parse(program, "code")) if isinstance(n, ast.ClassDef)}
    return any(_mentions(parse(text, "test_list"), name) for name in classes)


def _assertions(body: Sequence[ast.stmt], function: str) -> list[Test]:
    """Splits statements into tests: each with what has to run before it."""
    found: list[Test] = []
    before: list[ast.stmt] = []
    for number, node in enumerate(body):
        if isinstance(node, ast.Assert):
            node.msg = None  # it may call the function once more
            if any(_mentions(part, function) for part in (*before, node)):
                found.append(_assertion(before, node, function))
            continue
        if _mentions(node, function) and not isinstance(node, ast.Assign | ast.AnnAssign):
            found.append(_assertion(before, node, function))
            later = {name for part in body[number + 1 :] for name in _names(part)}
            if not later & _names(node) & {name for part in body for name in _bound(part)}:
                continue  # a loop that tests and leaves nothing for the tests after it
        before.append(node)
    return found


def _assertion(before: Sequence[ast.stmt], node: ast.stmt, function: str) -> Test:
    statement = "\n".join(ast.unparse(ast.fix_missing_locations(n)) for n in (*before, node))
    outer = list(_outer_calls(node, function))
    bound = {name for part in (*before, node) for name in _bound(part)}
    free = not any(_mentions(call, name) for call in outer for name in bound)
    closed = isinstance(node, ast.Assert) and outer and free
    if not closed or any(_mentions(part, function) for part in before):
        return Test("", statement, asserts=True)
    return Test("\n".join(map(ast.unparse, outer)), statement, asserts=True)


def _outer_calls(node: ast.AST, function: str) -> Iterator[ast.Call]:
    """Yields the calls of the function that are inside no other such call, as they are made."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outer_calls(child, function)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _mentions(tree: ast.AST, name: str) -> bool:
    return name in _names(tree)


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yields the names that statements bind: assigned, imported, or arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def as_json(test: Test, function: str) -> tuple[str, str] | None:
    """Returns arguments and value of `assert f(1, [2]) == 3` as JSON; None for any other test.

    Tuples become lists, as in the tests that agents write.
    """
    with contextlib.suppress(RowError, ValueError, TypeError, RecursionError, MemoryError):
        match parse(test.output, "").body[-1]:
            case ast.Assert(
                ast.Compare(ast.Call(ast.Name(id=name), args, []), [ast.Eq() | ast.Is()], [right])
            ) if name == function:
                values = [ast.literal_eval(argument) for argument in args]
                return json.dumps(values), json.dumps(ast.literal_eval(right))
    return None


def recorded(
    tests: Sequence[Test], function: str, setup: str, reference: str, run: Run
) -> list[Test] | str:
    """Returns the tests with their calls, found with the reference; or why they cannot be found."""
    hidden = [test.output for test in tests if not test.input]
    if not hidden:
        return list(tests)
    arguments = json.dumps([reference, setup, function, hidden])
    [[result]] = run([_JUDGE], [Case(function="record", args=arguments)])
    if result.status != "ok" or result.value is None:
        last = result.stderr.strip().splitlines()[-1:] or [""]
        return f"its tests do not run with the reference: {result.status} {last[0][:200]}".strip()
    calls = iter(json.loads(result.value))
    return [test if test.input else test._replace(input="\n".join(next(calls))) for test in tests]


def run_tests(
    programs: Sequence[str],
    tests: Sequence[Test],
    *,
    function: str,
    setup: str,
    reference: str,
    run: Run,
) -> list[list[RunResult]]:
    """Runs every program on every test; the status `ok` says that it passes.

    A test whose calls return, but not what it wants, is an `error` that names the statement.
    """
    cases = [
        Case(function="pettingllms_values", args=json.dumps([setup, test.input.split("\n")]))
        for test in tests
    ]
    rows = run([beside(program) for program in programs], cases)
    statements = [test.output for test in tests]
    judged = []
    for row in rows:
        values, left = [], _MOST_VALUES
        for result in row:
            left -= len(result.value_bytes or b"")
            good = result.status == "ok" and left >= 0
            values.append(result.value if good else None)
        judged.append(json.dumps([reference, setup, function, statements, values]))
    distinct = list(dict.fromkeys(judged))
    judging = [Case(function="judge", args=args) for args in distinct]
    [verdicts] = run([_JUDGE], judging)
    for number, verdict in enumerate(verdicts):
        if verdict.status in RUNAWAY:  # of this program's values, or of another's before it
            [[verdicts[number]]] = run([_JUDGE], [judging[number]])
    by_values = dict(zip(distinct, verdicts, strict=True))
    return [
        [
            _verdict(result, passed, test)
            for result, passed, test in zip(
                row, _passed(by_values[args], len(tests)), tests, strict=True
            )
        ]
        for row, args in zip(rows, judged, strict=True)
    ]


def _passed(result: RunResult, count: int) -> list[bool]:
    """Reads the judge's verdicts; where it broke a limit, no test is known to pass."""
    if result.status != "ok" or result.value is None:
        return [False] * count
    return [verdict is True for verdict in json.loads(result.value)]


def _verdict(result: RunResult, passed: bool, test: Test) -> RunResult:
    if passed or result.status != "ok":
        return result
    said = f"AssertionError: {test.output.splitlines()[-1].strip()[:200]}"
    return replace(result, status="error", stderr_bytes=result.stderr_bytes + said.encode())


def calls_of(arguments: Sequence[str], function: str, setup: str, like: str) -> list[Case]:
    """Returns cases that call a function with JSON arguments, as tests of agents do.

    Args:
        arguments: of each case, a JSON list.
        function: its name.
        setup: runs after the program.
        like: a published call; where it has a tuple or a set, a list becomes one.
    """
    return [
        Case(function="pettingllms_call", args=json.dumps([setup, function, like, text]))
        for text in arguments
    ]


def beside(program: str) -> str:
    """Returns the program with the functions that `calls_of` and `run_tests` call."""
    return f"{program}\n{_DATA}{_CALLER}"


_DATA = r"""
def pettingllms_pack(value):
    from decimal import Decimal
    from fractions import Fraction
    from itertools import islice
    pack = pettingllms_pack
    if isinstance(value, float) and value - value != 0:
        return {"float": float.__repr__(value)}
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < 10000 else {"int": hex(value)}
    if isinstance(value, list):
        return [pack(member) for member in value]
    if isinstance(value, tuple):
        return {"tuple": [pack(member) for member in value]}
    if isinstance(value, (set, frozenset)):
        name = "set" if isinstance(value, set) else "frozenset"
        return {name: [pack(member) for member in sorted(value, key=repr)]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(member)] for key, member in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (Decimal, Fraction)):
        return {type(value).__name__.lower(): str(value)}
    if isinstance(value, type):
        return {"type": value.__name__}
    try:
        members = [pack(member) for member in islice(value, 10000)]
    except Exception:
        members = None
    return {"other": [bool(value), members]}
"""
"""Makes JSON of a value; runs beside the program, so what it returns is the program's word."""

_CALLER = r"""

def pettingllms_values(setup, calls):
    exec(setup, globals())
    return [pettingllms_pack(eval(call, globals())) for call in calls]


def pettingllms_call(setup, function, like, arguments):
    import json
    exec(setup, globals())
    try:
        models = eval(like, {**globals(), function: lambda *given: given})
    except Exception:
        models = ()

    def shaped(value, model):
        if isinstance(value, list) and isinstance(model, (list, tuple, set)):
            kept = list(model)
            several = isinstance(model, tuple) and len(kept) == len(value)
            made = [
                shaped(member, kept[n] if several else kept[0]) if kept else member
                for n, member in enumerate(value)
            ]
            return type(model)(made) if type(model) in (list, tuple, set) else made
        if isinstance(value, dict) and isinstance(model, dict):
            number = bool(model) and all(type(key) is int for key in model)
            return {int(key) if number else key: member for key, member in value.items()}
        return value

    def plain(value):
        if isinstance(value, (set, frozenset)):
            return [plain(member) for member in sorted(value, key=repr)]
        if isinstance(value, (list, tuple)):
            return [plain(member) for member in value]
        if isinstance(value, dict):
            return {key: plain(member) for key, member in value.items()}
        return value

    given = json.loads(arguments)
    given = [shaped(a, models[n]) if n < len(models) else a for n, a in enumerate(given)]
    return plain(eval(function, globals())(*given))
"""

_JUDGE = r"""

class Opaque:
    def __init__(self, truth, members):
        self.truth, self.members = truth, members

    def __bool__(self):
        return self.truth

    def __iter__(self):
        if self.members is None:
            raise TypeError("not iterable")
        return iter(self.members)


def unpack(value):
    import builtins
    from decimal import Decimal
    from fractions import Fraction
    if isinstance(value, list):
        return [unpack(member) for member in value]
    if not isinstance(value, dict):
        return value
    [(kind, held)] = value.items()
    if kind in ("tuple", "set", "frozenset"):
        return getattr(builtins, kind)(unpack(member) for member in held)
    if kind == "dict":
        return {unpack(key): unpack(member) for key, member in held}
    if kind == "other":
        return Opaque(held[0], None if held[1] is None else [unpack(m) for m in held[1]])
    if kind == "complex":
        return complex(*held)
    if kind == "type":
        found = getattr(builtins, held, None)
        return found if isinstance(found, type) else Opaque(True, None)
    made = {"int": lambda text: int(text, 16), "bytes": bytes.fromhex, "float": float}
    return (made | {"decimal": Decimal, "fraction": Fraction})[kind](held)


def prepared(reference, setup):
    import sys
    sys.set_int_max_str_digits(0)
    space = {"__name__": "test"}
    for text in (reference, setup):
        try:
            exec(text, space)
        except Exception:
            pass
    return space


def run(statement, space, function):
    import random
    random.seed(0)
    space.update(function)
    exec(statement, space)


def record(reference, setup, function, statements):
    found = []
    for statement in statements:
        space = prepared(reference, setup)
        own, calls = space[function], []

        def noted(*given, **named):
            parts = [*map(repr, given), *(f"{name}={part!r}" for name, part in named.items())]
            calls.append(f"{function}({', '.join(parts)})")
            return own(*given, **named)

        run(statement, space, {function: noted})
        found.append(calls)
    return found


def judge(reference, setup, function, statements, values):
    import json
    verdicts = []
    for statement, packed in zip(statements, values):
        verdicts.append(False)
        if packed is None:
            continue
        try:
            held = iter([unpack(value) for value in json.loads(packed)])
            run(statement, prepared(reference, setup), {function: lambda *a, **k: next(held)})
            verdicts[-1] = True
        except BaseException:
            pass
    return verdicts
"""
