"""What a user hands over, as an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import DataError

__all__ = ["array_of"]


def array_of(name: str, values: npt.ArrayLike) -> Array:
    """Return values as an array, without a copy where they are one.

    Parameters
    ----------
    name : str
        Of the argument, for the message.
    values : array_like

    Raises
    ------
    DataError
        If they have no shape, such as rows that differ in length.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: rows that differ in length make no array ({error})") from None
