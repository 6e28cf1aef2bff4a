"""The update of an optimizer from its formula, which is written as nodes of a graph.

::

    class SoftSignDescent(Rule):
        state_names = ("velocity",)

        def __init__(self, learning_rate=0.01, momentum=0.9, **options):
            super().__init__(learning_rate, **options)
            self.hyperparameter("momentum", momentum, 0, below=1)

        def rule(self, w, g, state, scalars):
            v = scalars["momentum"] * state["velocity"] + g
            step = v / (graph.abs(v) + 1.0)
            return {"w": w - scalars["learning_rate"] * step, "velocity": v}

Every elementwise operation of the graph can be used. On every device the formula becomes one loop
over a block of the parameters.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dnn.backend import ALIGNMENT_BYTES, Array, Ops, Step
from dnn.backend.formula import Formula, UpdateFormula
from dnn.backend.formula_numpy import is_condition, number_text
from dnn.errors import ConfigurationError
from dnn.graph.node import CONSTANT, Node, topological_order, variable
from dnn.graph.operations.arithmetic import Multiply, Subtract
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.plan import Arena
from dnn.optimizers.optimizer import Block, Optimizer, Update
from dnn.parameters import FlatBuffer, Segment

__all__ = ["Rule", "update_formula"]


class Rule(Optimizer):
    """An optimizer whose step is an elementwise formula.

    Parameters
    ----------
    learning_rate, weight_decay, **options
        As in `Optimizer`; weight decay is added to the gradients.

    Attributes
    ----------
    decoupled : bool
        Weight decay [1]_ makes the parameters smaller instead, before the step::

            w <- (1 - learning_rate weight_decay) w

        by ``scalars["keep"]``, which `prepare` adds.

    References
    ----------
    .. [1] Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 1, with
       the learning rate as a factor of the decay.
    """

    decoupled = False
    _arena: Arena
    _formulas: dict[bool, UpdateFormula]

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Return the calls that compute ``1 - learning_rate weight_decay`` for decoupled decay."""
        if not self.decoupled:
            return []
        rate, decay = scalars["learning_rate"], scalars["weight_decay"]
        one, keep = (ops.asarray(np.ones(x, rate.dtype)) for x in ((), rate.shape))
        scalars["keep"] = keep
        return [
            ops.elementwise(Multiply.formula, (rate, decay), keep),
            ops.elementwise(Subtract.formula, (one, keep), keep),
        ]

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the new parameters and state as nodes, all computed from the old values.

        Parameters
        ----------
        w, g : Node
            Parameters and gradients of a block.
        state : mapping of str to Node
            The state by the names of `state_names`.
        scalars : mapping of str to Node
            The hyperparameters and what `prepare` has added, to be broadcast against `w`.

        Returns
        -------
        mapping of str to Node
            The new ``"w"``, and the new value of each state that changes.
        """
        raise NotImplementedError

    def decayed(self, w: Node, g: Node, scalars: Mapping[str, Node]) -> tuple[Node, Node]:
        """Return parameters and gradients with weight decay, for `rule`."""
        if self.decoupled:
            return scalars["keep"] * w, g
        return w, g + scalars["weight_decay"] * w

    def _decays(self, segment: Segment) -> bool:
        if not self.decoupled:
            return super()._decays(segment)
        # Even if the decay is 0, since other networks of an ensemble may have one: the compiled
        # step contracts a product and a sum in another way where nothing decays.
        return segment.name.rsplit(".", 1)[-1] not in self.no_decay

    def bind(
        self,
        ops: Ops,
        parameters: FlatBuffer,
        gradients: FlatBuffer,
        segments: Sequence[Segment] | None = None,
    ) -> Update:
        """Compile the update; all blocks share formulas and workspace."""
        bound = copy.copy(self)
        bound._arena = Arena(ops)
        bound._formulas = {}
        return Optimizer.bind(bound, ops, parameters, gradients, segments)

    def step(self, ops: Ops, block: Block, scalars: Mapping[str, Array]) -> Step:
        """Return the call that applies the formula to one block."""
        decays = block.weight_decay is not None
        if decays not in self._formulas:
            self._formulas[decays] = self._formula(block, scalars)
        formula = self._formulas[decays]
        given = {f"scalar_{_identifier(name)}": array for name, array in scalars.items()}
        rows = (block.w, block.g, *block.state)
        arrays = [given[name] for name in formula.scalars]

        def workspace(types: Sequence[np.dtype[Any]]) -> list[Array]:
            size = -(-block.w.size * 8 // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self._arena.reserve(len(types) * size)
            return [self._arena.array(i * size, block.w.shape, x) for i, x in enumerate(types)]

        return ops.update(formula, rows, arrays, workspace)

    def _formula(self, block: Block, scalars: Mapping[str, Array]) -> UpdateFormula:
        """Return `rule` as an update formula, for blocks with weight decay or without."""
        names: dict[Node, str] = {}

        def named(name: str, array: Array) -> Node:
            node = variable(array.shape, array.dtype, name)
            names[node] = name
            return node

        w, g = named("w", block.w), named("g", block.g)
        state = {
            name: named(f"state_{_identifier(name)}", array)
            for name, array in zip(self.state_names, block.state, strict=True)
        }
        numbers = {
            name: named(f"scalar_{_identifier(name)}", array) for name, array in scalars.items()
        }
        targets = {"w": w, **state}
        old, decayed = (w, g) if block.weight_decay is None else self.decayed(w, g, numbers)
        new = self.rule(old, decayed, state, numbers)
        unknown = sorted(set(new) - set(targets))
        kind = type(self).__name__
        if unknown or "w" not in new:
            message = f"returned {sorted(new)}, but there are {sorted(targets)}"
            raise ConfigurationError(f"{kind}.rule {message}")
        return update_formula(
            kind,
            {names[targets[name]]: node for name, node in new.items()},
            [names[node] for node in (w, g, *state.values())],
            names,
        )


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def update_formula(
    name: str, new: Mapping[str, Node], rows: Sequence[str], names: Mapping[Node, str]
) -> UpdateFormula:
    """Return an update formula whose statements compute nodes.

    `new` has the new values of rows, all computed from the old ones; `names` are those of rows and
    scalars. A node that is not elementwise raises `ConfigurationError`.
    """
    uses = Counter(new.values())
    order = topological_order(list(dict.fromkeys(new.values())))
    for node in order:
        uses.update(node.inputs)
    texts = dict(names)
    statements: list[tuple[str, str]] = []

    def keep(node: Node, text: str) -> None:
        texts[node] = f"value{len(statements)}_"
        statements.append((texts[node], text))

    for node in order:
        if node in names:
            if node in new.values():
                keep(node, names[node])
            continue
        texts[node] = _text(name, node, texts)
        if uses[node] > 1 or node in new.values():
            keep(node, texts[node])
    whole = _with_rows(statements, {row: texts[node] for row, node in new.items()})
    used = set().union(*(_words(text) for _, text in whole))
    scalars = [text for text in names.values() if text not in rows and text in used]
    return UpdateFormula(name, tuple(rows), tuple(scalars), whole)


def _with_rows(
    statements: Sequence[tuple[str, str]], new: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return statements that also write values, by their names, into rows.

    A new value is written straight into its row if no later statement reads the old value, and
    else at the end.
    """
    written, last = [*statements], list[tuple[str, str]]()
    values = dict(new)
    for row in new:
        value = values[row]
        at = next(i for i, (local, _) in enumerate(written) if local == value)
        reads = any(row in _words(text) for _, text in (*written[at + 1 :], *last))
        if reads or value in new:
            last.append((row, value))
            continue
        values = {each: row if name == value else name for each, name in values.items()}
        for i, (local, text) in enumerate(written):
            renamed = re.sub(rf"\b{value}\b", row, text) if i > at else text
            written[i] = (row if i == at else local, renamed)
        last = [(each, row if text == value else text) for each, text in last]
    return (*written, *last)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _text(name: str, node: Node, texts: Mapping[Node, str]) -> str:
    """Return a node as an expression of the texts of its inputs."""
    if node.kind == CONSTANT and node.size == 1:
        return number_text(node.attributes["value"].item())
    operation = node.operation
    if not isinstance(operation, Elementwise) or node.attributes:
        raise ConfigurationError(f"{name}.rule: {node!r} is not elementwise")
    return _substituted(operation.formula, *(texts[x] for x in node.inputs))


@lru_cache(maxsize=1024)  # networks of a sweep have the same formulas
def _substituted(formula: Formula, *operands: str) -> str:
    """Return a formula with expressions in the place of its operands."""
    values = {
        name: ast.parse(text, mode="eval").body
        for name, text in zip(formula.names, operands, strict=True)
    }
    tree = _Substitution(values).visit(copy.deepcopy(formula.tree))
    if is_condition(tree) and not formula.is_bool:
        tree = ast.IfExp(tree, ast.Constant(1), ast.Constant(0))
    return ast.unparse(ast.fix_missing_locations(tree))


class _Substitution(ast.NodeTransformer):
    """Replaces names in a syntax tree by expressions."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(argument) for argument in node.args]
        return node
