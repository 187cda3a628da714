"""Published tests in Python (MBPP's asserts, HumanEval's `check`), split into tests and their calls.

The calls of an assert are read off its text, where they depend on nothing else.
`pettingllms.envs.assertions` runs the tests.
"""

from __future__ import annotations

import ast
import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pettingllms.data.rows import RowError, UnsupportedRow, tree_of


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
            return tree_of(program)
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
    tests = []
    for number, text in enumerate(asserts):
        body = parse(text, f"{field}[{number}]").body
        if not any(_mentions(node, function) for node in body):
            raise UnsupportedRow(field, f"has a statement that does not call {function}")
        tests += _assertions(body, function)
    if not tests:
        raise UnsupportedRow(field, "has no assert")
    return tests


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
            tests = _assertions([*around, *body], function)
            if not tests:
                raise UnsupportedRow(field, f"does not call {node.args.args[0].arg}")
            return tests
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
    tests: list[Test] = []
    before: list[ast.stmt] = []
    for number, node in enumerate(body):
        if isinstance(node, ast.Assert):
            node.msg = None  # it may call the function once more
            if any(_mentions(stmt, function) for stmt in (*before, node)):
                tests.append(_assertion(before, node, function))
            continue
        if _mentions(node, function) and not isinstance(node, ast.Assign | ast.AnnAssign):
            tests.append(_assertion(before, node, function))
            later = {name for stmt in body[number + 1 :] for name in _names(stmt)}
            if not later & _names(node) & {name for stmt in body for name in _bound(stmt)}:
                continue  # a loop that tests and leaves nothing for the tests after it
        before.append(node)
    return tests


def _assertion(before: Sequence[ast.stmt], node: ast.stmt, function: str) -> Test:
    statement = "\n".join(ast.unparse(ast.fix_missing_locations(n)) for n in (*before, node))
    outer = list(_outer_calls(node, function))
    bound = {name for stmt in (*before, node) for name in _bound(stmt)}
    free = not any(_mentions(call, name) for call in outer for name in bound)
    closed = isinstance(node, ast.Assert) and outer and free
    if not closed or any(_mentions(stmt, function) for stmt in before):
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
