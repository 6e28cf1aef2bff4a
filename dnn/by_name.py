"""`catalogue`: activations, losses, metrics, optimizers, data sets and more, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from dnn.errors import explains_arguments, unknown_name

__all__ = ["catalogue"]

_TABLES: Final = {
    "activation": "dnn.graph.operations.activations:ACTIVATIONS",
    "augmentation": "dnn.data.augmentation:AUGMENTATIONS",
    "data set": "dnn.data.known_sets:DATASETS",
    "download": "dnn.data.known_sets:SOURCES",
    "initializer": "dnn.initializers:INITIALIZERS",
    "loss": "dnn.losses:LOSSES",
    "metric": "dnn.metric_names:METRICS",
    "optimizer": "dnn.optimizers:OPTIMIZERS",
    "precision": "dnn.precision:PRECISIONS",
    "schedule": "dnn.optimizers.schedules:SCHEDULES",
}


@explains_arguments
def catalogue(kind: str) -> Mapping[str, Any]:
    """Return all that there is of a kind, by name.

    Parameters
    ----------
    kind : str
        Such as ``"activation"``, ``"optimizer"`` or ``"data set"``.

    Returns
    -------
    mapping of str to any
        Functions and classes, or what is known of each name.

    Raises
    ------
    ConfigurationError
        If there is no such kind; the message lists all.
    """
    if kind not in _TABLES:
        raise unknown_name("kind", kind, _TABLES)
    module, _, table = _TABLES[kind].partition(":")
    found: Mapping[str, Any] = getattr(import_module(module), table)
    return found
