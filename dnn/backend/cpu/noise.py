"""Kernel of random numbers, equal to those of `dnn.backend.philox` bit for bit.

All integers are uint64: with a signed integer Numba would compute in floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnn.backend.cpu.kernels import array_kernel, loop
from dnn.backend.ops import Array, Ops

__all__ = ["uniform_noise"]

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENT_0, _INCREMENT_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@loop()
def uniform_noise_loop(seed: Array, step: Array, out: Array, stream: int) -> None:
    """Fill out, of shape (K, n), with floats in [0, 1): Philox-4x32-10."""
    upper = np.uint64(8)  # 24 bits of a word
    for k in range(out.shape[0]):
        n = out.shape[1]
        for block in range((n + 3) // 4):
            c0, c1, c2, c3 = np.uint64(block), step[0] & _LOW, step[0] >> _WORD, np.uint64(stream)
            k0, k1 = seed[k] & _LOW, seed[k] >> _WORD
            for _ in range(10):
                p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
                c0, c2 = (p1 >> _WORD) ^ c1 ^ k0, (p0 >> _WORD) ^ c3 ^ k1
                c1, c3 = p1 & _LOW, p0 & _LOW
                k0, k1 = (k0 + _INCREMENT_0) & _LOW, (k1 + _INCREMENT_1) & _LOW
            at = 4 * block
            words = (c0 >> upper, c1 >> upper, c2 >> upper, c3 >> upper)
            for lane in range(min(4, n - at)):
                out[k, at + lane] = np.int64(words[lane]) * 5.9604644775390625e-08


def _noise(
    seed: Array, step: Array, stream: int, words: Array, keys: Array, out: Array
) -> Sequence[Array] | None:
    if out.dtype.itemsize < 4 or not (seed.flags.c_contiguous and out.flags.c_contiguous):
        return None
    if not out.size or out.shape[: seed.ndim] != seed.shape:
        return None
    return seed.reshape(-1), step.reshape(1), out.reshape(seed.size, -1)


uniform_noise = array_kernel(
    uniform_noise_loop, (1, 1, 2), _noise, Ops.uniform_noise, number=lambda *arguments: arguments[2]
)
