"""Convolution of images, and its two gradients, which are convolutions in turn."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Convolution, Ops
from dnn.backend.convolution import LAYOUTS
from dnn.errors import ConfigurationError, DtypeError, ShapeError, unknown_name
from dnn.graph.arguments import check_same_type, describe
from dnn.graph.node import Node, Shape, check_nodes, constant
from dnn.graph.operation import Arrays, Operation, Step, apply, register, stack_all
from dnn.graph.operations.reductions import sum as sum_over

__all__ = ["conv2d", "conv2d_data_gradient", "conv2d_weight_gradient"]

Pair = tuple[int, int]


class ConvolutionOperation(Operation):
    """Base class of convolution and its gradients, which the attribute ``problem`` describes."""

    contiguous = (0, 1, 2)

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        problem: Convolution = attributes["problem"]
        *shapes, out = problem.shapes
        dtype = check_same_type(self.name, inputs)
        if problem.bias:
            of_bias = inputs[2].shape
            models = () if problem.models is None or len(of_bias) == 1 else (problem.models,)
            shapes.append((*models, problem.filters))
        given = [x.shape for x in inputs]
        if min(problem.out_size) < 1:
            message = does_not_fit(problem.window, problem.size, problem.dilation, problem.padding)
            raise ShapeError(self.name, message, given[0], given[1])
        if given != shapes:
            found = " and ".join(describe(x) for x in inputs)
            wanted = " and ".join(str(shape) for shape in shapes)
            raise ShapeError(self.name, f"{found} are not {wanted}", *given)
        return out, dtype

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        size = ops.convolution(node.attributes["problem"]).workspace_bytes
        return [((size,), np.dtype(np.uint8))] if size else []

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        routine = ops.convolution(node.attributes["problem"])
        space = arrays.workspace[0] if arrays.workspace else None
        return routine.steps(arrays.inputs, arrays.out, space)

    def multiply_adds(self, node: Node) -> int:
        """Return as many for the gradients as for the convolution itself."""
        kind = node.attributes["problem"].kind
        y = {"data": node.inputs[0], "weights": node.inputs[1]}.get(kind, node)
        w = node if kind == "weights" else node.inputs[1]
        return y.size * math.prod(w.shape[-3:])

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        problem: Convolution = node.attributes["problem"]
        if problem.models is not None:
            return super().with_models(node, inputs, stacked, models)
        first, second = stacked[:2]
        if not (first or second):  # the bias alone is stacked
            inputs = [inputs[0], *stack_all(inputs[1:2], [False], models), *inputs[2:]]
            second = True
        problem = problem._replace(models=models, stacked=(first, second))
        return apply(self.name, *inputs, problem=problem)


def _changed(problem: Convolution, kind: str) -> Convolution:
    """Return the problem of a gradient of a problem: of the same shapes, and without a bias."""
    return problem._replace(kind=kind, bias=False, relu=False)


@register
class Conv2d(ConvolutionOperation):
    """The convolution of x with w, plus a bias for each filter.

    The gradients are `conv2d_data_gradient` of (dy, w), `conv2d_weight_gradient` of (x, dy), and
    the sum of dy.
    """

    name = "conv2d"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        problem: Convolution = node.attributes["problem"]
        _one_model(node)
        x, w, *bias = node.inputs
        if problem.relu:
            dy = apply("where_greater", dy, node, constant(0.0, dy.dtype))
        dx = apply("conv2d_data_gradient", dy, w, problem=_changed(problem, "data"))
        dw = apply("conv2d_weight_gradient", x, dy, problem=_changed(problem, "weights"))
        if not bias:
            return dx, dw
        axes = [i for i, letter in enumerate(problem.layout) if letter != "C"]
        return dx, dw, sum_over(dy, axes)


@register
class Conv2dDataGradient(ConvolutionOperation):
    """The gradient of x, from dy and w: the transpose of the convolution, seen from x."""

    name = "conv2d_data_gradient"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        problem: Convolution = node.attributes["problem"]
        _one_model(node)
        of_y, w = node.inputs
        return (
            apply("conv2d", dy, w, problem=_changed(problem, "forward")),
            apply("conv2d_weight_gradient", dy, of_y, problem=_changed(problem, "weights")),
        )


@register
class Conv2dWeightGradient(ConvolutionOperation):
    """The gradient of w, from x and dy."""

    name = "conv2d_weight_gradient"

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        problem: Convolution = node.attributes["problem"]
        _one_model(node)
        x, of_y = node.inputs
        return (
            apply("conv2d_data_gradient", of_y, dy, problem=_changed(problem, "data")),
            apply("conv2d", x, dy, problem=_changed(problem, "forward")),
        )


def _one_model(node: Node) -> None:
    """Raise `ConfigurationError` for a gradient of a node that `with_models` has made."""
    if node.attributes["problem"].models is not None:
        raise ConfigurationError(f"{node.kind}: gradients are written before the axis of models")


def conv2d(
    x: Node,
    w: Node,
    bias: Node | None = None,
    *,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    groups: int = 1,
    layout: str = "NCHW",
) -> Node:
    """Return the convolution of images with filters.

    ::

        y[n, f, i, j] = bias[f] + sum(x[n, c, i stride + r dilation, j stride + s dilation]
                                      w[f, c, r, s])

    over channels c, and r and s within the window, where x beyond its border is 0. The window is
    not flipped, as usual with networks [1]_.

    Parameters
    ----------
    x : Node, shape (images, channels, height, width), or in the order of `layout`
        Of float32 or float64.
    w : Node, shape (filters, channels / groups, rows, columns)
    bias : Node, shape (filters,), optional
    stride, dilation : int or pair of int
        Steps between windows, and between the elements of a window; down and to the right.
    padding : int, pair of int, or pair of pairs of int
        Zeros around x: on all sides; above and below, left and right; or ``((top, bottom),
        (left, right))``.
    groups : int
        Filters and channels are cut into so many groups, and a filter sees the channels of its
        group.
    layout : str
        ``"NCHW"``, ``"NHWC"`` or ``"CHWN"``: the order of the axes of x and of the result.

    Returns
    -------
    Node, shape (images, filters, rows of windows, columns of windows), or in the order of `layout`

    Raises
    ------
    ShapeError
        If the shapes do not fit, or the window is larger than the image with its padding.
    ConfigurationError
        If stride, dilation, padding, groups or layout is not valid, or `groups` does not divide
        channels and filters.
    DtypeError
        If the types differ, or are not of float32 or float64.

    References
    ----------
    .. [1] Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
    """
    check_nodes("conv2d", x, w, *(() if bias is None else (bias,)))
    images, channels, *size = image_shape("conv2d", x, layout)
    filters, per_group, *window = _weight_shape("conv2d", w)
    problem = _problem(
        *("conv2d", x.dtype, layout, "forward", stride, dilation, padding, groups),
        *(images, channels, size, filters, window),
    )
    if per_group * groups != channels:
        message = (
            f"{describe(x)} has {channels} channels, but {describe(w)} takes {per_group * groups}"
        )
        raise ShapeError("conv2d", message, x.shape, w.shape)
    if bias is None:
        return apply("conv2d", x, w, problem=problem)
    return apply("conv2d", x, w, bias, problem=problem._replace(bias=True))


def conv2d_data_gradient(
    dy: Node,
    w: Node,
    *,
    size: Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    groups: int = 1,
    layout: str = "NCHW",
) -> Node:
    """Return the gradient of a convolution's images; also called transposed convolution.

    Parameters
    ----------
    dy : Node, shape (images, filters, rows of windows, columns of windows)
        The gradient of the result, in the order of `layout`.
    w : Node, shape (filters, channels / groups, rows, columns)
    size : pair of int
        Height and width of the images.
    stride, dilation, padding, groups, layout
        As for `conv2d`.

    Returns
    -------
    Node, shape (images, channels, height, width), or in the order of `layout`

    Raises
    ------
    ShapeError, ConfigurationError, DtypeError
        As for `conv2d`.
    """
    name = "conv2d_data_gradient"
    check_nodes(name, dy, w)
    images, *_ = image_shape(name, dy, layout)
    filters, per_group, *window = _weight_shape(name, w)
    count = _integer(name, "groups", groups, 1)
    problem = _problem(
        *(name, dy.dtype, layout, "data", stride, dilation, padding, count),
        *(images, per_group * count, size, filters, window),
    )
    return apply(name, dy, w, problem=problem)


def conv2d_weight_gradient(
    x: Node,
    dy: Node,
    *,
    window: Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    groups: int = 1,
    layout: str = "NCHW",
) -> Node:
    """Return the gradient of a convolution's weights.

    Parameters
    ----------
    x : Node, shape (images, channels, height, width), or in the order of `layout`
    dy : Node, shape (images, filters, rows of windows, columns of windows)
        The gradient of the result, in the order of `layout`.
    window : pair of int
        Rows and columns of the window.
    stride, dilation, padding, groups, layout
        As for `conv2d`.

    Returns
    -------
    Node, shape (filters, channels / groups, rows, columns)

    Raises
    ------
    ShapeError, ConfigurationError, DtypeError
        As for `conv2d`.
    """
    name = "conv2d_weight_gradient"
    check_nodes(name, x, dy)
    images, channels, *size = image_shape(name, x, layout)
    _, filters, *_ = image_shape(name, dy, layout)
    problem = _problem(
        *(name, x.dtype, layout, "weights", stride, dilation, padding, groups),
        *(images, channels, size, filters, window),
    )
    return apply(name, x, dy, problem=problem)


def _problem(
    where: str,
    dtype: np.dtype[Any],
    layout: str,
    kind: str,
    stride: object,
    dilation: object,
    padding: object,
    groups: object,
    images: int,
    channels: int,
    size: Sequence[int],
    filters: int,
    window: Sequence[int],
) -> Convolution:
    """Return the description of a convolution from its arguments, which are checked."""
    check_floats(where, dtype)
    count = _integer(where, "groups", groups, 1)
    if channels % count or filters % count:
        message = f"groups = {count} does not divide {channels} channels and {filters} filters"
        raise ConfigurationError(f"{where}: {message}")
    return Convolution(
        kind,
        layout,
        dtype.str[1:],
        None,
        (False, False),
        images,
        channels,
        pair_of(where, "size", size, 1),
        filters,
        pair_of(where, "window", window, 1),
        pair_of(where, "stride", stride, 1),
        pair_of(where, "dilation", dilation, 1),
        padding_of(where, padding),
        count,
    )


def check_floats(where: str, dtype: np.dtype[Any]) -> None:
    """Raise `DtypeError` unless elements are of float32 or float64, as image routines need."""
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise DtypeError(f"{where}: of float32 or float64, not {dtype}: see dnn.graph.cast")


def pair_of(where: str, name: str, value: object, least: int) -> Pair:
    """Return one integer or two as a pair: down and to the right.

    Raises `ConfigurationError`, which begins with `where`, if `value` is neither, or an integer is
    below `least`.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise ConfigurationError(f"{where}: {name} is one integer or two, not {value!r}")
        return _integer(where, name, value[0], least), _integer(where, name, value[1], least)
    number = _integer(where, name, value, least)
    return number, number


def padding_of(where: str, padding: object) -> tuple[Pair, Pair]:
    """Return a padding as ``((top, bottom), (left, right))``."""
    if isinstance(padding, Sequence) and not isinstance(padding, str) and len(padding) == 2:
        first, second = padding
        return pair_of(where, "padding", first, 0), pair_of(where, "padding", second, 0)
    both = pair_of(where, "padding", padding, 0)
    return both, both


def _integer(where: str, name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        message = f"{name} must be an integer of at least {least}, or a pair, not {value!r}"
        raise ConfigurationError(f"{where}: {message}")
    return number


def image_shape(where: str, x: Node, layout: str) -> tuple[int, ...]:
    """Return the shape of images in the order of NCHW."""
    if layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    if x.ndim != 4:
        raise ShapeError(where, f"{describe(x)} has not the four axes {layout}", x.shape)
    return tuple(x.shape[layout.index(letter)] for letter in "NCHW")


def _weight_shape(where: str, w: Node) -> Shape:
    if w.ndim != 4:
        message = f"{describe(w)} has not the axes of filters, channels, rows and columns"
        raise ShapeError(where, message, w.shape)
    return w.shape


def does_not_fit(window: Pair, size: Pair, dilation: Pair, padding: tuple[Pair, Pair]) -> str:
    """Return the message that a window does not fit into an image."""
    wide = " x ".join(str((n - 1) * d + 1) for n, d in zip(window, dilation, strict=True))
    inside = " x ".join(str(n + sum(pad)) for n, pad in zip(size, padding, strict=True))
    apart = f", {wide} with its dilation," if max(dilation) > 1 else ""
    padded = f", {inside} with its padding" if any(map(any, padding)) else ""
    rows, columns = window
    height, width = size
    message = f"a window of {rows} x {columns}{apart} is larger than an image of"
    return f"{message} {height} x {width}{padded}"
