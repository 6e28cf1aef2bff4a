"""Random numbers without a state: Philox-4x32 with 10 rounds, in NumPy.

A block of four 32-bit words is a function of a counter of four words and a key of two::

    counter   element // 4 | step, low word | step, high word | stream
    key       seed, low word | seed, high word
    result    words for the elements 4 i, 4 i + 1, 4 i + 2, 4 i + 3

so that an element is the same however many others are drawn, in whatever order and on whatever
device. A word becomes a float in [0, 1) by its upper 24 bits, ``(word >> 8) 2^-24``, or by its
upper 11, ``(word >> 21) 2^-11``, in float16: exact, and so equal everywhere.

References
----------
.. [1] Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCKS", "rounds", "uniform_noise", "workspaces"]

Array = npt.NDArray[Any]

BLOCKS = 4096
"""Blocks of four words that are computed at a time: their six arrays stay in the cache."""

ROUNDS = 10
# NumPy scalars: a Python integer beside an array of shape () would become int64.
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENTS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_INDEX = np.arange(BLOCKS, dtype=np.uint64)


def rounds(words: Array, keys: Array) -> None:
    """Turn counters into random words, in place.

    Parameters
    ----------
    words : array of uint64, shape (6, ..., blocks)
        The four words of each counter, below 2^32, and workspace.
    keys : array of uint64, shape (2, ..., 1)
        The two words of the key, below 2^32; overwritten.
    """
    c0, c1, c2, c3, p0, p1 = words
    k0, k1 = keys
    for _ in range(ROUNDS):
        np.multiply(c0, _MULTIPLIERS[0], p0)
        np.multiply(c2, _MULTIPLIERS[1], p1)
        np.right_shift(p1, _WORD, c0)
        np.bitwise_xor(c0, c1, c0)
        np.bitwise_xor(c0, k0, c0)
        np.bitwise_and(p1, _LOW, c1)
        np.right_shift(p0, _WORD, c2)
        np.bitwise_xor(c2, c3, c2)
        np.bitwise_xor(c2, k1, c2)
        np.bitwise_and(p0, _LOW, c3)
        for key, increment in zip(keys, _INCREMENTS, strict=True):
            np.add(key, increment, key)
            np.bitwise_and(key, _LOW, key)


def workspaces(seeds: tuple[int, ...], elements: int) -> list[tuple[tuple[int, ...], Any]]:
    """Return shapes and types of `words` and `keys` for `elements` numbers from each seed."""
    models = int(np.prod(seeds, dtype=np.int64))
    blocks = min(-(-elements // 4), max(64, BLOCKS // models))
    uint64 = np.dtype(np.uint64)
    return [((6, *seeds, blocks), uint64), ((2, *seeds, 1), uint64)]


def uniform_noise(
    seed: Array, step: Array, stream: int, words: Array, keys: Array, out: Array
) -> None:
    """Draw floats from [0, 1) into `out`.

    Parameters
    ----------
    seed : array of uint64, shape () or (K,)
    step : array of uint64, shape ()
    stream : int, below 2^32
        Which of the random tensors of a step this is.
    words, keys : array of uint64
        Workspace, see `workspaces`.
    out : array of float, contiguous, shape (...) or (K, ...)
        Element i of each of the K parts, counted in C order, is the same whatever the shape.
    """
    flat = out.reshape((*seed.shape, -1))
    blocks = words.shape[-1]
    bits = 11 if out.dtype == np.float16 else 24
    shift = np.uint64(32 - bits)
    for start in range(0, -(-flat.shape[-1] // 4), blocks):
        part = flat[..., 4 * start : 4 * (start + blocks)]
        used = words[..., : -(-part.shape[-1] // 4)]
        np.bitwise_and(seed[..., None], _LOW, keys[0])
        np.right_shift(seed[..., None], _WORD, keys[1])
        np.add(_INDEX[: used.shape[-1]], np.uint64(start), used[0])
        np.bitwise_and(step, _LOW, used[1])
        np.right_shift(step, _WORD, used[2])
        used[3] = stream
        rounds(used, keys)
        for lane in range(4):
            target = part[..., lane::4]
            word = used[lane, ..., : target.shape[-1]]
            np.right_shift(word, shift, word)
            np.copyto(target, word, casting="unsafe")  # exact: below 2^24
    np.multiply(out, out.dtype.type(2.0**-bits), out)
