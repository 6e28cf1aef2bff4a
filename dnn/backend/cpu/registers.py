"""Number and sizes of this processor's vector registers, for kernels with explicit vectors."""

from __future__ import annotations

import platform
from functools import cache
from typing import NamedTuple

import llvmlite.binding as llvm

__all__ = ["Registers", "lanes_of", "registers", "vector_registers"]


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
    more_rows : int
        Rows of a larger block, for which there are registers too.
    """

    lanes: int
    panel: int
    rows: int
    more_rows: int


@cache
def vector_registers() -> tuple[int, int]:
    """Return how many vector registers this processor has, and the bytes of each."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 32, 64
    if features.get("avx2"):
        return 16, 32
    # 128 bits: NEON has 32 registers, SSE 16.
    return (32 if platform.machine() in ("aarch64", "arm64") else 16), 16


@cache
def registers() -> Registers:
    """Return the sizes for the processor that this process runs on."""
    count, size_bytes = vector_registers()
    lanes = size_bytes // 4
    # Channels are padded to whole vectors, so no block may have more rows than that.
    rows = min(count // 4, lanes)
    return Registers(lanes, 2 * lanes, rows, rows * 5 // 4)


def lanes_of(code: str) -> int:
    """Return how many elements of a type, ``"f4"`` or ``"f8"``, a vector register holds."""
    return vector_registers()[1] // int(code[1])
