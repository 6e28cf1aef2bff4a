"""Formulas of elementwise operations, each written once, in Python's syntax over its operands.

::

    Formula("sigmoid", "x", "exp(min(x, 0)) / (1 + exp(-abs(x)))")

A formula may use numbers, arithmetic (``+ - * / **``), comparisons, ``and``, ``or``, ``not``, a
choice ``a if condition else b``, and the functions of `FUNCTIONS`; ``min`` and ``max`` of NaN are
NaN. From it come a function of NumPy (`Formula.numpy`) and, by a `Writer`, the
compiled loop on the CPU (`dnn.backend.cpu.chains`) and the CUDA source
(`dnn.backend.cuda.formulas`). An `UpdateFormula` assigns several formulas in sequence.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.backend.formula_numpy import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    NumpyCode,
    is_condition,
    number_text,
)

__all__ = [
    "ADD",
    "COPY",
    "MULTIPLY",
    "RELU",
    "SIGMOID",
    "SIGMOID_OF",
    "TANH",
    "Formula",
    "Language",
    "Step",
    "UpdateFormula",
    "Writer",
]

_LARGEST: Final = sys.float_info.max

Step = tuple[Callable[..., object], tuple[Any, ...]]
"""A function and the arguments to call it with; a plan is a list of steps."""

PARTS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.USub, ast.Not, ast.boolop, ast.Load),
    *ARITHMETIC,
    *COMPARISONS,
)
"""Nodes of Python's syntax tree that a formula may contain besides names, numbers and calls."""


@dataclass(frozen=True)
class Formula:
    """An expression over operands.

    Parameters
    ----------
    name : str
        For messages and for names of kernels.
    operands : str
        Names of the operands, with spaces between.
    expression : str
        A comparison is 1 where it holds and 0 where not, or a bool with `is_bool`.
    ufunc : ufunc, optional
        NumPy's function that computes the same, where it is not evident from the expression.
    is_bool : bool
        Whether the result is of bool.

    Raises
    ------
    ValueError
        If the expression contains anything else; the message says what. It is parsed when the
        formula is first used, since a network needs only few of the formulas of `dnn`.
    """

    name: str
    operands: str
    expression: str
    ufunc: np.ufunc | None = field(default=None, compare=False)
    is_bool: bool = False

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(self.operands.split())

    @cached_property
    def tree(self) -> ast.expr:
        """The expression, parsed."""
        try:
            parsed = ast.parse(self.expression, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"formula {self.name!r}: {self.expression!r}: {error.msg}") from None
        folded: ast.Expression = _NegativeNumbers().visit(parsed)
        for node in ast.walk(folded.body):
            self._check(node)
        return folded.body

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if node.id in self.names or node.id in FUNCTIONS:
                return
            known = f"there are {', '.join((*self.names, *FUNCTIONS))}"
            raise ValueError(f"formula {self.name!r}: {node.id!r} is unknown; {known}")
        if isinstance(node, ast.Constant):
            fits = type(node.value) is float or (
                type(node.value) is int and abs(node.value) <= _LARGEST
            )
        elif isinstance(node, ast.Compare):
            fits = len(node.ops) == 1
        elif isinstance(node, ast.Call):
            fits = isinstance(node.func, ast.Name) and not node.keywords
        else:
            fits = isinstance(node, PARTS)
        if not fits:
            text = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(f"formula {self.name!r}: {text!r} is not for formulas")

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions that the expression calls, with ``**`` for powers."""
        nodes = list(ast.walk(self.tree))
        powers = ["**"] if any(isinstance(node, ast.Pow) for node in nodes) else []
        return frozenset([*powers, *(x.id for x in nodes if isinstance(x, ast.Name))]) - {
            *self.names
        }

    @cached_property
    def is_exact_in_integers(self) -> bool:
        """Whether the expression only adds, subtracts, multiplies or copies."""
        allowed = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load)
        return all(isinstance(node, allowed) for node in ast.walk(self.tree))

    @cached_property
    def has_one_type(self) -> bool:
        """Whether operands and result have one type of elements: none of them is a condition."""
        conditions = {
            node.test.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Name)
        }
        return not self.is_bool and not conditions

    @property
    def numpy(self) -> Callable[..., object]:
        """Function of operands, workspace and ``out`` that computes the formula with NumPy."""
        return self._in_numpy.function

    def workspace(self, dtype: npt.DTypeLike) -> list[np.dtype[Any]]:
        """Return the types of the arrays of workspace that `numpy` takes, of the result's shape."""
        return self._in_numpy.types(dtype)

    @property
    def overwrites(self) -> tuple[int, ...]:
        """Positions of the operands in whose memory `numpy` may write the result."""
        return self._in_numpy.overwrites

    @cached_property
    def _in_numpy(self) -> NumpyCode:
        return NumpyCode(self.name, self.names, [("out", self)])


@dataclass(frozen=True)
class UpdateFormula:
    """An update of several arrays, element by element: assignments, one after the other.

    ::

        UpdateFormula("momentum", ("w", "g", "v"), ("rate", "momentum"), (
            ("v", "momentum * v + g"),
            ("w", "w - rate * v"),
        ))

    Parameters
    ----------
    name : str
    rows : tuple of str
        Arrays of one shape, (n,) or (K, n).
    scalars : tuple of str
        Arrays of shape () or (K, 1), which are read only.
    statements : tuple of (str, str)
        Target and expression of each; a target is a row, or a new name for an intermediate value.
    """

    name: str
    rows: tuple[str, ...]
    scalars: tuple[str, ...]
    statements: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"{self.name}: {'; '.join(f'{a} = {b}' for a, b in self.statements)}"

    @cached_property
    def parts(self) -> list[tuple[str, Formula]]:
        """Target of each statement, and its expression as a formula of the names defined so far."""
        names = [*self.rows, *self.scalars]
        parts = []
        for target, expression in self.statements:
            formula = Formula(target, " ".join(names), expression)
            # A condition with a new name is of bool; assigned to a row it is 1 or 0.
            is_bool = target not in names and is_condition(formula.tree)
            parts.append((target, replace(formula, is_bool=is_bool)))
            names += [] if target in names else [target]
        return parts

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Names of the rows that change."""
        targets = {target for target, _ in self.statements}
        return tuple(name for name in self.rows if name in targets)

    @cached_property
    def in_numpy(self) -> NumpyCode:
        """Function that computes the update with NumPy, and the workspace that it needs."""
        return NumpyCode(self.name, (*self.rows, *self.scalars), self.parts)


class _NegativeNumbers(ast.NodeTransformer):
    """Replaces the negation of a number by a negative number."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        number = node.operand
        if isinstance(node.op, ast.USub) and isinstance(number, ast.Constant):
            return ast.Constant(-number.value)  # type: ignore[operator]
        self.generic_visit(node)
        return node


COPY = Formula("copy", "x", "x")
"""Copies values, maybe to another type."""

ADD = Formula("add", "a b", "a + b")
MULTIPLY = Formula("multiply", "a b", "a * b")
RELU = Formula("relu", "x", "max(x, 0)")
SIGMOID_OF = "exp(min({z}, 0)) / (1 + exp(-abs({z})))"
SIGMOID = Formula("sigmoid", "x", SIGMOID_OF.format(z="x"))
TANH = Formula("tanh", "x", "tanh(x)")


class Language(NamedTuple):
    """How a programming language writes the parts of a formula, as templates of `str.format`.

    ``{type}`` stands for the type of arithmetic, ``{0}``, ``{1}`` and so on for operands.

    Attributes
    ----------
    number, power, choice, either, both, inverse, truth, assignment : str
        A number, ``a ** b``, ``b if a else c``, ``a or b``, ``a and b``, ``not a``, a condition as
        an element of bool, and the statement that gives a value a name.
    functions : mapping of str to str
        Calls of `FUNCTIONS` that are not ``name(operands)``.
    routines : collection of str
        Names of formulas that are one call of the same name in `functions`.
    infinity : str
        An infinite number, behind a sign; empty if it is written as another number. Then large
        integers are written as integers too.
    """

    number: str
    power: str
    choice: str
    either: str
    both: str
    inverse: str
    truth: str
    assignment: str
    functions: Mapping[str, str]
    routines: Collection[str] = ()
    infinity: str = ""


class Writer:
    """Writes formulas as statements of a language, whose type of arithmetic is `type_name`.

    `lines` are the statements so far.
    """

    def __init__(self, language: Language, type_name: str) -> None:
        self.language = language
        self.type_name = type_name
        self.lines: list[str] = []

    def _spelled(self, template: str, *operands: object) -> str:
        return template.format(*operands, type=self.type_name)

    def _number(self, value: float) -> str:
        infinity = self.language.infinity
        if infinity and abs(value) > _LARGEST:
            return self._spelled(infinity, "-" if value < 0 else "")
        text = f"{float(value)!r}" if infinity and abs(value) >= 2**31 else number_text(value)
        return self._spelled(self.language.number, text)

    def named(self, value: str) -> str:
        """Write a statement that names a value, and return the name."""
        name = f"t{len(self.lines)}"
        self.lines.append(self._spelled(self.language.assignment, name, value))
        return name

    def update(
        self,
        formula: UpdateFormula,
        elements: Mapping[str, str],
        assignment: str,
        assigned: str = "{0}",
    ) -> None:
        """Write the statements of an update.

        `elements` has the text for an element of each row, `assignment` is the template of the
        statements that assign to it, and `assigned` of the text for its value from then on.
        """
        texts = {**elements, **{name: name for name in formula.scalars}}
        for target, part in formula.parts:
            value = self.formula(part, [texts[name] for name in part.names])
            if target in formula.rows:
                element = elements[target]
                self.lines += assignment.format(element, value, target).splitlines()
                texts[target] = assigned.format(element, value, target)
            else:
                self.lines.append(self._spelled(self.language.assignment, target, value))
                texts[target] = target

    def formula(self, formula: Formula, operands: Sequence[str]) -> str:
        """Return the expression of a formula whose operands are given as texts."""
        if formula.name in self.language.routines:
            return self._call(formula.name, operands)
        names = dict(zip(formula.names, operands, strict=True))
        value = self._expression(formula.tree, names)
        if not is_condition(formula.tree):
            return value
        if formula.is_bool:
            return self._spelled(self.language.truth, value)
        return self._spelled(self.language.choice, value, self._number(1), self._number(0))

    def _call(self, name: str, operands: Sequence[str]) -> str:
        template = self.language.functions.get(name)
        if template is None:
            return f"{name}({', '.join(operands)})"
        if template.count("{0}") > 1:
            operands = [x if " " not in x else self.named(x) for x in operands]
        return self._spelled(template, *operands)

    def _inner(self, node: ast.expr, names: Mapping[str, str]) -> str:
        """Return an operand, in parentheses where it needs some."""
        text = self._expression(node, names)
        is_single = isinstance(node, ast.Name | ast.Constant | ast.Call) and " " not in text
        return text if is_single else f"({text})"

    def _expression(self, node: ast.expr, names: Mapping[str, str]) -> str:
        language = self.language
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int | float)
            return self._number(node.value)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            return self._function(node.func.id, node.args, names)
        if isinstance(node, ast.IfExp):
            parts = (self._inner(x, names) for x in (node.test, node.body, node.orelse))
            return self._spelled(language.choice, *parts)
        if isinstance(node, ast.BoolOp):
            join = language.both if isinstance(node.op, ast.And) else language.either
            values = [self._inner(value, names) for value in node.values]
            return reduce(lambda a, b: self._spelled(join, a, b), values)
        if isinstance(node, ast.UnaryOp):
            operand = self._inner(node.operand, names)
            negates = isinstance(node.op, ast.USub)
            return f"-{operand}" if negates else self._spelled(language.inverse, operand)
        if isinstance(node, ast.Compare):
            symbol = COMPARISONS[type(node.ops[0])][0]
            left, right = (self._inner(x, names) for x in (node.left, node.comparators[0]))
            return f"{left} {symbol} {right}"
        assert isinstance(node, ast.BinOp)
        left, right = (self._inner(x, names) for x in (node.left, node.right))
        if isinstance(node.op, ast.Pow):
            return self._spelled(language.power, left, right)
        return f"{left} {ARITHMETIC[type(node.op)][0]} {right}"

    def _function(self, name: str, nodes: Sequence[ast.expr], names: Mapping[str, str]) -> str:
        if name in ("max", "min"):
            return self._extreme(">" if name == "max" else "<", nodes, names)
        return self._call(name, [self._expression(node, names) for node in nodes])

    def _extreme(self, symbol: str, nodes: Sequence[ast.expr], names: Mapping[str, str]) -> str:
        """Return the larger or smaller of two values: the first if equal, NaN if one is NaN."""
        values = [self._expression(node, names) for node in nodes]
        a, b = (value if " " not in value else self.named(value) for value in values)
        condition = f"{b} {symbol} {a}"
        if not isinstance(nodes[1], ast.Constant):  # a constant is not NaN
            condition = self._spelled(self.language.either, condition, f"{b} != {b}")
        return self._spelled(self.language.choice, condition, b, a)
