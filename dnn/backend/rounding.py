"""Narrow types of elements: float16, bfloat16 and what products of TF32 read of a float32.

NumPy and CuPy have no bfloat16, so an array of uint16 holds its bits: the upper half of those of a
float32. All round to the nearest number: of two the one whose last bit is 0, and TF32, which keeps
10 bits of the fraction, the one farther from 0.
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
"""Its bits; there is no arithmetic of such arrays."""

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
    """Bring float16 or bfloat16 to float32, which holds all of their numbers."""
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
