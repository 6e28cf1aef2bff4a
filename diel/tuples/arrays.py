"""NumPy, imported when the first array comes: a rank that sees none starts sooner without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

__all__ = ["is_array", "np"]


class _Numpy:
    """Stands for NumPy; each of its names is looked up there once."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a value is an array of NumPy; NumPy has been imported then."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))
