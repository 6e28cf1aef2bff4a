"""Every operation, each with its forward and its gradient on one screen.

| module | operations |
|---|---|
| `arithmetic` | add, subtract, multiply, divide, negative, |
| | exp, expm1, log, log1p, square, sqrt, power |
| `comparisons` | greater, greater_equal, equal, cast, where, where_greater, where_equal, |
| | maximum, minimum, clip, abs, sign |
| `activations` | relu, positive, sigmoid, tanh (leaky_relu, elu, softplus, gelu) |
| `shapes` | reshape (flatten, squeeze, expand_dims), transpose |
| `reductions` | broadcast_to (tile), sum_to (sum, mean), max, min, prod, argmax |
| `slices` | slice, unslice, concat (stack), take_rows, add_rows, one_hot |
| `products` | matmul (bmatmul, dot, linear, bias_add, gemm, gemv, axpy, scal) |
| `convolution` | conv2d, conv2d_data_gradient, conv2d_weight_gradient |
| `pooling` | max_pool2d, average_pool2d |
| `classification` | log_softmax (softmax), softmax_cross_entropy, binary_cross_entropy |
| `normalisation` | normalise, batch_norm |
| `recurrence` | recurrence, hidden_states, cell_states, recurrence_gradient, |
| | recurrence_weights (recurrent) |
| `noise` | uniform_noise (dropout) |
| `states` | copy, assign, add_to |
| `ranks` | sum_over_ranks, copy_to_ranks |

In brackets: functions that only compose operations. Public functions are those that each module
lists in its `__all__`.
"""

# ruff: noqa: F403 (public names stand in the modules)

from dnn.graph.operations import (
    activations,
    arithmetic,
    classification,
    comparisons,
    convolution,
    noise,
    normalisation,
    pooling,
    products,
    ranks,
    recurrence,
    reductions,
    shapes,
    slices,
    states,
)
from dnn.graph.operations.activations import *
from dnn.graph.operations.arithmetic import *
from dnn.graph.operations.classification import *
from dnn.graph.operations.comparisons import *
from dnn.graph.operations.convolution import *
from dnn.graph.operations.noise import *
from dnn.graph.operations.normalisation import *
from dnn.graph.operations.pooling import *
from dnn.graph.operations.products import *
from dnn.graph.operations.ranks import *
from dnn.graph.operations.recurrence import *
from dnn.graph.operations.reductions import *
from dnn.graph.operations.shapes import *
from dnn.graph.operations.slices import *
from dnn.graph.operations.states import *

__all__: list[str] = []
for _module in (
    *(arithmetic, comparisons, activations, shapes, reductions, slices, products, convolution),
    *(pooling, classification, normalisation, recurrence, noise, states, ranks),
):
    __all__ += _module.__all__
