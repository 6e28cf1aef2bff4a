"""Passes that let products take narrow operands, with the operations that they make.

Products are those of matrices, and convolutions with their gradients.

Where a value is rounded depends on its use, never on its shape, so that K networks are rounded as
each is alone:

1. Operands of matrix products are narrow. Results of elementwise operations and of other products
   are rounded where they are written; parameters and everything else for the products alone, and
   biases with them.
2. A product sums up in float32, adds the bias, takes the relu, and is rounded once; an output of
   the graph, such as the gradient of a weight, is not rounded at all.
3. Elementwise operations between products, on narrow values of their own shape, compute in float32,
   and their result is rounded once. Where it leads to sums alone, as a square that becomes a
   variance, it is not rounded.
4. Everything else is float32: losses, softmax, sums and statistics, optimizers, outputs.

With TF32 nothing is narrow; a product alone rounds its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnn.backend import Chain, Convolution, Ops
from dnn.backend.rounding import BFLOAT16, HALF, SINGLE, round_tf32
from dnn.graph.node import VARIABLE, Node, Shape
from dnn.graph.operation import Arrays, Operation, Step
from dnn.graph.operations.convolution import ConvolutionOperation
from dnn.graph.operations.elementwise import Elementwise, is_elementwise
from dnn.graph.operations.reductions import SumTo
from dnn.graph.passes.graph import Graph, register_pass, rewrite, with_inputs
from dnn.graph.passes.simplification import dead_code

__all__ = ["MADE_BY_PRECISION", "bfloat16", "float16", "mixed_precision", "product_bias", "tf32"]

PRODUCTS = ("matmul", "biased_product")
"""Kinds of float32 nodes that get operands of less precision, besides convolutions."""

SUMS_OF_IMAGES = ("batch_norm_sums", "batch_statistics")
"""Kinds of nodes that read images of any type, and sum them up in float32."""

MADE_BY_PRECISION = ("convert", "reduced_convolution", "reduced_matmul", "rounded_chain")
"""Kinds of nodes that may be narrow; such a node of uint16 holds the bits of bfloat16."""


Wanted = tuple[Shape, np.dtype[Any]]


def _in_float32(nodes: Iterable[Node]) -> list[Wanted]:
    """Return shapes and types of arrays that hold the values of nodes in float32."""
    return [(node.shape, SINGLE) for node in nodes]


IMAGE_AXES = 4
"""Axes of images, whose transposes are to another layout: they are no views for convolutions."""


class Convert(Operation):
    """The same values, rounded to a narrow type or brought back to float32."""

    name = "convert"

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls of `Ops.convert`."""
        return ops.convert(arrays.inputs[0], arrays.out)


def convert(x: Node, dtype: np.dtype[Any]) -> Node:
    """Return `x` in a narrow type, or again in float32."""
    return Node("convert", x.shape, dtype, (x,), {}, x.name, Convert())


class Product(Operation):
    """``y = a @ b``, or ``y = a @ b + bias``, maybe with a relu: written once."""

    name = "product"

    def __init__(self, precision: str, relu: bool) -> None:
        self.precision = precision
        self.relu = relu

    def multiply_adds(self, node: Node) -> int:
        """Return those of the product."""
        return node.size * node.inputs[0].shape[-1]

    def workspace(self, node: Node, ops: Ops) -> Sequence[Wanted]:
        """Return float32 arrays for operands that are rounded or narrow, for `Ops.product`."""
        if ops.takes_narrow:
            return ()
        rounded = node.inputs[:2] if self.precision == "tf32" else ()
        narrow = [x for x in (*node.inputs, node) if x.dtype != SINGLE]
        return _in_float32([*rounded, *narrow])

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls of `Ops.product`."""
        a, b, *bias = arrays.inputs
        return ops.product(
            *(a, b, arrays.out, self.precision),
            bias[0] if bias else None,
            self.relu,
            arrays.workspace,
        )


def biased_product(product: Node, inputs: tuple[Node, ...], relu: bool, name: str) -> Node:
    """Return a node for a product in float32, a bias and maybe a relu."""
    operation = Product("float32", relu)
    attributes = {"relu": relu}
    return Node("biased_product", product.shape, product.dtype, inputs, attributes, name, operation)


class ReducedConvolution(ConvolutionOperation):
    """A convolution, or a gradient of one, with operands of another precision than float32."""

    name = "reduced_convolution"

    def workspace(self, node: Node, ops: Ops) -> Sequence[Wanted]:
        """Return a routine's workspace, and float32 arrays for rounded or narrow operands."""
        problem: Convolution = node.attributes["problem"]
        if ops.takes_narrow:
            return super().workspace(node, ops)
        size = ops.convolution(problem._replace(precision="float32")).workspace_bytes
        rounded = node.inputs[:2] if problem.precision == "tf32" else ()
        narrow = [x for x in (*node.inputs, node) if x.dtype != SINGLE]
        return [((size,), np.dtype(np.uint8)), *_in_float32([*rounded, *narrow])]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls of a routine, with conversions where it takes float32 alone."""
        problem: Convolution = node.attributes["problem"]
        if ops.takes_narrow:
            return super().forward(ops, node, arrays)
        steps: list[Step] = []
        space, *spaces = arrays.workspace
        inputs = []
        for at, x in enumerate(arrays.inputs):
            rounds = problem.precision == "tf32" and at < 2
            inputs.append(spaces.pop(0) if rounds or x.dtype != SINGLE else x)
            if rounds:
                steps.append((round_tf32, (x, inputs[-1])))
            elif x.dtype != SINGLE:
                steps += ops.convert(x, inputs[-1])
        out = arrays.out if arrays.out.dtype == SINGLE else spaces.pop(0)
        routine = ops.convolution(problem._replace(precision="float32"))
        steps += routine.steps(inputs, out, space)
        return steps if out is arrays.out else [*steps, *ops.convert(out, arrays.out)]


class RoundedChain(Operation):
    """An elementwise operation or chain in float32 whose inputs and result may be narrow.

    `wide` is the same node with inputs and result in float32.
    """

    name = "rounded_chain"

    def __init__(self, wide: Node) -> None:
        self.wide = wide
        assert wide.operation is not None
        self.overwrites = wide.operation.overwrites  # type: ignore[misc]

    @property
    def chain(self) -> Chain | None:
        """The chain of formulas, or None if operands differ in type or a node has attributes."""
        operation = self.wide.operation
        if self.wide.kind == "fused":
            chain: Chain = self.wide.attributes["chain"]
            return chain
        assert isinstance(operation, Elementwise)
        if self.wide.attributes or any(x.dtype != SINGLE for x in self.wide.inputs):
            return None
        return ((operation.formula, *range(len(self.wide.inputs))),)

    def workspace(self, node: Node, ops: Ops) -> Sequence[Wanted]:
        """Return float32 arrays for narrow inputs and the result, and the workspace of `wide`."""
        if ops.takes_narrow and self.chain is not None:
            return ()
        assert self.wide.operation is not None
        pairs = zip(node.inputs, self.wide.inputs, strict=True)
        narrow = [before for x, before in pairs if x.dtype != before.dtype]
        inside = self.wide.operation.workspace(self.wide, ops)
        return [*_in_float32([*narrow, self.wide]), *inside]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return one step for the whole chain, or else conversions and the steps of `wide`."""
        chain = self.chain
        if chain is not None:
            whole = ops.rounded_chain(chain, arrays.inputs, arrays.out)
            if whole is not None:
                return whole
        steps: list[Step] = []
        inputs = []
        spaces = iter(arrays.workspace)
        for x, before in zip(arrays.inputs, self.wide.inputs, strict=True):
            wide = x
            if x.dtype != before.dtype:
                wide = next(spaces)
                steps += ops.convert(x, wide)
            inputs.append(wide)
        operation = self.wide.operation
        assert operation is not None
        out = next(spaces)
        steps += operation.forward(ops, self.wide, Arrays(inputs, out, list(spaces)))
        return [*steps, *ops.convert(out, arrays.out)]


class NarrowSumTo(SumTo):
    """`SumTo` of narrow values, with the sum in float32."""

    def workspace(self, node: Node, ops: Ops) -> Sequence[Wanted]:
        """Return a float32 array for the values."""
        return () if ops.takes_narrow else _in_float32(node.inputs)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls of `Ops.sum_narrow`."""
        ((_, (x, axes, out)),) = super().forward(ops, node, arrays)
        return ops.sum_narrow(x, axes, out, arrays.workspace)


@register_pass("product_bias")
def product_bias(graph: Graph) -> Graph:
    """Join a matrix product with the bias, and the relu, that alone read it."""
    readers = graph.readers()

    def join(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.dtype != SINGLE:
            return None
        if node.kind == "relu" and inputs[0].kind == "biased_product":
            x = inputs[0]
            if readers[node.inputs[0]] == 1 and not x.attributes["relu"]:
                return biased_product(x, x.inputs, True, x.name or node.name)
        if node.kind != "add":
            return None
        for x, before, bias in zip(inputs, node.inputs, inputs[::-1], strict=True):
            fits = x.kind == "matmul" and x.shape == node.shape and readers[before] == 1
            if fits and _is_same_for_all_rows(bias.shape, node.shape):
                return biased_product(x, (*x.inputs, bias), False, node.name)
        return None

    return dead_code(rewrite(graph, join))


def _is_same_for_all_rows(bias: Shape, out: Shape) -> bool:
    """Say whether a bias is one vector for all rows, or one vector for each of K networks."""
    if not bias or bias[-1] != out[-1] or (len(bias) >= 2 and bias[-2] != 1):
        return False
    leading = (1,) * (len(out) - len(bias)) + bias[:-2]
    return all(n in (1, m) for n, m in zip(leading, out, strict=False))


def _narrowing(precision: str, kept: np.dtype[Any]) -> Callable[[Graph], Graph]:
    """Return the pass of a precision that keeps narrow values in the type `kept`."""

    def run(graph: Graph) -> Graph:
        operands = {
            _origin(x) for node in graph.order if _is_product(node) for x in node.inputs[:2]
        }
        leading = _leading_to(operands, graph)
        # Images that are an output may be transposed to their layout after the convolution.
        images = (_origin(x) for x in graph.outputs)
        of_images = {x for x in images if isinstance(x.operation, ConvolutionOperation)}
        wanted = {*graph.outputs, *of_images}
        rounded: dict[Node, Node] = {}  # a value brought back to float32 -> where it is kept
        for_products: dict[Node, Node] = {}  # a value of float32 -> the same, narrow

        def narrowed(x: Node) -> Node:
            if x in rounded:
                return rounded[x]
            if x not in for_products:
                base = x.inputs[0] if x.kind == "transpose" and x.ndim >= IMAGE_AXES else x
                if base is not x and base not in rounded and base not in for_products:
                    for_products[x] = convert(x, kept)  # in the new layout at once
                elif _is_view(x) and (x.inputs[0] in rounded or x.size == x.inputs[0].size):
                    for_products[x] = _on_narrow(x, narrowed(x.inputs[0]))
                else:
                    for_products[x] = convert(x, kept)
            return for_products[x]

        def reduce(node: Node, inputs: tuple[Node, ...]) -> Node | None:
            if node.dtype != SINGLE or node.operation is None:
                return None
            if _is_product(node):
                dtype = SINGLE if node in wanted else kept
                new = _reduced(node, tuple(map(narrowed, inputs)), precision, dtype)
                if node in wanted:
                    return new
            elif _is_view(node) and inputs[0] in rounded:
                new = _on_narrow(node, rounded[inputs[0]])
            elif is_elementwise(node) and node in leading and node not in wanted:
                is_narrow = any(x in rounded and x.shape == node.shape for x in inputs)
                if not is_narrow and node not in operands:
                    return None
                mixed = tuple(rounded.get(x, x) for x in inputs)
                operation = RoundedChain(node)
                attributes = {} if operation.chain is None else {"chain": operation.chain}
                new = Node(
                    "rounded_chain", node.shape, kept, mixed, attributes, node.name, operation
                )
            elif node.kind == "sum_to" and inputs[0] in rounded:
                x = rounded[inputs[0]]
                return Node(
                    "sum_to", node.shape, SINGLE, (x,), node.attributes, node.name, NarrowSumTo()
                )
            elif node.kind in SUMS_OF_IMAGES and any(x in rounded for x in inputs):
                return with_inputs(node, tuple(rounded.get(x, x) for x in inputs))
            else:
                return None
            back = convert(new, SINGLE)
            rounded[back] = new
            return back

        return dead_code(rewrite(graph, reduce))

    def _on_narrow(view: Node, x: Node) -> Node:
        return Node(view.kind, view.shape, kept, (x,), view.attributes, view.name, view.operation)

    return run


@register_pass("conversions_first")
def conversions_first(graph: Graph) -> Graph:
    """Convert parameters to a narrow type before anything else, and keep them for the whole step.

    Then some devices convert all of them at once.
    """
    early: set[Node] = set()
    for node in graph.order:
        moves = node.kind == "convert" or _is_view(node)
        if node.kind == VARIABLE or (moves and early.issuperset(node.inputs)):
            early.add(node)
    order = sorted(graph.order, key=lambda node: node not in early)
    return replace(graph, order=tuple(order))


def _reduced(node: Node, inputs: tuple[Node, ...], precision: str, dtype: np.dtype[Any]) -> Node:
    """Return a product or convolution of float32 with operands of another precision."""
    if isinstance(node.operation, ConvolutionOperation):
        problem = node.attributes["problem"]._replace(precision=precision)
        given = {"problem": problem}
        convolution = ReducedConvolution()
        return Node("reduced_convolution", node.shape, dtype, inputs, given, node.name, convolution)
    relu = bool(node.attributes.get("relu"))
    attributes = {"precision": precision, "relu": relu}
    operation = Product(precision, relu)
    return Node("reduced_matmul", node.shape, dtype, inputs, attributes, node.name, operation)


def _is_product(node: Node) -> bool:
    is_product = node.kind in PRODUCTS or isinstance(node.operation, ConvolutionOperation)
    return is_product and node.dtype == SINGLE


def _is_view(node: Node) -> bool:
    return node.operation is not None and node.operation.view


def _leading_to(operands: set[Node], graph: Graph) -> set[Node]:
    """Return nodes from which views and elementwise operations of one shape lead to operands."""
    leading = set(operands)
    for node in reversed(graph.order):
        if node in leading and (_is_view(node) or is_elementwise(node)):
            leading |= {x for x in node.inputs if _is_view(node) or x.shape == node.shape}
    return leading


def _origin(x: Node) -> Node:
    """Return the node whose elements a view, or a view of a view, shows; `x` if it is no view."""
    while _is_view(x):
        x = x.inputs[0]
    return x


@register_pass("float16")
def float16(graph: Graph) -> Graph:
    """Give products operands of float16; compute everything else in float32.

    A loss has to be scaled so that its gradients neither vanish nor overflow, see
    `dnn.training.loss_scaling`.

    References
    ----------
    .. [1] Micikevicius et al., Mixed precision training, 2018.
    """
    return _narrowing("float16", HALF)(graph)


@register_pass("bfloat16")
def bfloat16(graph: Graph) -> Graph:
    """Give products operands of bfloat16; compute everything else in float32.

    References
    ----------
    .. [1] Kalamkar et al., A study of BFLOAT16 for deep learning training, 2019.
    """
    return _narrowing("bfloat16", BFLOAT16)(graph)


@register_pass("tf32")
def tf32(graph: Graph) -> Graph:
    """Let products round their operands to TF32, and leave everything else as it is."""

    def reduce(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return _reduced(node, inputs, "tf32", SINGLE) if _is_product(node) else None

    return dead_code(rewrite(graph, reduce))


mixed_precision = register_pass("mixed_precision")(float16)
