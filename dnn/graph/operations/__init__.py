"""Every operation, each with its forward and its gradient on one screen.

The public functions are those that each module lists in its ``__all__``; some only compose
operations. The base class of elementwise operations stands in `elementwise`.
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
    systems,
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
from dnn.graph.operations.systems import *

__all__: list[str] = []
for _module in (
    *(arithmetic, comparisons, activations, shapes, reductions, slices, products, systems),
    *(convolution, pooling, classification, normalisation, recurrence, noise, states, ranks),
):
    __all__ += _module.__all__
