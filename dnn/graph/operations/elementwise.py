"""`Elementwise`, the base class of elementwise operations, and the functions made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from dnn.backend import Formula, Ops
from dnn.graph.arguments import broadcast, check_kind
from dnn.graph.node import Node, Operand, Shape, as_nodes
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply, documented

__all__ = ["Elementwise", "binary", "formula_of", "is_elementwise", "unary"]

ANY = "fiub"


class Elementwise(Operation):
    """An operation that is a formula of the elements of its inputs.

    NumPy's calls, compiled loops, CUDA kernels and fused chains all come from the formula. Its name
    is that of the operation. The function that users call comes from `unary` or `binary`, with the
    docstring of the operation: what it returns in the first line, more of the result after that.

    Attributes
    ----------
    formula : Formula
    kinds : str
        Kinds of elements that it takes, as in `numpy.dtype`: floats, integers, unsigned, bools.
    """

    formula: ClassVar[Formula]
    kinds: ClassVar[str] = ANY

    def __init_subclass__(cls) -> None:
        if "formula" in vars(cls):
            cls.name = cls.formula.name

    @property
    def overwrites(self) -> tuple[int, ...]:  # type: ignore[override]
        """Inputs that the formula's NumPy calls may overwrite; the calls are written on demand."""
        return self.formula.overwrites

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of elements after broadcasting."""
        if self.kinds != ANY:
            check_kind(self.name, inputs, self.kinds)
        shape, dtype = broadcast(self.name, inputs)
        return shape, np.dtype(bool) if self.formula.is_bool else dtype

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return shapes and types of the temporary arrays of the formula's NumPy calls."""
        return [(node.shape, dtype) for dtype in self.formula.workspace(node.dtype)]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Return the node for K models, with axes inserted so that each broadcasts as before."""
        pairs = zip(inputs, stacked, strict=True)
        return apply(
            self.name, *(aligned(x, has, node.ndim) for x, has in pairs), **node.attributes
        )

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the call that computes the formula."""
        return [ops.elementwise(self.formula, arrays.inputs, arrays.out, arrays.workspace)]


def is_elementwise(node: Node) -> bool:
    """Whether a node is an elementwise operation, or several fused into one loop."""
    return node.kind == "fused" or isinstance(node.operation, Elementwise)


def formula_of(node: Node) -> Formula:
    """Return the formula of an elementwise node."""
    assert isinstance(node.operation, Elementwise)
    return node.operation.formula


_KINDS = {
    # kinds: which nodes are taken, which are refused
    ANY: ("", ""),
    "fiu": (", not of bools", "of bools"),
    "f": (" of floats", "not of floats"),
}


class Unary(Protocol):
    """A function of one node."""

    def __call__(self, x: Node) -> Node: ...


class Binary(Protocol):
    """A function of two nodes, or of a node and a number or array."""

    def __call__(self, a: Operand, b: Operand) -> Node: ...


def unary(operation: type[Elementwise]) -> Unary:
    """Return the public function of an operation of one operand, with its documentation."""

    def function(x: Node) -> Node:
        return apply(operation.name, x)

    taken, refused = _KINDS[operation.kinds]
    raises = f"DtypeError\n    If `x` is {refused}." if refused else ""
    returns = "Node, of the shape and type of `x`"
    return documented(function, operation, f"x : Node{taken}", returns, raises)


def binary(operation: type[Elementwise]) -> Binary:
    """Return the public function of an operation of two operands, with its documentation."""

    def function(a: Operand, b: Operand) -> Node:
        return apply(operation.name, *as_nodes(operation.name, a, b))

    taken, refused = _KINDS[operation.kinds]
    parameters = f"""\
a, b : Node{taken}, number or array
    At least one is a node; a number or array becomes a constant of that node's type."""
    shape = "of the shape that both broadcast to"
    is_bool = operation.formula.is_bool
    returns = f"Node of bool, {shape}" if is_bool else f"Node, {shape} and of their type"
    of_kind = f",\n    or they are {refused}" if refused else ""
    raises = f"""\
ShapeError
    If they do not broadcast.
DtypeError
    If their types differ, none is a node, or the node's type cannot hold a value{of_kind}."""
    return documented(function, operation, parameters, returns, raises)
