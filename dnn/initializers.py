"""Initializers: functions that make the first values of parameters and tensors.

An initializer is a function ``(generator, shape, dtype) -> array``:

    generator : numpy.random.Generator
        Each parameter of a network gets a generator of its own, so no two tensors start alike.
    shape : tuple of int
        Units stand along the last axis and inputs along the one before it.
    dtype : type of elements

It returns an array of `shape` and `dtype`. Initializers that need a number are made by a function,
such as ``constant(0.5)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError, ShapeError, explains_arguments, unknown_name

__all__ = [
    "CONSTANT",
    "DETERMINISTIC",
    "DIAGONAL",
    "GLOROT",
    "IDENTITY",
    "INITIALIZERS",
    "MASK",
    "ONE",
    "UNIFORM",
    "ZERO",
    "Initializer",
    "constant",
    "diagonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "initializer_of",
    "mask",
    "normal",
    "ones",
    "uniform",
    "zeros",
]

Shape = tuple[int, ...]

Initializer = Callable[[np.random.Generator, Shape, npt.DTypeLike], Array]


def fans(shape: Shape) -> tuple[int, int]:
    """Return fan-in and fan-out: inputs of each unit, and units that each input reaches.

    The last axis counts units and the one before it inputs; axes before these, a convolution's
    window, multiply both.
    """
    if len(shape) < 2:
        return max(1, math.prod(shape)), max(1, math.prod(shape))
    window = math.prod(shape[:-2])
    return window * shape[-2], window * shape[-1]


def zeros(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Return zeros, from which biases start."""
    return np.zeros(shape, dtype)


def ones(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Return ones."""
    return np.ones(shape, dtype)


@explains_arguments
def constant(value: float) -> Initializer:
    """Return an initializer that fills an array with `value`.

    Parameters
    ----------
    value : float

    Returns
    -------
    Initializer
    """

    def fill(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
        return np.full(shape, value, dtype)

    return fill


def _drawn(draw: Callable[[np.random.Generator, Shape], npt.ArrayLike]) -> Initializer:
    """Return an initializer that casts the values that `draw` returns."""

    def fill(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
        return np.asarray(draw(generator, shape)).astype(dtype)

    return fill


@explains_arguments
def uniform(low: float, high: float) -> Initializer:
    """Return an initializer that draws uniformly from `low` to `high`.

    Parameters
    ----------
    low, high : float

    Returns
    -------
    Initializer

    Raises
    ------
    ConfigurationError
        If `low` is not below `high`.
    """
    if not low < high:
        raise ConfigurationError(f"uniform: low {low!r} must be below high {high!r}")

    return _drawn(lambda generator, shape: generator.uniform(low, high, shape))


@explains_arguments
def normal(mean: float, deviation: float) -> Initializer:
    """Return an initializer that draws from a normal distribution.

    Parameters
    ----------
    mean : float
    deviation : float, not negative
        The standard deviation.

    Returns
    -------
    Initializer

    Raises
    ------
    ConfigurationError
        If `deviation` is negative.
    """
    if not deviation >= 0:
        raise ConfigurationError(f"normal: deviation must not be negative: {deviation!r}")

    return _drawn(lambda generator, shape: generator.normal(mean, deviation, shape))


@explains_arguments
def mask(probability: float) -> Initializer:
    """Return an initializer that draws 1 with a probability, else 0.

    Parameters
    ----------
    probability : float, in 0 .. 1

    Returns
    -------
    Initializer

    Raises
    ------
    ConfigurationError
        If `probability` is outside its range.
    """
    if not 0 <= probability <= 1:
        raise ConfigurationError(f"mask: probability must be in 0 .. 1, not {probability!r}")

    return _drawn(lambda generator, shape: generator.random(shape) < probability)


def diagonal(values: npt.ArrayLike) -> Initializer:
    """Return an initializer that puts values on the diagonal of the last two axes, else zeros.

    Parameters
    ----------
    values : array_like, shape () or (n,)
        One value for the whole diagonal, or one for each of its elements.

    Returns
    -------
    Initializer
        It raises `ShapeError` for a shape of fewer than two axes, or with another diagonal.
    """

    def fill(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
        given = np.asarray(values)
        rows = min(shape[-2:]) if len(shape) >= 2 else 0
        if len(shape) < 2 or given.shape not in ((), (rows,)):
            message = f"values of shape {given.shape} are no diagonal of {shape}"
            raise ShapeError("diagonal", message, given.shape, shape)
        filled = np.zeros(shape, dtype)
        along = np.arange(rows)
        filled[..., along, along] = given
        return filled

    return fill


def identity(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Return ones on the diagonal of the last two axes, of which there must be two, else zeros."""
    return diagonal(1.0)(generator, shape, dtype)


def glorot_uniform(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Draw uniformly with variance ``2 / (fan_in + fan_out)`` [1]_: for sigmoid, tanh and outputs.

    References
    ----------
    .. [1] Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
       networks, 2010, equation 16.
    """
    limit = math.sqrt(6.0 / sum(fans(shape)))
    return generator.uniform(-limit, limit, shape).astype(dtype)


def glorot_normal(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Draw normally with variance ``2 / (fan_in + fan_out)``; source as for `glorot_uniform`."""
    return generator.normal(0.0, math.sqrt(2.0 / sum(fans(shape))), shape).astype(dtype)


def he_uniform(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Draw uniformly with variance ``2 / fan_in`` [1]_: for relu.

    References
    ----------
    .. [1] He et al., Delving deep into rectifiers, 2015, equation 10.
    """
    limit = math.sqrt(6.0 / fans(shape)[0])
    return generator.uniform(-limit, limit, shape).astype(dtype)


def he_normal(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Draw normally with variance ``2 / fan_in``; source as for `he_uniform`."""
    return generator.normal(0.0, math.sqrt(2.0 / fans(shape)[0]), shape).astype(dtype)


INITIALIZERS: dict[str, Initializer] = {
    "diagonal": diagonal(1.0),
    "glorot": glorot_uniform,
    "glorot_normal": glorot_normal,
    "glorot_uniform": glorot_uniform,
    "he_normal": he_normal,
    "he_uniform": he_uniform,
    "identity": identity,
    "mask": mask(0.5),
    "one": ones,
    "ones": ones,
    "uniform": uniform(0.0, 1.0),
    "zero": zeros,
    "zeros": zeros,
}
"""Initializers by name, with the names that MagmaDNN uses."""


# As MagmaDNN's programs write them. The last two are called: ``CONSTANT(0.5)``.
UNIFORM, GLOROT, MASK = "uniform", "glorot", "mask"
ZERO, ONE, IDENTITY = "zero", "one", "identity"
CONSTANT, DIAGONAL = constant, diagonal


DETERMINISTIC: tuple[Initializer, ...] = (zeros, ones)
"""Initializers that draw no random numbers, so that every network starts with the same values."""


def initializer_of(given: str | float | Initializer) -> Initializer:
    """Return an initializer by name.

    Parameters
    ----------
    given : str, number or Initializer
        A number fills as a constant; a function is returned as it is.

    Returns
    -------
    Initializer

    Raises
    ------
    ConfigurationError
        If no initializer has that name; the message suggests the name probably meant.
    """
    if callable(given):
        return given
    if isinstance(given, int | float | np.number):
        return constant(float(given))
    if given not in INITIALIZERS:
        raise unknown_name("initializer", given, INITIALIZERS)
    return INITIALIZERS[given]
