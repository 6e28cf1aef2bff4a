"""Arithmetic over the metrics of a trial, as a workflow file writes it.

The text is parsed by Python's own parser and then built up again from a table of what is allowed,
so it can do nothing but compute: ``accuracy - 0.01 * log10(training_time_s)``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

Metrics = Mapping[str, Any]
Evaluate = Callable[[Metrics], float]

_MOST_CHARACTERS = 1000
_DEEPEST = 60

_BINARY: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# Name -> function, fewest and most arguments.
_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    "abs": (abs, 1, 1),
    "exp": (math.exp, 1, 1),
    "log": (math.log, 1, 1),
    "log10": (math.log10, 1, 1),
    "log2": (math.log2, 1, 1),
    "max": (max, 2, 8),
    "min": (min, 2, 8),
    "sqrt": (math.sqrt, 1, 1),
    "tanh": (math.tanh, 1, 1),
}

ALLOWED = f"numbers, metrics, + - * / % **, a if b > c else d, and {', '.join(_FUNCTIONS)}"


class ExpressionError(ValueError):
    """An expression is not arithmetic, or names what is not there."""


class UnknownName(ExpressionError):
    """An expression names a metric that is not among those reported."""


def compile_expression(text: str) -> tuple[Evaluate, list[str]]:
    """Turn an expression into a function.

    Parameters
    ----------
    text : str

    Returns
    -------
    (function, list of str)
        Takes the metrics of a trial, gives the value; and the metrics that it names, sorted.

    Raises
    ------
    ExpressionError
        If it is something else than arithmetic.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ExpressionError(f"an expression of {len(text)} characters is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check_depth(tree, text)
        names: set[str] = set()
        return _build(tree, text, names), sorted(names)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is no expression: {error}") from None


def _check_depth(tree: ast.AST, text: str) -> None:
    """Check that a function built from a tree will not exhaust the stack."""
    level, depth = [tree], 0
    while level:
        level, depth = [below for one in level for below in ast.iter_child_nodes(one)], depth + 1
        if depth > _DEEPEST:
            raise ExpressionError(f"{text!r} is nested too deeply")


def _build(node: ast.expr, text: str, names: set[str]) -> Evaluate:
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return _constant(node.value, text)
    if isinstance(node, ast.Name):
        names.add(node.id)
        return _metric(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _both(_BINARY[type(node.op)], node.left, node.right, text, names)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        apply, inner = _UNARY[type(node.op)], _build(node.operand, text, names)
        return lambda metrics: apply(inner(metrics))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return _both(_COMPARE[type(node.ops[0])], node.left, node.comparators[0], text, names)
    if isinstance(node, ast.IfExp):
        test, then, other = (
            _build(one, text, names) for one in (node.test, node.body, node.orelse)
        )
        return lambda metrics: then(metrics) if test(metrics) else other(metrics)
    if isinstance(node, ast.Call):
        return _call(node, text, names)
    part = ast.get_source_segment(text.strip(), node) or text
    raise ExpressionError(f"{part!r} is not allowed in {text!r}; an expression has {ALLOWED}")


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _constant(value: float, text: str) -> Evaluate:
    try:
        number = float(value)
    except OverflowError:
        raise ExpressionError(f"a number in {text!r} is too large") from None
    return lambda metrics: number


def _metric(name: str) -> Evaluate:
    def value(metrics: Metrics) -> float:
        try:
            return float(metrics[name])
        except KeyError:
            raise UnknownName(name) from None
        except (TypeError, ValueError):
            raise ExpressionError(f"{name} = {metrics[name]!r} is no number") from None

    return value


def _both(
    apply: Callable[[float, float], Any],
    left: ast.expr,
    right: ast.expr,
    text: str,
    names: set[str],
) -> Evaluate:
    one, other = _build(left, text, names), _build(right, text, names)
    return lambda metrics: apply(one(metrics), other(metrics))


def _call(node: ast.Call, text: str, names: set[str]) -> Evaluate:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    is_plain = not node.keywords and not any(isinstance(one, ast.Starred) for one in node.args)
    if name not in _FUNCTIONS or not is_plain:
        called = ast.unparse(node.func)
        raise ExpressionError(
            f"{called}(...) is not allowed in {text!r}; an expression has {ALLOWED}"
        )
    function, fewest, most = _FUNCTIONS[name]
    if not fewest <= len(node.args) <= most:
        wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise ExpressionError(f"{name} takes {wanted} arguments, not {len(node.args)}, in {text!r}")
    arguments = [_build(one, text, names) for one in node.args]
    if len(arguments) == 1:
        only = arguments[0]
        return lambda metrics: function(only(metrics))
    return lambda metrics: function(*[one(metrics) for one in arguments])
