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
    from dnn.averaged import AveragedModel as AveragedModel
    from dnn.backend import *  # noqa: F403
    from dnn.backend.device import *  # noqa: F403
    from dnn.by_name import catalogue as catalogue
    from dnn.callbacks import *  # noqa: F403
    from dnn.compact_nets import *  # noqa: F403
    from dnn.compilation import watched_compilation as watched_compilation
    from dnn.data.augmentation import *  # noqa: F403
    from dnn.data.dataset import *  # noqa: F403
    from dnn.data.encoding import *  # noqa: F403
    from dnn.data.image_folder import load_image_folder as load_image_folder
    from dnn.data.images import *  # noqa: F403
    from dnn.data.known_sets import download as download
    from dnn.data.labels import *  # noqa: F403
    from dnn.data.loading import *  # noqa: F403
    from dnn.data.prefetch import *  # noqa: F403
    from dnn.data.sequences import *  # noqa: F403
    from dnn.data.tables import *  # noqa: F403
    from dnn.distributed import AsynchronousSGD as AsynchronousSGD
    from dnn.distributed import DataParallel as DataParallel
    from dnn.distributed import LocalSGD as LocalSGD
    from dnn.distributed import Mesh as Mesh
    from dnn.distributed import ParameterServer as ParameterServer
    from dnn.distributed import SimulatedWorkers as SimulatedWorkers
    from dnn.ensemble import *  # noqa: F403
    from dnn.errors import *  # noqa: F403
    from dnn.io.onnx_model import OnnxModel as OnnxModel
    from dnn.io.weights import LoadedWeights as LoadedWeights
    from dnn.io.weights import read_weights as read_weights
    from dnn.layer_tables import *  # noqa: F403
    from dnn.layers import *  # noqa: F403
    from dnn.linalg import bmatmul as bmatmul
    from dnn.losses import *  # noqa: F403
    from dnn.memory import *  # noqa: F403
    from dnn.metrics import metrics_of_targets as metrics_of_targets
    from dnn.model import *  # noqa: F403
    from dnn.nets import *  # noqa: F403
    from dnn.optimizers import *  # noqa: F403
    from dnn.optimizers.minimization import *  # noqa: F403
    from dnn.optimizers.schedules import *  # noqa: F403
    from dnn.penalties import *  # noqa: F403
    from dnn.summaries import *  # noqa: F403
    from dnn.tensor import *  # noqa: F403
    from dnn.trained import TrainedModel as TrainedModel
    from dnn.trained_file import load as load
    from dnn.training.checkpoint import *  # noqa: F403
    from dnn.training.data import DeviceData as DeviceData
    from dnn.training.resuming import *  # noqa: F403

__version__ = "0.1.0.dev0"  # of the distribution, as in pyproject.toml

_PUBLIC = {
    "averaged": "AveragedModel",
    "backend": "RoutineTable device_facts ops_for",
    "backend.device": "cuda_problem free_bytes free_memory limit_memory",
    "by_name": "catalogue",
    "callbacks": "BestCheckpoint Callback Checkpoint EarlyStopping Epoch ProgressBar Pruning",
    "compact_nets": """
        convnext_tiny efficientnet_b0 mnasnet0_5 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
        shufflenet_v2_x1_0 squeezenet1_1
    """,
    "compilation": "watched_compilation",
    "data.augmentation": "Augmentation Crop Cutout Flip Images Normalise PixelMap Shift",
    "data.dataset": """
        Dataset batches standardise train_validation_split train_validation_test_split
    """,
    "data.encoding": "encode impute",
    "data.image_folder": "load_image_folder",
    "data.images": "load_cifar10 load_cifar100 load_npz",
    "data.known_sets": "download",
    "data.labels": "class_weights",
    "data.loading": """
        load_breast_cancer load_cleveland load_dataset load_diabetes load_digits
        load_fashion_mnist load_idx load_mnist reading_options
    """,
    "data.prefetch": "prefetch",
    "data.sequences": "pad_sequences",
    "data.tables": "load_csv load_table",
    "distributed": "AsynchronousSGD DataParallel LocalSGD Mesh ParameterServer SimulatedWorkers",
    "ensemble": "Ensemble",
    "errors": """
        CheckpointError CommunicationError ConfigurationError DataError DeviceError
        DisagreementError DnnError DtypeError LabelError MissingDependencyError
        MixedPrecisionWarning NonFiniteError OutOfDeviceMemory OutOfRangeError PeerError ShapeError
    """,
    "io.onnx_model": "OnnxModel",
    "io.weights": "LoadedWeights read_weights",
    "layers": """
        GRU LSTM RNN Activation AvgPool2D BatchNorm ChannelShuffle ChannelSlice Concat Conv1D Conv2D
        Dropout EmbedColumns Embedding Flatten FullyConnected Gate GlobalAvgPool2D Input Layer
        LayerNorm LayerNorm2D LayerScale MaxPool2D Output RadialBasis Reshape Residual SequenceInput
        SpatialDropout StochasticDepth Upsample2D
    """,
    "layer_tables": "layer_kinds layers_from_tables",
    "linalg": "bmatmul",
    "losses": """
        BinaryCrossEntropy CrossEntropy FocalLoss HuberLoss KullbackLeibler Loss MeanAbsoluteError
        MeanSquaredError MultiLabelCrossEntropy PoissonLoss QuantileLoss SoftmaxCrossEntropy
    """,
    "memory": "MemoryManager",
    "metrics": "metrics_of_targets",
    "model": "History NeuralNetwork TrainingParameters",
    "nets": "alexnet densenet121 lenet5 mlp resnet18 resnet50 resnext50_32x4d vgg16",
    "optimizers": """
        LARS SGD AdaGrad Adam AdamW GradientDescent Muon NAdam Optimizer RMSProp
    """,
    "optimizers.minimization": "minimize",
    "optimizers.schedules": "Cosine GrowingBatch OneCycle StepDecay WarmUp",
    "penalties": "L1 L2 Penalty",
    "summaries": "LayerSummary layer_summaries summary",
    "tensor": "Tensor",
    "trained": "TrainedModel",
    "trained_file": "load",
    "training.data": "DeviceData",
    "training.checkpoint": "load_checkpoint save_checkpoint",
    "training.network": "frozen_parameters",
    "training.resuming": "Progress copy_training load_progress progress_of resume_training",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

# SGD, Activation, batches: constants, classes, functions.
__all__ = sorted(_MODULE_OF, key=lambda name: (not name.isupper(), name[0].islower(), name))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        from dnn.names import suggestion

        hint = suggestion("attribute of dnn", name, __all__)
        raise AttributeError(f"module 'dnn' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"dnn.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
