"""Names that torchvision gives to the modules of its networks, in the order of our layers.

A row of `TORCHVISION` is a network of `dnn.nets` or `dnn.compact_nets`, and the names of its
modules with weights: those of a layer, then those of its shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dnn.compact_nets import (
    CONVNEXT_TINY,
    EFFICIENTNET_B0,
    FIRES,
    MNASNET0_5,
    MOBILENET_V2,
    MOBILENET_V3_LARGE,
    MOBILENET_V3_SMALL,
    SHUFFLENET_V2,
    Block,
)
from dnn.nets import VGG16

__all__ = ["TORCHVISION", "Linear"]


class Linear(str):
    """The name of a ``Linear`` over channels, which is a convolution of 1 x 1 here."""

    __slots__ = ()


def _resnet(blocks: Sequence[int], convolutions: int) -> Iterator[str]:
    yield from ("conv1", "bn1")
    for stage, number in enumerate(blocks, start=1):
        for i in range(number):
            for k in range(1, convolutions + 1):
                yield f"layer{stage}.{i}.conv{k}"
                yield f"layer{stage}.{i}.bn{k}"
            if i == 0 and (stage > 1 or convolutions == 3):
                yield from (f"layer{stage}.{i}.downsample.{k}" for k in (0, 1))
    yield "fc"


def _vgg16() -> Iterator[str]:
    place = 0
    for _, convolutions in VGG16:
        for _ in range(convolutions):
            yield f"features.{place}"
            place += 2
        place += 1
    yield from (f"classifier.{k}" for k in (0, 3, 6))


def _alexnet() -> Iterator[str]:
    yield from (f"features.{k}" for k in (0, 3, 6, 8, 10))
    yield from (f"classifier.{k}" for k in (1, 4, 6))


def _densenet121() -> Iterator[str]:
    yield from ("features.conv0", "features.norm0")
    for stage, number in enumerate((6, 12, 24, 16), start=1):
        if stage > 1:
            yield from (f"features.transition{stage - 1}.{part}" for part in ("norm", "conv"))
        for i in range(1, number + 1):
            layer = f"features.denseblock{stage}.denselayer{i}"
            yield from (f"{layer}.{part}" for part in ("norm1", "conv1", "norm2", "conv2"))
    yield from ("features.norm5", "classifier")


def _mobilenet_v2() -> Iterator[str]:
    yield from ("features.0.0", "features.0.1")
    for number, block in enumerate(MOBILENET_V2, start=1):
        units = ["0"] if block.wide == block.channels else ["0", "1"]
        last = len(units)
        parts = [f"{unit}.{k}" for unit in units for k in (0, 1)] + [f"{last}", f"{last + 1}"]
        yield from (f"features.{number}.conv.{part}" for part in parts)
    end = len(MOBILENET_V2) + 1
    yield from (f"features.{end}.0", f"features.{end}.1", "classifier.1")


def _inverted(name: str, block: Block) -> Iterator[str]:
    widens = block.wide != block.channels
    units = ["01"] * (1 + widens) + [("fc1", "fc2")] * bool(block.squeezed) + ["01"]
    for number, parts in enumerate(units):
        yield from (f"{name}.block.{number}.{part}" for part in parts)


def _mobilenet_v3(blocks: Sequence[Block]) -> Iterator[str]:
    yield from ("features.0.0", "features.0.1")
    for number, block in enumerate(blocks, start=1):
        yield from _inverted(f"features.{number}", block)
    end = len(blocks) + 1
    yield from (f"features.{end}.0", f"features.{end}.1", "classifier.0", "classifier.3")


def _in_stages(blocks: Sequence[Block]) -> Iterator[tuple[int, int, Block]]:
    """Yield blocks with the numbers of their stages, and their own within them, from 0."""
    stage, number = -1, 0
    for block in blocks:
        begins = not (block.is_residual and stage >= 0)
        stage, number = (stage + 1, 0) if begins else (stage, number + 1)
        yield stage, number, block


def _efficientnet_b0() -> Iterator[str]:
    yield from ("features.0.0", "features.0.1")
    for stage, number, block in _in_stages(EFFICIENTNET_B0):
        yield from _inverted(f"features.{stage + 1}.{number}", block)
    yield from ("features.8.0", "features.8.1", "classifier.1")


def _mnasnet0_5() -> Iterator[str]:
    yield from (f"layers.{k}" for k in (0, 1, 3, 4, 6, 7))  # its first block is not widened
    for stage, number, _ in _in_stages(MNASNET0_5[1:]):
        yield from (f"layers.{8 + stage}.{number}.layers.{k}" for k in (0, 1, 3, 4, 6, 7))
    yield from ("layers.14", "layers.15", "classifier.1")


def _shufflenet_v2() -> Iterator[str]:
    yield from ("conv1.0", "conv1.1")
    for stage, (_, number) in enumerate(SHUFFLENET_V2, start=2):
        for i in range(number):
            yield from (f"stage{stage}.{i}.branch2.{k}" for k in (0, 1, 3, 4, 5, 6))
            if i == 0:
                yield from (f"stage{stage}.{i}.branch1.{k}" for k in range(4))
    yield from ("conv5.0", "conv5.1", "fc")


def _squeezenet1_1() -> Iterator[str]:
    yield "features.0"
    for place in (3, 4, 6, 7, 9, 10, 11, 12)[: len(FIRES)]:
        parts = ("squeeze", "expand3x3", "expand1x1")
        yield from (f"features.{place}.{part}" for part in parts)
    yield "classifier.1"


def _convnext_tiny() -> Iterator[str]:
    yield from ("features.0.0", "features.0.1")
    for stage, (_, number) in enumerate(CONVNEXT_TINY):
        if stage:
            yield from (f"features.{2 * stage}.{k}" for k in (0, 1))
        for i in range(number):
            block = f"features.{2 * stage + 1}.{i}"
            yield from (f"{block}.block.0", f"{block}.block.2")
            yield from (Linear(f"{block}.block.3"), Linear(f"{block}.block.5"), block)
    yield from ("classifier.0", "classifier.2")


TORCHVISION: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "alexnet": _alexnet,
    "convnext_tiny": _convnext_tiny,
    "densenet121": _densenet121,
    "efficientnet_b0": _efficientnet_b0,
    "mnasnet0_5": _mnasnet0_5,
    "mobilenet_v2": _mobilenet_v2,
    "mobilenet_v3_large": lambda: _mobilenet_v3(MOBILENET_V3_LARGE),
    "mobilenet_v3_small": lambda: _mobilenet_v3(MOBILENET_V3_SMALL),
    "resnet18": lambda: _resnet((2, 2, 2, 2), 2),
    "resnet50": lambda: _resnet((3, 4, 6, 3), 3),
    "resnext50_32x4d": lambda: _resnet((3, 4, 6, 3), 3),
    "shufflenet_v2_x1_0": _shufflenet_v2,
    "squeezenet1_1": _squeezenet1_1,
    "vgg16": _vgg16,
}
"""For each network its names of modules; a `Linear` among them is a matrix there."""
