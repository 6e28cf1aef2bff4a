"""A lazy graph of array operations, its gradients, and plans compiled from it.

From the first node to training:

1. `node`: operations on nodes make nodes; shapes are checked then, and nothing is computed.
2. `operations`: the table of operations, each with its forward and its gradient.
3. `gradients`: writes the gradient of a scalar as further nodes.
4. `layout`: decides where in memory the result of each node stands.
5. `plan`: binds functions to arrays; a training step replays it.
"""

from dnn.graph import operations
from dnn.graph.gradients import grad, gradients
from dnn.graph.node import Node, constant, placeholder, var, variable
from dnn.graph.operations import *  # noqa: F403 (listed in each module of operations)
from dnn.graph.passes import Graph, explain, graph_of, optimise
from dnn.graph.plan import Arena, Plan, evaluate, run_eagerly
from dnn.graph.statistics import Statistics, StatisticsRow, both_forms, statistics

__all__ = [
    "Arena",
    "Graph",
    "Node",
    "Plan",
    "Statistics",
    "StatisticsRow",
    "both_forms",
    "constant",
    "evaluate",
    "explain",
    "grad",
    "gradients",
    "graph_of",
    "optimise",
    "placeholder",
    "run_eagerly",
    "statistics",
    "var",
    "variable",
]
__all__ += operations.__all__
