"""Known-wrong programs, made from a reference: a tester is worth what its tests catch.

`mutants` changes one place with classic mutation operators (DeMillo, Lipton, Sayward 1978,
https://doi.org/10.1109/C-M.1978.218136): another operator, another comparison, a constant off by
one, a condition negated or dropped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"max": "min", "min": "max", "sum": "len", "sorted": "list", "any": "all", "all": "any"}


def mutants(program: str) -> Iterator[str]:
    """Yields all programs with one changed place, in source order, without repetition.

    Raises:
        SyntaxError: `program` is not Python.
    """
    tree = ast.parse(program)
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


def _changes(node: ast.AST) -> list[tuple[str, object]]:
    """Returns the fields of a node that can change, each with its new value."""
    match node:
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in _OPERATORS:
            return [("op", _OPERATORS[type(operator)]())]
        case ast.Compare(ops=[first, *others]) if type(first) in _OPERATORS:
            return [("ops", [_OPERATORS[type(first)](), *others])]
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
