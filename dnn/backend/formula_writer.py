"""Formulas as source of another language."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dnn.backend.formula import (
    ARITHMETIC,
    COMPARISONS,
    Formula,
    UpdateFormula,
    is_condition,
    number_text,
)

__all__ = ["Language", "Writer"]


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
        return self._spelled(self.language.number, number_text(value))

    def named(self, value: str) -> str:
        """Write a statement that names a value, and return the name."""
        name = f"t{len(self.lines)}"
        self.lines.append(self._spelled(self.language.assignment, name, value))
        return name

    def update(self, formula: UpdateFormula, elements: Mapping[str, str], assignment: str) -> None:
        """Write the statements of an update.

        Parameters
        ----------
        formula : UpdateFormula
        elements : mapping of str to str
            For each row what its element is called.
        assignment : str
            Template of the statement that gives it a value.
        """
        texts = {**elements, **{name: name for name in formula.scalars}}
        for target, part in formula.parts:
            value = self.formula(part, [texts[name] for name in part.names])
            if target in formula.rows:
                self.lines.append(assignment.format(texts[target], value))
            else:
                self.lines.append(self._spelled(self.language.assignment, target, value))
                texts[target] = target

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
