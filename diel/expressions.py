"""Expressions in strings of a workflow file as functions; no code of the file is executed.

::

    compile_expression("4 if hidden >= 1024 else 1", language)    -> Compiled
      names       hidden
      evaluate    a function of {"hidden": 2048}

A `Language` says what values an expression has, and whether it has more than arithmetic.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from diel.frozen import Frozen

Evaluate: TypeAlias = "Callable[[Mapping[Any, Any]], Any]"

MOST_CHARACTERS: Final = 1000
_DEEPEST: Final = 60

_BINARY: Final[dict[type[ast.operator], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[..., Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[..., Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# Name -> function, fewest and most arguments.
_FUNCTIONS: Final[dict[str, tuple[Callable[..., float], int, int]]] = {
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
ARITHMETIC: Final = f"numbers, names, + - * / % **, a if b > c else d, and {', '.join(_FUNCTIONS)}"


class ExpressionError(ValueError):
    """An expression has what its language lacks, or no value; `remedy` says what to do."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class UnknownName(ExpressionError):
    """An expression has a name that no value was given for."""


class Logic(Frozen):
    """How a language combines truth values; with it come comparisons in a row.

    Attributes
    ----------
    every, some : callable
        From the functions of the parts to the function of ``and``, and of ``or``.
    negated : callable
        From a value to its opposite.
    chosen : callable
        From the functions of test, value and alternative to that of ``a if test else b``.
    """

    every: Callable[[Sequence[Evaluate]], Evaluate]
    some: Callable[[Sequence[Evaluate]], Evaluate]
    negated: Callable[[Any], Any]
    chosen: Callable[[Evaluate, Evaluate, Evaluate], Evaluate]


class Language(Frozen):
    """What an expression may hold, and how its values are computed with.

    Attributes
    ----------
    allowed : str
        All that it may hold, in words.
    constant : callable
        From a constant to its value; a TypeError if the language has none of its type.
    read : callable
        From a name, or a question with its argument, and what was given for it, to its value.
    lifted : callable or None
        From an operator or function of Python, and what it does (``"arithmetic"``, ``"order"`` or
        ``"equality"``), to the one of the language; None if they are the same.
    logic : Logic or None
        How ``and``, ``or`` and ``not`` work; None if there are no truth values.
    questions : mapping of str to callable
        Calls such as ``value("tag")``, by name: a function that checks the argument.
    """

    allowed: str
    constant: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]
    lifted: Callable[[Callable[..., Any], str], Callable[..., Any]] | None = None
    logic: Logic | None = None
    questions: Mapping[str, Callable[[Any], Hashable]] = {}


class Compiled(NamedTuple):
    """An expression as a function of values, by name, or by (question, argument)."""

    evaluate: Evaluate
    names: list[str]
    """The names that it has, sorted."""
    questions: list[tuple[str, Any]]
    """The questions that it has, each once, in order."""


def compile_expression(text: str, language: Language) -> Compiled:
    """Compile an expression; an `ExpressionError` if it has what the language lacks."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(f"an expression of {len(text)} characters is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check_depth(tree, text)
        builder = _Builder(text, language)
        return Compiled(builder.build(tree), sorted(builder.names), list(builder.questions))
    except ExpressionError:
        raise
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ExpressionError(f"{text!r} is no expression: {error}") from None


def _check_depth(tree: ast.AST, text: str) -> None:
    """Check that a function built from a tree will not exhaust the stack."""
    level, depth = [tree], 0
    while level:
        level, depth = (
            [below for inner in level for below in ast.iter_child_nodes(inner)],
            depth + 1,
        )
        if depth > _DEEPEST:
            raise ExpressionError(f"{text!r} is nested too deeply")


class _Builder:
    """Builds the function of an expression from its tree, and collects its names."""

    def __init__(self, text: str, language: Language) -> None:
        self._text = text
        self._language = language
        self.names: set[str] = set()
        self.questions: dict[tuple[str, Any], None] = {}

    def build(self, node: ast.expr) -> Evaluate:
        logic = self._language.logic
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._both(_BINARY[type(node.op)], "arithmetic", node.left, node.right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return self._one(self._lifted(_UNARY[type(node.op)], "arithmetic"), node.operand)
        if isinstance(node, ast.Compare) and all(type(each) in _COMPARE for each in node.ops):
            if len(node.ops) == 1:
                return self._compared(node.left, node.ops[0], node.comparators[0])
            if logic is not None:
                sides = [node.left, *node.comparators]
                pairs = zip(sides, node.ops, node.comparators, strict=False)
                return logic.every([self._compared(*pair) for pair in pairs])
        if isinstance(node, ast.IfExp):
            test, then, otherwise = map(self.build, (node.test, node.body, node.orelse))
            if logic is not None:
                return logic.chosen(test, then, otherwise)
            return lambda values: then(values) if test(values) else otherwise(values)
        if isinstance(node, ast.Call):
            return self._call(node)
        if logic is not None and isinstance(node, ast.BoolOp):
            parts = [self.build(part) for part in node.values]
            return logic.every(parts) if isinstance(node.op, ast.And) else logic.some(parts)
        if logic is not None and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._one(logic.negated, node.operand)
        raise self._refusal(repr(ast.get_source_segment(self._text.strip(), node) or self._text))

    def _refusal(self, part: str) -> ExpressionError:
        allowed = self._language.allowed
        return ExpressionError(
            f"{part} is not allowed in {self._text!r}; an expression has {allowed}"
        )

    def _lifted(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        lifted = self._language.lifted
        return function if lifted is None else lifted(function, what)

    def _constant(self, node: ast.Constant) -> Evaluate:
        try:
            value = self._language.constant(node.value)
        except TypeError:
            part = ast.get_source_segment(self._text.strip(), node) or self._text
            raise self._refusal(repr(part)) from None
        except OverflowError:
            raise ExpressionError(f"a number in {self._text!r} is too large") from None
        return lambda values: value

    def _name(self, node: ast.Name) -> Evaluate:
        name, read = node.id, self._language.read
        self.names.add(name)

        def value(values: Mapping[Any, Any]) -> Any:
            try:
                given = values[name]
            except KeyError:
                raise UnknownName(name) from None
            return read(name, given)

        return value

    def _one(self, apply: Callable[[Any], Any], operand: ast.expr) -> Evaluate:
        inner = self.build(operand)
        return lambda values: apply(inner(values))

    def _both(
        self, function: Callable[..., Any], what: str, left: ast.expr, right: ast.expr
    ) -> Evaluate:
        apply, first, second = self._lifted(function, what), self.build(left), self.build(right)
        return lambda values: apply(first(values), second(values))

    def _compared(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Evaluate:
        what = "equality" if isinstance(sign, ast.Eq | ast.NotEq) else "order"
        return self._both(_COMPARE[type(sign)], what, left, right)

    def _call(self, node: ast.Call) -> Evaluate:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        is_plain = not node.keywords and not any(
            isinstance(argument, ast.Starred) for argument in node.args
        )
        questions = self._language.questions
        if is_plain and name in questions:
            return self._question(name, node.args)
        if name not in _FUNCTIONS or not is_plain:
            raise self._refusal(f"{ast.unparse(node.func)}(...)")
        function, fewest, most = _FUNCTIONS[name]
        if not fewest <= len(node.args) <= most:
            wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise ExpressionError(
                f"{name} takes {wanted} arguments, not {len(node.args)}, in {self._text!r}"
            )
        apply = self._lifted(function, "arithmetic")
        arguments = [self.build(argument) for argument in node.args]
        if len(arguments) == 1:
            only = arguments[0]
            return lambda values: apply(only(values))
        return lambda values: apply(*[argument(values) for argument in arguments])

    def _question(self, name: str, arguments: Sequence[ast.expr]) -> Evaluate:
        try:
            (argument,) = arguments
            key = name, self._language.questions[name](ast.literal_eval(argument))
        except (ValueError, TypeError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f'{name} takes one text, as in {name}("x")') from None
        self.questions[key] = None
        read = self._language.read
        return lambda values: read(key, values[key])
