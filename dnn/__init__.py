"""dnn: a training core for neural networks that are small and many.

``import dnn`` loads nothing else; each public name is imported when it is first used::

    import dnn

    train, validation = dnn.train_validation_split(dnn.load_digits(), seed=0)
    train, validation = dnn.standardise(train, validation)
    model = dnn.NeuralNetwork(dnn.mlp(64, [64], 10), optimizer=dnn.SGD(0.1), seed=0)
    model.fit(train.x, train.y, epochs=20, batch_size=32)
    model.evaluate(validation.x, validation.y)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnn.data import (
        Dataset,
        batches,
        impute,
        load_breast_cancer,
        load_cleveland,
        load_dataset,
        load_digits,
        load_idx,
        load_mnist,
        standardise,
        train_validation_split,
    )
    from dnn.errors import (
        ConfigurationError,
        DataError,
        DeviceError,
        DnnError,
        DtypeError,
        LabelError,
        MissingDependencyError,
        OutOfRangeError,
        ShapeError,
    )
    from dnn.layers import Activation, FullyConnected, Input, Layer
    from dnn.losses import Loss, MeanSquaredError, SoftmaxCrossEntropy
    from dnn.memory import MemoryManager
    from dnn.model import History, NeuralNetwork
    from dnn.nets import mlp
    from dnn.optimizers import SGD, AdaGrad, Adam, AdamW, Optimizer, RMSProp
    from dnn.tensor import Tensor

_HOMES = {
    "data": (
        "Dataset",
        "batches",
        "impute",
        "load_breast_cancer",
        "load_cleveland",
        "load_dataset",
        "load_digits",
        "load_idx",
        "load_mnist",
        "standardise",
        "train_validation_split",
    ),
    "errors": (
        "ConfigurationError",
        "DataError",
        "DeviceError",
        "DnnError",
        "DtypeError",
        "LabelError",
        "MissingDependencyError",
        "OutOfRangeError",
        "ShapeError",
    ),
    "layers": ("Activation", "FullyConnected", "Input", "Layer"),
    "losses": ("Loss", "MeanSquaredError", "SoftmaxCrossEntropy"),
    "memory": ("MemoryManager",),
    "model": ("History", "NeuralNetwork"),
    "nets": ("mlp",),
    "tensor": ("Tensor",),
    "optimizers": ("SGD", "AdaGrad", "Adam", "AdamW", "Optimizer", "RMSProp"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SGD",
    "Activation",
    "AdaGrad",
    "Adam",
    "AdamW",
    "ConfigurationError",
    "DataError",
    "Dataset",
    "DeviceError",
    "DnnError",
    "DtypeError",
    "FullyConnected",
    "History",
    "Input",
    "LabelError",
    "Layer",
    "Loss",
    "MeanSquaredError",
    "MemoryManager",
    "MissingDependencyError",
    "NeuralNetwork",
    "Optimizer",
    "OutOfRangeError",
    "RMSProp",
    "ShapeError",
    "SoftmaxCrossEntropy",
    "Tensor",
    "batches",
    "impute",
    "load_breast_cancer",
    "load_cleveland",
    "load_dataset",
    "load_digits",
    "load_idx",
    "load_mnist",
    "mlp",
    "standardise",
    "train_validation_split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dnn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dnn.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
