"""Layers of images: a sample is (channels, height, width)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, ShapeError, check_count, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape
from dnn.graph.operations.convolution import does_not_fit, padding_of, pair_of
from dnn.initializers import Initializer, initializer_of, zeros
from dnn.layers.layer import Layer

__all__ = [
    "AvgPool2D",
    "ChannelShuffle",
    "ChannelSlice",
    "Conv2D",
    "GlobalAvgPool2D",
    "MaxPool2D",
    "Upsample2D",
]

Pair = tuple[int, int]
Padding = str | int | Sequence[int] | Sequence[Sequence[int]]


def check_image(layer: Layer, shape: Shape) -> None:
    """Raise `ShapeError` where a sample is no image."""
    if len(shape) != 3:
        message = f"a sample must be (channels, height, width), but its shape is {shape}"
        raise ShapeError(layer.name, message, shape)


class Windows(Layer):
    """Base class of convolution and pooling: window, stride, dilation and padding of images.

    `padding` is ``"valid"``: none; ``"same"``: so much that there are as many windows as steps of
    the stride in the image, an odd zero being added below and to the right, as in TensorFlow; or
    numbers, as for `dnn.graph.conv2d`.
    """

    def __init__(self, window: object, stride: object, dilation: object, padding: object) -> None:
        super().__init__()
        name = type(self).__name__
        self.window = pair_of(name, "window", window, 1)
        self.stride = self.window if stride is None else pair_of(name, "stride", stride, 1)
        self.dilation = pair_of(name, "dilation", dilation, 1)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                message = f"padding must be 'same', 'valid' or numbers, not {padding!r}"
                raise ConfigurationError(f"{name}: {message}")
        else:
            padding_of(name, padding)
        self.padding = padding

    def padding_for(self, shape: Shape) -> tuple[Pair, Pair]:
        """Return the zeros above and below, left and right of images, whose shape is checked."""
        check_image(self, shape)
        wide = [(n - 1) * d + 1 for n, d in zip(self.window, self.dilation, strict=True)]
        size = shape[1], shape[2]
        if self.padding == "valid":
            padding = (0, 0), (0, 0)
        elif self.padding == "same":
            totals = (
                max((-(-n // step) - 1) * step + reach - n, 0)
                for n, step, reach in zip(size, self.stride, wide, strict=True)
            )
            rows, columns = ((total // 2, total - total // 2) for total in totals)
            padding = rows, columns
        else:
            padding = padding_of(self.name, self.padding)
        if any(n + sum(pad) < reach for n, pad, reach in zip(size, padding, wide, strict=True)):
            message = does_not_fit(self.window, size, self.dilation, padding)
            raise ShapeError(self.name, message, shape, self.window)
        return padding


class Conv2D(Windows):
    """Convolution of images with filters, plus a bias for each filter.

    Samples are (channels, height, width), and become (filters, rows, columns).

    Parameters
    ----------
    filters : int
    window : int or pair of int
        Rows and columns of a filter.
    stride, dilation : int or pair of int
        Steps between windows, and between the elements of a window.
    padding : ``"valid"``, ``"same"``, int, pair of int, or pair of pairs of int
        Zeros around an image: none; so many that there are ``ceil(height / stride)`` rows and
        ``ceil(width / stride)`` columns; or that many, as for `dnn.graph.conv2d`.
    groups : int
        Each filter sees the channels of its group; with a group for each channel, one channel.
    bias : bool
    initializer : str or Initializer
        Initializer of the weights, of shape (filters, channels / groups, rows, columns); a function
        is given (rows, columns, channels / groups, filters). The bias starts from 0.

    Raises
    ------
    ConfigurationError
        If an argument is not valid, such as a stride of 0. When the network is built, if the groups
        do not divide the channels, and `ShapeError` if samples are no images, or smaller than a
        window.

    References
    ----------
    .. [1] LeCun et al., Gradient-based learning applied to document recognition, 1998, section II.
    """

    @explains_arguments
    def __init__(
        self,
        filters: int,
        window: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: Padding = "valid",
        groups: int = 1,
        bias: bool = True,
        initializer: str | Initializer = "glorot_uniform",
    ) -> None:
        super().__init__(window, stride, dilation, padding)
        self.filters = check_count("Conv2D: filters", filters)
        self.groups = check_count("Conv2D: groups", groups)
        if self.filters % self.groups:
            message = f"groups = {self.groups} does not divide {self.filters} filters"
            raise ConfigurationError(f"Conv2D: {message}")
        self.with_bias = bias
        self.initializer = initializer

    def build(self, shape: Shape) -> None:
        """Declare weights and bias."""
        self.zeros_around = self.padding_for(shape)
        if shape[0] % self.groups:
            message = f"groups = {self.groups} does not divide {shape[0]} channels"
            raise ConfigurationError(f"{self.name}: {message}")
        weights = (self.filters, shape[0] // self.groups, *self.window)
        initializer = FilterInitializer(initializer_of(self.initializer))
        self.weight = self.parameter("weight", weights, initializer)
        if self.with_bias:
            self.bias = self.parameter("bias", (self.filters,), zeros)

    def forward(self, x: Node) -> Node:
        """Return the convolution of `x`."""
        return operations.conv2d(
            x,
            self.weight,
            self.bias if self.with_bias else None,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.zeros_around,
            groups=self.groups,
        )


@dataclass(frozen=True)
class FilterInitializer:
    """An initializer for filters, made from an initializer that takes units along the last axis."""

    initializer: Initializer

    def __call__(self, generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return weights of shape (filters, channels, rows, columns), or of one axis less."""
        filters, channels, *window = shape
        drawn = self.initializer(generator, (*window, channels, filters), dtype)
        return np.ascontiguousarray(drawn.transpose(-1, -2, *range(drawn.ndim - 2)))


class _Pooling(Windows):
    """Base class of poolings: windows do not overlap unless a stride is given."""

    @explains_arguments
    def __init__(
        self,
        window: int | Sequence[int] = 2,
        *,
        stride: int | Sequence[int] | None = None,
        padding: Padding = "valid",
    ) -> None:
        super().__init__(window, stride, 1, padding)

    def build(self, shape: Shape) -> None:
        """Compute the padding; `ShapeError` if a window does not fit into the image."""
        self.around = self.padding_for(shape)
        if any(max(pad) >= n for pad, n in zip(self.around, self.window, strict=True)):
            rows, columns = self.window
            message = f"padding {self.padding!r} must be less than the window {rows} x {columns}"
            raise ConfigurationError(f"{self.name}: {message}")


class MaxPool2D(_Pooling):
    """The largest element of each window, channel by channel.

    Parameters
    ----------
    window : int or pair of int
    stride : int or pair of int, optional
        The window itself if left out, so that windows do not overlap.
    padding : ``"valid"``, ``"same"``, int, pair of int, or pair of pairs of int
        As for `Conv2D`, each less than the window; padding is never the largest element.

    Raises
    ------
    ConfigurationError
        If an argument is not valid. When the network is built, `ShapeError` if samples are no
        images, or smaller than a window.
    """

    def forward(self, x: Node) -> Node:
        """Return the largest element of each window of `x`."""
        return operations.max_pool2d(x, self.window, stride=self.stride, padding=self.around)


class AvgPool2D(_Pooling):
    """The mean of each window, channel by channel.

    Parameters
    ----------
    window, stride, padding
        As for `MaxPool2D`; errors are the same too.
    counts_padding : bool
        Whether the zeros around an image count as elements of a mean, as they do in PyTorch.
    """

    @explains_arguments
    def __init__(
        self,
        window: int | Sequence[int] = 2,
        *,
        stride: int | Sequence[int] | None = None,
        padding: Padding = "valid",
        counts_padding: bool = False,
    ) -> None:
        super().__init__(window, stride=stride, padding=padding)
        self.counts_padding = bool(counts_padding)

    def forward(self, x: Node) -> Node:
        """Return the mean of each window of `x`."""
        counts = self.counts_padding
        return operations.average_pool2d(
            x, self.window, stride=self.stride, padding=self.around, counts_padding=counts
        )


class GlobalAvgPool2D(Layer):
    """The mean of each channel: samples (channels, height, width) become vectors."""

    def build(self, shape: Shape) -> None:
        """Raise `ShapeError` unless samples are images."""
        check_image(self, shape)

    def forward(self, x: Node) -> Node:
        """Return the means, shape (batch, channels)."""
        return operations.mean(x, (2, 3))


class Upsample2D(Layer):
    """Images made larger by repeating each element: interpolation by the nearest neighbour.

    Parameters
    ----------
    factor : int or pair of int
        How often each element stands in the result, down and to the right.
    """

    @explains_arguments
    def __init__(self, factor: int | Sequence[int] = 2) -> None:
        super().__init__()
        self.factor = pair_of("Upsample2D", "factor", factor, 1)

    def build(self, shape: Shape) -> None:
        """Raise `ShapeError` unless samples are images."""
        check_image(self, shape)

    def forward(self, x: Node) -> Node:
        """Return `x` in shape (batch, channels, factor height, factor width)."""
        images, channels, height, width = x.shape
        down, right = self.factor
        apart = operations.reshape(x, (images, channels, height, 1, width, 1))
        wide = operations.broadcast_to(apart, (images, channels, height, down, width, right))
        return operations.reshape(wide, (images, channels, height * down, width * right))


class ChannelShuffle(Layer):
    """The channels of images in another order, so that groups of convolutions mix [1]_.

    Channels (0, 1, 2, 3, 4, 5) become (0, 3, 1, 4, 2, 5) with two groups.

    Parameters
    ----------
    groups : int

    Raises
    ------
    ConfigurationError
        When the network is built, if the groups do not divide the channels, and `ShapeError` if
        samples are no images.

    References
    ----------
    .. [1] Zhang et al., ShuffleNet: an extremely efficient convolutional neural network for mobile
       devices, 2018, section 3.1.
    """

    @explains_arguments
    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups = check_count("ChannelShuffle: groups", groups)

    def build(self, shape: Shape) -> None:
        """Raise an error unless the groups divide the channels of images."""
        check_image(self, shape)
        if shape[0] % self.groups:
            message = f"groups = {self.groups} does not divide {shape[0]} channels"
            raise ConfigurationError(f"{self.name}: {message}")
        self._shape = shape

    @property
    def sample_shape(self) -> Shape:
        """Channels, height and width of an image."""
        return self._shape

    def forward(self, x: Node) -> Node:
        """Return `x` with the first channel of each group first, then the second, and so on."""
        images, channels, *size = x.shape
        apart = operations.reshape(x, (images, self.groups, channels // self.groups, *size))
        return operations.reshape(operations.transpose(apart, (0, 2, 1, 3, 4)), x.shape)


class ChannelSlice(Layer):
    """Some of the channels of images, one behind the other.

    Parameters
    ----------
    channels : int
        How many.
    start : int
        The first of them, counted from 0.

    Raises
    ------
    ConfigurationError
        If a number is out of its range; when the network is built, `ShapeError` if samples are no
        images of so many channels.
    """

    @explains_arguments
    def __init__(self, channels: int, start: int = 0) -> None:
        super().__init__()
        self.channels = check_count("ChannelSlice: channels", channels)
        self.start = check_count("ChannelSlice: start", start, 0)

    def build(self, shape: Shape) -> None:
        """Raise `ShapeError` unless samples are images with these channels."""
        check_image(self, shape)
        stop = self.start + self.channels
        if shape[0] < stop:
            message = f"a sample has {shape[0]} channels, and {self.start} .. {stop - 1} are taken"
            raise ShapeError(self.name, message, shape, (stop, *shape[1:]))

    def forward(self, x: Node) -> Node:
        """Return these channels of `x`."""
        return x[:, self.start : self.start + self.channels]
