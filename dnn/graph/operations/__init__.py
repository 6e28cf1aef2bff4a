"""Every operation, each with its forward and its gradient on one screen.

| module | operations |
|---|---|
| `arithmetic` | add, subtract, multiply, divide, negative, |
| | exp, expm1, log, log1p, square, sqrt, power |
| `comparisons` | greater, greater_equal, equal, cast, where, where_greater, where_equal |
| `extremes` | maximum, minimum, clip, abs, sign |
| `activations` | relu, positive, sigmoid, tanh (leaky_relu, elu, softplus, gelu) |
| `shapes` | reshape (flatten, squeeze, expand_dims), transpose |
| `sums` | broadcast_to (tile), sum_to (sum, mean) |
| `slices` | slice, unslice, concat (stack) |
| `rows` | take_rows, add_rows, one_hot |
| `reductions` | max, min, prod, argmax |
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

In brackets: functions that only compose operations. The base class of elementwise operations
stands in `elementwise`. Public functions are those that each module lists in its `__all__`.
"""

# ruff: noqa: F403, I001 (public names stand in the modules; they are in the table's order)

from dnn.graph.operations import (
    arithmetic,
    comparisons,
    extremes,
    activations,
    shapes,
    sums,
    slices,
    rows,
    reductions,
    products,
    convolution,
    pooling,
    classification,
    normalisation,
    recurrence,
    noise,
    states,
    ranks,
)
from dnn.graph.operations.arithmetic import *
from dnn.graph.operations.comparisons import *
from dnn.graph.operations.extremes import *
from dnn.graph.operations.activations import *
from dnn.graph.operations.shapes import *
from dnn.graph.operations.sums import *
from dnn.graph.operations.slices import *
from dnn.graph.operations.rows import *
from dnn.graph.operations.reductions import *
from dnn.graph.operations.products import *
from dnn.graph.operations.convolution import *
from dnn.graph.operations.pooling import *
from dnn.graph.operations.classification import *
from dnn.graph.operations.normalisation import *
from dnn.graph.operations.recurrence import *
from dnn.graph.operations.noise import *
from dnn.graph.operations.states import *
from dnn.graph.operations.ranks import *

__all__: list[str] = []
__all__ += arithmetic.__all__
__all__ += comparisons.__all__
__all__ += extremes.__all__
__all__ += activations.__all__
__all__ += shapes.__all__
__all__ += sums.__all__
__all__ += slices.__all__
__all__ += rows.__all__
__all__ += reductions.__all__
__all__ += products.__all__
__all__ += convolution.__all__
__all__ += pooling.__all__
__all__ += classification.__all__
__all__ += normalisation.__all__
__all__ += recurrence.__all__
__all__ += noise.__all__
__all__ += states.__all__
__all__ += ranks.__all__
