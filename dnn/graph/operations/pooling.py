"""Pooling of images, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dnn.backend import Ops, Pooling
from dnn.errors import ConfigurationError, ShapeError
from dnn.graph.arguments import check_same_type, describe
from dnn.graph.node import Node, Shape, check_nodes
from dnn.graph.operation import Arrays, Operation, Step, apply, register, stack_all
from dnn.graph.operations.convolution import (
    check_floats,
    does_not_fit,
    image_shape,
    padding_of,
    pair_of,
)

__all__ = ["average_pool2d", "max_pool2d"]


class PoolingOperation(Operation):
    """Base class of poolings and their gradients, which the attribute ``problem`` describes.

    For K models, ``models``, arrays have a leading axis, which is taken together with that of
    images or channels, whichever stands first.
    """

    of_gradient: ClassVar[tuple[str, str]]  # name and kind of problem of the gradient's operation
    contiguous = (0, 1)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        problem: Pooling = attributes["problem"]
        models = attributes.get("models")
        front = () if models is None else (models,)
        *shapes, out = ((*front, *shape) for shape in problem.shapes)
        given = [x.shape for x in inputs]
        dtype = check_same_type(self.name, inputs)
        if given != shapes:
            found = " and ".join(describe(x) for x in inputs)
            wanted = " and ".join(str(shape) for shape in shapes)
            raise ShapeError(self.name, f"{found} are not {wanted}", *given)
        return out, dtype

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        size = ops.pooling(self._of_all(node)).workspace_bytes
        return [((size,), np.dtype(np.uint8))] if size else []

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        problem = self._of_all(node)
        *inputs, out = (
            x.reshape(shape)
            for x, shape in zip((*arrays.inputs, arrays.out), problem.shapes, strict=True)
        )
        space = arrays.workspace[0] if arrays.workspace else None
        return ops.pooling(problem).steps(inputs, out, space)

    def _of_all(self, node: Node) -> Pooling:
        """Return the problem of all models together."""
        problem: Pooling = node.attributes["problem"]
        models = node.attributes.get("models") or 1
        if problem.layout[0] == "C":
            return problem._replace(channels=models * problem.channels)
        return problem._replace(images=models * problem.images)

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        if node.attributes.get("models") is not None:
            return super().with_models(node, inputs, stacked, models)
        problem = node.attributes["problem"]
        return apply(self.name, *stack_all(inputs, stacked, models), problem=problem, models=models)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        """Return the gradient of the first input; x of a largest element is the last one."""
        name, kind = self.of_gradient
        images = node.inputs[-1:] if kind.startswith("max") else ()
        dx = apply(name, dy, *images, problem=node.attributes["problem"]._replace(kind=kind))
        return (dx, *(None for _ in node.inputs[1:]))


@register
class MaxPool2d(PoolingOperation):
    """The largest element of each window; of several the first has the gradient."""

    name = "max_pool2d"
    of_gradient = "max_pool2d_gradient", "max_gradient"


@register
class MaxPool2dGradient(PoolingOperation):
    """The gradient of x from dy and x: dy where the largest element of each window stands."""

    name = "max_pool2d_gradient"
    of_gradient = "max_pool2d_taken", "max_taken"


@register
class MaxPool2dTaken(PoolingOperation):
    """The elements of v that stand where x, of the same shape, is the largest of each window."""

    name = "max_pool2d_taken"
    of_gradient = "max_pool2d_gradient", "max_gradient"


@register
class AveragePool2d(PoolingOperation):
    """The mean of each window."""

    name = "average_pool2d"
    of_gradient = "average_pool2d_gradient", "average_gradient"


@register
class AveragePool2dGradient(PoolingOperation):
    """The gradient of x from dy: the share of each window that an element is in."""

    name = "average_pool2d_gradient"
    of_gradient = "average_pool2d", "average"


def max_pool2d(
    x: Node,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    layout: str = "NCHW",
) -> Node:
    """Return the largest element of each window of images.

    Parameters
    ----------
    x : Node, shape (images, channels, height, width), or in the order of `layout`
        Of float32 or float64.
    window : int or pair of int
    stride : int or pair of int, optional
        Steps between windows; the window itself if left out, so that they do not overlap.
    padding : int, pair of int, or pair of pairs of int
        As for `conv2d`; each less than the window. What it adds is never the largest.
    layout : str
        As for `conv2d`.

    Returns
    -------
    Node, shape (images, channels, rows of windows, columns of windows), or in that order
        The gradient goes to the first largest element of a window, row by row, as in PyTorch.

    Raises
    ------
    ShapeError
        If `x` has not four axes, or the window is larger than the image with its padding.
    ConfigurationError
        If window, stride, padding or layout is not valid.
    DtypeError
        If `x` is not of float32 or float64.
    """
    return _pool("max_pool2d", "max", x, window, stride, padding, layout)


def average_pool2d(
    x: Node,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    layout: str = "NCHW",
    counts_padding: bool = False,
) -> Node:
    """Return the mean of each window of images.

    Parameters
    ----------
    x : Node, shape (images, channels, height, width), or in the order of `layout`
        Of float32 or float64.
    window : int or pair of int
    stride : int or pair of int, optional
        Steps between windows; the window itself if left out, so that they do not overlap.
    padding : int, pair of int, or pair of pairs of int
        As for `conv2d`; each less than the window.
    layout : str
        As for `conv2d`.
    counts_padding : bool
        Whether the zeros around an image count as elements, as PyTorch's do; else a mean is that
        of the elements of the image alone.

    Returns
    -------
    Node, shape (images, channels, rows of windows, columns of windows), or in that order

    Raises
    ------
    ShapeError, ConfigurationError, DtypeError
        As for `max_pool2d`.
    """
    return _pool("average_pool2d", "average", x, window, stride, padding, layout, counts_padding)


def _pool(
    where: str,
    kind: str,
    x: Node,
    window: object,
    stride: object,
    padding: object,
    layout: str,
    counts_padding: bool = False,
) -> Node:
    check_nodes(where, x)
    check_floats(where, x.dtype)
    images, channels, height, width = image_shape(where, x, layout)
    across = pair_of(where, "window", window, 1)
    problem = Pooling(
        kind,
        layout,
        x.dtype.str[1:],
        images,
        channels,
        (height, width),
        across,
        across if stride is None else pair_of(where, "stride", stride, 1),
        padding_of(where, padding),
        counts_padding,
    )
    if any(max(pad) >= n for pad, n in zip(problem.padding, across, strict=True)):
        message = f"padding {padding!r} must be less than the window {across[0]} x {across[1]}"
        raise ConfigurationError(f"{where}: {message}")
    if min(problem.out_size) < 1:
        message = does_not_fit(across, problem.size, (1, 1), problem.padding)
        raise ShapeError(where, message, x.shape, across)
    return apply(where, x, problem=problem)
