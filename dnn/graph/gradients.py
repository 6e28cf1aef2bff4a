"""Reverse-mode differentiation: gradients as further nodes of the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.errors import DtypeError, ShapeError
from dnn.graph.node import Node, check_nodes, constant, nodes_of, topological_order
from dnn.graph.operations.reductions import sum_to

__all__ = ["grad", "gradients"]


def gradients(y: Node, wanted: Sequence[Node], dy: Node | None = None) -> list[Node]:
    """Return nodes that compute the gradients of `y` with respect to other nodes.

    Parameters
    ----------
    y : Node
        A scalar, unless `dy` is given.
    wanted : sequence of Node
        For a single node, see `grad`.
    dy : Node of the shape and type of `y`, optional
        The vector of the vector-Jacobian product; 1 if left out.

    Returns
    -------
    list of Node, each of the shape and type of the node in `wanted`
        Zero for a node that `y` does not depend on.

    Raises
    ------
    ShapeError
        If `y` is no scalar and `dy` is left out, or their shapes differ.
    DtypeError
        If the types of `y` and `dy` differ, or something is no node.

    Notes
    -----
    Nothing is written for nodes that lead to none of `wanted`, such as the training data. Because
    gradients are nodes, they have gradients in turn.

    References
    ----------
    .. [1] Griewank and Walther, Evaluating Derivatives, 2nd edition, 2008, section 3.2.
    """
    check_nodes("gradients", y)
    wanted = nodes_of("gradients", wanted)
    if dy is None:
        if y.shape != ():
            raise ShapeError("gradients", f"{y!r} is no scalar: give dy", y.shape)
        dy = constant(1.0, y.dtype)
    check_nodes("gradients", dy)
    if dy.shape != y.shape:
        raise ShapeError("gradients", f"dy {dy.shape} for {y!r}", dy.shape, y.shape)
    if dy.dtype != y.dtype:
        raise DtypeError(f"gradients: dy of {dy.dtype} for {y!r}")

    order = topological_order([y])
    leads = set(wanted)
    for node in order:
        if any(x in leads for x in node.inputs):
            leads.add(node)
    arrived: dict[Node, list[Node]] = {y: [dy]}
    totals: dict[Node, Node] = {}
    for node in reversed(order):
        if node not in leads or node not in arrived:
            continue
        total = totals[node] = _sum(arrived[node])
        if node.operation is None or not any(x in leads for x in node.inputs):
            continue
        for x, dx in zip(node.inputs, node.operation.gradient(node, total), strict=True):
            if dx is not None and x in leads:
                arrived.setdefault(x, []).append(sum_to(dx, x.shape))
    return [
        totals[node] if node in totals else constant(np.zeros(node.shape), node.dtype)
        for node in wanted
    ]


def grad(y: Node, wanted: Node | Sequence[Node], dy: Node | None = None) -> Any:
    """Return nodes that compute the gradient of `y` with respect to one node or several.

    Parameters
    ----------
    y : Node
        A scalar, unless `dy` is given.
    wanted : Node or sequence of Node
    dy : Node of the shape and type of `y`, optional
        The vector of the vector-Jacobian product; 1 if left out.

    Returns
    -------
    Node, of the shape and type of `wanted`, or a list of them
        Zero for a node that `y` does not depend on.

    Raises
    ------
    ShapeError, DtypeError
        As for `gradients`.
    """
    if isinstance(wanted, Node):
        return gradients(y, [wanted], dy)[0]
    return gradients(y, wanted, dy)


def _sum(terms: Sequence[Node]) -> Node:
    """Add up the gradients that arrived from all consumers of a node."""
    total, *rest = terms
    for term in rest:
        total = total + term
    return total
