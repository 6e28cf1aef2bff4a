"""Losses: functions of a network's outputs and targets, to be minimised by training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dnn.errors import ConfigurationError, unknown_name
from dnn.losses.classification import (
    BinaryCrossEntropy,
    CrossEntropy,
    FocalLoss,
    KullbackLeibler,
    MultiLabelCrossEntropy,
    SoftmaxCrossEntropy,
)
from dnn.losses.loss import Loss
from dnn.losses.regression import (
    HuberLoss,
    MeanAbsoluteError,
    MeanSquaredError,
    PoissonLoss,
    QuantileLoss,
)
from dnn.names import suggestion

__all__ = [
    "LOSSES",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "FocalLoss",
    "HuberLoss",
    "KullbackLeibler",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "MultiLabelCrossEntropy",
    "PoissonLoss",
    "QuantileLoss",
    "SoftmaxCrossEntropy",
    "loss_of",
]

LOSSES: dict[str, type[Loss]] = {
    each.name: each
    for each in (
        BinaryCrossEntropy,
        CrossEntropy,
        FocalLoss,
        HuberLoss,
        KullbackLeibler,
        MeanAbsoluteError,
        MeanSquaredError,
        MultiLabelCrossEntropy,
        PoissonLoss,
        QuantileLoss,
        SoftmaxCrossEntropy,
    )
}


def loss_of(given: str | Mapping[str, Any] | Loss) -> Loss:
    """Return a loss by name, or by a table of its name and its options.

    Parameters
    ----------
    given : str, mapping or Loss
        Such as ``"huber"`` or ``{"name": "huber", "delta": 0.5}``, whose options are arguments of
        the loss's class. A `Loss` is returned as it is.

    Returns
    -------
    Loss

    Raises
    ------
    ConfigurationError
        If no loss has that name, or an option is none of its arguments or out of range; the
        message suggests the name probably meant.
    """
    if isinstance(given, Loss):
        return given
    options = {**given} if isinstance(given, Mapping) else {}
    name = options.pop("name", None) if isinstance(given, Mapping) else given
    if not isinstance(name, str) or name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    known = inspect.signature(LOSSES[name]).parameters
    for option in options:
        if option not in known:
            said = f"known: {', '.join(known)}" if known else "it has none"
            hint = suggestion("argument", option, known)
            raise ConfigurationError(f"loss {name!r} has no option {option!r}{hint} ({said})")
    return LOSSES[name](**options)
