"""Eager mode: nodes are computed one by one, each into a new array that can be looked at.

The functions are those that a plan is compiled from, so with NumPy's the numbers are the same, bit
for bit. Compiled kernels leave arrays of some strides to NumPy, and here there are no views: the
last digit may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy.typing as npt

from dnn.backend import Array, Ops, empty
from dnn.errors import ConfigurationError
from dnn.graph.gradients import topological_order
from dnn.graph.node import Node, called_by_nodes, fed, nodes_of
from dnn.graph.operation import Arrays

__all__ = ["compute", "run_eagerly"]


def compute(node: Node, inputs: Sequence[Array], ops: Ops | None = None) -> Array:
    """Return the value of a node, in new memory, from those of its inputs; NumPy without `ops`."""
    ops = ops or Ops()
    assert node.operation is not None
    out = empty(ops, node.shape, node.dtype)
    workspace = [empty(ops, *wanted) for wanted in node.operation.workspace(node, ops)]
    for function, arguments in node.operation.forward(ops, node, Arrays(inputs, out, workspace)):
        function(*arguments)
    return out


@called_by_nodes
def run_eagerly(
    outputs: Sequence[Node],
    feeds: Mapping[Node, npt.ArrayLike],
    ops: Ops | None = None,
    watch: Callable[[Node, Array], object] | None = None,
) -> list[Array]:
    """Compute nodes one after the other, for debugging.

    Parameters
    ----------
    outputs : sequence of Node
    feeds : mapping of Node to array
        A value for each placeholder and variable that they depend on.
    ops : Ops, optional
        NumPy's if left out.
    watch : function (node, array), optional
        Called with each node and its value as soon as it is computed.

    Returns
    -------
    list of array

    Raises
    ------
    ConfigurationError
        If a value is missing, or given for a node that is computed or a constant.
    ShapeError
        If a value has not its node's shape.
    DataError, DtypeError
        If a value is no array of numbers, or of numbers that the node's type cannot hold, or
        `outputs` is no sequence of nodes.
    """
    ops = ops or Ops()
    outputs = nodes_of("eager", outputs)
    given = {node: fed("eager", node, value) for node, value in feeds.items()}
    values: dict[Node, Array] = {}
    for node in topological_order(outputs):
        if node.operation is not None:
            values[node] = compute(node, [values[x] for x in node.inputs], ops)
        elif node in given:
            values[node] = ops.asarray(given[node])
        elif "value" in node.attributes:  # a constant, or a variable that brings its own
            values[node] = ops.asarray(node.attributes["value"])
        else:
            raise ConfigurationError(f"eager: no value was given for {node!r}")
        if watch is not None:
            watch(node, values[node])
    return [values[node] for node in outputs]
