"""Networks of images with few weights, by name: MobileNet, ShuffleNet, EfficientNet and their like.

They are those of torchvision, whose weights fit (`dnn.io.torchvision_names`). For images below
64 x 64 the first convolution has no stride, which would leave nothing of a small image. All have
the parameters of those in `dnn.nets`:

inputs : (channels, height, width)
outputs : int
    Classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from dnn.errors import explains_arguments
from dnn.layers import (
    Activation,
    BatchNorm,
    ChannelShuffle,
    ChannelSlice,
    Concat,
    Conv2D,
    Dropout,
    Flatten,
    FullyConnected,
    Gate,
    GlobalAvgPool2D,
    Layer,
    LayerNorm2D,
    LayerScale,
    MaxPool2D,
    Reshape,
    Residual,
    StochasticDepth,
)
from dnn.nets import Image, are_small, convolution, input_of

__all__ = [
    "convnext_tiny",
    "efficientnet_b0",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
]


class Block(NamedTuple):
    """An inverted residual block: to more channels, a depthwise convolution, and back to fewer.

    `squeezed` are the channels in the middle of its squeeze-and-excitation, 0 without one.
    """

    channels: int
    wide: int
    filters: int
    window: int
    stride: int
    activation: str = "relu"
    squeezed: int = 0

    @property
    def is_residual(self) -> bool:
        """Whether the block is added to its input."""
        return self.stride == 1 and self.channels == self.filters


def _stages(
    first: int, activation: str, *stages: tuple[int, int, int, int, int], squeezes: bool = False
) -> list[Block]:
    """Return blocks of stages: how many times wider, filters, number, first stride, window."""
    blocks, channels = [], first
    for wider, filters, number, stride, window in stages:
        for i in range(number):
            shape = channels, wider * channels, filters, window, 1 if i else stride
            blocks.append(Block(*shape, activation, channels // 4 if squeezes else 0))
            channels = filters
    return blocks


MOBILENET_V2: Final = _stages(
    *(32, "relu6", (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)),
    *((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)),
)
MNASNET0_5: Final = _stages(
    *(16, "relu", (1, 8, 1, 1, 3), (3, 16, 3, 2, 3), (3, 24, 3, 2, 5), (6, 40, 3, 2, 5)),
    *((6, 48, 2, 1, 3), (6, 96, 4, 2, 5), (6, 160, 1, 1, 3)),
)
EFFICIENTNET_B0: Final = _stages(
    *(32, "silu", (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    squeezes=True,
)
MOBILENET_V3_SMALL: Final = [
    Block(16, 16, 16, 3, 2, "relu", 8),
    Block(16, 72, 24, 3, 2),
    Block(24, 88, 24, 3, 1),
    Block(24, 96, 40, 5, 2, "hard_swish", 24),
    *[Block(40, 240, 40, 5, 1, "hard_swish", 64)] * 2,
    Block(40, 120, 48, 5, 1, "hard_swish", 32),
    Block(48, 144, 48, 5, 1, "hard_swish", 40),
    Block(48, 288, 96, 5, 2, "hard_swish", 72),
    *[Block(96, 576, 96, 5, 1, "hard_swish", 144)] * 2,
]
MOBILENET_V3_LARGE: Final = [
    Block(16, 16, 16, 3, 1),
    Block(16, 64, 24, 3, 2),
    Block(24, 72, 24, 3, 1),
    Block(24, 72, 40, 5, 2, "relu", 24),
    *[Block(40, 120, 40, 5, 1, "relu", 32)] * 2,
    Block(40, 240, 80, 3, 2, "hard_swish"),
    Block(80, 200, 80, 3, 1, "hard_swish"),
    *[Block(80, 184, 80, 3, 1, "hard_swish")] * 2,
    Block(80, 480, 112, 3, 1, "hard_swish", 120),
    Block(112, 672, 112, 3, 1, "hard_swish", 168),
    Block(112, 672, 160, 5, 2, "hard_swish", 168),
    *[Block(160, 960, 160, 5, 1, "hard_swish", 240)] * 2,
]
CONVNEXT_TINY: Final = ((96, 3), (192, 3), (384, 9), (768, 3))
"""Channels, and number of blocks, of each stage of ConvNeXt-T."""
SHUFFLENET_V2: Final = ((116, 4), (232, 8), (464, 4))
"""Channels, and number of blocks, of each stage of ShuffleNet V2 1x."""
FIRES: Final = tuple((n, 4 * n) for n in (16, 16, 32, 32, 48, 48, 64, 64))
"""Channels that each block of SqueezeNet squeezes to, and expands to twice."""
_BEFORE_FIRES: Final = (0, 2, 4)
"""The blocks of SqueezeNet before which there is a pooling."""


_Norm: TypeAlias = Callable[[], BatchNorm]


def _unit(
    filters: int, window: int, stride: int, activation: str, norm: _Norm, groups: int = 1
) -> list[Layer]:
    """Return a convolution without a bias, a batch norm, and an activation unless it is empty."""
    layers = [convolution(filters, window, stride, groups=groups), norm()]
    return [*layers, *([Activation(activation)] if activation else [])]


def _squeeze_and_excitation(
    channels: int, squeezed: int, activation: str, gate: str
) -> list[Layer]:
    inside = [
        *(GlobalAvgPool2D(), Reshape(channels, 1, 1)),
        *(Conv2D(squeezed, 1, initializer="he_normal"), Activation(activation)),
        *(Conv2D(channels, 1), Activation(gate)),
    ]
    return [Gate(inside)]


def _inverted(
    block: Block, norm: _Norm, squeeze: tuple[str, str], dropped: float = 0.0
) -> list[Layer]:
    """Return the layers of a block; `squeeze` are the activations of its squeeze-and-excitation."""
    layers: list[Layer] = []
    if block.wide != block.channels:
        layers += _unit(block.wide, 1, 1, block.activation, norm)
    layers += _unit(
        block.wide, block.window, block.stride, block.activation, norm, groups=block.wide
    )
    if block.squeezed:
        layers += _squeeze_and_excitation(block.wide, block.squeezed, *squeeze)
    layers += _unit(block.filters, 1, 1, "", norm)
    if not block.is_residual:
        return layers
    return [Residual([*layers, *([StochasticDepth(dropped)] if dropped else [])])]


def _first(inputs: Image, filters: int, activation: str, norm: _Norm) -> list[Layer]:
    source = input_of(inputs)
    stride = 1 if are_small(inputs) else 2
    return [source, *_unit(filters, 3, stride, activation, norm)]


@explains_arguments
def mobilenet_v2(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of MobileNetV2.

    References
    ----------
    .. [1] Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, 2018, table 2.
    """
    return _of_blocks(inputs, outputs, MOBILENET_V2)


def _of_blocks(
    inputs: Image,
    outputs: int,
    blocks: Sequence[Block],
    norm: _Norm = BatchNorm,
    dropped: float = 0.0,
) -> list[Layer]:
    """Return a network of blocks of one activation; `dropped` grows from 0 over the blocks."""
    activation = blocks[0].activation
    layers = _first(inputs, blocks[0].channels, activation, norm)
    for number, block in enumerate(blocks):
        rate = dropped * number / len(blocks)
        layers += _inverted(block, norm, (activation, "sigmoid"), rate)
    layers += [*_unit(1280, 1, 1, activation, norm), GlobalAvgPool2D(), Dropout(0.2)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def mobilenet_v3_small(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of MobileNetV3-Small.

    References
    ----------
    .. [1] Howard et al., Searching for MobileNetV3, 2019, table 2.
    """
    return _mobilenet_v3(inputs, outputs, MOBILENET_V3_SMALL, 1024)


@explains_arguments
def mobilenet_v3_large(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of MobileNetV3-Large.

    References
    ----------
    .. [1] Howard et al., Searching for MobileNetV3, 2019, table 1.
    """
    return _mobilenet_v3(inputs, outputs, MOBILENET_V3_LARGE, 1280)


def _mobilenet_v3(inputs: Image, outputs: int, blocks: Sequence[Block], hidden: int) -> list[Layer]:
    norm = partial(BatchNorm, 0.99, 1e-3)
    layers = _first(inputs, 16, "hard_swish", norm)
    for block in blocks:
        layers += _inverted(block, norm, ("relu", "hard_sigmoid"))
    layers += _unit(6 * blocks[-1].filters, 1, 1, "hard_swish", norm)
    last = FullyConnected(hidden, initializer="he_uniform")
    layers += [GlobalAvgPool2D(), last, Activation("hard_swish"), Dropout(0.2)]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def mnasnet0_5(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of MNASNet-B1 with half the channels.

    References
    ----------
    .. [1] Tan et al., MnasNet: platform-aware neural architecture search for mobile, 2019.
    """
    return _of_blocks(inputs, outputs, MNASNET0_5, partial(BatchNorm, 0.9997))


@explains_arguments
def efficientnet_b0(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of EfficientNet-B0.

    References
    ----------
    .. [1] Tan and Le, EfficientNet: rethinking model scaling for convolutional neural networks,
       2019, table 1.
    """
    return _of_blocks(inputs, outputs, EFFICIENTNET_B0, dropped=0.2)


@explains_arguments
def shufflenet_v2_x1_0(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ShuffleNet V2 1x.

    References
    ----------
    .. [1] Ma et al., ShuffleNet V2: practical guidelines for efficient CNN architecture design,
       2018, table 5 and figure 3.
    """
    norm = BatchNorm
    layers = [*_first(inputs, 24, "relu", norm), MaxPool2D(3, stride=2, padding=1)]
    channels = 24
    for filters, number in SHUFFLENET_V2:
        half = filters // 2
        for i in range(number):
            stride = 1 if i else 2
            inside = [
                *_unit(half, 1, 1, "relu", norm),
                *_unit(half, 3, stride, "", norm, groups=half),
                *_unit(half, 1, 1, "relu", norm),
            ]
            beside: list[Layer] = [ChannelSlice(half)]
            if i:
                inside = [ChannelSlice(half, half), *inside]
            else:
                depthwise = _unit(channels, 3, 2, "", norm, groups=channels)
                beside = [*depthwise, *_unit(half, 1, 1, "relu", norm)]
            layers += [Concat(inside, beside), ChannelShuffle(2)]
        channels = filters
    layers += [*_unit(1024, 1, 1, "relu", norm), GlobalAvgPool2D()]
    return [*layers, FullyConnected(outputs)]


@explains_arguments
def squeezenet1_1(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of SqueezeNet 1.1.

    References
    ----------
    .. [1] Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
       model size, 2016, table 1; 1.1 has smaller first windows and earlier poolings.
    """
    layers: list[Layer] = [input_of(inputs)]
    stride = 1 if are_small(inputs) else 2
    layers += [Conv2D(64, 3, stride=stride, initializer="he_uniform"), Activation("relu")]
    size = [(length - 3) // stride + 1 for length in inputs[1:]]
    for number, (squeezed, expanded) in enumerate(FIRES):
        if number in _BEFORE_FIRES:
            # A last window that is not whole counts.
            ends = [(length - 3) % 2 for length in size]
            layers.append(MaxPool2D(3, stride=2, padding=[(0, end) for end in ends]))
            size = [(length + end - 3) // 2 + 1 for length, end in zip(size, ends, strict=True)]
        layers += [Conv2D(squeezed, 1, initializer="he_uniform"), Activation("relu")]
        layers.append(
            Concat(
                [Conv2D(expanded, 3, padding=1, initializer="he_uniform"), Activation("relu")],
                [Conv2D(expanded, 1, initializer="he_uniform"), Activation("relu")],
            )
        )
    last = [Dropout(0.5), Conv2D(outputs, 1), Activation("relu")]
    return [*layers, *last, GlobalAvgPool2D()]


@explains_arguments
def convnext_tiny(inputs: Image = (3, 32, 32), outputs: int = 10) -> list[Layer]:
    """Return the layers of ConvNeXt-T, which begins with patches of 4 x 4, of small images 2 x 2.

    References
    ----------
    .. [1] Liu et al., A ConvNet for the 2020s, 2022, figure 4 and appendix A.1.
    """
    layers: list[Layer] = [input_of(inputs)]
    patch = 2 if are_small(inputs) else 4
    blocks, number = sum(count for _, count in CONVNEXT_TINY), 0
    for stage, (channels, count) in enumerate(CONVNEXT_TINY):
        if stage:
            layers += [LayerNorm2D(), Conv2D(channels, 2, stride=2)]
        else:
            layers += [Conv2D(channels, patch, stride=patch), LayerNorm2D()]
        for _ in range(count):
            dropped = 0.1 * number / (blocks - 1)
            number += 1
            inside = [
                *(Conv2D(channels, 7, padding=3, groups=channels), LayerNorm2D()),
                *(Conv2D(4 * channels, 1), Activation("exact_gelu"), Conv2D(channels, 1)),
                *(LayerScale(1e-6), *([StochasticDepth(dropped)] if dropped else [])),
            ]
            layers.append(Residual(inside))
    return [*layers, GlobalAvgPool2D(), Reshape(channels, 1, 1), LayerNorm2D(), Flatten(),
            FullyConnected(outputs)]  # fmt: skip
