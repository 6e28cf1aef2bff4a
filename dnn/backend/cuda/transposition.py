"""Elementwise kernels whose operand and result differ in their contiguous axis, tile by tile.

Whichever axis neighbouring threads go along, one of the two arrays has its elements far apart, and
a GPU reads or writes a whole sector of memory for each. So a block loads a tile along the axis of
the operand, keeps it, and stores it along the axis of the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from dnn.backend.cuda.source import (
    C_TYPES,
    SCALAR,
    THREADS,
    Elementwise,
    Kernel,
    arithmetic,
    function,
    lengths,
    load,
    main_type,
    stored,
)

__all__ = ["MOST_AXES", "Tiles", "tiles_of", "transposing_kernel"]

TILE = 64 * 33
"""Most elements of a tile, with those between its rows that no thread uses: rows begin in different
banks of shared memory."""

SHORT_AXIS = 64
"""An axis of no more elements is not divided, so that a tile is contiguous where the array is."""

SECTOR = 8
"""Elements of a length along which an axis is divided: as many floats as a GPU reads at once."""

MOST_AXES = 4


class Tiles(NamedTuple):
    """How arrays are divided into tiles.

    Attributes
    ----------
    blocks : int
        Number of tiles.
    numbers : tuple of int
        Arguments of the kernel: lengths of two leading axes, of the axis along which x is
        contiguous and of that along which the result is; elements of a tile along these two;
        strides of x and of the result along the leading axes; of x along the last one, and of the
        result along the last but one.
    """

    blocks: int
    numbers: tuple[int, ...]


def tiles_of(shape: Sequence[int], x: Sequence[int], out: Sequence[int]) -> Tiles | None:
    """Return the tiles of an operand and a result with these strides in elements.

    None where they have their contiguous axis in common, or there is none, or too many axes.
    """
    if len(shape) > MOST_AXES or 1 not in x or 1 not in out:
        return None
    of_x, of_out = x.index(1), out.index(1)
    if of_x == of_out:
        return None
    wide, high = shape[of_x], shape[of_out]
    if wide <= SHORT_AXIS:
        across = wide
        along = min(high, TILE // (across | 1) // SECTOR * SECTOR)
    elif high <= SHORT_AXIS:
        along = high
        across = min(wide, (TILE // along - 1) // SECTOR * SECTOR)
    else:
        across, along = 32, 64
    leading = [axis for axis in range(len(shape)) if axis not in (of_x, of_out)]
    leading_lengths, x_steps, out_steps = (
        [*(rest,) * (MOST_AXES - len(shape)), *(values[axis] for axis in leading)]
        for values, rest in ((shape, 1), (x, 0), (out, 0))
    )
    numbers = (*leading_lengths, wide, high, across, along)
    numbers += (*x_steps, *out_steps, x[of_out], out[of_x])
    return Tiles(math.prod(leading_lengths) * -(-wide // across) * -(-high // along), numbers)


NUMBERS = "n0_ n1_ wide_ high_ across_ along_ x_0_ x_1_ out_0_ out_1_ x_high_ out_wide_"


@functools.cache
def transposing_kernel(spec: Elementwise, codes: tuple[str, ...]) -> Kernel:
    """Return the kernel of an elementwise function of one array and numbers, by tiles.

    Parameters
    ----------
    spec : Elementwise
    codes : tuple of str
        Types of the operands; the array that is written comes last.

    Returns
    -------
    Kernel
        Its parameters: each operand, and the numbers of `Tiles`.
    """
    types = dict(zip(spec.parameters, codes, strict=True))
    *given, out = spec.parameters
    (x,) = (name for name in given if types[name] != SCALAR)
    declared = [
        f"const double p_{name}" if types[name] == SCALAR else f"const {C_TYPES[types[name]]}* p_x_"
        for name in given
    ]
    loads = [load(spec, name, code, "tile_[a_ * pitch_ + b_]") for name, code in types.items()]
    kept = arithmetic(types[x])
    inside = "\n            ".join([*loads, *spec.body.strip().splitlines()])
    body = f"""typedef {main_type([types[out], *codes])} A;
    __shared__ {kept} tile_[{TILE}];
    const int pitch_ = (int)across_ | 1;
    const long long in_row_ = (wide_ + across_ - 1) / across_;
    const long long in_column_ = (high_ + along_ - 1) / along_;
    const long long tiles_ = n0_ * n1_ * in_row_ * in_column_;
    for (long long at_ = blockIdx.x; at_ < tiles_; at_ += gridDim.x) {{
        const long long left_ = at_ % in_row_ * across_, rest_ = at_ / in_row_;
        const long long top_ = rest_ % in_column_ * along_, lead_ = rest_ / in_column_;
        const int width_ = (int)(wide_ - left_ < across_ ? wide_ - left_ : across_);
        const int height_ = (int)(high_ - top_ < along_ ? high_ - top_ : along_);
        const {C_TYPES[types[x]]}* from_ =
            p_x_ + lead_ / n1_ * x_0_ + lead_ % n1_ * x_1_ + top_ * x_high_ + left_;
        {C_TYPES[types[out]]}* to_ =
            p_out_ + lead_ / n1_ * out_0_ + lead_ % n1_ * out_1_ + left_ * out_wide_ + top_;
        for (int e_ = threadIdx.x; e_ < width_ * height_; e_ += {THREADS}) {{
            const int a_ = e_ / width_, b_ = e_ % width_;
            tile_[a_ * pitch_ + b_] = ({kept})from_[a_ * x_high_ + b_];
        }}
        __syncthreads();
        for (int e_ = threadIdx.x; e_ < width_ * height_; e_ += {THREADS}) {{
            const int b_ = e_ / height_, a_ = e_ % height_;
            {inside}
            to_[b_ * out_wide_ + a_] = {stored(types[out], out)};
        }}
        __syncthreads();
    }}"""
    parameters = [*declared, f"{C_TYPES[types[out]]}* p_out_", lengths(NUMBERS)]
    return function(f"{spec.name}_by_tiles__{'_'.join(codes)}", ", ".join(parameters), body)
