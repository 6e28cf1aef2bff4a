"""Kernel that gathers the images of a batch, each by rows and columns of its own, as floats."""

from __future__ import annotations

from typing import Any, Final

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import LOOPS, loop
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.ops import Array, Ops

__all__ = ["take_images"]


@loop()
def take_images_loop(
    pixels: Array,
    image_stride: int,
    channel_stride: int,
    row_stride: int,
    places: Array,
    rows: Array,
    columns: Array,
    boxes: Array,
    scale: Array,
    offset: Array,
    out: Array,
) -> None:
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


_TYPES: Final = {"|u1": "np.uint8", "<f4": "np.float32"}
_SOURCE: Final = """\
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


def _record(
    pixels: Array,
    places: Array,
    rows: Array,
    columns: Array,
    boxes: Array,
    scale: Array,
    offset: Array,
    out: Array,
) -> Record | None:
    code = _TYPES.get(pixels.dtype.str)
    arrays = (places, rows, columns, boxes, scale, offset, out)
    contiguous = all(array.flags.c_contiguous for array in arrays)
    if code is None or not contiguous or not out.size or pixels.strides[3] != pixels.itemsize:
        return None
    if any(stride < 0 or stride % pixels.itemsize for stride in pixels.strides):
        return None
    strides = [stride // pixels.itemsize for stride in pixels.strides[:3]]
    lengths = zip(strides, pixels.shape, strict=False)
    span = sum(stride * (length - 1) for stride, length in lengths) + pixels.shape[3]
    entry = entry_of(f"{LOOPS.format(module=__name__)}{HEADER}{_SOURCE.format(code=code)}")
    addresses = [address_of(array) for array in arrays]
    return entry, [address_of(pixels), span, *strides, *addresses, *out.shape, boxes.shape[1]]


take_images: Any = Native(_record, Ops.take_images)
