"""Tests of published sets in Python syntax: asserts as function calls, and pickled test lists.

Asserts (MBPP, HumanEval): `assert f(2, [3]) == 5` is f, [2, [3]], 5. The sandbox passes arguments and
results as JSON and never sees an expected value; an assert that ran beside a program would reveal
it, and a program that ends its process early would pass. So an assert is used if it compares one call
with literal arguments to a literal value; otherwise the task is left out: JSON has no tuples
or sets to call with, and a property (`len(f(x)) == 3`) is not a value. A returned tuple counts as
the list of its members, as everywhere in the sandbox. An expected whole number is written as a float,
because `==` accepts 35.0 for 35 and the comparison of JSON values does not; a large one is kept,
since the tolerance for floats would accept its neighbors.

Pickles (LiveCodeBench's private tests): JSON, or JSON in a pickled string in zlib in base64.
Unpickling executes code, so nothing is unpickled: the only pickle that is accepted is one string, read
opcode by opcode with `pickletools`, which builds no object. Sizes are bounded before anything is
inflated or parsed. For any text the result is a list or a `RowError`.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import io
import json
import operator
import pickletools
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pettingllms.data.rows import RowError, UnsupportedRow
from pettingllms.grading.outputs import TOLERANCE

_SUMS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_MOST_AS_FLOAT = 10_000


class Call(NamedTuple):
    """A function's name, its arguments as a JSON list, and the JSON value that it has to return."""

    function: str
    arguments: str
    value: str


def calls(asserts: Sequence[str], field: str) -> list[Call]:
    """Reads the calls of a list of assert statements, such as MBPP's `test_list`.

    Raises:
        RowError: one of them is not Python.
        UnsupportedRow: one of them does not compare a call with a value, or they call different functions.
    """
    statements = [s for n, text in enumerate(asserts) for s in parse(text, f"{field}[{n}]").body]
    return _of_one_function(_calls(statements, field), field)


def check_calls(test: str, function: str, field: str) -> list[Call]:
    """Reads the calls in HumanEval's `def check(candidate)`, as calls of `function`.

    Raises:
        RowError: there is no such definition, or it is not Python.
        UnsupportedRow: its body does more than compare calls with values.
    """
    for node in parse(test, field).body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            found = _of_one_function(_calls(node.body, field), field)
            if found[0].function != node.args.args[0].arg:
                raise UnsupportedRow(field, "does not call the candidate alone")
            return [call._replace(function=function) for call in found]
    raise RowError(field, "has no 'def check(candidate)'")


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
    try:
        parse(program, "")
    except RowError:
        return False
    return True


def signature(program: str, function: str) -> str | None:
    """Returns `def f(a, b)` as the program writes it; None if it defines no such function."""
    for node in ast.walk(parse(program, "code")):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return f"def {function}({ast.unparse(node.args)})"
    return None


def _calls(statements: Iterable[ast.stmt], field: str) -> list[Call]:
    found = []
    for statement in statements:
        if not isinstance(statement, ast.Assert):
            raise UnsupportedRow(field, f"has more than asserts: {type(statement).__name__}")
        if isinstance(statement.test, ast.Constant) and statement.test.value is True:
            continue  # HumanEval's `assert True, "good for debugging"` tests nothing
        found.append(_call(statement.test, field))
    if not found:
        raise UnsupportedRow(field, "has no assert")
    return found


def _of_one_function(found: list[Call], field: str) -> list[Call]:
    if len({call.function for call in found}) > 1:
        raise UnsupportedRow(field, "calls different functions")
    return found


def _call(test: ast.expr, field: str) -> Call:
    left, right = _sides(test)
    if not isinstance(left, ast.Call) or not isinstance(left.func, ast.Name) or left.keywords:
        raise UnsupportedRow(field, "has an assert that does not compare one call with a value")
    arguments = [_literal(argument, field) for argument in left.args]
    if not all(map(_is_json, arguments)):
        raise UnsupportedRow(
            field, "has arguments that JSON cannot express, such as a tuple or a set"
        )
    expected = _literal(right, field)
    if not _is_json(expected, tuples=True):
        raise UnsupportedRow(field, "expects a value that JSON cannot express, such as a set")
    return Call(left.func.id, json.dumps(arguments), json.dumps(_equal(expected)))


def _equal(value: Any) -> Any:
    """Converts whole numbers to floats: `==` does not tell 35 from 35.0."""
    if isinstance(value, list | tuple):
        return [_equal(member) for member in value]
    if isinstance(value, dict):
        return {name: _equal(member) for name, member in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_AS_FLOAT:
        return float(value)
    return value


def _sides(test: ast.expr) -> tuple[ast.expr | None, ast.expr]:
    """Returns both sides of `a == b`, `a is True` and `abs(a - b) < 1e-6`; (None, test) for all else."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None, test
    left, sign, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(sign, ast.Eq):
        return left, right
    if isinstance(sign, ast.Is) and isinstance(right, ast.Constant):
        return left, right
    if isinstance(sign, ast.Lt | ast.LtE) and _is_tolerance(right):
        match left:
            case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(left=a, op=ast.Sub(), right=b)]):
                return a, _as_float(b)
    return None, test


def _is_tolerance(node: ast.expr) -> bool:
    """Returns whether it is the tolerance that the sandbox compares floats with."""
    return isinstance(node, ast.Constant) and node.value == TOLERANCE


def _as_float(node: ast.expr) -> ast.expr:
    """Makes an expected integer a float, as a comparison with a tolerance implies."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(float(node.value))
    return node


class _Sums(ast.NodeTransformer):
    """Evaluates `2 * 3 + 1` and `'a' + 'b'`, but nothing that could grow without bound."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Constant(str() as left), ast.Add(), ast.Constant(str() as right)):
                return ast.Constant(left + right)
            case ast.BinOp(
                ast.Constant(int() | float() as first),
                sign,
                ast.Constant(int() | float() as second),
            ) if type(sign) in _SUMS:
                with contextlib.suppress(ArithmeticError):
                    return ast.Constant(_SUMS[type(sign)](first, second))
        return node


def _literal(node: ast.expr, field: str) -> Any:
    try:
        return ast.literal_eval(_Sums().visit(node))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UnsupportedRow(field, "has a value that is computed, not written out") from error


def _is_json(value: object, *, tuples: bool = False) -> bool:
    """Returns whether a value survives JSON; with `tuples`, a tuple may become a list."""
    if isinstance(value, list) or (tuples and isinstance(value, tuple)):
        return all(_is_json(member, tuples=tuples) for member in value)
    if isinstance(value, dict):
        return all(
            isinstance(name, str) and _is_json(member, tuples=tuples)
            for name, member in value.items()
        )
    if isinstance(value, float):
        return value - value == 0  # finite
    return value is None or isinstance(value, str | int)


MAX_PACKED = 128 << 20
"""Characters of base64; all tests of the largest problems are a few tens of millions."""
MAX_INFLATED = 512 << 20
"""Bytes after zlib."""
_AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}
_STRINGS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def unpacked(packed: str, field: str) -> list[Any]:
    """Unpacks the list of tests in `packed`.

    Raises:
        RowError: it holds none, is too large, or the pickle is more than a string.
    """
    if packed.lstrip()[:1] in ("[", ""):
        written = packed
    else:
        written = _pickled_text(_inflated(packed, field), field)
    try:
        tests = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise RowError(field, f"does not hold JSON: {str(error)[:80]}") from error
    if not isinstance(tests, list):
        raise RowError(field, f"must hold a list of tests, not {type(tests).__name__}")
    return tests


def _inflated(packed: str, field: str) -> bytes:
    if len(packed) > MAX_PACKED:
        raise RowError(field, f"has {len(packed)} characters; at most {MAX_PACKED} are read")
    try:
        # One byte more than allowed tells a text that is too long from one that just fits.
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(packed, validate=True), MAX_INFLATED + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise RowError(field, f"is neither JSON nor zlib in base64: {error}") from error
    if len(data) > MAX_INFLATED:
        raise RowError(field, f"inflates to more than {MAX_INFLATED} bytes")
    if not inflater.eof:
        raise RowError(field, "is neither JSON nor zlib in base64: it ends too early")
    return data


def _pickled_text(data: bytes, field: str) -> str:
    found: str | None = None
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            if opcode.name in _STRINGS and found is None:
                found = str(argument)
            elif opcode.name == "STOP" and found is not None:
                return found
            elif opcode.name not in _AROUND:
                raise RowError(field, f"is a pickle of more than a string: {opcode.name}")
    except (ValueError, MemoryError, OverflowError) as error:
        raise RowError(field, f"is not a pickle: {str(error)[:80]}") from error
    raise RowError(field, "is a pickle without a string")
