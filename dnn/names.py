"""Names in PyTorch, Keras and scikit-learn, and ours for the same, for messages of errors.

Nothing is accepted under two names. For a name of Keras, PyTorch or scikit-learn the
message gives ours, or what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FOREIGN_NAMES", "suggestion"]

_CROSS_ENTROPY = "softmax_cross_entropy"
_BINARY = "binary_cross_entropy"
_SQUARED = "mean_squared_error"

FOREIGN_NAMES: dict[str, dict[str, str]] = {
    "loss": {
        "categorical_crossentropy": _CROSS_ENTROPY,
        "ce": _CROSS_ENTROPY,
        "cross_entropy": _CROSS_ENTROPY,
        "cross_entropy_loss": _CROSS_ENTROPY,
        "crossentropy": _CROSS_ENTROPY,
        "crossentropyloss": _CROSS_ENTROPY,
        "log_loss": _CROSS_ENTROPY,
        "nll": _CROSS_ENTROPY,
        "nll_loss": _CROSS_ENTROPY,
        "softmax": _CROSS_ENTROPY,
        "sparse_categorical_crossentropy": _CROSS_ENTROPY,
        "bce": _BINARY,
        "bce_with_logits": _BINARY,
        "bcewithlogitsloss": _BINARY,
        "binary_crossentropy": _BINARY,
        "logistic": _BINARY,
        "l2": _SQUARED,
        "mse": _SQUARED,
        "mse_loss": _SQUARED,
        "mseloss": _SQUARED,
        "squared_error": _SQUARED,
    },
    "optimizer": {
        "gd": "sgd",
        "momentum": "an optimizer: dnn.SGD(learning_rate, momentum=0.9)",
        "nag": "an optimizer: dnn.SGD(learning_rate, momentum=0.9, nesterov=True)",
        "nesterov": "an optimizer: dnn.SGD(learning_rate, momentum=0.9, nesterov=True)",
    },
    "activation": {
        "identity": "no Activation at all",
        "linear": "no Activation at all",
        "hardsigmoid": "hard_sigmoid",
        "hardswish": "hard_swish",
        "logistic": "sigmoid",
        "none": "no Activation at all",
        "swish": "silu",
    },
    "type of layer": {
        "avg_pooling": "avg_pool2d",
        "average_pooling2d": "avg_pool2d",
        "batch_normalization": "batch_norm",
        "convolution": "conv2d",
        "dense": "fully_connected",
        "linear": "fully_connected",
        "max_pooling": "max_pool2d",
        "max_pooling2d": "max_pool2d",
        "relu": "activation",
    },
    "device": {"gpu": "cuda"},
    "initializer": {
        "he": "he_uniform",
        "kaiming_normal": "he_normal",
        "kaiming_uniform": "he_uniform",
        "xavier": "glorot_uniform",
        "xavier_normal": "glorot_normal",
        "xavier_uniform": "glorot_uniform",
    },
    "value to watch": {
        "acc": "accuracy",
        "train_accuracy": "accuracy",
        "train_loss": "loss",
        "training_accuracy": "accuracy",
        "training_loss": "loss",
        "val_acc": "validation_accuracy",
        "val_accuracy": "validation_accuracy",
        "val_loss": "validation_loss",
    },
    "argument": {
        "activation": "a layer of its own, Activation(...)",
        "activation_function": "activation",
        "activity_regularizer": "weight_decay of the optimizer",
        "alpha": "weight_decay",
        "amsgrad": "no such thing: dnn.Adam is the plain one",
        "betas": "beta1 and beta2",
        "clipnorm": "clip_norm",
        "clipvalue": "clip_value",
        "criterion": "loss",
        "eps": "epsilon",
        "embedding_dim": "units",
        "epoch": "epochs",
        "hidden_layer_sizes": "hidden",
        "hidden_size": "units",
        "input_dim": "the first layer, Input(...)",
        "input_shape": "the first layer, Input(...)",
        "initial_epoch": "no such thing: fit goes on where it ended",
        "in_channels": "the layer before it, which says how many there are",
        "kernel_initializer": "initializer",
        "kernel": "window",
        "kernel_size": "window",
        "l2": "weight_decay",
        "learning_rate_init": "learning_rate",
        "lr": "learning_rate",
        "max_epochs": "epochs",
        "max_iter": "epochs",
        "metrics": "no such thing here: fit and evaluate give loss and accuracy",
        "n_epochs": "epochs",
        "n_iter_no_change": "callbacks=[dnn.EarlyStopping(patience=...)]",
        "num_embeddings": "count",
        "num_epochs": "epochs",
        "num_layers": "layers",
        "nb_epoch": "epochs",
        "out_channels": "filters",
        "out_features": "units",
        "pool_size": "window",
        "p": "rate",
        "padding_idx": "padding",
        "random_seed": "seed",
        "random_state": "seed",
        "restore_best_weights": "restore_best",
        "shuffle": "no such thing: each epoch has an order of its own, by the seed",
        "strides": "stride",
        "use_bias": "bias",
        "val_data": "validation",
        "validation_data": "validation",
        "validation_fraction": "validation",
        "validation_set": "validation",
        "validation_split": "validation",
        "verbose": "progress",
    },
    "attribute of a model": {
        "add": "a list of layers, given to NeuralNetwork",
        "compile": "loss and optimizer, given to NeuralNetwork",
        "eval": "nothing: predict and evaluate know that they do not train",
        "forward": "model(x)",
        "get_weights": "parameters, by name",
        "load_weights": "load",
        "partial_fit": "fit, which goes on where it ended",
        "save_weights": "save",
        "score": "evaluate",
        "to": "device, given to NeuralNetwork",
        "train": "fit",
        "trainable_variables": "parameters",
        "weights": "parameters",
    },
    "attribute of dnn": {
        "BCEWithLogitsLoss": "BinaryCrossEntropy",
        "AdaptiveAvgPool2d": "GlobalAvgPool2D",
        "AveragePooling2D": "AvgPool2D",
        "BatchNorm1d": "BatchNorm",
        "BatchNorm2d": "BatchNorm",
        "BatchNormalization": "BatchNorm",
        "Conv1d": "Conv1D",
        "Conv2d": "Conv2D",
        "CrossEntropyLoss": "SoftmaxCrossEntropy",
        "Dropout2d": "SpatialDropout",
        "Dense": "FullyConnected",
        "GlobalAveragePooling2D": "GlobalAvgPool2D",
        "LayerNormalization": "LayerNorm",
        "Linear": "FullyConnected",
        "MLPClassifier": "mlp, or dnn.sklearn.DNNClassifier",
        "MLPRegressor": "mlp, or dnn.sklearn.DNNRegressor",
        "MSELoss": "MeanSquaredError",
        "MaxPooling2D": "MaxPool2D",
        "Model": "NeuralNetwork",
        "ReLU": 'Activation("relu")',
        "Sequential": "NeuralNetwork",
        "Sigmoid": 'Activation("sigmoid")',
        "SimpleRNN": "RNN",
        "Softmax": "SoftmaxCrossEntropy, which has the softmax in it",
        "Tanh": 'Activation("tanh")',
        "load_model": "load",
        "pack_padded_sequence": "pad_sequences, and lengths of recurrent layers",
        "save_model": "save_checkpoint",
        "train_test_split": "train_validation_split",
    },
}
"""For each kind of name: from the names of other libraries to the names or advice to give."""


def suggestion(kind: str, name: object, known: Iterable[str] = ()) -> str:
    """Return the end of a message that suggests the name probably meant; empty if there is none.

    `kind` is a key of `FOREIGN_NAMES`, such as ``"loss"``.
    """
    table = FOREIGN_NAMES.get(kind, {})
    ours = table.get(str(name)) or table.get(str(name).lower())
    known = set(known)
    if ours is not None and (ours in known or not (known and ours.isidentifier())):
        return f"; here that is {ours!r}" if ours in known else f"; here that is {ours}"
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    close = close or difflib.get_close_matches(str(name).lower(), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
