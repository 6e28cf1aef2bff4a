"""What operations ask of the nodes that they are given: that they are some, and fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.errors import DtypeError, ShapeError
from dnn.graph.arguments import describe
from dnn.graph.node import Node, Shape

__all__ = ["broadcast", "check_kind", "check_nodes", "nodes_of"]


def check_nodes(kind: str, *inputs: object) -> None:
    """Raise `DtypeError` where an operation was given something else than a node."""
    for x in inputs:
        if not isinstance(x, Node):
            given = "an array" if isinstance(x, np.ndarray) else repr(x)
            raise DtypeError(f"{kind}: {given} is no node; dnn.graph.constant makes one of numbers")


def nodes_of(kind: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return a sequence of nodes as a tuple.

    Raises
    ------
    DtypeError
        If one is no node, or it is a single one, which would be taken for the sequence of its rows.
    """
    if isinstance(nodes, Node):
        raise DtypeError(f"{kind}: {nodes!r} is one node, and not a sequence of nodes")
    several = tuple(nodes)
    check_nodes(kind, *several)
    return several


def check_kind(kind: str, inputs: Sequence[Node], kinds: str) -> None:
    """Raise `DtypeError` where elements of an input are of another kind, as in `numpy.dtype`."""
    for x in inputs:
        if x.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "numbers"
            message = f"{describe(x)} of {x.dtype} is not of {wanted}: see dnn.graph.cast"
            raise DtypeError(f"{kind}: {message}")


def broadcast(kind: str, inputs: Sequence[Node]) -> tuple[Shape, np.dtype[Any]]:
    """Return shape and type of elements that inputs have after broadcasting."""
    dtype = inputs[0].dtype
    if any(node.dtype != dtype for node in inputs):
        given = " and ".join(describe(node) + f" of {node.dtype}" for node in inputs)
        raise DtypeError(f"{kind}: {given} have different types of elements")
    shapes = {node.shape for node in inputs}
    if len(shapes) > 1:
        shapes.discard(())
    if len(shapes) == 1:  # nearly always, and NumPy makes arrays to find out
        return shapes.pop(), dtype
    try:
        return np.broadcast_shapes(*shapes), dtype
    except ValueError:
        given = " and ".join(describe(node) for node in inputs)
        raise ShapeError(
            kind, f"{given} do not broadcast", *(node.shape for node in inputs)
        ) from None
