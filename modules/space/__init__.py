"""The search space of a sweep, as a workflow file describes it.

::

    learning_rate = [0.01, 0.1]                                  a list of choices
    batch_size    = { from = 16, to = 64, step = 16 }            16, 32, 48, 64
    batch_size    = { from = 16, to = 128, log_steps = 4 }       16, 32, 64, 128
    weight_decay  = { from = 1e-5, to = 1e-1, log_steps = 5 }    1e-5, 1e-4, ... 1e-1
    layers        = { from = 1, to = 5 }                         1, 2, 3, 4, 5
    dropout       = { from = 0.0, to = 0.5 }                     any value between: no grid
    learning_rate = { from = 1e-5, to = 1e-1, scale = "log" }    likewise, each decade alike
    epochs        = 20                                           the same for every point

A parameter that exists only beside certain values of others says so with ``if``::

    optimizer = ["sgd", "adam"]
    beta_2    = { choices = [0.99, 0.999], if = { optimizer = "adam" } }
    momentum  = { from = 0.0, to = 0.9, step = 0.1, if = { optimizer = ["sgd", "rmsprop"] } }
    nesterov  = { choices = [true, false], if = { momentum = { at_least = 0.5 } } }
    warm_up   = { value = 5, if = { optimizer = "sgd", momentum = 0.9 } }

Every entry of an ``if`` has to hold, and one about a parameter that is itself absent does not.
A point has only the parameters that are there in it.
"""

from .decoding import Permutation
from .dimensions import Choices, Dimension, Finite, LogIntegers, LogSteps, Range, SpaceError, Steps
from .space import FORMS, Parameters, Space, parse_dimension

__all__ = [
    "FORMS",
    "Choices",
    "Dimension",
    "Finite",
    "LogIntegers",
    "LogSteps",
    "Parameters",
    "Permutation",
    "Range",
    "Space",
    "SpaceError",
    "Steps",
    "parse_dimension",
]
