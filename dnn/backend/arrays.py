"""What the functions of a device work on."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

__all__ = ["Array"]

Array = npt.NDArray[Any]
