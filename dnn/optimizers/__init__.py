"""Optimizers: from gradients to the next parameters, from simple to hard.

`descent` has SGD (plain, with momentum, Nesterov's), AdaGrad and RMSProp, `adam` Adam, AdamW and
NAdam, `parameter_rule` LARS and Muon. `optimizer`, `rule` and `parameter_rule` show how to write an
optimizer of one's own. Clipping works with all of them, and so do `schedules`, a module that is
imported only if an optimizer has a schedule.
"""

from typing import Any

from dnn.errors import ConfigurationError, unknown_name
from dnn.optimizers.adam import Adam, AdamW, NAdam
from dnn.optimizers.descent import SGD, AdaGrad, GradientDescent, RMSProp
from dnn.optimizers.optimizer import BLOCK, Block, Optimizer, Update
from dnn.optimizers.parameter_rule import LARS, Muon, ParameterRule
from dnn.optimizers.rule import Rule

__all__ = [
    "BLOCK",
    "LARS",
    "OPTIMIZERS",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Block",
    "GradientDescent",
    "Muon",
    "NAdam",
    "Optimizer",
    "ParameterRule",
    "RMSProp",
    "Rule",
    "Update",
    "optimizer_of",
]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "rmsprop": RMSProp,
    "adagrad": AdaGrad,
    "lars": LARS,
    "muon": Muon,
}


def optimizer_of(given: str | Optimizer, **settings: Any) -> Optimizer:
    """Return an optimizer by name and settings; an `Optimizer` is returned as it is.

    Examples
    --------
    >>> optimizer_of("sgd", learning_rate=0.1, momentum=0.9)
    SGD(learning_rate=0.1, weight_decay=0.0, momentum=0.9)

    Raises
    ------
    ConfigurationError
        If no optimizer has that name, or a setting is unknown or out of range.
    """
    if isinstance(given, Optimizer):
        return given
    if not isinstance(given, str) or given not in OPTIMIZERS:
        raise unknown_name("optimizer", given, OPTIMIZERS)
    try:
        return OPTIMIZERS[given](**settings)
    except TypeError as error:
        raise ConfigurationError(f"optimizer {given!r}: {error}") from error
