"""A lazy graph of array operations, its gradients, and plans compiled from it.

In the order in which a graph lives:

1. `node`: operations on nodes make nodes; shapes are checked then, and nothing is computed.
2. `operations`: the one table, each operation with its forward and its gradient.
3. `gradients`: writes the gradient of a scalar as further nodes.
4. `layout`: decides which node stands where in memory.
5. `plan`: binds functions to arrays; replaying it is all that training does.
"""

from dnn.graph import operations
from dnn.graph.eager import run_eagerly
from dnn.graph.gradients import grad, gradients
from dnn.graph.node import Node, constant, placeholder, var, variable
from dnn.graph.operations import *  # noqa: F403 (listed in each module of operations)
from dnn.graph.passes import Graph, explain, graph_of, optimise
from dnn.graph.plan import Arena, Plan, evaluate

__all__ = [
    "Arena",
    "Graph",
    "Node",
    "Plan",
    "constant",
    "evaluate",
    "explain",
    "grad",
    "gradients",
    "graph_of",
    "optimise",
    "placeholder",
    "run_eagerly",
    "var",
    "variable",
]
__all__ += operations.__all__
