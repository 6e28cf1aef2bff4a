"""A lazy graph of array operations, its gradients, and plans compiled from it.

In the order in which a graph lives:

1. `node`: operations on nodes make nodes; shapes are checked then, and nothing is computed.
2. `operations`: the one table, each operation with its forward and its gradient.
3. `gradients`: writes the gradient of a scalar as further nodes.
4. `layout`: decides which node stands where in memory.
5. `plan`: binds functions to arrays; replaying it is all that training does.
"""

from dnn.graph.gradients import gradients
from dnn.graph.node import Node, constant, placeholder, variable
from dnn.graph.operations import (
    assign,
    broadcast_to,
    divide,
    exp,
    log,
    log_softmax,
    matmul,
    mean,
    normalise,
    one_hot,
    relu,
    reshape,
    sigmoid,
    softmax,
    softmax_cross_entropy,
    square,
    sum,
    tanh,
    transpose,
    uniform_noise,
)
from dnn.graph.plan import Arena, Plan, evaluate

__all__ = [
    "Arena",
    "Node",
    "Plan",
    "assign",
    "broadcast_to",
    "constant",
    "divide",
    "evaluate",
    "exp",
    "gradients",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "normalise",
    "one_hot",
    "placeholder",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "square",
    "sum",
    "tanh",
    "transpose",
    "uniform_noise",
    "variable",
]
