"""What compiled kernels with explicit vectors know about this processor's registers."""

from __future__ import annotations

import platform
from functools import cache
from typing import NamedTuple

import llvmlite.binding as llvm

__all__ = ["Registers", "registers"]


class Registers(NamedTuple):
    """Sizes of blocks of float32 that stay in registers.

    Attributes
    ----------
    lanes : int
        Elements of a vector.
    panel : int
        Columns of the product's second operand that are stored together: two vectors.
    rows : int
        Rows of a block of a product that is summed up in registers; its columns are a panel.
    """

    lanes: int
    panel: int
    rows: int


@cache
def registers() -> Registers:
    """Return the sizes for the processor that this process runs on."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return Registers(16, 32, 8)
    if features.get("avx2"):
        return Registers(8, 16, 4)
    # 128 bits: NEON has 32 registers, SSE 16.
    return Registers(4, 8, 8 if platform.machine() in ("aarch64", "arm64") else 4)
