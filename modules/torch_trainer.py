"""A function for trials that trains a multilayer perceptron in PyTorch, to start one of your own.

::

    [module.options]
    train = "modules.torch_trainer:train"
    options = { dataset = "digits" }
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from .metrics import marked
from .tabular import metrics_of
from .trainer_data import load_split
from .trial import Report

ACTIVATIONS: Final[Mapping[str, str]] = {
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "leaky_relu": "LeakyReLU",
    "elu": "ELU",
    "softplus": "Softplus",
    "gelu": "GELU",
    "exact_gelu": "GELU",
    "silu": "SiLU",
    "relu6": "ReLU6",
    "hard_sigmoid": "Hardsigmoid",
    "hard_swish": "Hardswish",
}
"""The class in `torch.nn` of each activation that PyTorch has too."""
_LOSSES: Final[Mapping[str, str]] = {
    "classification": "CrossEntropyLoss",
    "regression": "MSELoss",
    "multilabel": "BCEWithLogitsLoss",
}
"""The class in `torch.nn` of the loss of each task."""
OPTIMIZERS: Final[Mapping[str, str]] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""The class in `torch.optim` of each optimizer that this trainer has."""


def train(parameters: dict[str, Any], report: Report) -> dict[str, Any]:
    """Train one network, and report after each epoch.

    It goes on from `Report.parent_checkpoint`, if there is one, with its own learning rate and so
    on, and leaves `Report.checkpoint` if it is to.

    Parameters
    ----------
    parameters : dict
        ``hidden`` (a list), ``activation`` (of `ACTIVATIONS`), ``optimizer`` (of `OPTIMIZERS`),
        ``learning_rate``, ``momentum``, ``weight_decay``, ``batch_size``, ``epochs``.
    report : Report
        Its options are those of the data, as for `modules.trainer`.

    Returns
    -------
    dict of str to float or bool
        ``loss`` on the validation rows, ``accuracy`` of a classification and the metrics of other
        tasks, as `modules.trainer` reports them, ``training_time_s``, and ``diverged`` if the
        training did.
    """
    import torch
    from torch import nn

    torch.manual_seed(report.seed)
    training, validation = load_split(report.options, report.folder)
    is_classes = training.task == "classification"
    x, held_x = (torch.as_tensor(part.x).float() for part in (training, validation))
    y, held_y = (torch.as_tensor(part.y) for part in (training, validation))
    y, held_y = (y.long(), held_y.long()) if is_classes else (y.float(), held_y.float())
    model = _network(nn, x.shape[1], parameters, training.outputs)
    optimizer = _optimizer(torch.optim, model, parameters)
    batch_size = parameters.get("batch_size", 32)
    loss_of = getattr(nn, _LOSSES[training.task])()
    done, metrics = 0, {}
    if report.parent_checkpoint is not None:
        done = _load(report.parent_checkpoint, model, optimizer)
    seconds = 0.0

    def weighted(outputs: Any, rows: Any) -> Any:
        if training.weights is None:
            return loss_of(outputs, y[rows])
        each = type(loss_of)(reduction="none")(outputs, y[rows]).reshape(len(rows), -1).mean(1)
        return (each * torch.as_tensor(training.weights)[rows]).mean()

    for epoch in range(done + 1, done + parameters.get("epochs", 20) + 1):
        started_s = time.perf_counter()
        model.train()
        for rows in torch.split(torch.randperm(len(x)), batch_size):
            optimizer.zero_grad()
            weighted(model(x[rows]), rows).backward()
            optimizer.step()
        seconds += time.perf_counter() - started_s
        model.eval()
        with torch.no_grad():
            scores = model(held_x)
            if is_classes:
                metrics = {"accuracy": float((scores.argmax(1) == held_y).float().mean())}
            else:
                guess = scores > 0 if training.task == "multilabel" else scores
                metrics = metrics_of(guess.numpy(), validation)
            metrics |= {"loss": float(loss_of(scores, held_y)), "training_time_s": seconds}
        # A training that has come to NaN or infinity does not recover.
        if not report(epoch, **metrics) or not math.isfinite(metrics["loss"]):
            break
    if report.checkpoint is not None:
        _save(report.checkpoint, model, optimizer, epoch)
    return marked(metrics)


def _save(path: Path, model: Any, optimizer: Any, epochs: int) -> None:
    """Write a network, the state of its optimizer, and after how many epochs, as NumPy's arrays."""
    arrays = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        kept = {name: tensor for name, tensor in state.items() if tensor is not None}
        arrays |= {f"optimizer/{index}/{name}": tensor for name, tensor in kept.items()}
    with path.open("wb") as file:  # of a path, NumPy would change the suffix
        np.savez(file, epochs=epochs, **{name: each.numpy() for name, each in arrays.items()})


def _load(path: Path, model: Any, optimizer: Any) -> int:
    """Load what `_save` has written, but for learning rates and the like; return the epochs."""
    import torch

    weights: dict[str, Any] = {}
    state: dict[int, dict[str, Any]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            kind, _, name = key.partition("/")
            if kind == "model":
                weights[name] = torch.as_tensor(arrays[key])
            elif kind == "optimizer":
                index, _, own = name.partition("/")
                state.setdefault(int(index), {})[own] = torch.as_tensor(arrays[key])
        epochs = int(arrays["epochs"])
    model.load_state_dict(weights)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return epochs


def _network(nn: Any, features: int, parameters: dict[str, Any], outputs: int) -> Any:
    name = parameters.get("activation", "relu")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r}: this trainer has {', '.join(ACTIVATIONS)}")
    layers: list[Any] = []
    width = features
    for units in parameters.get("hidden", [64]):
        layers += [nn.Linear(width, units), getattr(nn, ACTIVATIONS[name])()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _optimizer(optim: Any, model: Any, parameters: dict[str, Any]) -> Any:
    rate, decay = parameters.get("learning_rate", 0.1), parameters.get("weight_decay", 0.0)
    name = parameters.get("optimizer", "sgd")
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r}: this trainer has {', '.join(OPTIMIZERS)}")
    of_sgd = {"momentum": parameters.get("momentum", 0.9)} if name == "sgd" else {}
    kind = getattr(optim, OPTIMIZERS[name])
    return kind(model.parameters(), lr=rate, weight_decay=decay, **of_sgd)
