"""What tensors start from: initializers of MagmaDNN's names, and makers of those with a parameter.

A filler is an `Initializer`, a function ``(generator, shape, dtype) -> array``, so every
initializer is a filler, and every filler can initialise a parameter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, ShapeError, unknown_name
from dnn.graph.node import Shape
from dnn.initializers import INITIALIZERS, Initializer, glorot_uniform, ones, zeros

__all__ = ["FILLERS", "constant", "diagonal", "filler", "identity", "mask", "uniform"]


def constant(value: float) -> Initializer:
    """Return a filler that puts one value everywhere."""
    return lambda generator, shape, dtype: np.full(shape, value, dtype)


def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Return a filler that draws uniformly from `low` to `high`, without `high`.

    Raises
    ------
    ConfigurationError
        If `low` is not below `high`.
    """
    if not low < high:
        raise ConfigurationError(f"uniform: low {low!r} must be below high {high!r}")
    return lambda generator, shape, dtype: generator.uniform(low, high, shape).astype(dtype)


def mask(probability: float = 0.5) -> Initializer:
    """Return a filler that puts 1 with a probability, and else 0.

    Raises
    ------
    ConfigurationError
        If the probability is not in 0 .. 1.
    """
    if not 0 <= probability <= 1:
        raise ConfigurationError(f"mask: probability must be in 0 .. 1, not {probability!r}")
    return lambda generator, shape, dtype: (generator.random(shape) < probability).astype(dtype)


def diagonal(values: npt.ArrayLike = 1.0) -> Initializer:
    """Return a filler of matrices that are zero beside the diagonal.

    Parameters
    ----------
    values : number, or array_like of the diagonal's length
        What stands on the diagonal of the last two axes.
    """
    given = np.asarray(values)

    def fill(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
        length = min(shape[-2:]) if len(shape) >= 2 else 0
        if len(shape) < 2 or given.shape not in ((), (length,)):
            message = f"a diagonal {given.shape} does not fit into {shape}"
            raise ShapeError("diagonal", message, given.shape, shape)
        filled = np.zeros(shape, dtype)
        at = np.arange(length)
        filled[..., at, at] = given
        return filled

    return fill


def identity(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Return matrices with ones on the diagonal of the last two axes, and else zeros."""
    return diagonal(1.0)(generator, shape, dtype)


FILLERS: dict[str, Initializer] = {
    **INITIALIZERS,
    "diagonal": diagonal(),
    "glorot": glorot_uniform,
    "identity": identity,
    "mask": mask(),
    "one": ones,
    "uniform": uniform(),
    "zero": zeros,
}


def filler(given: str | float | Initializer) -> Initializer:
    """Return a filler by name; a number fills as a constant, a function is returned as it is.

    Raises
    ------
    ConfigurationError
        If there is none of that name; it names the one probably meant.
    """
    if callable(given):
        return given
    if isinstance(given, int | float | np.number):
        return constant(float(given))
    if given not in FILLERS:
        raise unknown_name("filler", given, FILLERS)
    return FILLERS[given]
