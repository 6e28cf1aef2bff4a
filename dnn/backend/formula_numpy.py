"""Formulas as calls of NumPy: a ufunc where one is enough, else a function generated for them.

References
----------
.. [1] Sethi and Ullman, The generation of optimal code for arithmetic expressions, 1970: which
   operand to compute first, so that few intermediate arrays are needed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dnn.backend.formula import Formula

__all__ = ["ARITHMETIC", "COMPARISONS", "FUNCTIONS", "NumpyCode", "is_condition", "number_text"]

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
"""Functions that a formula may call, and the ufuncs of the same meaning."""

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

KEYWORD_ONLY = (np.maximum, np.minimum)
"""Ufuncs that take their result only as the keyword argument ``out``."""


def number_text(value: Any) -> str:
    """Return a number as Python source; infinity as 1e999, which is too large for a float."""
    return repr(value).replace("inf", "1e999")


def is_condition(node: ast.expr) -> bool:
    """Return whether an expression is a condition: a comparison, ``and``, ``or`` or ``not``."""
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


class NumpyCode:
    """Calls of NumPy that compute formulas, one after the other, and the workspace they need.

    Each statement is a formula and the name of its target: ``out``, an operand or a new name.

    Attributes
    ----------
    function : callable
        Takes operands, workspace and, if it is written, ``out``. A ufunc itself where it is one
        call: a layer of Python round each call costs 40% of a small training step.
    workspace : list of bool
        For each array of workspace whether it is of bool.
    overwrites : tuple of int
        Positions of the operands that no call reads after ``out`` has first been written.
    """

    def __init__(
        self, name: str, operands: Sequence[str], statements: Sequence[tuple[str, Formula]]
    ) -> None:
        self.workspace: list[bool] = []
        self._free: list[int] = []
        self._kept: dict[str, str] = {}  # array of each intermediate value
        self._calls: list[_Call] = []
        for i, (target, formula) in enumerate(statements):
            if target in ("out", *operands):
                self._write(target, formula)
            else:
                place = self._space(formula.is_bool)
                self._into(formula.tree, place)
                self._kept[target] = place
            read = {x for _, later in statements[i + 1 :] for x in _names_in(later.tree)}
            for kept in [kept for kept in self._kept if kept not in read]:
                self._give_back(self._kept.pop(kept))
        self.overwrites: tuple[int, ...] = ()
        results = []
        if statements[-1][0] == "out":
            results = ["out"]
            first = next(i for i, call in enumerate(self._calls) if call.target == "out")
            later = {x for call in self._calls[first + 1 :] for x in call.reads}
            self.overwrites = tuple(i for i, x in enumerate(operands) if x not in later)
        self.function = self._compiled(name, operands, results)

    def types(self, dtype: npt.DTypeLike) -> list[np.dtype[Any]]:
        """Return the types of the arrays of workspace, for formulas computed in `dtype`."""
        return [np.dtype(bool if is_bool else dtype) for is_bool in self.workspace]

    def _compiled(
        self, name: str, operands: Sequence[str], results: Sequence[str]
    ) -> Callable[..., object]:
        (first, *rest) = self._calls
        is_ufunc = first.ufunc is not None and first.ufunc not in KEYWORD_ONLY
        if is_ufunc and not rest and results and first.reads == tuple(operands):
            assert first.ufunc is not None
            return first.ufunc
        spaces = [f"w{i}_" for i in range(len(self.workspace))]
        body = "\n    ".join(call.line for call in self._calls)
        functions = [call.ufunc for call in self._calls if call.ufunc is not None]
        namespace: dict[str, Any] = {f"np_{function.__name__}": function for function in functions}
        namespace["np_copyto"] = np.copyto
        parameters = ", ".join([*operands, *spaces, *results])
        exec(f"def {name}({parameters}):\n    {body}\n", namespace)
        function: Callable[..., object] = namespace[name]
        return function

    def _write(self, target: str, formula: Formula) -> None:
        """Compute a formula into an array that it may read itself."""
        before = self.workspace, self._free, self._calls
        for method in (self._into, self._into_at_last, self._into_copy):
            self.workspace, self._free, self._calls = (before[0][:], before[1][:], before[2][:])
            if formula.ufunc is not None:
                self._call(formula.ufunc, formula.names, "new_")
            elif is_condition(formula.tree) and not formula.is_bool:
                self._copy(self._value(formula.tree), "new_")
            else:
                method(formula.tree, "new_")
            new_calls = self._calls[len(before[2]) :]
            first = next(i for i, call in enumerate(new_calls) if call.target == "new_")
            if all(target not in call.reads for call in new_calls[first + 1 :]):
                break
        self._calls = [call.renamed("new_", target) for call in self._calls]

    def _into_at_last(self, node: ast.expr, target: str) -> None:
        """Compute a value so that only the very last call writes to its array."""
        if _is_leaf(node) or isinstance(node, ast.IfExp):
            self._into_copy(node, target)
        else:
            self._into(node, target, at_last=True)

    def _into_copy(self, node: ast.expr, target: str) -> None:
        self._copy(self._value(node), target)

    def _space(self, is_bool: bool) -> str:
        """Return the name of an array of workspace that is not in use."""
        for i in self._free:
            if self.workspace[i] == is_bool:
                self._free.remove(i)
                return f"w{i}_"
        self.workspace.append(is_bool)
        return f"w{len(self.workspace) - 1}_"

    def _give_back(self, *names: str) -> None:
        for i in range(len(self.workspace)):
            if f"w{i}_" in names and f"w{i}_" not in self._kept.values():
                self._free.append(i)

    def _call(self, ufunc: np.ufunc, operands: Sequence[str], target: str) -> None:
        self._calls.append(_Call(ufunc, tuple(operands), target))

    def _copy(self, source: str, target: str, mask: str = "") -> None:
        if source != target:
            self._calls.append(_Call(None, (source, mask) if mask else (source,), target))

    def _value(self, node: ast.expr) -> str:
        """Return the name of the array that holds a value, or the text of a number."""
        if isinstance(node, ast.Name):
            return self._kept.get(node.id, node.id)
        if isinstance(node, ast.Constant):
            return number_text(node.value)
        target = self._space(is_condition(node))
        self._into(node, target)
        return target

    def _into(self, node: ast.expr, target: str, at_last: bool = False) -> None:
        """Compute a value into an array; with `at_last` only the last call writes to it."""
        if isinstance(node, ast.Name | ast.Constant):
            self._copy(self._value(node), target)
        elif isinstance(node, ast.IfExp):
            self._choose(node, target)
        elif isinstance(node, ast.BoolOp):
            ufunc = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            self._combine(ufunc, node.values[:2], target, at_last)
            for value in node.values[2:]:
                self._reduce(ufunc, target, value)
        elif isinstance(node, ast.Compare):
            self._combine(
                COMPARISONS[type(node.ops[0])][1], [node.left, *node.comparators], target, at_last
            )
        elif isinstance(node, ast.UnaryOp):
            negates = isinstance(node.op, ast.USub)
            self._combine(
                np.negative if negates else np.logical_not, [node.operand], target, at_last
            )
        elif isinstance(node, ast.BinOp):
            self._combine(ARITHMETIC[type(node.op)][1], [node.left, node.right], target, at_last)
        else:
            assert isinstance(node, ast.Call)
            assert isinstance(node.func, ast.Name)
            self._combine(FUNCTIONS[node.func.id], node.args, target, at_last)

    def _reduce(self, ufunc: np.ufunc, target: str, value: ast.expr) -> None:
        operand = self._value(value)
        self._call(ufunc, (target, operand), target)
        self._give_back(operand)

    def _combine(
        self, ufunc: np.ufunc, nodes: Sequence[ast.expr], target: str, at_last: bool
    ) -> None:
        """Call a ufunc; the first operand that must be computed goes to the result's array."""
        # The last operand first, so that `out` is written late: until then operands can be read.
        is_bool = any(is_condition(node) for node in nodes)
        in_place = next((i for i, node in enumerate(nodes) if not _is_leaf(node)), None)
        computes_bool = ufunc in (np.logical_and, np.logical_or, np.logical_not)
        compares = not computes_bool and ufunc in [pair[1] for pair in COMPARISONS.values()]
        if at_last or compares or (is_bool and not computes_bool):
            in_place = None  # too early, or of another type than the result
        operands = {
            i: self._value(node) for i, node in reversed(list(enumerate(nodes))) if i != in_place
        }
        if in_place is not None:
            self._into(nodes[in_place], target)
            operands[in_place] = target
        self._call(ufunc, [operands[i] for i in range(len(nodes))], target)
        self._give_back(*(name for name in operands.values() if name != target))

    def _choose(self, node: ast.IfExp, target: str) -> None:
        """Compute the condition, one of the two values everywhere, and copy the other by a mask."""
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
        """Return the name of an array of bool that is true where a condition is false."""
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
            return self._value(ast.Compare(test.left, [ast.NotEq()], test.comparators))
        target = self._space(True)
        self._call(np.logical_not, [self._value_in(test, target)], target)
        return target

    def _value_in(self, test: ast.expr, target: str) -> str:
        if isinstance(test, ast.Name):
            return self._value(test)
        self._into(test, target)
        return target


class _Call(NamedTuple):
    """A call of a ufunc; if that is None, of `copyto`, which reads a source and maybe a mask."""

    ufunc: np.ufunc | None
    reads: tuple[str, ...]
    target: str

    @property
    def line(self) -> str:
        if self.ufunc is not None:
            target = f"out={self.target}" if self.ufunc in KEYWORD_ONLY else self.target
            return f"np_{self.ufunc.__name__}({', '.join(self.reads)}, {target})"
        source, *masks = self.reads
        only = "".join(f", where={mask}" for mask in masks)
        return f"np_copyto({self.target}, {source}{only})"

    def renamed(self, old: str, new: str) -> _Call:
        """Return the same call with another name for an array."""
        reads = tuple(new if x == old else x for x in self.reads)
        return _Call(self.ufunc, reads, new if self.target == old else self.target)


def _names_in(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _is_leaf(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Constant)
