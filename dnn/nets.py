"""Networks by name: functions that return a list of layers.

Networks of images are those of ImageNet. For images below 64 x 64, such as those of MNIST and
CIFAR, they have other first layers, which keep the few pixels, and VGG and AlexNet other last
layers; each function documents them. Where it says nothing else, the parameters are

inputs : (channels, height, width)
outputs : int
    Classes.

and a `ConfigurationError` is raised if `inputs` are not three numbers of at least 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph.operations.activations import RECTIFIERS
from dnn.layers import (
    Activation,
    AvgPool2D,
    BatchNorm,
    Concat,
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

__all__ = [
    "alexnet",
    "densenet121",
    "lenet5",
    "mlp",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "vgg16",
]

Image = tuple[int, int, int]


def input_of(inputs: Image) -> Input:
    """Return the `Input` for images; `ConfigurationError` if `inputs` are not three integers."""
    try:
        channels, height, width = inputs
        return Input(operator.index(channels), operator.index(height), operator.index(width))
    except (TypeError, ValueError):
        message = f"inputs must be (channels, height, width), not {inputs!r}"
        raise ConfigurationError(message) from None


@explains_arguments
def mlp(
    inputs: int | Sequence[int],
    hidden: Sequence[int],
    outputs: int,
    activation: str = "sigmoid",
) -> list[Layer]:
    """Return the layers of a multilayer perceptron.

    Parameters
    ----------
    inputs : int or sequence of int
        Attributes of a sample, or its shape: then it is flattened first.
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
        If the activation is unknown, a number of units is less than 1, or `inputs` is no shape.
    """
    initializer = "he_uniform" if activation in RECTIFIERS else "glorot_uniform"
    lengths = inputs if isinstance(inputs, Sequence) else [inputs]
    try:
        shape = [operator.index(length) for length in lengths]
    except (TypeError, ValueError):
        message = f"inputs must be a number of attributes or a shape, not {inputs!r}"
        raise ConfigurationError(f"mlp: {message}") from None
    layers: list[Layer] = [Input(*shape)]
    if len(shape) > 1:
        layers.append(Flatten())
    for units in hidden:
        layers += [FullyConnected(units, initializer=initializer), Activation(activation)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def lenet5(inputs: Image = (1, 28, 28), outputs: int = 10) -> list[Layer]:
    """Return the layers of LeNet-5, with ReLU and max pooling as it is mostly trained today.

    References
    ----------
    .. [1] LeCun et al., Gradient-based learning applied to document recognition, 1998, section II.
    """
    return [
        input_of(inputs),
        *(Conv2D(6, 5, padding=2, initializer="he_uniform"), Activation("relu"), MaxPool2D(2)),
        *(Conv2D(16, 5, initializer="he_uniform"), Activation("relu"), MaxPool2D(2)),
        Flatten(),
        *(FullyConnected(120, initializer="he_uniform"), Activation("relu")),
        *(FullyConnected(84, initializer="he_uniform"), Activation("relu")),
        FullyConnected(outputs),
    ]


@explains_arguments
def alexnet(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of AlexNet, with the numbers of filters of the later form for one GPU.

    Images below 64 x 64 begin with a window of 5 in steps of 1, and have one fully connected layer
    at the end. Larger images, of at least 63 x 63, begin with a window of 11 in steps of 4, and end
    in two layers of 4,096 units and one of the classes, with dropout, as in the paper; ImageNet's
    are 224 x 224.

    References
    ----------
    .. [1] Krizhevsky et al., ImageNet classification with deep convolutional neural networks, 2012.
    .. [2] Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014,
       section 3.
    """
    layers: list[Layer] = [input_of(inputs)]
    is_small = are_small(inputs)
    window, stride, padding = (5, 1, 2) if is_small else (11, 4, 2)
    first = Conv2D(64, window, stride=stride, padding=padding, initializer="he_normal")
    layers += [first, Activation("relu"), _halving(is_small)]
    layers += [convolution(192, 5, 1, bias=True), Activation("relu"), _halving(is_small)]
    for filters in (384, 256, 256):
        layers += [convolution(filters, 3, 1, bias=True), Activation("relu")]
    layers += [_halving(is_small), Flatten()]
    for _ in range(0 if is_small else 2):
        units = FullyConnected(4096, initializer="he_uniform")
        layers += [Dropout(0.5), units, Activation("relu")]
    return [*layers, FullyConnected(outputs)]


def are_small(inputs: Image) -> bool:
    """Whether images are below 64 x 64, for which networks have other first layers."""
    return max(inputs[1:]) < 64


def _halving(is_small: bool) -> MaxPool2D:
    """Return AlexNet's pooling, whose windows overlap; small images keep their borders."""
    return MaxPool2D(3, stride=2, padding=1 if is_small else 0)


VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Number of filters, and number of convolutions before a pooling, of each block of VGG-16."""


@explains_arguments
def vgg16(
    inputs: Image = (3, 32, 32), outputs: int = 10, *, batch_norm: bool = True
) -> list[Layer]:
    """Return the layers of VGG-16.

    Parameters
    ----------
    inputs : (channels, height, width)
        Images below 32 x 32 are pooled to half their size rounded up, so that MNIST's 28 x 28 fit.
    outputs : int
        Classes.
    batch_norm : bool
        Put a `BatchNorm` behind each convolution, which then has no bias.

    Returns
    -------
    list of Layer
        Where images are below 64 x 64, one fully connected layer stands at the end; else two of
        4,096 units and one of the classes, with dropout, as in the paper.

    Raises
    ------
    ConfigurationError
        If `inputs` are not three numbers of at least 1.

    References
    ----------
    .. [1] Simonyan and Zisserman, Very deep convolutional networks for large-scale image
       recognition, 2015, table 1, column D.
    """
    layers: list[Layer] = [input_of(inputs)]
    for filters, number in VGG16:
        for _ in range(number):
            layers.append(convolution(filters, 3, 1, bias=not batch_norm))
            layers += [BatchNorm()] if batch_norm else []
            layers.append(Activation("relu"))
        layers.append(MaxPool2D(2, padding="same" if min(inputs[1:]) < 32 else "valid"))
    layers.append(Flatten())
    for _ in range(0 if are_small(inputs) else 2):
        units = FullyConnected(4096, initializer="he_uniform")
        layers += [units, Activation("relu"), Dropout(0.5)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def resnet18(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ResNet-18.

    Images below 64 x 64 begin with a window of 3, as is usual with CIFAR; larger images with a
    window of 7, in steps of 2, and a pooling.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, table 1 and section 4.2.
    """
    return _resnet(inputs, outputs, (2, 2, 2, 2), basic_block, 1)


@explains_arguments
def resnet50(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ResNet-50.

    The stride of a block is in its convolution of 3 x 3, as in PyTorch ("version 1.5"). Images
    below 64 x 64 are as for `resnet18`.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, table 1 and section 4.1.
    """
    return _resnet(inputs, outputs, (3, 4, 6, 3), bottleneck_block, 4)


@explains_arguments
def resnext50_32x4d(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ResNeXt-50, whose convolutions have 32 groups.

    Images below 64 x 64 are as for `resnet18`.

    References
    ----------
    .. [1] Xie et al., Aggregated residual transformations for deep neural networks, 2017, table 1.
    """
    return _resnet(inputs, outputs, (3, 4, 6, 3), _grouped_block, 4)


def _grouped_block(channels: int, filters: int, stride: int = 1) -> list[Layer]:
    return bottleneck_block(channels, filters, stride, groups=32, width=2 * filters)


def _resnet(
    inputs: Image,
    outputs: int,
    blocks: Sequence[int],
    block: Callable[[int, int, int], list[Layer]],
    widening: int,
) -> list[Layer]:
    layers = _first_layers(inputs)
    channels = 64
    for stage, number in enumerate(blocks):
        filters = 64 * 2**stage
        for i in range(number):
            layers += block(channels, filters, 2 if stage and i == 0 else 1)
            channels = widening * filters
    return [*layers, GlobalAvgPool2D(), FullyConnected(outputs)]


def _first_layers(inputs: Image) -> list[Layer]:
    """Return the first layers of residual and dense networks, which put out 64 channels."""
    layers: list[Layer] = [input_of(inputs)]
    if are_small(inputs):
        return [*layers, convolution(64, 3, 1), BatchNorm(), Activation("relu")]
    layers += [convolution(64, 7, 2), BatchNorm(), Activation("relu")]
    return [*layers, MaxPool2D(3, stride=2, padding=1)]


@explains_arguments
def densenet121(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of DenseNet-121.

    Four blocks of `Concat` layers, each of which adds 32 channels, with half the channels and a
    quarter of the pixels between blocks. Images below 64 x 64 are as for `resnet18`.

    References
    ----------
    .. [1] Huang et al., Densely connected convolutional networks, 2017, table 1.
    """
    layers = _first_layers(inputs)
    channels = 64
    for number in (6, 12, 24, 16):
        if channels > 64:
            channels //= 2
            layers += [BatchNorm(), Activation("relu"), convolution(channels, 1, 1), AvgPool2D(2)]
        for _ in range(number):
            layers.append(dense_layer(32))
            channels += 32
    return [*layers, BatchNorm(), Activation("relu"), GlobalAvgPool2D(), FullyConnected(outputs)]


def dense_layer(filters: int) -> Concat:
    """Return a layer that adds `filters` channels, by convolutions of 1 x 1 and of 3 x 3 [1]_.

    References
    ----------
    .. [1] Huang et al., Densely connected convolutional networks, 2017, section 3, "bottleneck".
    """
    return Concat(
        [
            *(BatchNorm(), Activation("relu"), convolution(4 * filters, 1, 1)),
            *(BatchNorm(), Activation("relu"), convolution(filters, 3, 1)),
        ]
    )


def basic_block(channels: int, filters: int, stride: int = 1) -> list[Layer]:
    """Return two 3 x 3 convolutions with a shortcut, which is trained if the shape changes [1]_.

    `channels` are those of the input, and `stride` is that of the first convolution.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, figure 5, left.
    """
    inside = [
        *(convolution(filters, 3, stride), BatchNorm(), Activation("relu")),
        *(convolution(filters, 3, 1), BatchNorm()),
    ]
    return [Residual(inside, _shortcut(channels, filters, stride)), Activation("relu")]


def bottleneck_block(
    channels: int, filters: int, stride: int = 1, *, groups: int = 1, width: int | None = None
) -> list[Layer]:
    """Return convolutions of 1 x 1, 3 x 3 and, to 4 times the filters, 1 x 1, and a shortcut [1]_.

    `channels` are those of the input, and `stride` is that of the convolution in the middle, which
    has `groups`; `width`, if given, are the filters of the first two.

    References
    ----------
    .. [1] He et al., Deep residual learning for image recognition, 2016, figure 5, right.
    """
    width = filters if width is None else width
    inside = [
        *(convolution(width, 1, 1), BatchNorm(), Activation("relu")),
        *(convolution(width, 3, stride, groups=groups), BatchNorm(), Activation("relu")),
        *(convolution(4 * filters, 1, 1), BatchNorm()),
    ]
    return [Residual(inside, _shortcut(channels, 4 * filters, stride)), Activation("relu")]


def _shortcut(channels: int, filters: int, stride: int) -> list[Layer] | None:
    if channels == filters and stride == 1:
        return None
    return [convolution(filters, 1, stride), BatchNorm()]


def convolution(
    filters: int, window: int, stride: int, *, bias: bool = False, groups: int = 1
) -> Conv2D:
    """Return a convolution that keeps the size of an image but for its stride."""
    return Conv2D(
        filters,
        window,
        stride=stride,
        padding=window // 2,
        groups=groups,
        bias=bias,
        initializer="he_normal",
    )
