"""Every operation, each with its forward and its gradient on one screen.

| module | operations |
|---|---|
| `arithmetic` | add, subtract, multiply, divide, negative |
| `powers` | exp, expm1, log, log1p, square, sqrt, power |
| `comparisons` | greater, greater_equal, equal, cast, where, where_greater, where_equal |
| `extremes` | maximum, minimum, clip, abs, sign |
| `activations` | relu, positive, sigmoid, tanh (leaky_relu, elu, softplus, gelu) |
| `shapes` | reshape (flatten, squeeze, expand_dims), transpose |
| `sums` | broadcast_to (tile), sum_to (sum, mean) |
| `slices` | slice, unslice, concat (stack) |
| `rows` | take_rows, add_rows, one_hot |
| `reductions` | max, min, prod, argmax |
| `linear` | matmul (dot, linear, bias_add, gemm, gemv, axpy, scal) |
| `classification` | log_softmax (softmax), softmax_cross_entropy, binary_cross_entropy |
| `normalisation` | normalise |
| `noise` | uniform_noise (dropout) |
| `states` | copy, assign |

In brackets: functions that only compose operations. What the elementwise ones have in common
stands in `elementwise`.
"""

from dnn.graph.operations.activations import (
    elu,
    gelu,
    leaky_relu,
    positive,
    relu,
    sigmoid,
    softplus,
    tanh,
)
from dnn.graph.operations.arithmetic import (
    add,
    divide,
    multiply,
    negative,
    subtract,
)
from dnn.graph.operations.classification import (
    binary_cross_entropy,
    log_softmax,
    softmax,
    softmax_cross_entropy,
)
from dnn.graph.operations.comparisons import (
    cast,
    equal,
    greater,
    greater_equal,
    where,
)
from dnn.graph.operations.extremes import (
    abs,
    clip,
    maximum,
    minimum,
)
from dnn.graph.operations.linear import axpy, bias_add, dot, gemm, gemv, linear, matmul, scal
from dnn.graph.operations.noise import dropout, uniform_noise
from dnn.graph.operations.normalisation import Normalised, normalise
from dnn.graph.operations.powers import (
    exp,
    expm1,
    log,
    log1p,
    power,
    sqrt,
    square,
)
from dnn.graph.operations.reductions import argmax, max, min, prod
from dnn.graph.operations.rows import (
    one_hot,
    take_rows,
)
from dnn.graph.operations.shapes import (
    expand_dims,
    flatten,
    reshape,
    squeeze,
    transpose,
)
from dnn.graph.operations.slices import (
    concat,
    part,
    stack,
)
from dnn.graph.operations.states import assign
from dnn.graph.operations.sums import (
    broadcast_to,
    mean,
    sum,
    sum_to,
    tile,
)

__all__ = [
    "Normalised",
    "abs",
    "add",
    "argmax",
    "assign",
    "axpy",
    "bias_add",
    "binary_cross_entropy",
    "broadcast_to",
    "cast",
    "clip",
    "concat",
    "divide",
    "dot",
    "dropout",
    "elu",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "flatten",
    "gelu",
    "gemm",
    "gemv",
    "greater",
    "greater_equal",
    "leaky_relu",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "normalise",
    "one_hot",
    "part",
    "positive",
    "power",
    "prod",
    "relu",
    "reshape",
    "scal",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "sum_to",
    "take_rows",
    "tanh",
    "tile",
    "transpose",
    "uniform_noise",
    "where",
]
