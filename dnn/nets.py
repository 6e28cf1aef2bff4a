"""Networks by name: functions that return a list of layers."""

from __future__ import annotations

from collections.abc import Sequence

from dnn.errors import explains_arguments
from dnn.graph.operations.activations import RECTIFIERS
from dnn.layers import (
    Activation,
    BatchNorm,
    Conv2D,
    Dropout,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Input,
    Layer,
    MaxPool2D,
    Residual,
)

__all__ = ["lenet5", "mlp", "resnet18", "vgg16"]

Image = tuple[int, int, int]


@explains_arguments
def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str = "sigmoid"
) -> list[Layer]:
    """Return the layers of a multilayer perceptron.

    Parameters
    ----------
    inputs : int
        Attributes of a sample.
    hidden : sequence of int
        Units of each hidden layer; empty for a linear model.
    outputs : int
        Classes, or values to predict.
    activation : str
        After each hidden layer.

    Returns
    -------
    list of Layer

    Raises
    ------
    ConfigurationError
        If the activation is unknown or a number of units is less than 1.
    """
    initializer = "he_uniform" if activation in RECTIFIERS else "glorot_uniform"
    layers: list[Layer] = [Input(inputs)]
    for units in hidden:
        layers += [FullyConnected(units, initializer=initializer), Activation(activation)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def lenet5(inputs: Image = (1, 28, 28), outputs: int = 10) -> list[Layer]:
    """Return the layers of LeNet-5, with rectifiers and maxima as it is mostly trained today.

    Parameters
    ----------
    inputs : (channels, height, width)
    outputs : int
        Classes.

    Returns
    -------
    list of Layer

    References
    ----------
    .. [1] LeCun et al., Gradient-based learning applied to document recognition, 1998, section II.
    """
    return [
        Input(*inputs),
        *(Conv2D(6, 5, padding=2, initializer="he_uniform"), Activation("relu"), MaxPool2D(2)),
        *(Conv2D(16, 5, initializer="he_uniform"), Activation("relu"), MaxPool2D(2)),
        Flatten(),
        *(FullyConnected(120, initializer="he_uniform"), Activation("relu")),
        *(FullyConnected(84, initializer="he_uniform"), Activation("relu")),
        FullyConnected(outputs),
    ]


VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Filters of a convolution, and how many stand before each pooling."""


@explains_arguments
def vgg16(
    inputs: Image = (3, 32, 32), outputs: int = 10, *, batch_norm: bool = True
) -> list[Layer]:
    """Return the layers of VGG-16.

    Parameters
    ----------
    inputs : (channels, height, width)
        Of at least 32 x 32.
    outputs : int
        Classes.
    batch_norm : bool
        Behind each convolution, which then has no bias.

    Returns
    -------
    list of Layer
        Where images are 32 x 32, one fully connected layer stands at the end; else three of 4,096
        units and the classes, with dropout, as in the paper.

    References
    ----------
    .. [1] Simonyan and Zisserman, Very deep convolutional networks for large-scale image
       recognition, 2015, table 1, column D.
    """
    layers: list[Layer] = [Input(*inputs)]
    for filters, number in VGG16:
        for _ in range(number):
            layers.append(_convolution(filters, 3, 1, bias=not batch_norm))
            layers += [BatchNorm()] if batch_norm else []
            layers.append(Activation("relu"))
        layers.append(MaxPool2D(2))
    layers.append(Flatten())
    if max(inputs[1:]) >= 64:
        for _ in range(2):
            units = FullyConnected(4096, initializer="he_uniform")
            layers += [units, Activation("relu"), Dropout(0.5)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def resnet18(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ResNet-18.

    Parameters
    ----------
    inputs : (channels, height, width)
        Those below 64 x 64 begin with a window of 3, as is usual with CIFAR; others with one of 7,
        in steps of 2, and a pooling.
    outputs : int
        Classes.

    Returns
    -------
    list of Layer

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, table 1 and section 4.2.
    """
    layers: list[Layer] = [Input(*inputs)]
    if max(inputs[1:]) < 64:
        layers += [_convolution(64, 3, 1), BatchNorm(), Activation("relu")]
    else:
        layers += [_convolution(64, 7, 2), BatchNorm(), Activation("relu")]
        layers.append(MaxPool2D(3, stride=2, padding=1))
    channels = 64
    for filters in (64, 128, 256, 512):
        for i in range(2):
            layers += basic_block(channels, filters, 2 if filters > 64 and i == 0 else 1)
            channels = filters
    return [*layers, GlobalAvgPool2D(), FullyConnected(outputs)]


def basic_block(channels: int, filters: int, stride: int = 1) -> list[Layer]:
    """Return two convolutions with a shortcut past them, trained where it changes the shape.

    Parameters
    ----------
    channels : int
        Of the block's input.
    filters : int
    stride : int
        Of the first convolution.

    Returns
    -------
    list of Layer

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, figure 5, left.
    """
    inside = [
        *(_convolution(filters, 3, stride), BatchNorm(), Activation("relu")),
        *(_convolution(filters, 3, 1), BatchNorm()),
    ]
    return [Residual(inside, _shortcut(channels, filters, stride)), Activation("relu")]


def bottleneck_block(channels: int, filters: int, stride: int = 1) -> list[Layer]:
    """Return convolutions to fewer channels, there, and to four times as many, with a shortcut.

    Parameters
    ----------
    channels : int
        Of the block's input.
    filters : int
        A quarter of the channels that come out.
    stride : int
        Of the convolution in the middle.

    Returns
    -------
    list of Layer

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, figure 5, right.
    """
    inside = [
        *(_convolution(filters, 1, 1), BatchNorm(), Activation("relu")),
        *(_convolution(filters, 3, stride), BatchNorm(), Activation("relu")),
        *(_convolution(4 * filters, 1, 1), BatchNorm()),
    ]
    return [Residual(inside, _shortcut(channels, 4 * filters, stride)), Activation("relu")]


def _shortcut(channels: int, filters: int, stride: int) -> list[Layer] | None:
    if channels == filters and stride == 1:
        return None
    return [_convolution(filters, 1, stride), BatchNorm()]


def _convolution(filters: int, window: int, stride: int, *, bias: bool = False) -> Conv2D:
    """Return a convolution that keeps the size of an image but for its stride."""
    return Conv2D(
        filters,
        window,
        stride=stride,
        padding=window // 2,
        bias=bias,
        initializer="he_normal",
    )
