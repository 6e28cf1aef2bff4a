"""Passes over networks of images: the fast order of axes, and fusion with convolutions.

Layers write images as (N, C, H, W). `image_layout` rewrites connected convolutions, poolings and
elementwise operations on images into the order of axes that the device asks for, with transposes
at the border alone: those inside cancel as they arise. A transpose that moves no element, since the
axes that are longer than 1 keep their order, is a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnn.backend import Convolution
from dnn.graph.node import CONSTANT, Node, Shape
from dnn.graph.operation import apply, reshaped
from dnn.graph.operations.convolution import ConvolutionOperation
from dnn.graph.operations.elementwise import Elementwise
from dnn.graph.operations.normalisation import Normalise
from dnn.graph.operations.pooling import PoolingOperation
from dnn.graph.operations.shapes import transpose
from dnn.graph.passes.graph import Graph, register_pass, rewrite
from dnn.graph.passes.simplification import dead_code

__all__ = ["batch_norm_folding", "convolution_relu", "image_layout", "pooling_relu"]

PLAIN = "NCHW"

JOINING = ("broadcast_to", "concat", "slice", "sum_to")
"""Kinds of nodes, besides elementwise operations, whose images keep the layout of their inputs."""


@register_pass("image_layout")
def image_layout(graph: Graph) -> Graph:
    """Bring images into the order of axes that is fast, with transposes at the border alone."""
    layouts = _layouts(graph)
    if not layouts:
        return graph
    known: dict[Node, tuple[Node, str]] = {}  # an image in NCHW -> the same image in a layout

    def moved(x: Node, layout: str) -> Node:
        """Return an image, or a node that broadcasts to an image, in a layout."""
        if x in known and known[x][1] == layout:
            return known[x][0]
        if x.kind == "broadcast_to" and x.ndim >= 4:
            (small,) = x.inputs
            y = apply("broadcast_to", moved(small, layout), shape=_shape(x.shape, layout))
        else:
            y = _permuted(_four(x), PLAIN, layout)
        if x.ndim >= 4:
            known[x] = y, layout
        return y

    def back(y: Node, layout: str, name: str) -> Node:
        x = _permuted(y, layout, PLAIN)
        x.name = x.name or name
        known[x] = y, layout
        return x

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        operation = node.operation
        if isinstance(operation, ConvolutionOperation | PoolingOperation):
            problem = node.attributes["problem"]
            layout = layouts.get(node, problem.layout)
            if layout == problem.layout:
                return None
            images = [
                x if is_weight else moved(x, layout)
                for x, is_weight in zip(inputs, _weights(problem, inputs), strict=True)
            ]
            attributes = {**node.attributes, "problem": problem._replace(layout=layout)}
            y = apply(node.kind, *images, **attributes)
            y.name = node.name
            is_image = node.kind != "conv2d_weight_gradient"
            return back(y, layout, node.name) if is_image else y
        found = [known[x][1] for x in inputs if x in known]
        if not found:
            return None
        layout = found[0]
        if isinstance(operation, Elementwise | Normalise) and node.ndim >= 4:
            operands = [moved(x, layout) for x in inputs]
            # Gradients are written already, so that of a normalisation only its product is needed.
            kind = "multiply" if isinstance(operation, Normalise) else node.kind
            chosen = operands[1:] if isinstance(operation, Normalise) else operands
            return back(apply(kind, *chosen, **node.attributes), layout, node.name)
        if node.kind == "concat" and node.ndim >= 4:
            axis = _moved_axis(node, node.attributes["axis"], layout)
            operands = [moved(x, layout) for x in inputs]
            return back(apply("concat", *operands, axis=axis), layout, node.name)
        if node.kind == "slice" and node.ndim >= 4 and node.ndim == inputs[0].ndim:
            given = node.attributes["index"]
            index = [*given, *((0, n, 1) for n in node.shape[len(given) :])]
            at = {_moved_axis(node, i, layout): each for i, each in enumerate(index)}
            part = tuple(at[i] for i in range(node.ndim))
            y = apply("slice", moved(inputs[0], layout), index=part)
            return back(y, layout, node.name)
        if node.kind == "sum_to" and inputs[0].ndim >= 4:
            missing = inputs[0].ndim - node.ndim
            target = (1,) * missing + node.shape
            total = apply("sum_to", moved(inputs[0], layout), shape=_shape(target, layout))
            if missing:
                return reshaped(_permuted(total, layout, PLAIN), node.shape)
            return back(total, layout, node.name)
        return None

    return dead_code(rewrite(graph, rule))


def _weights(problem: Any, inputs: Sequence[Node]) -> list[bool]:
    """Say which inputs are no images: weights and a bias."""
    if not isinstance(problem, Convolution):
        return [False] * len(inputs)
    if problem.kind == "weights":
        return [False, False]
    return [False, *(True for _ in inputs[1:])]


def _moved_axis(node: Node, axis: int, layout: str) -> int:
    """Return where an axis of images, counted in the order of NCHW, stands in a layout."""
    front = node.ndim - 4
    return axis if axis < front else front + layout.index(PLAIN[axis - front])


def _shape(shape: Shape, layout: str) -> Shape:
    """Return a shape whose last four axes are NCHW in the order of a layout."""
    *front, _, _, _, _ = shape
    return (*front, *(shape[len(front) + PLAIN.index(letter)] for letter in layout))


def _four(x: Node) -> Node:
    """Return a node that broadcasts to images with at least four axes; a scalar as it is."""
    return reshaped(x, (1,) * (4 - x.ndim) + x.shape) if 0 < x.ndim < 4 else x


def _permuted(x: Node, have: str, want: str) -> Node:
    """Return images in another order of the last four axes; a reshape where nothing moves."""
    if have == want or not x.ndim:
        return x
    front = x.ndim - 4
    axes = (*range(front), *(front + have.index(letter) for letter in want))
    shape = tuple(x.shape[i] for i in axes)
    long = [i for i in axes if x.shape[i] != 1]
    return reshaped(x, shape) if long == sorted(long) else transpose(x, axes)


def _layouts(graph: Graph) -> dict[Node, str]:
    """Return the new layout of convolutions and poolings, the same for all that are connected."""
    group: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while group[node] is not node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in graph.order:
        if not _carries_images(node):
            continue
        group[node] = node
        for x in node.inputs:
            if x in group:
                group[root(x)] = node
    problems: dict[Node, list[Any]] = {}
    for node in group:
        if isinstance(node.operation, ConvolutionOperation | PoolingOperation):
            problems.setdefault(root(node), []).append(node.attributes["problem"])
    chosen = {
        first: graph.ops.image_layout([each for each in several if isinstance(each, Convolution)])
        for first, several in problems.items()
    }
    return {
        node: chosen[root(node)]
        for node in group
        if isinstance(node.operation, ConvolutionOperation | PoolingOperation)
        and chosen[root(node)] != PLAIN
    }


def _carries_images(node: Node) -> bool:
    if isinstance(node.operation, ConvolutionOperation | PoolingOperation):
        # Another layout is the caller's choice, and is kept.
        return bool(node.attributes["problem"].layout == PLAIN)
    is_elementwise = isinstance(node.operation, Elementwise | Normalise)
    return node.ndim >= 4 and (is_elementwise or node.kind in JOINING)


@register_pass("convolution_relu")
def convolution_relu(graph: Graph) -> Graph:
    """Join a convolution with the relu that alone reads it."""
    readers = graph.readers()

    def join(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.kind != "relu" or node.inputs[0].kind != "conv2d" or readers[node.inputs[0]] != 1:
            return None
        (x,) = inputs
        if x.kind != "conv2d":
            return None
        y = apply("conv2d", *x.inputs, problem=x.attributes["problem"]._replace(relu=True))
        y.name = x.name or node.name
        return y

    return dead_code(rewrite(graph, join))


@register_pass("pooling_relu")
def pooling_relu(graph: Graph) -> Graph:
    """Apply the gradient of a relu to the windows of the max pooling behind it, not to its images.

    The gradient of a max pooling stands where x is the largest element of its window. Setting it to
    0 where x is not above 0 is the same as setting it to 0 for windows whose largest element is not
    above 0, and there are fewer windows than elements.
    """
    readers = graph.readers()
    found = {
        (node.inputs[0], node.attributes["problem"])
        for node in graph.order
        if node.kind == "max_pool2d"
    }

    def swap(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.kind != "where_greater" or node.inputs[0].kind != "max_pool2d_gradient":
            return None
        gradient = node.inputs[0]
        x, least = gradient.inputs[1], inputs[2]
        forward = gradient.attributes["problem"]._replace(kind="max")
        if readers[gradient] != 1 or node.inputs[1] is not x or (x, forward) not in found:
            return None
        if least.kind != CONSTANT or least.size != 1 or least.attributes["value"].any():
            return None
        dy, image = inputs[0].inputs
        largest = apply("max_pool2d", image, **{**gradient.attributes, "problem": forward})
        dy = apply("where_greater", dy, largest, least)
        y = apply("max_pool2d_gradient", dy, image, **gradient.attributes)
        y.name = node.name
        return y

    return dead_code(rewrite(graph, swap))


@register_pass("batch_norm_folding")
def batch_norm_folding(graph: Graph) -> Graph:
    """Fold the scale and shift of each filter into the weights and bias of a convolution.

    So a prediction with batch norm is one convolution for each layer. Where the image is read
    elsewhere too, as in training, nothing is folded.
    """
    readers = graph.readers()

    def fold(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.kind not in ("multiply", "add"):
            return None
        for i, other in ((0, 1), (1, 0)):
            x, by = inputs[i], inputs[other]
            if readers[node.inputs[i]] != 1 or x.kind != "conv2d":
                continue
            problem: Convolution = x.attributes["problem"]
            vector = _of_filters(by, x, problem)
            if vector is None or x.shape != node.shape or problem.relu:
                continue
            image, w, *bias = x.inputs
            if node.kind == "add":
                total = bias[0] + vector if bias else vector
                y = apply("conv2d", image, w, total, problem=problem._replace(bias=True))
            else:
                is_stacked = vector.ndim == 2 or problem.stacked[1]
                if is_stacked and not problem.stacked[1] and problem.models is None:
                    continue
                factor = reshaped(vector, (*vector.shape, 1, 1, 1))
                scaled = [each * vector for each in bias]
                now = problem._replace(stacked=(problem.stacked[0], is_stacked))
                y = apply("conv2d", image, w * factor, *scaled, problem=now)
            y.name = x.name
            return y
        return None

    return dead_code(rewrite(graph, fold))


def _of_filters(x: Node, image: Node, problem: Convolution) -> Node | None:
    """Return `x` as (filters,), or (models, filters), if it has a number for each, else None."""
    shape = (1,) * (4 - x.ndim) + x.shape
    if len(shape) > image.ndim or problem.layout != PLAIN:
        return None
    *front, n, c, height, width = shape
    if c != problem.filters or (n, height, width) != (1, 1, 1):
        return None
    if front and (problem.models is None or front != [problem.models]):
        return None
    return reshaped(x, (*front, c))
