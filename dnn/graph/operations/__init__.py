"""Every operation, each with its forward and its gradient on one screen.

The public functions are those that each module lists in its ``__all__``; some only compose
operations. The base class of elementwise operations stands in `elementwise`.
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
