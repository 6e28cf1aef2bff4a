"""The compiled routines of convolution, in the order in which they are preferred.

Each is in a module of its own, as a function that returns None for a problem that it does not
support.
"""

from __future__ import annotations

from collections.abc import Callable

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu import batched_gemm, depthwise, direct_rows, fft, im2col, indirect, winograd

__all__ = ["ROUTINES"]

ROUTINES: tuple[Callable[[Convolution], Routine | None], ...] = (
    depthwise.routine,
    winograd.winograd4,
    indirect.routine,
    direct_rows.routine,
    im2col.routine,
    winograd.winograd2,
    batched_gemm.routine,
    fft.routine,
)
