"""Operators of ONNX with windows: convolution, pooling and Fourier transforms of signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dnn.graph import operations as graph
from dnn.graph.node import Node, constant
from dnn.io.onnx_reductions import by_channel, part_along, requantised, shifted
from dnn.io.onnx_shapes import padded, take
from dnn.io.onnx_trace import Call, operator

__all__ = ["Windows", "pool_windows", "windows_of"]


MOST_TAPS = 4096
"""Most elements of a window that are read one by one; poolings of `dnn.graph` have no limit."""


class Windows(NamedTuple):
    """Windows over the axes of images, signals or volumes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def wide(self) -> tuple[int, ...]:
        """Lengths of a window with its dilation."""
        return tuple((n - 1) * d + 1 for n, d in zip(self.size, self.dilation, strict=True))


def windows_of(call: Call, size: Sequence[int], lengths: Sequence[int]) -> Windows:
    """Return the windows of a node over axes of given lengths."""
    stride = tuple(call.get("strides", [1] * len(size)))
    dilation = tuple(call.get("dilations", [1] * len(size)))
    if not len(size) == len(stride) == len(dilation) == len(lengths):
        raise ValueError(f"windows {list(size)} over {len(lengths)} axes")
    if min(*stride, *dilation, *size) < 1:
        raise ValueError("windows, strides and dilations must be at least 1")
    auto = call.get("auto_pad", "NOTSET")
    found = Windows(tuple(size), stride, dilation, ())
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-n // step) - 1) * step + wide - n, 0)
            for n, step, wide in zip(lengths, stride, found.wide, strict=True)
        ]
        pads = _halves(totals, auto)
    else:
        given = call.get("pads", [0] * (2 * len(size)))
        given = [0] * (2 * len(size)) if auto == "VALID" else given
        pads = list(zip(given[: len(size)], given[len(size) :], strict=True))
    return found._replace(pads=tuple(pads))


def _halves(totals: Sequence[int], auto: str) -> list[tuple[int, int]]:
    """Return padding before and behind; of an odd number more behind if `auto` says so."""
    pads = [(total // 2, total - total // 2) for total in totals]
    return pads if auto == "SAME_UPPER" else [(b, a) for a, b in pads]


def _flat(pads: Any) -> Any:
    """Return the padding of images, for signals with one row: none above and below."""
    return ((0, 0), *pads) if len(pads) == 1 else pads


def _two(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *numbers) if len(numbers) == 1 else numbers


def _as_images(x: Node) -> Node:
    """Return signals as images with one row."""
    return graph.reshape(x, (*x.shape[:2], 1, x.shape[2])) if x.ndim == 3 else x


def _of_signals(y: Node) -> Node:
    """Return images with one row as signals."""
    return graph.reshape(y, (*y.shape[:2], y.shape[3]))


# -- convolution -----------------------------------------------------------------------------------


def _convolved(x: Node, w: Node, bias: Node | None, windows: Windows, groups: int) -> Node:
    if x.ndim == 5:
        return _of_volumes(x, w, bias, windows, groups)
    how = {
        "stride": _two(windows.stride),
        "dilation": _two(windows.dilation),
        "padding": _flat(windows.pads),
    }
    y = graph.conv2d(_as_images(x), _as_images(w), bias, groups=groups, **how)
    return _of_signals(y) if x.ndim == 3 else y


def _of_volumes(x: Node, w: Node, bias: Node | None, windows: Windows, groups: int) -> Node:
    """Return the convolution of volumes, as a sum of those of images: one for each layer of w."""
    x = padded(x, ((0, 0), (0, 0), windows.pads[0], (0, 0), (0, 0)))
    step, apart = windows.stride[0], windows.dilation[0]
    flat = Windows(windows.size[1:], windows.stride[1:], windows.dilation[1:], windows.pads[1:])
    depth = (x.shape[2] - windows.wide[0]) // step + 1
    total = None
    for i in range(windows.size[0]):
        part = x[:, :, i * apart : i * apart + (depth - 1) * step + 1 : step]
        images = graph.transpose(part, (0, 2, 1, 3, 4))
        images = graph.reshape(images, (x.shape[0] * depth, x.shape[1], *x.shape[3:]))
        y = _convolved(images, w[:, :, i], None, flat, groups)
        total = y if total is None else total + y
    assert total is not None
    y = graph.reshape(total, (x.shape[0], depth, *total.shape[1:]))
    y = graph.transpose(y, (0, 2, 1, 3, 4))
    return y if bias is None else y + by_channel(bias, 5)


def _wide(*several: Node | None) -> tuple[Any, ...]:
    """Return float16 as float32, which convolutions take."""
    narrow = any(x is not None and x.dtype == np.float16 for x in several)
    return tuple(graph.cast(x, np.float32) if narrow and x is not None else x for x in several)


@operator("Conv")
def _conv(call: Call) -> Node:
    dtype = call.node(0).dtype
    x, w, bias = _wide(call.node(0), call.node(1), call.node(2) if call.has(2) else None)
    windows = windows_of(call, w.shape[2:], x.shape[2:])
    return graph.cast(_convolved(x, w, bias, windows, int(call.get("group", 1))), dtype)


@operator("ConvInteger")
def _integer_conv(call: Call) -> Node:
    x, w = shifted(call, 0, 2, 1), shifted(call, 1, 3, 0)
    windows = windows_of(call, w.shape[2:], x.shape[2:])
    return graph.cast(_convolved(x, w, None, windows, int(call.get("group", 1))), np.int32)


@operator("QLinearConv")
def _quantised_conv(call: Call) -> Node:
    x, w = shifted(call, 0, 2, 1), shifted(call, 3, 5, 0)
    windows = windows_of(call, w.shape[2:], x.shape[2:])
    bias = graph.cast(call.node(8), np.float64) if call.has(8) else None
    y = _convolved(x, w, bias, windows, int(call.get("group", 1)))
    scale = call.node(1) * call.node(4) / call.node(6)
    scale = by_channel(scale, x.ndim) if scale.size > 1 else scale
    return requantised(y, scale, call.node(7))


@operator("ConvTranspose")
def _transposed_conv(call: Call) -> Node:
    dtype = call.node(0).dtype
    x, w, bias = _wide(call.node(0), call.node(1), call.node(2) if call.has(2) else None)
    if x.ndim > 4:
        call.refuse("transposed convolutions of volumes are not supported")
    given = windows_of(call, w.shape[2:], x.shape[2:])
    extra = call.get("output_padding", [0] * len(given.size))
    auto = call.get("auto_pad", "NOTSET")
    full = [
        step * (n - 1) + wide
        for n, step, wide in zip(x.shape[2:], given.stride, given.wide, strict=True)
    ]
    size = call.get("output_shape")
    if size is None and auto.startswith("SAME"):
        size = [n * step for n, step in zip(x.shape[2:], given.stride, strict=True)]
    if size is not None:
        totals = [max(0, a + b - n) for a, b, n in zip(full, extra, size, strict=True)]
        pads = _halves(totals, auto)
        out = [int(n) for n in size]
    else:
        pads = list(given.pads)
        out = [a + b - sum(pad) for a, b, pad in zip(full, extra, pads, strict=True)]
    # What is put on at the end, beyond what windows reach, is 0.
    reached = [
        min(n, a - sum(pad) + step - 1)
        for n, a, pad, step in zip(out, full, pads, given.stride, strict=True)
    ]
    y = graph.conv2d_data_gradient(
        _as_images(x),
        _as_images(w),
        size=_two(tuple(reached)),
        stride=_two(given.stride),
        dilation=_two(given.dilation),
        padding=_flat(tuple(pads)),
        groups=int(call.get("group", 1)),
    )
    y = _of_signals(y) if x.ndim == 3 else y
    rest = [(0, 0), (0, 0), *((0, n - m) for n, m in zip(out, reached, strict=True))]
    y = padded(y, rest)
    return graph.cast(y if bias is None else y + by_channel(bias, y.ndim), dtype)


# -- pooling ---------------------------------------------------------------------------------------


def pool_windows(call: Call, lengths: Sequence[int]) -> tuple[Windows, bool]:
    """Return the windows of a pooling, and whether the last ones may reach beyond the padding."""
    windows = windows_of(call, call.get("kernel_shape"), lengths)
    if not call.get("ceil_mode", 0):
        return windows, False
    pads = []
    for n, step, wide, (before, behind) in zip(
        lengths, windows.stride, windows.wide, windows.pads, strict=True
    ):
        rest = (n + before + behind - wide) % step
        more = step - rest if rest else 0
        if more and n + before + behind + more - wide >= n + before:  # begins behind the image
            more = 0
        pads.append((before, behind + more))
    return windows._replace(pads=tuple(pads)), pads != list(windows.pads)


def _taps(x: Node, windows: Windows, value: float) -> Iterator[Node]:
    """Yield for each place in a window the elements that stand there, of all windows."""
    if math.prod(windows.size) > MOST_TAPS:
        raise ValueError(f"windows of {windows.size}, more than {MOST_TAPS} elements")
    x = padded(x, ((0, 0), (0, 0), *windows.pads), value)
    counts = [
        (n - wide) // step + 1
        for n, wide, step in zip(x.shape[2:], windows.wide, windows.stride, strict=True)
    ]
    for place in product(*(range(n) for n in windows.size)):
        keys = [slice(None), slice(None)]
        for i, d, step, count in zip(place, windows.dilation, windows.stride, counts, strict=True):
            keys.append(slice(i * d, i * d + (count - 1) * step + 1, step))
        yield x[tuple(keys)]


def _pooled(pool: Callable[..., Node], x: Node, windows: Windows, **how: Any) -> Node | None:
    """Return a pooling by that of `dnn.graph`; None where that does not compute it."""
    if (
        x.ndim not in (3, 4)
        or set(windows.dilation) != {1}
        or x.dtype not in (np.float32, np.float64)
        or any(max(pad) >= n for pad, n in zip(windows.pads, windows.size, strict=True))
    ):
        return None
    size, stride = _two(windows.size), _two(windows.stride)
    y = pool(_as_images(x), size, stride=stride, padding=_flat(windows.pads), **how)
    return _of_signals(y) if x.ndim == 3 else y


@operator("MaxPool")
def _max_pool(call: Call) -> Node:
    x = call.node()
    if len(call.results) > 1 and any(call.results[1:]):
        call.refuse("the places of the largest elements are not supported")
    windows, _ = pool_windows(call, x.shape[2:])
    if (y := _pooled(graph.max_pool2d, x, windows)) is not None:
        return y
    least = -np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)
    return reduce(graph.maximum, _taps(x, windows, least))


@operator("AveragePool")
def _average_pool(call: Call) -> Node:
    x = call.node()
    windows, reaches_beyond = pool_windows(call, x.shape[2:])
    counts_padding = bool(call.get("count_include_pad", 0))
    if not (reaches_beyond and counts_padding):
        y = _pooled(graph.average_pool2d, x, windows, counts_padding=counts_padding)
        if y is not None:
            return y
    ones = np.ones(x.shape[2:])
    counted = windows_of(call, windows.size, x.shape[2:]).pads
    beyond = [(a - c, b - d) for (a, b), (c, d) in zip(windows.pads, counted, strict=True)]
    ones = np.pad(np.pad(ones, counted, constant_values=float(counts_padding)), beyond)
    inside = windows._replace(pads=((0, 0),) * len(windows.size))
    count = reduce(graph.add, _taps(constant(ones[None, None], x.dtype), inside, 0)).eval()
    return reduce(graph.add, _taps(x, windows, 0.0)) * constant(1.0 / count, x.dtype)


@operator("LpPool")
def _lp_pool(call: Call) -> Node:
    x, p = call.node(), float(call.get("p", 2))
    windows, _ = pool_windows(call, x.shape[2:])
    total = reduce(graph.add, (graph.power(abs(part), p) for part in _taps(x, windows, 0.0)))
    return graph.power(total, 1.0 / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> Node:
    x, kind = call.node(), call.kind
    axes = list(range(2, x.ndim))
    if kind == "GlobalMaxPool":
        return graph.max(x, axes, keepdims=True)
    if kind == "GlobalAveragePool":
        return graph.mean(x, axes, keepdims=True)
    p = float(call.get("p", 2))
    return graph.power(graph.sum(graph.power(abs(x), p), axes, keepdims=True), 1.0 / p)


# -- Fourier transforms ----------------------------------------------------------------------------


@operator("DFT")
def _fourier(call: Call) -> Node:
    x, inverse = call.node(0), bool(call.get("inverse", 0))
    stated = int(call.get("axis", 1 if call.opset < 20 else -2))
    axis = (int(call.known(2).item()) if call.has(2) else stated) % x.ndim
    n = int(call.known(1).item()) if call.has(1) else x.shape[axis]
    if inverse and call.get("onesided", 0):
        call.refuse("an inverse transform of one side is not supported")
    x = part_along(x, axis, slice(0, n))
    x = padded(x, [(0, n - x.shape[i] if i == axis else 0) for i in range(x.ndim)])
    imaginary = x[..., 1] if x.shape[-1] == 2 else None
    y = graph.stack((graph.ifft if inverse else graph.fft)(x[..., 0], imaginary, (axis,)), -1)
    return part_along(y, axis, slice(0, n // 2 + 1)) if call.get("onesided", 0) else y


@operator("STFT")
def _fourier_of_frames(call: Call) -> Node:
    x, step = call.node(0), int(call.known(1).item())
    window = call.known(2) if call.has(2) else np.ones(int(call.known(3).item()))
    starts = np.arange(0, x.shape[1] - len(window) + 1, step)
    parts = [
        take(part, starts[:, None] + np.arange(len(window)), 1) * constant(window, x.dtype)
        for part in ([x] if x.ndim == 2 else [x[..., i] for i in range(x.shape[2])])
    ]
    y = graph.stack(graph.fft(parts[0], parts[1] if len(parts) == 2 else None), -1)
    return y[:, :, : len(window) // 2 + 1] if call.get("onesided", 1) else y
