"""Optimizers: from gradients to the next parameters, from simple to hard.

| module | optimizers |
|---|---|
| `sgd` | SGD: plain, with momentum, Nesterov's |
| `adagrad` | AdaGrad |
| `rmsprop` | RMSProp |
| `adam` | Adam, AdamW |

`optimizer` and `rule` say how to write another one; `schedules` and `clipping` go with any.
"""

from dnn.optimizers.adagrad import AdaGrad
from dnn.optimizers.adam import Adam, AdamW
from dnn.optimizers.optimizer import BLOCK, Block, Optimizer
from dnn.optimizers.rmsprop import RMSProp
from dnn.optimizers.rule import Rule
from dnn.optimizers.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Schedule,
    StepDecay,
    WarmUp,
    schedule_of,
)
from dnn.optimizers.sgd import SGD
from dnn.optimizers.update import Update

__all__ = [
    "BLOCK",
    "SCHEDULES",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Block",
    "Constant",
    "Cosine",
    "Optimizer",
    "RMSProp",
    "Rule",
    "Schedule",
    "StepDecay",
    "Update",
    "WarmUp",
    "schedule_of",
]
