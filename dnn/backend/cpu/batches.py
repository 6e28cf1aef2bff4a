"""Kernels of a batch: they gather its samples, draw its random numbers, and go to the next one.

Random numbers equal those of `dnn.backend.philox` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import LOOPS, SPLIT_ELEMENTS, array_kernel, cuts, loop
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.ops import Array, Ops

__all__ = ["end_batch", "take_batch", "take_images", "take_rows", "uniform_noise"]


@loop()
def take_rows_loop(x: Array, rows: Array, out: Array) -> None:
    """``out[i] = x[rows[i]]``."""
    for i in range(out.shape[0]):
        row = rows[i]
        for j in range(out.shape[1]):
            out[i, j] = x[row, j]


def _rows(x: Array, rows: Array, out: Array) -> Sequence[Array] | None:
    if x.ndim < 1 or out.shape != (*rows.shape, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and rows.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    return x.reshape(x.shape[0], -1), rows.reshape(-1), out.reshape(rows.size, -1)


@loop()
def take_batch_loop(x: Array, order: Array, position: Array, out: Array) -> None:
    """``out[k, i] = x[order[k, position[0] + i]]``."""
    start = position[0]
    for k in range(out.shape[0]):
        for i in range(out.shape[1]):
            row = order[k, start + i]
            for j in range(out.shape[2]):
                out[k, i, j] = x[row, j]


def _batch(x: Array, order: Array, position: Array, out: Array) -> Sequence[Array] | None:
    groups, batch = order.shape[:-1], out.shape[order.ndim - 1]
    if order.ndim > 2 or out.shape != (*groups, batch, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and order.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    models = groups[0] if groups else 1
    rows = x.reshape(x.shape[0], -1)
    return rows, order.reshape(models, -1), position, out.reshape(models, batch, -1)


def _split_batch(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    x, order, position, out = arguments
    if out.size < SPLIT_ELEMENTS or order.ndim != 1:
        return []
    return [(x, order[cut.start :], position, out[cut]) for cut in cuts(len(out), parts)]


@loop()
def take_images_loop(
    pixels: Array, image_stride: int, channel_stride: int, row_stride: int, places: Array,
    rows: Array, columns: Array, boxes: Array, scale: Array, offset: Array, out: Array,
) -> None:  # fmt: skip
    """See `Ops.take_images`; `pixels` is flat."""
    for i in range(out.shape[0]):
        image = places[i] * image_stride
        for c in range(out.shape[1]):
            plane = image + c * channel_stride
            for y in range(out.shape[2]):
                line = rows[i, y]
                if line < 0:
                    for x in range(out.shape[3]):
                        out[i, c, y, x] = offset[c]
                    continue
                begin = plane + line * row_stride
                for x in range(out.shape[3]):
                    column = columns[i, x]
                    value = offset[c]
                    if column >= 0:
                        value = pixels[begin + column] * scale[c] + offset[c]
                    out[i, c, y, x] = value
        for b in range(boxes.shape[1]):
            for c in range(out.shape[1]):
                for y in range(boxes[i, b, 0], boxes[i, b, 1]):
                    for x in range(boxes[i, b, 2], boxes[i, b, 3]):
                        out[i, c, y, x] = 0


_PIXELS: Final = {"|u1": "np.uint8", "<f4": "np.float32"}
_OF_IMAGES: Final = """\
    n, channels, height, width, boxes = r[12], r[13], r[14], r[15], r[16]
    loops.take_images_loop(
        carray(pointer(r[0]), (r[1],), {code}), r[2], r[3], r[4],
        carray(pointer(r[5]), (n,), i8),
        carray(pointer(r[6]), (n, height), i8),
        carray(pointer(r[7]), (n, width), i8),
        carray(pointer(r[8]), (n, boxes, 4), i8),
        carray(pointer(r[9]), (channels,), f4),
        carray(pointer(r[10]), (channels,), f4),
        carray(pointer(r[11]), (n, channels, height, width), f4),
    )
"""


def _images_record(pixels: Array, *arrays: Array) -> Record | None:
    _, _, _, boxes, *_, out = arrays
    code = _PIXELS.get(pixels.dtype.str)
    contiguous = all(array.flags.c_contiguous for array in arrays)
    if code is None or not contiguous or not out.size or pixels.strides[3] != pixels.itemsize:
        return None
    if any(stride < 0 or stride % pixels.itemsize for stride in pixels.strides):
        return None
    strides = [stride // pixels.itemsize for stride in pixels.strides[:3]]
    lengths = zip(strides, pixels.shape, strict=False)
    span = sum(stride * (length - 1) for stride, length in lengths) + pixels.shape[3]
    entry = entry_of(f"{LOOPS.format(module=__name__)}{HEADER}{_OF_IMAGES.format(code=code)}")
    addresses = [address_of(array) for array in arrays]
    return entry, [address_of(pixels), span, *strides, *addresses, *out.shape, boxes.shape[1]]


@loop()
def end_batch_loop(loss: Array, losses: Array, position: Array) -> None:
    """``losses[position[1]] = loss``; then advance the position to the next batch."""
    for k in range(loss.size):
        losses[position[1], k] = loss[k]
    position[0] += position[2]
    position[1] += 1


def _end(loss: Array, losses: Array, position: Array) -> Sequence[Array] | None:
    if not (loss.flags.c_contiguous and losses.flags.c_contiguous):
        return None
    return loss.reshape(-1), losses.reshape(losses.shape[0], -1), position


take_rows = array_kernel(take_rows_loop, (2, 1, 2), _rows, Ops.take_rows)
take_batch = array_kernel(take_batch_loop, (2, 2, 1, 3), _batch, Ops.take_batch, split=_split_batch)
end_batch = array_kernel(end_batch_loop, (1, 2, 1), _end, Ops.end_batch)
take_images: Any = Native(_images_record, Ops.take_images)


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
