"""Runs published assertions (MBPP's asserts, HumanEval's `check`) without showing them to the program.

An assert that ran in the program's process would show it the expected value, and a program that ends its
process early, or returns an object that equals everything, would pass. So each test runs in two
processes:

1. The program runs, then the calls of the test (`f((1, 2))`), in the program's own namespace. What
   they return leaves the process as data; anything else leaves as an opaque object.
2. The test runs as published, in a process that has not seen the program, with a function
   that returns these values in order. The reference runs there too, for what tests use of it (a
   class, HumanEval's `encode_cyclic`). A test passes if it ends without an exception.

`pettingllms.data.asserts` reads the calls off the text of a test. Where they depend on a loop or a random
input, `recorded` runs the test with the reference and notes them; both processes use the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap

from pettingllms.data.asserts import Test
from pettingllms.sandbox import Case, RunResult
from pettingllms.sandbox.types import RUNAWAY

Run = Callable[[list[str], list[Case]], list[list[RunResult]]]
"""Runs every program on every case, in the sandbox."""

_MOST_VALUES = 4 << 20  # bytes of the values of all tests of a program; tests beyond them fail


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
        return f"its tests do not run with the reference: {result.failure[:200]}"
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
        list(starmap(_verdict, zip(row, _passed(by_values[args], len(tests)), tests, strict=True)))
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
    message = f"AssertionError: {test.output.splitlines()[-1].strip()[:200]}"
    return replace(result, status="error", stderr_bytes=result.stderr_bytes + message.encode())


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
