"""Optimizers: from gradients to the next parameters, from simple to hard.

| module | optimizers |
|---|---|
| `sgd` | SGD: plain, with momentum, Nesterov's |
| `adagrad` | AdaGrad |
| `rmsprop` | RMSProp |
| `adam` | Adam, AdamW |

`optimizer` says how to write another one.
"""

from dnn.optimizers.adagrad import AdaGrad
from dnn.optimizers.adam import Adam, AdamW
from dnn.optimizers.optimizer import BLOCK, Block, Optimizer
from dnn.optimizers.rmsprop import RMSProp
from dnn.optimizers.sgd import SGD
from dnn.optimizers.update import Update

__all__ = [
    "BLOCK",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Block",
    "Optimizer",
    "RMSProp",
    "Update",
]
