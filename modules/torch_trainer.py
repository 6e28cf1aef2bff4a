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
from typing import Any, Final

from .tabular import load_split
from .trial import Report, marked

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
OPTIMIZERS: Final[Mapping[str, str]] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""The class in `torch.optim` of each optimizer that this trainer has."""


def train(parameters: dict[str, Any], report: Report) -> dict[str, Any]:
    """Train one network, and report after each epoch.

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
        ``accuracy`` and ``loss`` on the validation rows, ``training_time_s``, and ``diverged`` if
        the training did.
    """
    import torch
    from torch import nn

    torch.manual_seed(report.seed)
    training, validation = load_split(report.options, report.folder)
    x, y = torch.as_tensor(training.x), torch.as_tensor(training.y).long()
    held_x, held_y = torch.as_tensor(validation.x), torch.as_tensor(validation.y).long()
    x, held_x = x.float(), held_x.float()
    model = _network(nn, x.shape[1], parameters, training.classes)
    optimizer = _optimizer(torch.optim, model, parameters)
    batch_size = parameters.get("batch_size", 32)
    loss_of = nn.CrossEntropyLoss()
    seconds, metrics = 0.0, {}
    for epoch in range(1, parameters.get("epochs", 20) + 1):
        started_s = time.perf_counter()
        model.train()
        for rows in torch.split(torch.randperm(len(x)), batch_size):
            optimizer.zero_grad()
            loss_of(model(x[rows]), y[rows]).backward()
            optimizer.step()
        seconds += time.perf_counter() - started_s
        model.eval()
        with torch.no_grad():
            scores = model(held_x)
            metrics = {
                "accuracy": float((scores.argmax(1) == held_y).float().mean()),
                "loss": float(loss_of(scores, held_y)),
                "training_time_s": seconds,
            }
        # A training that has come to NaN or infinity does not recover.
        if not report(epoch, **metrics) or not math.isfinite(metrics["loss"]):
            break
    return marked(metrics)


def _network(nn: Any, features: int, parameters: dict[str, Any], classes: int) -> Any:
    name = parameters.get("activation", "relu")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r}: this trainer has {', '.join(ACTIVATIONS)}")
    layers: list[Any] = []
    width = features
    for units in parameters.get("hidden", [64]):
        layers += [nn.Linear(width, units), getattr(nn, ACTIVATIONS[name])()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, classes))


def _optimizer(optim: Any, model: Any, parameters: dict[str, Any]) -> Any:
    rate, decay = parameters.get("learning_rate", 0.1), parameters.get("weight_decay", 0.0)
    name = parameters.get("optimizer", "sgd")
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r}: this trainer has {', '.join(OPTIMIZERS)}")
    of_sgd = {"momentum": parameters.get("momentum", 0.9)} if name == "sgd" else {}
    kind = getattr(optim, OPTIMIZERS[name])
    return kind(model.parameters(), lr=rate, weight_decay=decay, **of_sgd)
