"""Compiled kernels of indirect convolution: products of rows of images by lists of addresses.

See `indirect` for the terms, and for the fields of each kernel. Everything is counted in bytes and
given by address.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections import namedtuple

from numba import carray, float32, int32, int64, njit

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.convolution_work import FLOAT_BYTES
from dnn.backend.cpu.indirect import GradientFields, MapsFields, PackFields
from dnn.backend.cpu.intrinsics import address_of_words, fields_type, pointer
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


PACK, MAPS, GRADIENT = map(fields_type, (PackFields, MapsFields, GradientFields))

Lists = namedtuple("Lists", "sources targets met nothing rows")
"""Lists of the addresses that each tap of a row reads and that each row writes; whether a block of
rows meets a tap; zeros, which are read in the padding; the number of rows."""


@njit(inline="always", **FLAGS)
def _lists_in(m, memory, most):
    """Return lists of so many rows at an address, with zeros, and the address behind them."""
    sources = memory + (m.channels + PANEL) * FLOAT_BYTES // 64 * 64 + 64
    targets = sources + m.taps * most * 8
    met = targets + most * 8
    clear(memory, m.channels)
    return Lists(sources, targets, met, memory, most), met + m.taps * (most // ROWS) * 8


@njit(inline="always", **FLAGS)
def _list_rows(m, target, first, count, lists):
    """List the addresses of `count` rows from `first` on, and of the last one again to the end.

    Rows are ordered by group of positions, then by image, then by position.
    """
    # Fields are read once: what is written to the lists might be any memory.
    rows, nothing, x = lists.rows, lists.nothing, m.x
    taps, positions, groups, images = m.taps, m.positions, m.groups, m.images
    filters, channels, source_pixels = m.filters, m.channels, m.source_pixels
    indices = carray(pointer(m.table), (taps, positions), int32)
    target_indices = carray(pointer(m.pixels), (positions,), int32)
    first_of = carray(pointer(m.starts), (groups + 1,), int64)
    listed = carray(pointer(lists.sources), (taps, rows), int64)
    written = carray(pointer(lists.targets), (rows,), int64)
    any_met = carray(pointer(lists.met), (taps, rows // ROWS), int64)
    any_met[:] = 0
    group = 0
    for i in range(rows):
        row = first + min(i, count - 1)
        while row >= first_of[group + 1] * images:
            group += 1
        length = first_of[group + 1] - first_of[group]
        image, along = divmod(row - first_of[group] * images, length)
        position = first_of[group] + along
        pixel = image * positions + target_indices[position]
        written[i] = target + pixel * filters * FLOAT_BYTES
        for tap in range(taps):
            index = indices[tap, position]
            if index < 0:
                listed[tap, i] = nothing
            else:
                pixel = image * source_pixels + index
                listed[tap, i] = x + pixel * channels * FLOAT_BYTES
                any_met[tap, i // ROWS] = 1


@njit(inline="always", **FLAGS)
def _gather(m, lists, patches):
    """Copy the pixels that all taps of a row read to a patch, for each row; list the patches."""
    taps, channels, patch_bytes = m.taps, m.channels, m.patch_bytes
    listed = carray(pointer(lists.sources), (taps, lists.rows), int64)
    for i in range(lists.rows):
        start = patches + i * patch_bytes
        patch = carray(pointer(start), (patch_bytes // FLOAT_BYTES,), float32)
        for tap in range(taps):
            pixel = carray(pointer(listed[tap, i]), (channels,), float32)
            for c in range(channels):
                patch[c * taps + tap] = pixel[c]
        for j in range(channels * taps, patch_bytes // FLOAT_BYTES):
            patch[j] = 0
    # All addresses in the list have been read by now.
    for i in range(lists.rows):
        listed[0, i] = patches + i * patch_bytes


@njit(inline="always", **FLAGS)
def _pack_panel(m, panel, in_order, packed):
    """Write ``packed[tap][channel][column]``, or ``[channel][tap][column]`` if `in_order`."""
    channels, taps = m.channels, m.taps
    width = min(PANEL, m.filters - panel * PANEL)
    if width < PANEL:
        clear(packed, channels * taps * PANEL)
    block = m.w + panel * PANEL * m.filter_bytes
    if m.channel_bytes == taps * FLOAT_BYTES and (in_order or taps == 1):
        transposed(block, m.filter_bytes, width, channels * taps, packed, ROW_BYTES)
    else:
        channel_step = taps * ROW_BYTES if in_order else ROW_BYTES
        tap_step = ROW_BYTES if in_order else channels * ROW_BYTES
        for c in range(channels):
            start = block + c * m.channel_bytes
            transposed(start, m.filter_bytes, width, taps, packed + c * channel_step, tap_step)


def pack(r):
    """Pack some panels of the weights."""
    m = carray(pointer(address_of_words(r)), (1,), PACK)[0]
    for panel in range(m.first_panel, m.last_panel):
        packed = m.target + panel * m.taps * m.channels * ROW_BYTES
        _pack_panel(m, panel, m.in_order, packed)


@njit(inline="always", **FLAGS)
def _begin_sums(m, sums, rows, panel):
    """Begin the sums of a panel with the bias or 0."""
    clear(sums, rows * PANEL)
    if m.bias:
        number = min(PANEL, m.filters - panel * PANEL)
        for i in range(rows):
            copy_floats(m.bias + panel * ROW_BYTES, sums + i * ROW_BYTES, number)


@njit(inline="always", **FLAGS)
def _write_rows(m, sums, lists, count, panel):
    """Write the sums of a panel to the rows of the result."""
    written = carray(pointer(lists.targets), (count,), int64)
    number = min(PANEL, m.filters - panel * PANEL)
    lowest = float32(0) if m.relu else float32(-float("inf"))
    for i in range(count):
        row = carray(pointer(sums + i * ROW_BYTES), (PANEL,), float32)
        y = carray(pointer(written[i] + panel * ROW_BYTES), (number,), float32)
        for j in range(number):
            y[j] = lowest if row[j] < lowest else row[j]


def forward(r):
    """Compute some rows and panels of the result."""
    m = carray(pointer(address_of_words(r)), (1,), MAPS)[0]
    in_order = m.patch_bytes > 0
    most = (min(m.chunk, m.last_row - m.first_row) + ROWS - 1) // ROWS * ROWS
    panel_bytes = m.taps * m.channels * ROW_BYTES
    packed = m.space
    sums = packed + (0 if m.given else panel_bytes)
    patches = sums + most * ROW_BYTES
    memory, _ = _lists_in(m, patches + most * m.patch_bytes, most)
    for first in range(m.first_row, m.last_row, m.chunk):
        count = min(m.chunk, m.last_row - first)
        rows = (count + ROWS - 1) // ROWS * ROWS
        lists = Lists(memory.sources, memory.targets, memory.met, memory.nothing, rows)
        _list_rows(m, m.out, first, count, lists)
        steps, depth = m.taps, m.channels
        if in_order:
            _gather(m, lists, patches)
            steps, depth = 1, m.taps * m.channels
        any_met = carray(pointer(lists.met), (m.taps, rows // ROWS), int64)
        for panel in range(m.first_panel, m.last_panel):
            b = packed
            if m.given:
                b = m.given + panel * panel_bytes
            else:
                _pack_panel(m, panel, in_order, b)
            _begin_sums(m, sums, rows, panel)
            for step in range(steps):
                for c in range(0, depth, DEPTH):
                    terms = b + (step * depth + c) * ROW_BYTES
                    for i in range(0, rows, ROWS):
                        if in_order or any_met[step, i // ROWS]:
                            product_of_listed_rows(
                                lists.sources + (step * rows + i) * 8, c * FLOAT_BYTES, terms,
                                min(DEPTH, depth - c), sums + i * ROW_BYTES, ROW_BYTES,
                            )  # fmt: skip
            _write_rows(m, sums, lists, count, panel)


@njit(inline="always", **FLAGS)
def _list_terms(lists, steps, count, gradients, terms, numbers):
    """List, for each tap, the rows that it reads, and those of dy; padding adds nothing."""
    read = carray(pointer(lists.sources), (steps, lists.rows), int64)
    term = carray(pointer(terms), (steps, lists.rows), int64)
    number_of = carray(pointer(numbers), (steps,), int64)
    for step in range(steps):
        number = 0
        for i in range(count):
            address = read[step, i]
            read[step, number] = address
            term[step, number] = gradients + i * ROW_BYTES
            number += address != lists.nothing
        number_of[step] = number


@njit(inline="always", **FLAGS)
def _copy_gradients(m, lists, count, gradients):
    """Copy some rows of dy, panel by panel."""
    written = carray(pointer(lists.targets), (lists.rows,), int64)
    for p in range(m.last_panel - m.first_panel):
        panel = m.first_panel + p
        width = min(PANEL, m.filters - panel * PANEL)
        for i in range(count):
            to = gradients + (p * lists.rows + i) * ROW_BYTES
            if width < PANEL:
                clear(to, PANEL)
            copy_floats(written[i] + panel * ROW_BYTES, to, width)


@njit(inline="always", **FLAGS)
def _write_weights(m, total, steps, channel, number, panel):
    """Write the sums of `number` channels and a panel."""
    per_filter = m.channels * m.taps
    along = channel * steps
    place = m.dw + (panel * PANEL * per_filter + along) * FLOAT_BYTES
    height = min(number * steps, per_filter - along)
    width = min(PANEL, m.filters - panel * PANEL)
    transposed(total, ROW_BYTES, height, width, place, per_filter * FLOAT_BYTES)


def gradient(r):
    """Compute the gradient of the weights of some channels and panels.

    With patches, channels are those of all taps.
    """
    m = carray(pointer(address_of_words(r)), (1,), GRADIENT)[0]
    in_patches = m.patch_bytes > 0
    all_rows = m.positions * m.images
    own, panels = m.last_channel - m.first_channel, m.last_panel - m.first_panel
    most = (min(m.chunk, all_rows) + ROWS - 1) // ROWS * ROWS
    steps = 1 if in_patches else m.taps
    # Bytes from a channel to the next in the sums.
    channel_bytes = steps * ROW_BYTES
    few = all_rows <= m.chunk
    sums = m.space
    gradients = sums + (min(m.block, own) if few else own * panels) * channel_bytes
    patches = gradients + panels * most * ROW_BYTES
    memory, terms = _lists_in(m, patches + most * m.patch_bytes, most)
    numbers = terms + m.taps * most * 8
    number_of = carray(pointer(numbers), (m.taps,), int64)
    for first in range(0, all_rows, m.chunk):
        count = min(m.chunk, all_rows - first)
        rows = (count + ROWS - 1) // ROWS * ROWS
        lists = Lists(memory.sources, memory.targets, memory.met, memory.nothing, rows)
        _list_rows(m, m.dy, first, count, lists)
        if in_patches:
            _gather(m, lists, patches)
        _list_terms(lists, steps, count, gradients, terms, numbers)
        _copy_gradients(m, lists, count, gradients)
        for c in range(0, own, m.block):
            number = min(m.block, own - c)
            for p in range(panels):
                total = sums
                if not few:
                    total += (c * panels + p * number) * channel_bytes
                if first == 0:
                    clear(total, number * steps * PANEL)
                channel = m.first_channel + c
                for step in range(steps):
                    for i in range(0, number, ROWS):
                        product_of_listed_columns(
                            lists.sources + step * rows * 8, (channel + i) * FLOAT_BYTES,
                            terms + step * rows * 8, p * rows * ROW_BYTES, number_of[step],
                            total + i * channel_bytes + step * ROW_BYTES, channel_bytes,
                        )  # fmt: skip
                if first + count == all_rows:
                    _write_weights(m, total, steps, channel, number, m.first_panel + p)
