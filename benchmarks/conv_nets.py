"""Networks of `conv` and `distributed`: what both contenders build, and from where they start.

A network is a list of items: ``("conv", filters, window, stride, padding, bias)``, ``("norm",)``,
``("relu",)``, ``("sigmoid",)``, ``("pool", window)``, ``("mean",)`` over the image,
``("flatten",)``, ``("dense", units)``, ``("lstm", units)``, of which the last state goes on, and
``("residual", items, items of the shortcut)``. Parameters stand in the order of the items, those of
a body before those of its shortcut, as in PyTorch's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Item = tuple[Any, ...]
SEED = 1


@dataclass(frozen=True)
class Net:
    """A network, its batches, and how fast it learns."""

    shape: tuple[int, ...]
    batch: int
    items: list[Item]
    rate: float
    steps: int
    """In a block of a quick run."""


def _block(filters: int, stride: int, before: int) -> list[Item]:
    body: list[Item] = [
        *(("conv", filters, 3, stride, 1, False), ("norm",), ("relu",)),
        *(("conv", filters, 3, 1, 1, False), ("norm",)),
    ]
    changes = stride != 1 or before != filters
    shortcut = [("conv", filters, 1, stride, 0, False), ("norm",)] if changes else []
    return [("residual", body, shortcut), ("relu",)]


def _resnet18() -> list[Item]:
    items: list[Item] = [("conv", 64, 3, 1, 1, False), ("norm",), ("relu",)]
    before = 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        items += _block(filters, stride, before) + _block(filters, 1, filters)
        before = filters
    return [*items, ("mean",), ("dense", 10)]


def _vgg16() -> list[Item]:
    items: list[Item] = []
    for filters, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        items += [("conv", filters, 3, 1, 1, False), ("norm",), ("relu",)] * layers
        items.append(("pool", 2))
    return [*items, ("flatten",), ("dense", 10)]


_LENET = [
    *(("conv", 6, 5, 1, 2, True), ("relu",), ("pool", 2)),
    *(("conv", 16, 5, 1, 0, True), ("relu",), ("pool", 2), ("flatten",)),
    *(("dense", 120), ("relu",), ("dense", 84), ("relu",), ("dense", 10)),
]

NETS = {
    "lenet5_step": Net((1, 28, 28), 100, _LENET, 0.005, 40),
    "vgg16_cifar_step": Net((3, 32, 32), 32, _vgg16(), 0.001, 3),
    "resnet18_cifar_step": Net((3, 32, 32), 32, _resnet18(), 0.001, 2),
    "lstm_step": Net((28, 28), 100, [("lstm", 128), ("dense", 10)], 0.01, 40),
}


def shapes_of(net: Net) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return kind and shape of each parameter, weights of dense layers as (inputs, units)."""
    return ((kind, shape) for kind, shape, _ in uses_of(net))


def uses_of(net: Net) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Return kind and shape of each parameter, and in how many pixels or time steps it is used."""

    def walk(items: list[Item], shape: tuple[int, ...]) -> Iterator[Any]:
        for kind, *given in items:
            if kind == "conv":
                filters, window, stride, padding, bias = given
                size = [(side + 2 * padding - window) // stride + 1 for side in shape[1:]]
                pixels = size[0] * size[1]
                yield "weight", (filters, shape[0], window, window), pixels
                if bias:
                    yield "shift", (filters,), pixels
                shape = (filters, *size)
            elif kind == "norm":
                yield "scale", shape[:1], shape[1] * shape[2]
                yield "shift", shape[:1], shape[1] * shape[2]
            elif kind == "pool":
                shape = (shape[0], *(side // given[0] for side in shape[1:]))
            elif kind == "mean":
                shape = shape[:1]
            elif kind == "flatten":
                shape = (int(np.prod(shape)),)
            elif kind == "dense":
                yield "weight", (shape[0], given[0]), 1
                yield "shift", (given[0],), 1
                shape = (given[0],)
            elif kind == "lstm":
                yield "weight", (4 * given[0], shape[1]), shape[0]
                yield "weight", (4 * given[0], given[0]), shape[0]
                yield from [("shift", (4 * given[0],), shape[0])] * 2
                shape = (given[0],)
            elif kind == "residual":
                after = yield from walk(given[0], shape)
                yield from walk(given[1], shape)
                shape = after
        return shape

    yield from walk(net.items, net.shape)


def bytes_of(net: Net) -> int:
    """Return how many bytes all parameters of a network have, in float32."""
    return 4 * sum(int(np.prod(shape)) for _, shape in shapes_of(net))


def write_setup(path: Any, samples: int, nets: Mapping[str, Net]) -> None:
    """Write data and first parameters of some networks."""
    generator = np.random.default_rng(SEED)
    arrays: dict[str, Any] = {}
    for name, net in nets.items():
        rows = samples or net.batch * net.steps
        y = generator.integers(0, 10, rows)
        centres = generator.normal(size=(10, *net.shape))
        noise = generator.normal(size=(rows, *net.shape))
        arrays[f"{name}.x"] = (0.5 * centres[y] + noise).astype("f4")
        arrays[f"{name}.y"] = y
        for i, (kind, shape) in enumerate(shapes_of(net)):
            if kind == "weight":
                inputs = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
                value = generator.normal(size=shape) * np.sqrt(2 / inputs)
            else:
                value = np.full(shape, float(kind == "scale"))
            arrays[f"{name}.{i}"] = value.astype("f4")
    np.savez(path, **arrays)


def torch_layers(net: Net) -> Any:
    """Return the network as PyTorch's module."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, body: Any, shortcut: Any) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.shortcut(x)

    class LSTM(nn.LSTM):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[0][:, -1]

    def build(items: list[Item], shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
        layers: list[Any] = []
        for kind, *rest in items:
            if kind == "conv":
                filters, window, stride, padding, bias = rest
                layers.append(nn.Conv2d(shape[0], filters, window, stride, padding, bias=bias))
                size = ((side + 2 * padding - window) // stride + 1 for side in shape[1:])
                shape = (filters, *size)
            elif kind == "norm":
                layers.append(nn.BatchNorm2d(shape[0]))
            elif kind == "relu":
                layers.append(nn.ReLU(inplace=True))
            elif kind == "sigmoid":
                layers.append(nn.Sigmoid())
            elif kind == "pool":
                layers.append(nn.MaxPool2d(rest[0]))
                shape = (shape[0], *(side // rest[0] for side in shape[1:]))
            elif kind == "mean":
                layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
                shape = shape[:1]
            elif kind == "flatten":
                layers.append(nn.Flatten())
                shape = (int(np.prod(shape)),)
            elif kind == "dense":
                layers.append(nn.Linear(shape[0], rest[0]))
                shape = (rest[0],)
            elif kind == "lstm":
                layers.append(LSTM(shape[1], rest[0], batch_first=True))
                shape = (rest[0],)
            elif kind == "residual":
                body, after = build(rest[0], shape)
                shortcut, _ = build(rest[1], shape)
                layers.append(Residual(body, shortcut))
                shape = after
        return nn.Sequential(*layers), shape

    module, _ = build(net.items, net.shape)
    return module


def torch_module(net: Net, given: Any, name: str) -> Any:
    """Return the network as PyTorch's module, with its first parameters."""
    import torch

    module = torch_layers(net)
    # Dense layers of dnn have weights (inputs, units); recurrent ones are as PyTorch's.
    dense = {id(one.weight) for one in module.modules() if isinstance(one, torch.nn.Linear)}
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            value = given[f"{name}.{i}"]
            turned = value.T.copy() if id(parameter) in dense else value
            parameter.copy_(torch.from_numpy(turned))
    return module


def dnn_layers(net: Net) -> list[Any]:
    """Return the layers of the network as dnn's."""
    import dnn

    def build(items: list[Item]) -> list[Any]:
        layers: list[Any] = []
        for kind, *rest in items:
            if kind == "conv":
                filters, window, stride, padding, bias = rest
                layers.append(
                    dnn.Conv2D(filters, window, stride=stride, padding=padding, bias=bias)
                )
            elif kind == "norm":
                layers.append(dnn.BatchNorm())
            elif kind in ("relu", "sigmoid"):
                layers.append(dnn.Activation(kind))
            elif kind == "pool":
                layers.append(dnn.MaxPool2D(rest[0]))
            elif kind == "mean":
                layers.append(dnn.GlobalAvgPool2D())
            elif kind == "flatten":
                layers.append(dnn.Flatten())
            elif kind == "dense":
                layers.append(dnn.FullyConnected(rest[0]))
            elif kind == "lstm":
                layers.append(dnn.LSTM(rest[0]))
            elif kind == "residual":
                layers.append(dnn.Residual(build(rest[0]), shortcut=build(rest[1])))
        return layers

    return [dnn.Input(*net.shape), *build(net.items)]


def dnn_model(net: Net, given: Any, name: str, **options: Any) -> Any:
    """Return the network as dnn's, with its first parameters, or those that dnn draws."""
    import dnn

    model = dnn.NeuralNetwork(
        dnn_layers(net),
        optimizer=dnn.SGD(net.rate, momentum=0.9),
        seed=SEED,
        **options,
    )
    for i, parameter in enumerate(model.parameters.values() if given is not None else ()):
        parameter[...] = given[f"{name}.{i}"]
    return model
