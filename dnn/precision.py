"""The table of precisions in which networks can be trained.

Parameters, gradients, optimizer states, losses and statistics are of `Precision.dtype` in each of
them. Passes decide which other values are rounded, see `dnn.graph.passes.precision`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from dnn.errors import ConfigurationError

__all__ = ["PRECISIONS", "Dtype", "Precision", "precision_of"]


Dtype = Literal["float32", "float64", "tf32", "float16", "bfloat16", "mixed_float16"]
"""Values of the argument ``dtype`` of networks."""


class Precision(NamedTuple):
    """A precision: the dtype of parameters, and how operands of products are rounded.

    Attributes
    ----------
    name : str
    dtype : dtype
        Of parameters, and of all values that are not rounded.
    passes : tuple of str, or None
        Names of the passes that round, and of passes that have to run before them.
    scales_loss : bool
        Gradients would vanish or overflow unless the loss were scaled.
    largest : float or None
        Largest number of the type of the operands of products, if it is less than float32's.
    """

    name: str
    dtype: np.dtype[Any]
    passes: tuple[str, ...] | None
    scales_loss: bool
    largest: float | None


_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# The two fusions are the same on every device, so that rounding is at the same places.
_FUSIONS = ("product_bias", "elementwise_fusion")

PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision("float32", _SINGLE, None, False, None),
        Precision("float64", _DOUBLE, None, False, None),
        Precision("tf32", _SINGLE, (*_FUSIONS, "tf32"), False, None),
        Precision("float16", _SINGLE, (*_FUSIONS, "float16"), True, 65504.0),
        Precision("bfloat16", _SINGLE, (*_FUSIONS, "bfloat16"), False, None),
    )
}
PRECISIONS["mixed_float16"] = PRECISIONS["float16"]  # an alias


def precision_of(dtype: str) -> Precision:
    """Return the precision of a name.

    Raises
    ------
    ConfigurationError
        If no precision has that name.
    """
    if not isinstance(dtype, str) or dtype not in PRECISIONS:
        *names, last = dict.fromkeys(row.name for row in PRECISIONS.values())
        raise ConfigurationError(f"dtype must be {', '.join(names)} or {last}, not {dtype!r}")
    return PRECISIONS[dtype]
