"""Random streams: one for each purpose, all derived from one seed.

A stream depends on the seed and on what it is for, never on how much was drawn before it. So
every tensor starts differently, and the order of the third epoch is the same whether the first
two were run in this process or in an earlier one.

The order of an epoch is that of random words: those of NumPy's Philox-4x64 under the key of a
seed, from block ``epoch ceil(samples / 4)`` of four words on. A row's number stands in the lower
half of its word, so no two are equal, and sorting leaves a permutation in these halves. Words of
many orders are drawn at once, and sorted when an order's epoch comes: to set the state of a
generator takes longer than to draw the order of a small epoch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError

__all__ = ["epoch_order", "epoch_orders", "stream"]


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the random stream of a purpose, such as ``("initialise", "output.weight")``.

    The seed is that of the whole experiment. The generator is a PCG64 stream of its own.

    Raises
    ------
    ConfigurationError
        If the seed is not an integer, or negative.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigurationError(f"seed must be an integer of at least 0, not {seed!r}")
    words = _purpose_words(*purpose)
    if seed >> 32:
        sequence = np.random.SeedSequence([int(seed), *(int(word) for word in words)])
    else:  # the same stream in half the time, which counts at each epoch of K small networks
        sequence = np.random.SeedSequence(np.array([seed, *words], np.uint32))
    return np.random.Generator(np.random.PCG64(sequence))


# Typed: 1 and True are equal, and their texts are not.
@lru_cache(maxsize=4096, typed=True)
def _purpose_words(*purpose: str | int) -> tuple[int, ...]:
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    return tuple(np.frombuffer(digest[:16], dtype="<u4").tolist())


_AT_ONCE: Final = 1 << 17
"""Words that are drawn at a time, if they are of several epochs."""
_MOST_AT_ONCE: Final = 1 << 21
"""Most words of `_EPOCHS` that are drawn at a time, for many networks: 16 MiB."""
_EPOCHS: Final = 8
_ROW: Final = np.uint64(0xFFFFFFFF)

_PHILOX: Final = np.random.Philox(0)
"""The generator of all orders: making a generator takes longer than drawing an order."""
_STATE: Final[Any] = _PHILOX.state
_LOCK: Final = threading.Lock()
"""Guards `_PHILOX`, whose own lock is taken when it draws, and not twice before NumPy 2.4."""


def epoch_order(samples: int, seed: int, epoch: int) -> Array:
    """Return the random order in which an epoch, counted from 0, visits the samples.

    It is a permutation, the same for the same arguments, whatever was drawn before. There are fewer
    than 2^32 samples.
    """
    order: Array = _orders(_words(samples, [seed], epoch, 1))[0, 0]
    return order


def epoch_orders(samples: int, seeds: Sequence[int], first: int, last: int) -> Iterator[Array]:
    """Yield the orders of epochs ``first .. last - 1`` for K seeds, each of shape (K, samples).

    Each row is what `epoch_order` returns.
    """
    of_epoch = samples * len(seeds)
    at_once = max(1, _AT_ONCE // of_epoch, min(_EPOCHS, _MOST_AT_ONCE // of_epoch))
    for start in range(first, last, at_once):
        words = _words(samples, seeds, start, min(at_once, last - start))
        # Many words one epoch at a time, in the cache; and some networks may end before the last.
        yield from _orders(words) if words.size <= _AT_ONCE else map(_orders, words)


def _words(samples: int, seeds: Sequence[int], first: int, epochs: int) -> Array:
    """Return the random words of epochs from `first` on, of shape (epochs, K, samples)."""
    blocks = -(-samples // 4)
    words = np.empty((epochs, len(seeds), samples), np.uint64)
    # NumPy counts before it draws, so that block 0 belongs to counter 1; and the setter of the
    # state copies what it is given.
    position: Any = {"counter": np.array([first * blocks, 0, 0, 0], np.uint64)}
    state: Any = {**_STATE, "state": position, "buffer_pos": 4}
    keys = [_key(seed) for seed in seeds]
    with _LOCK:
        for k, key in enumerate(keys):
            position["key"] = key
            _PHILOX.state = state
            drawn = _PHILOX.random_raw(4 * blocks * epochs).reshape(epochs, -1)
            words[:, k] = drawn[:, :samples]
    return words


def _orders(words: Array) -> Array:
    """Return the orders of random words, of shape (..., samples), in their memory."""
    words &= ~_ROW
    words |= np.arange(words.shape[-1], dtype=np.uint64)
    words.sort(axis=-1)
    words &= _ROW
    return words.view(np.int64).astype(np.intp, copy=False)


# Typed: True equals 1, and is no seed.
@lru_cache(maxsize=4096, typed=True)
def _key(seed: int) -> Array:
    return stream(seed, "order").integers(2**64, size=2, dtype=np.uint64)
