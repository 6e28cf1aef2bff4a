"""Columns of im2col: for each position of a result the part of the image under the window.

Two orders, by where the channels of an image stand. With channels last (NHWC) a position is a row,
in which each tap of the window has its channels::

    rows[position, tap, channel]        positions: image, then row and column of the result

With channels first (NCHW, or CHWN, where images are innermost) a channel and a tap are a line::

    lines[channel, tap, position, i]    positions of one image; i counts the images of CHWN

What lies in the padding is 0. `gather_rows` and `gather_lines` go back: each element of an image
is the sum of all columns that it stands in, in the order of the taps, by whichever thread.

A window of as many taps as its stride, from 0 on, cuts images into as many phases, each on a
coarser grid.
"""

from __future__ import annotations

from dnn.backend.convolution import Convolution
from dnn.backend.cpu.kernels import loop, range_kernel
from dnn.backend.ops import Array, Step

__all__ = ["fill_lines", "fill_rows", "gather_lines", "gather_rows", "permute", "window_of"]


def window_of(problem: Convolution) -> tuple[int, ...]:
    """Return the kernels' arguments for a window: taps, strides, dilations, padding before."""
    (top, _), (left, _) = problem.padding
    return *problem.window, *problem.stride, *problem.dilation, top, left


@loop()
def fill_rows_loop(
    x: Array,
    out: Array,
    begin: int,
    end: int,
    first: int,
    height: int,
    width: int,
    channels: int,
    count: int,
    out_height: int,
    out_width: int,
    taps_down: int,
    taps_across: int,
    stride_down: int,
    stride_across: int,
    apart_down: int,
    apart_across: int,
    top: int,
    left: int,
    row_step: int,
    tap_step: int,
) -> None:
    """Write rows `begin` to `end` of columns, for `count` channels; out begins at row `first`."""
    for row in range(begin, end):
        image, position = divmod(row, out_height * out_width)
        i, j = divmod(position, out_width)
        for r in range(taps_down):
            h = i * stride_down + r * apart_down - top
            for s in range(taps_across):
                w = j * stride_across + s * apart_across - left
                to = (row - first) * row_step + (r * taps_across + s) * tap_step
                if 0 <= h < height and 0 <= w < width:
                    at = ((image * height + h) * width + w) * channels
                    for c in range(count):
                        out[to + c] = x[at + c]
                else:
                    for c in range(count):
                        out[to + c] = 0


@loop()
def gather_rows_loop(
    x: Array,
    out: Array,
    begin: int,
    end: int,
    height: int,
    width: int,
    channels: int,
    count: int,
    out_height: int,
    out_width: int,
    taps_down: int,
    taps_across: int,
    stride_down: int,
    stride_across: int,
    apart_down: int,
    apart_across: int,
    top: int,
    left: int,
    row_step: int,
    tap_step: int,
) -> None:
    """Sum rows x of columns into pixels `begin` to `end` of images; see `fill_rows_loop`."""
    for pixel in range(begin, end):
        image, position = divmod(pixel, height * width)
        h, w = divmod(position, width)
        to = pixel * channels
        for c in range(count):
            out[to + c] = 0
        for r in range(taps_down):
            down = h + top - r * apart_down
            if down < 0 or down % stride_down != 0 or down // stride_down >= out_height:
                continue
            for s in range(taps_across):
                right = w + left - s * apart_across
                j = right // stride_across
                if right < 0 or right % stride_across != 0 or j >= out_width:
                    continue
                row = (image * out_height + down // stride_down) * out_width + j
                at = row * row_step + (r * taps_across + s) * tap_step
                for c in range(count):
                    out[to + c] += x[at + c]


@loop()
def fill_lines_loop(
    x: Array,
    out: Array,
    begin: int,
    end: int,
    height: int,
    width: int,
    images: int,
    first_row: int,
    last_row: int,
    out_width: int,
    taps_down: int,
    taps_across: int,
    stride_down: int,
    stride_across: int,
    apart_down: int,
    apart_across: int,
    top: int,
    left: int,
) -> None:
    """Write lines `begin` to `end` (channel, tap) of columns, for some rows of the result."""
    run = out_width * images
    for line in range(begin, end):
        channel, tap = divmod(line, taps_down * taps_across)
        r, s = divmod(tap, taps_across)
        shift = s * apart_across - left
        # The columns of the result whose w = j stride + shift is within the image.
        low = min(max(-(shift // stride_across), 0), out_width)
        high = max(min((width - 1 - shift) // stride_across + 1, out_width), low)
        for i in range(first_row, last_row):
            to = (line * (last_row - first_row) + i - first_row) * run
            h = i * stride_down + r * apart_down - top
            if h < 0 or h >= height:
                for k in range(run):
                    out[to + k] = 0
                continue
            at = ((channel * height + h) * width + shift) * images
            for k in range(low * images):
                out[to + k] = 0
            if stride_across == 1:
                for k in range(low * images, high * images):
                    out[to + k] = x[at + k]
            else:
                for j in range(low, high):
                    for k in range(images):
                        out[to + j * images + k] = x[at + j * stride_across * images + k]
            for k in range(high * images, run):
                out[to + k] = 0


@loop()
def gather_lines_loop(
    x: Array,
    out: Array,
    begin: int,
    end: int,
    height: int,
    width: int,
    images: int,
    out_height: int,
    out_width: int,
    taps_down: int,
    taps_across: int,
    stride_down: int,
    stride_across: int,
    apart_down: int,
    apart_across: int,
    top: int,
    left: int,
) -> None:
    """Sum lines x of columns, of whole results, into rows `begin` to `end` (channel, h)."""
    run = out_width * images
    for row in range(begin, end):
        channel, h = divmod(row, height)
        to = row * width * images
        for k in range(width * images):
            out[to + k] = 0
        for r in range(taps_down):
            down = h + top - r * apart_down
            i = down // stride_down
            if down < 0 or down % stride_down != 0 or i >= out_height:
                continue
            for s in range(taps_across):
                shift = s * apart_across - left
                low = min(max(-(shift // stride_across), 0), out_width)
                high = max(min((width - 1 - shift) // stride_across + 1, out_width), low)
                line = (channel * taps_down + r) * taps_across + s
                at = (line * out_height + i) * run
                if stride_across == 1:
                    for k in range(low * images, high * images):
                        out[to + shift * images + k] += x[at + k]
                else:
                    for j in range(low, high):
                        place = to + (j * stride_across + shift) * images
                        for k in range(images):
                            out[place + k] += x[at + j * images + k]


@loop()
def permute_loop(
    x: Array,
    out: Array,
    begin: int,
    end: int,
    rows: int,
    columns: int,
    x_first: int,
    x_row: int,
    x_column: int,
    out_first: int,
    out_row: int,
    out_column: int,
) -> None:
    """``out[a, b, c] = x[a, b, c]`` for a from `begin` to `end`, given the steps of each axis."""
    for a in range(begin, end):
        for b in range(rows):
            at, to = a * x_first + b * x_row, a * out_first + b * out_row
            for c in range(columns):
                out[to + c * out_column] = x[at + c * x_column]


fill_rows = range_kernel(fill_rows_loop)
gather_rows = range_kernel(gather_rows_loop)
fill_lines = range_kernel(fill_lines_loop)
gather_lines = range_kernel(gather_lines_loop)
_permute = range_kernel(permute_loop)


def permute(x: Array, out: Array) -> Step:
    """Return the call that copies an array with three axes to one with other strides."""
    steps = [step // x.itemsize for array in (x, out) for step in array.strides]
    return _permute, (x, out, 0, *x.shape, *steps)
