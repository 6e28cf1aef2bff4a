"""Statistics of a graph before it runs: nodes, parameters, bytes and operations, layer by layer."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import NamedTuple

from dnn.backend import Formula, Ops
from dnn.graph.layout import lay_out
from dnn.graph.node import VARIABLE, Node
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.passes import Graph, default_passes, graph_of, optimise

__all__ = ["Statistics", "StatisticsRow", "both_forms", "statistics"]

_MOVES = ("noise", "precision", "ranks", "shapes", "slices", "states")
"""Modules of operations that only move, convert or draw numbers."""


class StatisticsRow(NamedTuple):
    """What the nodes of one layer take.

    Attributes
    ----------
    name : str
        Of the layer, or of the node with which it ends.
    nodes : int
        Those that are computed.
    parameters : int
        Elements of the variables of floats that are read here first; scalars do not count.
    result_bytes : int
        Of all results, as if none shared memory.
    multiply_adds : int
        Of matrix products, convolutions, recurrent cells and systems.
    flops : int
        Two for each multiply-add; of a formula as many as it has operators and functions, for each
        element; of reductions, softmax, pooling and the like one for each element that they read.
    """

    name: str
    nodes: int
    parameters: int
    result_bytes: int
    multiply_adds: int
    flops: int


class Statistics(NamedTuple):
    """What a graph takes; ``print`` shows it as a table.

    Attributes
    ----------
    rows : tuple of StatisticsRow
        For each layer, and last, under ``"total"``, for the whole graph. What belongs to no layer,
        such as a loss and gradients, stands under ``"other"``.
    arena_bytes : int
        Memory of a plan for inputs, results and workspace, of which results share what they can.
    """

    rows: tuple[StatisticsRow, ...]
    arena_bytes: int

    @property
    def total(self) -> StatisticsRow:
        """The row of the whole graph."""
        return self.rows[-1]

    def __str__(self) -> str:
        heads = ("nodes", "parameters", "bytes", "multiply-adds", "flops")
        lines = [f"{'layer':24s}" + "".join(f"{head:>16s}" for head in heads)]
        for name, *numbers in self.rows:
            lines.append(f"{name:24s}" + "".join(f"{number:16,d}" for number in numbers))
        return "\n".join([*lines, f"memory of a plan: {self.arena_bytes:,d} bytes"])


def statistics(graph: Graph | Sequence[Node]) -> Statistics:
    """Return what a graph takes, without computing or allocating anything.

    Parameters
    ----------
    graph : Graph or sequence of Node
        Such as `graph_of` or `optimise` returns; or the nodes to be computed.

    Returns
    -------
    Statistics
    """
    given = graph if isinstance(graph, Graph) else graph_of(graph)
    parts: dict[str, list[Node]] = {}
    pending: list[Node] = []
    for node in given.order:
        pending.append(node)
        if node.operation is not None and node.name:
            parts.setdefault(node.name, []).extend(pending)
            pending = []
    if any(node.operation is not None for node in pending):
        parts["other"] = pending
    rows = [_row(name, nodes) for name, nodes in parts.items()]
    total = _row("total", given.order)
    variables = [node for node in given.order if node.kind == VARIABLE]
    layout = lay_out(
        given.outputs, variables, given.order, reuse=given.reuses_buffers, ops=given.ops
    )
    return Statistics((*rows, total), layout.size_bytes)


def both_forms(
    outputs: Sequence[Node], passes: Sequence[str] | None = None, ops: Ops | None = None
) -> str:
    """Return a graph as text in both of its forms: as it is written, and as it is computed.

    The second form is that after all passes, with operations fused and, by the passes of a
    precision, operands that are rounded. `explain` shows what each pass does.

    Parameters
    ----------
    outputs : sequence of Node
    passes : sequence of str, optional
        `default_passes` if left out.
    ops : Ops, optional
        Of the device that is to compute it; NumPy's if left out.

    Returns
    -------
    str
        Each form has its statistics behind it.

    Raises
    ------
    ConfigurationError, DtypeError
        As for `optimise`.
    """
    ops = ops or Ops()
    names = default_passes(ops) if passes is None else passes
    forms = {"as it is written": graph_of(outputs)}
    forms["as it is computed"] = optimise(outputs, names, ops)
    return "\n\n".join(f"# {title}\n{form}\n\n{statistics(form)}" for title, form in forms.items())


def _row(name: str, nodes: Sequence[Node]) -> StatisticsRow:
    computed = [node for node in nodes if node.operation is not None]
    return StatisticsRow(
        name,
        len(computed),
        sum(node.size for node in nodes if _is_parameter(node)),
        sum(node.size * node.dtype.itemsize for node in computed),
        sum(_multiply_adds(node) for node in computed),
        sum(_flops(node) for node in computed),
    )


def _is_parameter(node: Node) -> bool:
    return node.kind == VARIABLE and node.dtype.kind == "f" and node.ndim > 0


def _multiply_adds(node: Node) -> int:
    assert node.operation is not None
    return node.operation.multiply_adds(node)


def _flops(node: Node) -> int:
    operation = node.operation
    assert operation is not None
    found = 2 * operation.multiply_adds(node)
    chain = getattr(operation, "wide", getattr(operation, "chain", None))
    if isinstance(chain, Node):  # in another type, or behind a product
        found += _flops(chain)
    elif chain is not None:
        found += node.size * sum(_operators(formula) for formula, *_ in chain)
    if isinstance(operation, Elementwise):
        found += node.size * _operators(operation.formula)
    elif not found and type(operation).__module__.rsplit(".", 1)[-1] not in _MOVES:
        found = max((math.prod(x.shape) for x in node.inputs), default=0)
    return found


def _operators(formula: Formula) -> int:
    """Return how many operators and functions a formula has."""
    counted = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call)
    return sum(isinstance(part, counted) for part in ast.walk(formula.tree))
