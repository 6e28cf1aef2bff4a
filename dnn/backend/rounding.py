"""Conversion of float32 to float16, to bfloat16 and to the precision of TF32, and back.

NumPy and CuPy have no bfloat16, so an array of uint16 holds its bits: the upper half of those of a
float32. All round to the nearest number; a tie goes to the number whose last bit is 0, in TF32,
which keeps 10 bits of the fraction, to the one farther from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BFLOAT16", "HALF", "SINGLE", "narrow", "round_tf32", "widen"]

Array = npt.NDArray[Any]

HALF = np.dtype(np.float16)
SINGLE = np.dtype(np.float32)
BFLOAT16 = np.dtype(np.uint16)
"""Type of arrays that hold bits of bfloat16; they are for storage, not for arithmetic."""

BFLOAT16_NAN = 0x7FC0


def narrow(x: Array, out: Array) -> None:
    """Round float32 to the type of `out`, float16 or bfloat16."""
    if out.dtype == HALF:
        np.copyto(out, x, casting="same_kind")
        return
    bits = _bits(x)
    out[...] = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    np.copyto(out, BFLOAT16_NAN, where=np.isnan(x))


def widen(x: Array, out: Array) -> None:
    """Convert float16 or bfloat16 to float32, which is exact."""
    if x.dtype == HALF:
        np.copyto(out, x)
        return
    out[...] = (x.astype(np.uint32) << 16).view(SINGLE)


def round_tf32(x: Array, out: Array) -> None:
    """Round float32 to 10 bits of the fraction; NaN and infinity stay."""
    rounded = ((_bits(x) + 0x1000) & 0xFFFFE000).view(SINGLE)
    out[...] = np.where(np.isfinite(x), rounded, x)


def _bits(x: Array) -> Array:
    return np.array(x, SINGLE, order="C").view(np.uint32)
