"""The operation of a matrix product together with what is done to its elements.

Like a fused node it is made by a pass, after gradients have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.graph.node import Node, Shape
from dnn.graph.operation import Arrays, Operation, Step
from dnn.graph.operations.elementwise import formula_of

__all__ = ["ProductChain", "product_chain"]


class ProductChain(Operation):
    """``y = f(a @ b, ...)``: the product is written to the result, `f` works on it in place.

    Parameters
    ----------
    product, chain : Node
        The product, and what is done to it: elementwise, reading it once.
    """

    name = "product_chain"

    def __init__(self, product: Node, chain: Node) -> None:
        self.product = product
        self.chain = chain

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the last operation."""
        return self.chain.shape, self.chain.dtype

    def workspace(self, node: Node) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return what the operations on the elements need."""
        assert self.chain.operation is not None
        return self.chain.operation.workspace(self.chain)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the steps of both."""
        assert self.product.operation is not None
        assert self.chain.operation is not None
        a, b, *others = arrays.inputs
        rest = iter(others)
        given = [arrays.out if x is self.product else next(rest) for x in self.chain.inputs]
        first = Arrays((a, b), arrays.out, ())
        second = Arrays(given, arrays.out, arrays.workspace)
        return [
            *self.product.operation.forward(ops, self.product, first),
            *self.chain.operation.forward(ops, self.chain, second),
        ]


def product_chain(product: Node, chain: Node) -> Node:
    """Return a node that does what both do; its inputs are the product's, then the others."""
    others = [x for x in chain.inputs if x is not product]
    attributes = chain.attributes or {"chain": ((formula_of(chain), *range(len(chain.inputs))),)}
    return Node(
        "product_chain",
        chain.shape,
        chain.dtype,
        (*product.inputs, *others),
        attributes,
        chain.name,
        ProductChain(product, chain),
    )
