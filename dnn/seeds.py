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
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from dnn.backend import Array
from dnn.errors import ConfigurationError

__all__ = ["epoch_order", "epoch_orders", "stream", "streams"]


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the random stream of a purpose, such as ``("initialise", "output.weight")``.

    The seed is that of the whole experiment. The generator is a PCG64 stream of its own.

    Raises
    ------
    ConfigurationError
        If the seed is not an integer, or negative.
    """
    _check(seed)
    words = _purpose_words(*purpose)
    if seed >> 32:
        sequence = np.random.SeedSequence([int(seed), *(int(word) for word in words)])
    else:  # the same stream in half the time, which counts at each epoch of K small networks
        sequence = np.random.SeedSequence(np.array([seed, *words], np.uint32))
    return np.random.Generator(np.random.PCG64(sequence))


def streams(seeds: Sequence[int], *purpose: str | int) -> Iterator[np.random.Generator]:
    """Yield the `stream` of each of K seeds for one purpose, in less time if they are many.

    Raises
    ------
    ConfigurationError
        As for `stream`.
    """
    for seed in seeds:
        if type(seed) is not int or seed < 0:
            _check(seed)
    if len(seeds) < _MANY or max(seeds) >> 32:
        yield from (stream(seed, *purpose) for seed in seeds)
        return
    for words in _seed_words(seeds, _purpose_words(*purpose)):
        given: Any = _GivenWords(words)  # NumPy's stubs know no other `ISeedSequence` than its own
        yield np.random.Generator(np.random.PCG64(given))


def _check(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigurationError(f"seed must be an integer of at least 0, not {seed!r}")


_MANY: Final = 24
"""From how many seeds on it takes less time to compute all their words at once."""


class _GivenWords(ISeedSequence):
    """Words that a generator starts from."""

    def __init__(self, words: Array) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> Array:
        return self._words


def _seed_words(seeds: Sequence[int], words: Sequence[int]) -> Array:
    """Return what ``SeedSequence([seed, *words])`` gives a PCG64, for K seeds of 32 bits.

    Returns
    -------
    array of uint64, shape (K, 4)

    Notes
    -----
    As NumPy computes it in ``bit_generator.pyx`` [1]_, which promises to keep it as it is.

    References
    ----------
    .. [1] O'Neill, Developing a seed_seq alternative, 2015.
    """
    given = [np.array(each, np.uint32).reshape(-1) for each in (seeds, *words)]
    hashed = _hash_function(0x43B0D7E5, 0x931E8875)
    pool = [hashed(each) for each in given[:4]]

    def mix(word: Array, into: int) -> None:
        mixed = pool[into] * np.uint32(0xCA01F9DD) - hashed(word) * np.uint32(0x4973F715)
        pool[into] = mixed ^ (mixed >> np.uint32(16))

    for source in range(4):
        for into in range(4):
            if into != source:
                mix(pool[source], into)
    for word in given[4:]:
        for into in range(4):
            mix(word, into)
    put_out = _hash_function(0x8B51F9DD, 0x58F38DED)
    found = np.stack([put_out(pool[place % 4]).astype(np.uint64) for place in range(8)], axis=1)
    state: Array = found[:, ::2] | (found[:, 1::2] << np.uint64(32))
    return state


def _hash_function(constant: int, factor: int) -> Callable[[Array], Array]:
    """Return a hash of words of 32 bits whose constant is another one in each call."""

    def hashed(words: Array) -> Array:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * factor & 0xFFFFFFFF
        words *= np.uint32(constant)
        words ^= words >> np.uint32(16)
        return words

    return hashed


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
    order: Array = _orders(_words(samples, _keys([seed]), epoch, 1))[0, 0]
    return order


def epoch_orders(samples: int, seeds: Sequence[int], first: int, last: int) -> Iterator[Array]:
    """Yield the orders of epochs ``first .. last - 1`` for K seeds, each of shape (K, samples).

    Each row is what `epoch_order` returns.
    """
    of_epoch = samples * len(seeds)
    at_once = max(1, _AT_ONCE // of_epoch, min(_EPOCHS, _MOST_AT_ONCE // of_epoch))
    keys = _keys(seeds)
    for start in range(first, last, at_once):
        words = _words(samples, keys, start, min(at_once, last - start))
        # Many words one epoch at a time, in the cache; and some networks may end before the last.
        yield from _orders(words) if words.size <= _AT_ONCE else map(_orders, words)


def _words(samples: int, keys: Sequence[Array], first: int, epochs: int) -> Array:
    """Return the random words of epochs from `first` on, of shape (epochs, K, samples)."""
    blocks = -(-samples // 4)
    words = np.empty((epochs, len(keys), samples), np.uint64)
    # NumPy counts before it draws, so that block 0 belongs to counter 1; and the setter of the
    # state copies what it is given.
    position: Any = {"counter": np.array([first * blocks, 0, 0, 0], np.uint64)}
    state: Any = {**_STATE, "state": position, "buffer_pos": 4}
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


def _keys(seeds: Sequence[int]) -> list[Array]:
    """Return the key of the orders of each seed."""
    if len(seeds) < _MANY:
        return [_key(seed) for seed in seeds]
    return _many_keys(tuple(seeds))


@lru_cache(maxsize=16)
def _many_keys(seeds: tuple[int, ...]) -> list[Array]:
    return [each.bit_generator.random_raw(2) for each in streams(seeds, "order")]


# Typed: True equals 1, and is no seed.
@lru_cache(maxsize=4096, typed=True)
def _key(seed: int) -> Array:
    return stream(seed, "order").integers(2**64, size=2, dtype=np.uint64)
