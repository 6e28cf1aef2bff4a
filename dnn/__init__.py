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
    from dnn.backend import RoutineTable, ops_for
    from dnn.callbacks import (
        BestCheckpoint,
        Callback,
        EarlyStopping,
        Epoch,
        ProgressBar,
        Pruning,
    )
    from dnn.data import (
        Dataset,
        batches,
        class_weights,
        impute,
        load_breast_cancer,
        load_cleveland,
        load_csv,
        load_dataset,
        load_digits,
        load_idx,
        load_mnist,
        prefetch,
        standardise,
        train_validation_split,
        train_validation_test_split,
    )
    from dnn.ensemble import Ensemble
    from dnn.errors import (
        CheckpointError,
        ConfigurationError,
        DataError,
        DeviceError,
        DnnError,
        DtypeError,
        LabelError,
        MissingDependencyError,
        MixedPrecisionWarning,
        NonFiniteError,
        OutOfRangeError,
        ShapeError,
    )
    from dnn.layers import (
        Activation,
        BatchNorm,
        Dropout,
        Flatten,
        FullyConnected,
        Input,
        Layer,
        LayerNorm,
        Output,
        Residual,
    )
    from dnn.losses import BinaryCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
    from dnn.memory import MemoryManager
    from dnn.minimization import minimize
    from dnn.model import History, NeuralNetwork
    from dnn.nets import mlp
    from dnn.optimizers import (
        SGD,
        AdaGrad,
        Adam,
        AdamW,
        Cosine,
        Optimizer,
        RMSProp,
        StepDecay,
        WarmUp,
    )
    from dnn.tensor import Tensor
    from dnn.training.checkpoint import load_checkpoint, save_checkpoint

__version__ = "0.1.0.dev0"  # of the distribution, as in pyproject.toml

_HOMES = {
    "backend": ("RoutineTable", "ops_for"),
    "callbacks": (
        "BestCheckpoint",
        "Callback",
        "EarlyStopping",
        "Epoch",
        "ProgressBar",
        "Pruning",
    ),
    "training.checkpoint": ("load_checkpoint", "save_checkpoint"),
    "data": (
        "Dataset",
        "batches",
        "class_weights",
        "impute",
        "load_breast_cancer",
        "load_cleveland",
        "load_csv",
        "load_dataset",
        "load_digits",
        "load_idx",
        "load_mnist",
        "prefetch",
        "standardise",
        "train_validation_split",
        "train_validation_test_split",
    ),
    "ensemble": ("Ensemble",),
    "errors": (
        "CheckpointError",
        "ConfigurationError",
        "DataError",
        "DeviceError",
        "DnnError",
        "DtypeError",
        "LabelError",
        "MissingDependencyError",
        "MixedPrecisionWarning",
        "NonFiniteError",
        "OutOfRangeError",
        "ShapeError",
    ),
    "layers": (
        "Activation",
        "BatchNorm",
        "Dropout",
        "Flatten",
        "FullyConnected",
        "Input",
        "Layer",
        "LayerNorm",
        "Output",
        "Residual",
    ),
    "losses": ("BinaryCrossEntropy", "Loss", "MeanSquaredError", "SoftmaxCrossEntropy"),
    "memory": ("MemoryManager",),
    "model": ("History", "NeuralNetwork"),
    "minimization": ("minimize",),
    "nets": ("mlp",),
    "tensor": ("Tensor",),
    "optimizers": (
        "SGD",
        "AdaGrad",
        "Adam",
        "AdamW",
        "Cosine",
        "Optimizer",
        "RMSProp",
        "StepDecay",
        "WarmUp",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SGD",
    "Activation",
    "AdaGrad",
    "Adam",
    "AdamW",
    "BatchNorm",
    "BestCheckpoint",
    "BinaryCrossEntropy",
    "Callback",
    "CheckpointError",
    "ConfigurationError",
    "Cosine",
    "DataError",
    "Dataset",
    "DeviceError",
    "DnnError",
    "Dropout",
    "DtypeError",
    "EarlyStopping",
    "Ensemble",
    "Epoch",
    "Flatten",
    "FullyConnected",
    "History",
    "Input",
    "LabelError",
    "Layer",
    "LayerNorm",
    "Loss",
    "MeanSquaredError",
    "MemoryManager",
    "MissingDependencyError",
    "MixedPrecisionWarning",
    "NeuralNetwork",
    "NonFiniteError",
    "Optimizer",
    "OutOfRangeError",
    "Output",
    "ProgressBar",
    "Pruning",
    "RMSProp",
    "Residual",
    "RoutineTable",
    "ShapeError",
    "SoftmaxCrossEntropy",
    "StepDecay",
    "Tensor",
    "WarmUp",
    "batches",
    "class_weights",
    "impute",
    "load_breast_cancer",
    "load_checkpoint",
    "load_cleveland",
    "load_csv",
    "load_dataset",
    "load_digits",
    "load_idx",
    "load_mnist",
    "minimize",
    "mlp",
    "ops_for",
    "prefetch",
    "save_checkpoint",
    "standardise",
    "train_validation_split",
    "train_validation_test_split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        from dnn.names import suggestion

        hint = suggestion("attribute of dnn", name, __all__)
        raise AttributeError(f"module 'dnn' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"dnn.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
