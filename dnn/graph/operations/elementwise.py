"""What all elementwise operations have in common: broadcasting, the axis of models, the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dnn.backend import Ops
from dnn.graph.inputs import broadcast, check_kind
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply

__all__ = ["Elementwise"]

ANY = "fiub"


class Elementwise(Operation):
    """An operation that the `Ops` method of its name computes element by element.

    Attributes
    ----------
    kinds : str
        Kinds of elements that it takes, as in `numpy.dtype`: floats, integers, unsigned, bools.
    """

    kinds: ClassVar[str] = ANY

    # Element i of the result needs only element i of the inputs, so either may be overwritten.
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return what broadcasting gives."""
        if self.kinds != ANY:
            check_kind(self.name, inputs, self.kinds)
        return broadcast(self.name, inputs)

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Insert axes, so that the axes of each model broadcast as they did."""
        pairs = zip(inputs, stacked, strict=True)
        return apply(
            self.name, *(aligned(x, has, node.ndim) for x, has in pairs), **node.attributes
        )

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Call the method of the operation's name."""
        return [(getattr(ops, self.name), (*arrays.inputs, *arrays.workspace, arrays.out))]
