"""Compiled kernels of indirect convolution: products of rows of images by lists of addresses.

See `indirect` for the terms, and for the order of the fields of a record. Everything is counted in
bytes and given by address.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from numba import carray, float32, int32, int64, njit

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.convolution_work import FLOAT_BYTES
from dnn.backend.cpu.intrinsics import pointer
from dnn.backend.cpu.register_tiles import (
    PANEL,
    ROW_BYTES,
    ROWS,
    clear,
    copy_floats,
    product_of_listed_columns,
    product_of_listed_rows,
    transposed,
)

__all__ = ["forward", "gradient", "pack"]

DEPTH = 256
"""Channels of a panel that stay in the first-level cache."""


@njit(inline="always", **FLAGS)
def _address(base, image, pixels, pixel, pixel_bytes):
    return base + (image * pixels + pixel) * pixel_bytes


@njit(inline="always", **FLAGS)
def _list_rows(
    table, pixels, starts, groups, taps, positions, images, first, count, rows,
    source, source_pixels, source_bytes, nothing, target, target_pixels, target_bytes,
    sources, targets, met,
):  # fmt: skip
    """List the address that each tap of a row reads, that each row writes, and which taps are met.

    Rows are ordered by group of positions, then by image, then by position.
    """
    indices = carray(pointer(table), (taps, positions), int32)
    target_indices = carray(pointer(pixels), (positions,), int32)
    first_of = carray(pointer(starts), (groups + 1,), int64)
    listed = carray(pointer(sources), (taps, rows), int64)
    written = carray(pointer(targets), (rows,), int64)
    any_met = carray(pointer(met), (taps, rows // ROWS), int64)
    any_met[:] = 0
    group = 0
    for i in range(rows):
        row = first + min(i, count - 1)
        while row >= first_of[group + 1] * images:
            group += 1
        length = first_of[group + 1] - first_of[group]
        image, along = divmod(row - first_of[group] * images, length)
        position = first_of[group] + along
        written[i] = _address(target, image, target_pixels, target_indices[position], target_bytes)
        for tap in range(taps):
            index = indices[tap, position]
            if index < 0:
                listed[tap, i] = nothing
            else:
                listed[tap, i] = _address(source, image, source_pixels, index, source_bytes)
                any_met[tap, i // ROWS] = 1


@njit(inline="always", **FLAGS)
def _gather(sources, rows, taps, channels, patches, patch_bytes):
    """Copy the pixels that all taps of a row read to a patch, for each row; list the patches."""
    listed = carray(pointer(sources), (taps, rows), int64)
    for i in range(rows):
        start = patches + i * patch_bytes
        patch = carray(pointer(start), (patch_bytes // FLOAT_BYTES,), float32)
        for tap in range(taps):
            pixel = carray(pointer(listed[tap, i]), (channels,), float32)
            for c in range(channels):
                patch[c * taps + tap] = pixel[c]
        for j in range(channels * taps, patch_bytes // FLOAT_BYTES):
            patch[j] = 0
    # All addresses in the list have been read by now.
    for i in range(rows):
        listed[0, i] = patches + i * patch_bytes


@njit(inline="always", **FLAGS)
def _pack_panel(w, filter_bytes, channel_bytes, filters, panel, channels, taps, in_order, packed):
    """Write ``packed[tap][channel][column]``, or ``[channel][tap][column]`` if `in_order`."""
    width = min(PANEL, filters - panel * PANEL)
    if width < PANEL:
        clear(packed, channels * taps * PANEL)
    block = w + panel * PANEL * filter_bytes
    if channel_bytes == taps * FLOAT_BYTES and (in_order or taps == 1):
        transposed(block, filter_bytes, width, channels * taps, packed, ROW_BYTES)
    else:
        channel_step = taps * ROW_BYTES if in_order else ROW_BYTES
        tap_step = ROW_BYTES if in_order else channels * ROW_BYTES
        for c in range(channels):
            start = block + c * channel_bytes
            transposed(start, filter_bytes, width, taps, packed + c * channel_step, tap_step)


def pack(r):
    """Pack some panels of the weights."""
    w, target, filter_bytes, channel_bytes, filters, channels = r[0], r[1], r[2], r[3], r[4], r[5]
    taps, in_order, first_panel, last_panel = r[6], r[7], r[8], r[9]
    for panel in range(first_panel, last_panel):
        packed = target + panel * taps * channels * ROW_BYTES
        _pack_panel(
            w, filter_bytes, channel_bytes, filters, panel, channels, taps, in_order, packed
        )


@njit(inline="always", **FLAGS)
def _write_rows(sums, targets, count, offset, number, relu):
    """Write the sums of a panel to the rows of the result."""
    written = carray(pointer(targets), (count,), int64)
    lowest = float32(0) if relu else float32(-float("inf"))
    for i in range(count):
        row = carray(pointer(sums + i * ROW_BYTES), (PANEL,), float32)
        y = carray(pointer(written[i] + offset), (number,), float32)
        for j in range(number):
            y[j] = lowest if row[j] < lowest else row[j]


def forward(r):
    """Compute some rows and panels of the result."""
    x, w, out, space, table, pixels, starts = r[0], r[1], r[2], r[3], r[4], r[5], r[6]
    groups, taps, positions, images = r[7], r[8], r[9], r[10]
    channels, filters, source_pixels, target_pixels = r[11], r[12], r[13], r[14]
    chunk, patch_bytes, first_row, last_row = r[15], r[16], r[17], r[18]
    first_panel, last_panel, filter_bytes, channel_bytes = r[19], r[20], r[21], r[22]
    given, bias, relu = r[23], r[24], r[25]
    in_order = patch_bytes > 0
    most = (min(chunk, last_row - first_row) + ROWS - 1) // ROWS * ROWS
    panel_bytes = taps * channels * ROW_BYTES
    packed = space
    sums = packed + (0 if given else panel_bytes)
    patches = sums + most * ROW_BYTES
    nothing = patches + most * patch_bytes
    sources = nothing + (channels + PANEL) * FLOAT_BYTES // 64 * 64 + 64
    targets = sources + taps * most * 8
    met = targets + most * 8
    clear(nothing, channels)
    for first in range(first_row, last_row, chunk):
        count = min(chunk, last_row - first)
        rows = (count + ROWS - 1) // ROWS * ROWS
        _list_rows(
            table, pixels, starts, groups, taps, positions, images, first, count, rows,
            x, source_pixels, channels * FLOAT_BYTES, nothing,
            out, target_pixels, filters * FLOAT_BYTES, sources, targets, met,
        )  # fmt: skip
        steps, depth = taps, channels
        if in_order:
            _gather(sources, rows, taps, channels, patches, patch_bytes)
            steps, depth = 1, taps * channels
        any_met = carray(pointer(met), (taps, rows // ROWS), int64)
        for panel in range(first_panel, last_panel):
            b = packed
            if given:
                b = given + panel * panel_bytes
            else:
                _pack_panel(
                    w, filter_bytes, channel_bytes, filters, panel, channels, taps, in_order, b
                )
            number = min(PANEL, filters - panel * PANEL)
            clear(sums, rows * PANEL)
            if bias:
                for i in range(rows):
                    copy_floats(bias + panel * ROW_BYTES, sums + i * ROW_BYTES, number)
            for step in range(steps):
                for c in range(0, depth, DEPTH):
                    terms = b + (step * depth + c) * ROW_BYTES
                    for i in range(0, rows, ROWS):
                        if in_order or any_met[step, i // ROWS]:
                            product_of_listed_rows(
                                sources + (step * rows + i) * 8, c * FLOAT_BYTES, terms,
                                min(DEPTH, depth - c), sums + i * ROW_BYTES, ROW_BYTES,
                            )  # fmt: skip
            _write_rows(sums, targets, count, panel * ROW_BYTES, number, relu)


def gradient(r):
    """Compute the gradient of the weights of some channels and panels.

    With patches, channels are those of all taps.
    """
    x, dy, dw, space, table, pixels, starts = r[0], r[1], r[2], r[3], r[4], r[5], r[6]
    groups, taps, positions, images = r[7], r[8], r[9], r[10]
    channels, filters, source_pixels, target_pixels = r[11], r[12], r[13], r[14]
    chunk, patch_bytes, first_channel, last_channel = r[15], r[16], r[17], r[18]
    first_panel, last_panel, block = r[19], r[20], r[21]
    in_patches = patch_bytes > 0
    all_rows = positions * images
    own, panels = last_channel - first_channel, last_panel - first_panel
    most = (min(chunk, all_rows) + ROWS - 1) // ROWS * ROWS
    steps = 1 if in_patches else taps
    # Bytes from a channel to the next in the sums.
    channel_bytes = steps * ROW_BYTES
    few = all_rows <= chunk
    sums = space
    gradients = sums + (min(block, own) if few else own * panels) * channel_bytes
    patches = gradients + panels * most * ROW_BYTES
    nothing = patches + most * patch_bytes
    sources = nothing + (channels + PANEL) * FLOAT_BYTES // 64 * 64 + 64
    targets = sources + taps * most * 8
    met = targets + most * 8
    terms = met + taps * (most // ROWS) * 8
    numbers = terms + taps * most * 8
    number_of = carray(pointer(numbers), (taps,), int64)
    clear(nothing, channels)
    for first in range(0, all_rows, chunk):
        count = min(chunk, all_rows - first)
        rows = (count + ROWS - 1) // ROWS * ROWS
        _list_rows(
            table, pixels, starts, groups, taps, positions, images, first, count, rows,
            x, source_pixels, channels * FLOAT_BYTES, nothing,
            dy, target_pixels, filters * FLOAT_BYTES, sources, targets, met,
        )  # fmt: skip
        if in_patches:
            _gather(sources, rows, taps, channels, patches, patch_bytes)
        read = carray(pointer(sources), (taps, rows), int64)
        term = carray(pointer(terms), (taps, rows), int64)
        for step in range(steps):
            number = 0
            for i in range(count):
                # Padding adds nothing to the sums: it is left out.
                address = read[step, i]
                read[step, number] = address
                term[step, number] = gradients + i * ROW_BYTES
                number += address != nothing
            number_of[step] = number
        written = carray(pointer(targets), (rows,), int64)
        for p in range(panels):
            panel = first_panel + p
            width = min(PANEL, filters - panel * PANEL)
            for i in range(count):
                to = gradients + (p * rows + i) * ROW_BYTES
                if width < PANEL:
                    clear(to, PANEL)
                copy_floats(written[i] + panel * ROW_BYTES, to, width)
        for c in range(0, own, block):
            number = min(block, own - c)
            for p in range(panels):
                total = sums
                if not few:
                    total += (c * panels + p * number) * channel_bytes
                if first == 0:
                    clear(total, number * steps * PANEL)
                for step in range(steps):
                    for i in range(0, number, ROWS):
                        product_of_listed_columns(
                            sources + step * rows * 8, (first_channel + c + i) * FLOAT_BYTES,
                            terms + step * rows * 8, p * rows * ROW_BYTES, number_of[step],
                            total + i * channel_bytes + step * ROW_BYTES, channel_bytes,
                        )  # fmt: skip
                if first + count == all_rows:
                    panel = first_panel + p
                    per_filter = channels * taps
                    along = (first_channel + c) * steps
                    place = dw + (panel * PANEL * per_filter + along) * FLOAT_BYTES
                    height = min(number * steps, per_filter - along)
                    width = min(PANEL, filters - panel * PANEL)
                    transposed(total, ROW_BYTES, height, width, place, per_filter * FLOAT_BYTES)
