"""What an elementwise operation computes, written once in Python's syntax over its operands.

::

    Formula("sigmoid", "x", "exp(min(x, 0)) / (1 + exp(-abs(x)))")

A formula may use numbers, arithmetic (``+ - * / **``), comparisons, ``and``, ``or``, ``not``, a
choice ``a if condition else b``, and the functions of `FUNCTIONS`; ``min`` and ``max`` of NaN are
NaN. From it come a function of NumPy (`Formula.numpy`) and, by a `Writer`, the compiled loop on the
CPU (`dnn.backend.cpu.chains`) and the CUDA source (`dnn.backend.cuda.elementwise`).

References
----------
.. [1] Sethi and Ullman, The generation of optimal code for arithmetic expressions, 1970: which
   operand to compute first, so that few intermediate arrays are needed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COPY", "FUNCTIONS", "Formula", "Language", "Writer"]

FUNCTIONS: dict[str, np.ufunc] = {
    "abs": np.absolute,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "max": np.maximum,
    "min": np.minimum,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
"""Functions that a formula may call, and NumPy's of the same meaning."""

ARITHMETIC: dict[type[ast.operator], tuple[str, np.ufunc]] = {
    ast.Add: ("+", np.add),
    ast.Sub: ("-", np.subtract),
    ast.Mult: ("*", np.multiply),
    ast.Div: ("/", np.divide),
    ast.Pow: ("**", np.power),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, np.ufunc]] = {
    ast.Gt: (">", np.greater),
    ast.GtE: (">=", np.greater_equal),
    ast.Lt: ("<", np.less),
    ast.LtE: ("<=", np.less_equal),
    ast.Eq: ("==", np.equal),
    ast.NotEq: ("!=", np.not_equal),
}
PARTS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.USub, ast.Not, ast.boolop, ast.Load),
    *ARITHMETIC,
    *COMPARISONS,
)
"""What else of Python's syntax a formula may consist of."""

KEYWORD_ONLY = (np.maximum, np.minimum)
"""They take their result by its name only."""


@dataclass(frozen=True)
class Formula:
    """An expression over operands.

    Parameters
    ----------
    name : str
        For messages and for names of kernels.
    operands : str
        Their names, with spaces between.
    expression : str
        A comparison is 1 where it holds and 0 where not, or a bool with `is_bool`.
    ufunc : ufunc, optional
        What computes the same in NumPy, where it is not evident from the expression.
    is_bool : bool
        The result is of bool.

    Raises
    ------
    ValueError
        If the expression uses what formulas may not; it says what.
    """

    name: str
    operands: str
    expression: str
    ufunc: np.ufunc | None = field(default=None, compare=False)
    is_bool: bool = False

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            self._check(node)

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
        return folded.body

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if node.id in self.names or node.id in FUNCTIONS:
                return
            known = f"there are {', '.join((*self.names, *FUNCTIONS))}"
            raise ValueError(f"formula {self.name!r}: {node.id!r} is unknown; {known}")
        if isinstance(node, ast.Constant):
            fits = type(node.value) in (int, float)
        elif isinstance(node, ast.Compare):
            fits = len(node.ops) == 1
        elif isinstance(node, ast.Call):
            fits = isinstance(node.func, ast.Name) and not node.keywords
        else:
            fits = isinstance(node, PARTS)
        if not fits:
            what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(f"formula {self.name!r}: {what!r} is not for formulas")

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions that it calls, with ``**`` for powers."""
        nodes = list(ast.walk(self.tree))
        powers = ["**"] if any(isinstance(node, ast.Pow) for node in nodes) else []
        return frozenset([*powers, *(x.id for x in nodes if isinstance(x, ast.Name))]) - {
            *self.names
        }

    @cached_property
    def is_exact_in_integers(self) -> bool:
        """It only adds, subtracts, multiplies or copies."""
        allowed = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load)
        return all(isinstance(node, allowed) for node in ast.walk(self.tree))

    @cached_property
    def has_one_type(self) -> bool:
        """Operands and result have the same type of elements: no operand is a condition."""
        conditions = {
            node.test.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Name)
        }
        return not self.is_bool and not conditions

    @property
    def numpy(self) -> Callable[..., object]:
        """A function of NumPy: operands, workspace, ``out``; it makes no array."""
        return self._in_numpy.function

    def workspace(self, dtype: npt.DTypeLike) -> list[np.dtype[Any]]:
        """Return the types of the arrays, of the result's shape, that `numpy` needs besides."""
        return [np.dtype(bool if is_bool else dtype) for is_bool in self._in_numpy.workspace]

    @property
    def overwrites(self) -> tuple[int, ...]:
        """Operands in whose memory `numpy` may write the result."""
        return self._in_numpy.overwrites

    @cached_property
    def _in_numpy(self) -> _NumpyCode:
        return _NumpyCode(self)


class _NegativeNumbers(ast.NodeTransformer):
    """Makes numbers of what is written as the negative of one."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        number = node.operand
        if isinstance(node.op, ast.USub) and isinstance(number, ast.Constant):
            return ast.Constant(-number.value)  # type: ignore[operator]
        self.generic_visit(node)
        return node


def is_condition(node: ast.expr) -> bool:
    """Say whether an expression is true or false."""
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


class _NumpyCode:
    """Calls of NumPy that compute a formula into ``out``.

    Attributes
    ----------
    function : callable
        Operands, workspace and ``out``. A ufunc itself where it is one call: a layer of Python
        round each call costs 40% of a small training step.
    workspace : list of bool
        For each array of workspace whether it is of bool.
    overwrites : tuple of int
        Operands that nobody reads once ``out`` has been written.
    """

    def __init__(self, formula: Formula) -> None:
        self.workspace: list[bool] = []
        self._free: list[int] = []
        self._lines: list[str] = []
        self._reads: list[set[str]] = []
        self._writes: list[str] = []
        self._ufuncs: list[np.ufunc] = []
        if formula.ufunc is not None:
            self._call(formula.ufunc, formula.names, "out")
        elif is_condition(formula.tree) and not formula.is_bool:
            self._copy(self._value(formula.tree), "out")
        else:
            self._into(formula.tree, "out")
        first = self._writes.index("out")
        later = set().union(*self._reads[first + 1 :])
        self.overwrites = tuple(i for i, name in enumerate(formula.names) if name not in later)
        self.function = self._compiled(formula)

    def _compiled(self, formula: Formula) -> Callable[..., object]:
        names = ", ".join(formula.names)
        if len(self._lines) == 1 and self._ufuncs and self._ufuncs[0] not in KEYWORD_ONLY:
            ufunc = self._ufuncs[0]
            if self._lines == [f"np.{ufunc.__name__}({names}, out=out)"]:
                return ufunc
        spaces = "".join(f"w{i}, " for i in range(len(self.workspace)))
        body = "\n    ".join(self._lines)
        namespace: dict[str, Any] = {"np": np}
        exec(f"def {formula.name}({names}, {spaces}out):\n    {body}\n", namespace)
        function: Callable[..., object] = namespace[formula.name]
        return function

    def _space(self, is_bool: bool) -> str:
        """Return the name of an array of workspace that nobody uses now."""
        for i in self._free:
            if self.workspace[i] == is_bool:
                self._free.remove(i)
                return f"w{i}"
        self.workspace.append(is_bool)
        return f"w{len(self.workspace) - 1}"

    def _give_back(self, *names: str) -> None:
        spaces = {name for name in names if name in {f"w{i}" for i in range(len(self.workspace))}}
        self._free += sorted(int(name[1:]) for name in spaces)

    def _emit(self, line: str, reads: Sequence[str], target: str) -> None:
        self._lines.append(line)
        self._reads.append(set(reads))
        self._writes.append(target)

    def _call(self, ufunc: np.ufunc, operands: Sequence[str], target: str) -> None:
        line = f"np.{ufunc.__name__}({', '.join(operands)}, out={target})"
        self._ufuncs.append(ufunc)
        self._emit(line, operands, target)

    def _copy(self, source: str, target: str, where: str = "") -> None:
        if source != target:
            only = f", where={where}" if where else ""
            self._emit(f"np.copyto({target}, {source}{only})", [source, where], target)

    def _value(self, node: ast.expr) -> str:
        """Return the name of what holds a value, or the number itself."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Constant):
            return repr(node.value)
        target = self._space(is_condition(node))
        self._into(node, target)
        return target

    def _into(self, node: ast.expr, target: str) -> None:
        """Compute a value into an array."""
        if isinstance(node, ast.Name | ast.Constant):
            self._copy(self._value(node), target)
        elif isinstance(node, ast.IfExp):
            self._choose(node, target)
        elif isinstance(node, ast.BoolOp):
            ufunc = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            self._combine(ufunc, node.values[:2], target)
            for value in node.values[2:]:
                self._reduce(ufunc, target, value)
        elif isinstance(node, ast.Compare):
            self._combine(COMPARISONS[type(node.ops[0])][1], [node.left, *node.comparators], target)
        elif isinstance(node, ast.UnaryOp):
            negates = isinstance(node.op, ast.USub)
            self._combine(np.negative if negates else np.logical_not, [node.operand], target)
        elif isinstance(node, ast.BinOp):
            self._combine(ARITHMETIC[type(node.op)][1], [node.left, node.right], target)
        else:
            assert isinstance(node, ast.Call)
            assert isinstance(node.func, ast.Name)
            self._combine(FUNCTIONS[node.func.id], node.args, target)

    def _reduce(self, ufunc: np.ufunc, target: str, value: ast.expr) -> None:
        operand = self._value(value)
        self._call(ufunc, (target, operand), target)
        self._give_back(operand)

    def _combine(self, ufunc: np.ufunc, nodes: Sequence[ast.expr], target: str) -> None:
        """Call a ufunc; the first operand that is computed is so in the result's own array."""
        # The last operand first, so that `out` is written late: until then operands can be read.
        is_bool = any(is_condition(node) for node in nodes)
        there = next((i for i, node in enumerate(nodes) if not _is_leaf(node)), None)
        computes_bool = ufunc in (np.logical_and, np.logical_or, np.logical_not)
        compares = not computes_bool and ufunc in [pair[1] for pair in COMPARISONS.values()]
        if compares or (is_bool and not computes_bool):
            there = None  # of another type than the result
        operands = {
            i: self._value(node) for i, node in reversed(list(enumerate(nodes))) if i != there
        }
        if there is not None:
            self._into(nodes[there], target)
            operands[there] = target
        self._call(ufunc, [operands[i] for i in range(len(nodes))], target)
        self._give_back(*(name for name in operands.values() if name != target))

    def _choose(self, node: ast.IfExp, target: str) -> None:
        """Copy what is chosen where nothing else holds; the condition is computed before."""
        if isinstance(node.orelse, ast.Constant) and not isinstance(node.body, ast.Constant):
            mask = self._inverted(node.test)
            self._into(node.body, target)
            self._copy(self._value(node.orelse), target, mask)
            self._give_back(mask)
            return
        mask = self._value(node.test)
        body = self._value(node.body)
        self._into(node.orelse, target)
        self._copy(body, target, mask)
        self._give_back(mask, body)

    def _inverted(self, test: ast.expr) -> str:
        """Return the name of an array that holds where a condition does not."""
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
            return self._value(ast.Compare(test.left, [ast.NotEq()], test.comparators))
        target = self._space(True)
        self._call(np.logical_not, [self._value_in(test, target)], target)
        return target

    def _value_in(self, test: ast.expr, target: str) -> str:
        if isinstance(test, ast.Name):
            return test.id
        self._into(test, target)
        return target


def _is_leaf(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Constant)


@dataclass(frozen=True)
class Language:
    """How a language spells what formulas consist of: templates of `str.format`.

    ``{type}`` stands for the type of arithmetic, ``{0}``, ``{1}`` and so on for operands.

    Attributes
    ----------
    number, power, choice, either, both, inverse, truth, assignment : str
        A number, ``a ** b``, ``b if a else c``, ``a or b``, ``a and b``, ``not a``, a condition as
        an element of bool, and the statement that gives a value a name.
    functions : mapping of str to str
        Calls of `FUNCTIONS` that are not ``name(operands)``.
    routines : collection of str
        Formulas whose names are among `functions` and stand for the whole of them.
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


class Writer:
    """Writes formulas as statements of a language.

    Parameters
    ----------
    language : Language
    type_name : str
        The type of arithmetic.

    Attributes
    ----------
    lines : list of str
        The statements so far.
    """

    def __init__(self, language: Language, type_name: str) -> None:
        self.language = language
        self.type_name = type_name
        self.lines: list[str] = []

    def _spelled(self, template: str, *operands: object) -> str:
        return template.format(*operands, type=self.type_name)

    def _number(self, value: float) -> str:
        return self._spelled(self.language.number, repr(value))

    def named(self, value: str) -> str:
        """Write a statement that names a value, and return the name."""
        name = f"t{len(self.lines)}"
        self.lines.append(self._spelled(self.language.assignment, name, value))
        return name

    def formula(self, formula: Formula, operands: Sequence[str]) -> str:
        """Return a formula of operands as an expression."""
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
            if node.func.id in ("max", "min"):
                return self._extreme(">" if node.func.id == "max" else "<", node.args, names)
            return self._call(node.func.id, [self._expression(x, names) for x in node.args])
        if isinstance(node, ast.IfExp):
            parts = (self._inner(x, names) for x in (node.test, node.body, node.orelse))
            return self._spelled(language.choice, *parts)
        if isinstance(node, ast.BoolOp):
            join = language.both if isinstance(node.op, ast.And) else language.either
            first, *others = (self._inner(value, names) for value in node.values)
            for value in others:
                first = self._spelled(join, first, value)
            return first
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

    def _extreme(self, symbol: str, nodes: Sequence[ast.expr], names: Mapping[str, str]) -> str:
        """Return the larger or smaller one of two; of equal ones the first, and NaN before all."""
        values = [self._expression(node, names) for node in nodes]
        a, b = (value if " " not in value else self.named(value) for value in values)
        condition = f"{b} {symbol} {a}"
        if not isinstance(nodes[1], ast.Constant):  # which is not NaN
            condition = self._spelled(self.language.either, condition, f"{b} != {b}")
        return self._spelled(self.language.choice, condition, b, a)


COPY = Formula("copy", "x", "x")
"""The same values, maybe in another type."""
