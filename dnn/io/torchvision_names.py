"""Names that torchvision gives to the modules of its networks, in the order of our layers.

A row of `TORCHVISION` is a network of `dnn.nets` or `dnn.compact_nets`, and the names of its
modules with weights: those of a layer, then those of its shortcut. Braces are expanded as by a
shell: ``features.{0..2}.{conv,norm}`` are six names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

__all__ = ["TORCHVISION", "Linear", "names_of"]


class Linear(str):
    """The name of a ``Linear`` over channels, which is a convolution of 1 x 1 here."""

    __slots__ = ()


_BOTTLENECK = "{conv1,bn1,conv2,bn2,conv3,bn3"
_RESNET50 = " ".join(
    ["conv1 bn1"]
    + [
        f"layer{stage}.0.{_BOTTLENECK},downsample.0,downsample.1}} "
        f"layer{stage}.{{1..{last}}}.{_BOTTLENECK}}}"
        for stage, last in enumerate((2, 3, 5, 2), start=1)
    ]
    + ["fc"]
)
_SQUEEZED = "block.{0.0,0.1,1.0,1.1,2.fc1,2.fc2,3.0,3.1}"  # an inverted residual block
_PLAIN = "block.{0.0,0.1,1.0,1.1,2.0,2.1}"
_CONVNEXT = "{block.0,block.2,block.3*,block.5*,}"

TORCHVISION: Final[dict[str, str]] = {
    "alexnet": "features.{0,3,6,8,10} classifier.{1,4,6}",
    "convnext_tiny": (
        f"features.0.{{0,1}} features.1.{{0..2}}.{_CONVNEXT} "
        f"features.2.{{0,1}} features.3.{{0..2}}.{_CONVNEXT} "
        f"features.4.{{0,1}} features.5.{{0..8}}.{_CONVNEXT} "
        f"features.6.{{0,1}} features.7.{{0..2}}.{_CONVNEXT} classifier.{{0,2}}"
    ),
    "densenet121": (
        "features.{conv0,norm0} features.denseblock1.denselayer{1..6}.{norm1,conv1,norm2,conv2} "
        "features.transition1.{norm,conv} "
        "features.denseblock2.denselayer{1..12}.{norm1,conv1,norm2,conv2} "
        "features.transition2.{norm,conv} "
        "features.denseblock3.denselayer{1..24}.{norm1,conv1,norm2,conv2} "
        "features.transition3.{norm,conv} "
        "features.denseblock4.denselayer{1..16}.{norm1,conv1,norm2,conv2} features.norm5 classifier"
    ),
    "efficientnet_b0": (
        "features.0.{0,1} features.1.0.block.{0.0,0.1,1.fc1,1.fc2,2.0,2.1} "
        f"features.{{2,3}}.{{0,1}}.{_SQUEEZED} features.{{4,5}}.{{0..2}}.{_SQUEEZED} "
        f"features.6.{{0..3}}.{_SQUEEZED} features.7.0.{_SQUEEZED} features.8.{{0,1}} classifier.1"
    ),
    "mnasnet0_5": (
        "layers.{0,1,3,4,6,7} layers.{8..10}.{0..2}.layers.{0,1,3,4,6,7} "
        "layers.11.{0,1}.layers.{0,1,3,4,6,7} layers.12.{0..3}.layers.{0,1,3,4,6,7} "
        "layers.13.0.layers.{0,1,3,4,6,7} layers.{14,15} classifier.1"
    ),
    "mobilenet_v2": (
        "features.0.{0,1} features.1.conv.{0.0,0.1,1,2} "
        "features.{2..17}.conv.{0.0,0.1,1.0,1.1,2,3} features.18.{0,1} classifier.1"
    ),
    "mobilenet_v3_large": (
        f"features.0.{{0,1}} features.1.block.{{0.0,0.1,1.0,1.1}} features.{{2,3}}.{_PLAIN} "
        f"features.{{4..6}}.{_SQUEEZED} features.{{7..10}}.{_PLAIN} "
        f"features.{{11..15}}.{_SQUEEZED} features.16.{{0,1}} classifier.{{0,3}}"
    ),
    "mobilenet_v3_small": (
        f"features.0.{{0,1}} features.1.block.{{0.0,0.1,1.fc1,1.fc2,2.0,2.1}} "
        f"features.{{2,3}}.{_PLAIN} features.{{4..11}}.{_SQUEEZED} features.12.{{0,1}} "
        "classifier.{0,3}"
    ),
    "resnet18": (
        "conv1 bn1 layer1.{0,1}.{conv1,bn1,conv2,bn2} "
        "layer2.0.{conv1,bn1,conv2,bn2,downsample.0,downsample.1} layer2.1.{conv1,bn1,conv2,bn2} "
        "layer3.0.{conv1,bn1,conv2,bn2,downsample.0,downsample.1} layer3.1.{conv1,bn1,conv2,bn2} "
        "layer4.0.{conv1,bn1,conv2,bn2,downsample.0,downsample.1} layer4.1.{conv1,bn1,conv2,bn2} fc"
    ),
    "resnet50": _RESNET50,
    "resnext50_32x4d": _RESNET50,
    "shufflenet_v2_x1_0": (
        "conv1.{0,1} stage2.0.branch2.{0,1,3,4,5,6} stage2.0.branch1.{0..3} "
        "stage2.{1..3}.branch2.{0,1,3,4,5,6} stage3.0.branch2.{0,1,3,4,5,6} "
        "stage3.0.branch1.{0..3} stage3.{1..7}.branch2.{0,1,3,4,5,6} "
        "stage4.0.branch2.{0,1,3,4,5,6} stage4.0.branch1.{0..3} "
        "stage4.{1..3}.branch2.{0,1,3,4,5,6} conv5.{0,1} fc"
    ),
    "squeezenet1_1": (
        "features.0 features.{3,4,6,7,9,10,11,12}.{squeeze,expand3x3,expand1x1} classifier.1"
    ),
    "vgg16": "features.{0,2,5,7,10,12,14,17,19,21,24,26,28} classifier.{0,3,6}",
}
"""For each network its names of modules; a star marks a `Linear`, which is a matrix there."""


def names_of(network: str) -> Iterator[str]:
    """Yield the names of a network's modules, of any name of `TORCHVISION`."""
    for word in TORCHVISION[network].split():
        choices = []
        for i, part in enumerate(re.split("[{}]", word)):
            ends = part.split("..")
            if i % 2 and len(ends) == 2:
                choices.append([str(n) for n in range(int(ends[0]), int(ends[1]) + 1)])
            else:
                choices.append(part.split(",") if i % 2 else [part])
        for parts in product(*choices):
            name = "".join(parts).rstrip(".")
            yield Linear(name[:-1]) if name.endswith("*") else name
