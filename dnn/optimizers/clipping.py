"""Gradient clipping: by value, and by the norm of all gradients together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnn.backend import Array, Ops, empty
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Multiply, Negative
from dnn.graph.operations.extremes import Clip

__all__ = ["COLUMNS", "clip_steps"]

# Elements of one network that are taken at a time. Other than the blocks of an update it does not
# depend on K, so that the sums of K networks have the bits of single ones.
COLUMNS = 16384


def clip_steps(ops: Ops, gradients: Array, scalars: Mapping[str, Array]) -> list[Step]:
    """Return the steps that clip gradients in place.

    Parameters
    ----------
    ops : Ops
    gradients : array, shape (P,) or (K, P)
    scalars : mapping of str to array of shape () or (K, 1)
        ``clip_value`` and ``clip_norm``, where they are wanted.

    Returns
    -------
    list of (function, arguments)

    References
    ----------
    .. [1] Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
       2013, algorithm 1.
    """
    dtype, size = gradients.dtype, gradients.shape[-1]
    columns = COLUMNS if ops.in_blocks else max(1, size)
    parts = [gradients[..., at : at + columns] for at in range(0, size, columns)]
    steps: list[Step] = []
    if "clip_value" in scalars:
        limit = scalars["clip_value"]
        lowest = ops.asarray(np.zeros(limit.shape, dtype))
        steps.append(ops.elementwise(Negative.formula, (limit,), lowest))
        steps += [ops.elementwise(Clip.formula, (part, lowest, limit), part) for part in parts]
    if "clip_norm" in scalars:
        leading = gradients.shape[:-1]
        squares = empty(ops, (*leading, min(columns, size)), dtype)
        sums = empty(ops, (*leading, len(parts)), dtype)
        factor = empty(ops, (*leading, 1), dtype)
        for i, part in enumerate(parts):
            space = squares[..., : part.shape[-1]]
            steps.append((ops.sum_of_squares, (part, space, sums[..., i : i + 1])))
        steps.append((ops.clip_factor, (sums, scalars["clip_norm"], factor)))
        steps += [ops.elementwise(Multiply.formula, (part, factor), part) for part in parts]
    return steps
