"""What tensors start from: initializers, also under MagmaDNN's names.

A filler is an `Initializer`, a function ``(generator, shape, dtype) -> array``, so every
initializer is a filler, and every filler can initialise a parameter.
"""

from __future__ import annotations

import numpy as np

from dnn.errors import unknown_name
from dnn.initializers import (
    INITIALIZERS,
    Initializer,
    constant,
    diagonal,
    glorot_uniform,
    identity,
    mask,
    normal,
    ones,
    uniform,
    zeros,
)

__all__ = [
    "FILLERS",
    "constant",
    "diagonal",
    "filler",
    "identity",
    "mask",
    "normal",
    "uniform",
]

FILLERS: dict[str, Initializer] = {
    **INITIALIZERS,
    "diagonal": diagonal(1.0),
    "glorot": glorot_uniform,
    "identity": identity,
    "mask": mask(0.5),
    "one": ones,
    "uniform": uniform(0.0, 1.0),
    "zero": zeros,
}


def filler(given: str | float | Initializer) -> Initializer:
    """Return a filler by name.

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
        If there is none of that name; it names the one probably meant.
    """
    if callable(given):
        return given
    if isinstance(given, int | float | np.number):
        return constant(float(given))
    if given not in FILLERS:
        raise unknown_name("filler", given, FILLERS)
    return FILLERS[given]
