"""Every operation, each with its forward and its gradient on one screen.

| module | operations |
|---|---|
| `elementwise` | add, subtract, multiply, divide, negative, exp, log, square |
| `activations` | relu, positive, sigmoid, tanh |
| `shapes` | reshape, transpose, broadcast_to, sum_to (sum, mean) |
| `linear` | matmul |
| `classification` | one_hot, log_softmax (softmax), softmax_cross_entropy |
| `normalisation` | normalise |
| `noise` | uniform_noise |
| `states` | copy, assign |
"""

from dnn.graph.operations.activations import relu, sigmoid, tanh
from dnn.graph.operations.classification import (
    log_softmax,
    one_hot,
    softmax,
    softmax_cross_entropy,
)
from dnn.graph.operations.elementwise import divide, exp, log, square
from dnn.graph.operations.linear import matmul
from dnn.graph.operations.noise import uniform_noise
from dnn.graph.operations.normalisation import Normalised, normalise
from dnn.graph.operations.shapes import broadcast_to, mean, reshape, sum, sum_to, transpose
from dnn.graph.operations.states import assign

__all__ = [
    "Normalised",
    "assign",
    "broadcast_to",
    "divide",
    "exp",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "normalise",
    "one_hot",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "square",
    "sum",
    "sum_to",
    "tanh",
    "transpose",
    "uniform_noise",
]
