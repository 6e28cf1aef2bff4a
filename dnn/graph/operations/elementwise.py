"""What all elementwise operations have in common: a formula, broadcasting, the axis of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dnn.backend import Formula, Ops
from dnn.graph.inputs import broadcast, check_kind
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply

__all__ = ["Elementwise", "formula_of"]

ANY = "fiub"


class Elementwise(Operation):
    """An operation that is a formula of the elements of its inputs.

    NumPy's calls, compiled loops, CUDA kernels and fused chains all come from the formula. Its name
    is that of the operation.

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
            cls.overwrites = cls.formula.overwrites

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return what broadcasting gives."""
        if self.kinds != ANY:
            check_kind(self.name, inputs, self.kinds)
        shape, dtype = broadcast(self.name, inputs)
        return shape, np.dtype(bool) if self.formula.is_bool else dtype

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return what the formula needs in NumPy."""
        return [(node.shape, dtype) for dtype in self.formula.workspace(node.dtype)]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Insert axes, so that the axes of each model broadcast as they did."""
        pairs = zip(inputs, stacked, strict=True)
        return apply(
            self.name, *(aligned(x, has, node.ndim) for x, has in pairs), **node.attributes
        )

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Compute the formula."""
        return [ops.elementwise(self.formula, arrays.inputs, arrays.out, arrays.workspace)]


def formula_of(node: Node) -> Formula:
    """Return the formula of an elementwise node."""
    assert isinstance(node.operation, Elementwise)
    return node.operation.formula
