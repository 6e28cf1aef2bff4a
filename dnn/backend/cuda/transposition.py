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

MOST_AXES, MOST_TILES = 4, (1 << 31) - 1


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

    None where they have their contiguous axis in common, or none, and of too many axes or tiles.
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
    blocks = math.prod(leading_lengths) * -(-wide // across) * -(-high // along)
    return Tiles(blocks, numbers) if blocks <= MOST_TILES else None


NUMBERS = "n0_ n1_ wide_ high_ across_ along_ x_0_ x_1_ out_0_ out_1_ x_high_ out_wide_"


def _each(slow: str, rows: str, fast: str, columns: str, body: str) -> str:
    """Return the loop of a block's threads over a tile, neighbours along `fast`.

    A GPU divides slowly, so each thread does it once.
    """
    return f"""for (int {slow} = threadIdx.x / {columns}, {fast} = threadIdx.x % {columns},
                 down_ = {THREADS} / {columns}, right_ = {THREADS} % {columns};
             {slow} < {rows}; {slow} += down_) {{
            {body}
            {fast} += right_;
            if ({fast} >= {columns}) {{ {fast} -= {columns}; ++{slow}; }}
        }}"""


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
    keep = f"tile_[a_ * pitch_ + b_] = ({kept})from_[a_ * x_high_ + b_];"
    store = f"to_[b_ * out_wide_ + a_] = {stored(types[out], out)};"
    inside = "\n            ".join([*loads, *spec.body.strip().splitlines(), store])
    body = f"""typedef {main_type([types[out], *codes])} A;
    __shared__ {kept} tile_[{TILE}];
    const int pitch_ = (int)across_ | 1;
    const unsigned int in_row_ = (unsigned int)((wide_ + across_ - 1) / across_);
    const unsigned int in_column_ = (unsigned int)((high_ + along_ - 1) / along_);
    const unsigned int inner_ = (unsigned int)n1_, leading_ = (unsigned int)n0_ * inner_;
    const unsigned int tiles_ = leading_ * in_row_ * in_column_;
    for (unsigned int at_ = blockIdx.x; at_ < tiles_; at_ += gridDim.x) {{
        const unsigned int rest_ = at_ / in_row_, lead_ = rest_ / in_column_;
        const long long left_ = at_ % in_row_ * across_, top_ = rest_ % in_column_ * along_;
        const int width_ = (int)(wide_ - left_ < across_ ? wide_ - left_ : across_);
        const int height_ = (int)(high_ - top_ < along_ ? high_ - top_ : along_);
        const {C_TYPES[types[x]]}* from_ =
            p_x_ + lead_ / inner_ * x_0_ + lead_ % inner_ * x_1_ + top_ * x_high_ + left_;
        {C_TYPES[types[out]]}* to_ =
            p_out_ + lead_ / inner_ * out_0_ + lead_ % inner_ * out_1_ + left_ * out_wide_ + top_;
        {_each("a_", "height_", "b_", "width_", keep)}
        __syncthreads();
        {_each("b_", "width_", "a_", "height_", inside)}
        __syncthreads();
    }}"""
    parameters = [*declared, f"{C_TYPES[types[out]]}* p_out_", lengths(NUMBERS)]
    return function(f"{spec.name}_by_tiles__{'_'.join(codes)}", ", ".join(parameters), body)
