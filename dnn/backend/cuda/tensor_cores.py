"""Convolution as a product on tensor cores, whose matrix of columns is never stored.

It is the product of `direct_convolution.tiles`, of operands of float16, bfloat16 or TF32, with sums
of float32. A block computes 64 columns of 64 or 128 rows. It loads 64 bytes of the depth at a time
from images and weights into shared memory, while it multiplies those before. Each of its 8 warps
multiplies fragments of 16 rows and 8 columns by the instruction ``mma``, which GPUs have from
`LEAST_CAPABILITY` on; the result is stored once, with bias and relu.

Images are read 16 bytes at a time where their channels are last and many enough. The depth, which
is the channels of each tap, has chunks of channels outside and taps inside, so that a block meets
the same pixels and weights again while they are in the cache of its processor. The columns of a
gradient of weights have smaller chunks: a tile then has most taps of a channel, which are
neighbours in memory. With strides, a tile of the gradient of images has pixels of one remainder,
which all meet the same taps, and leaves out the others.

References
----------
.. [1] Chetlur et al., cuDNN: Efficient primitives for deep learning, arXiv:1410.0759, 2014.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import ALIGNMENT_BYTES, Convolution, Routine
from dnn.backend.cuda.direct_convolution import FEWEST_PIXELS, Types, launch
from dnn.backend.cuda.fragments import UNITS, Tile, functions
from dnn.backend.cuda.launch import LOAD_BYTES, Launcher, element_strides
from dnn.backend.cuda.source import ITEM_BYTES, THREADS, Kernel
from dnn.backend.ops import Array, Step

__all__ = ["LEAST_CAPABILITY", "Form", "fits", "kernel", "routine"]

LEAST_CAPABILITY = 8
"""Compute capability of the GPUs with which tensor cores for bfloat16 and TF32 came."""

COLUMNS, TALL, LOW = 64, 128, 64
"""Columns of a tile, and its rows: few where there would be few tiles."""

DEPTH_BYTES = 64
"""Part of a row's depth that is in shared memory at once; there are two of them."""

WANTED_BLOCKS = 256
"""About two for each of the 132 processors of an H100, whose registers have room for two."""

WARPS = THREADS // 32

MOST = (1 << 31) - 1
"""Most pixels, and products for a pixel: they are numbered by 32 bits."""


class Form(NamedTuple):
    """What tells kernels apart.

    Attributes
    ----------
    kind : str
        Of the convolution.
    types : Types
    rows : int
        Of a tile.
    many : pair of int
        Neighbours that a thread loads at once, of the rows' operand and of the columns' one.
    pairs : int
        Neighbours that it stores at once, 1 or 2.
    """

    kind: str
    types: Types
    rows: int
    many: tuple[int, int]
    pairs: int


class _Operand(NamedTuple):
    """One of the matrices, in C++: how a thread finds the elements that it loads.

    Matrix ``a`` has the rows of the result, and ``b`` its columns.

    Attributes
    ----------
    by_depth : bool
        Whether neighbouring threads load neighbours along the depth.
    side : str
        Statements that find row or column number `side` of a thread, as its j-th one.
    depth : str
        Statements that find the element k of the depth.
    inside : str
        Statements that declare `is_inside`, whether there is an element in memory.
    element : str
    """

    by_depth: bool
    side: str
    depth: str
    inside: str
    element: str


_FAR = "-(1 << 30)"
"""A row of an image that is outside of every image, whatever a window adds to it."""

_CHUNK = "const int q = {k} >> shift, c = (q / taps << shift) + ({k} & (1 << shift) - 1);\n"
_TAP = _CHUNK.format(k="k") + (
    "[[maybe_unused]] const int tap = q % taps;\n"
    "[[maybe_unused]] const int tap_y = tap / across * apart_y, tap_x = tap % across * apart_x;\n"
)
_PIXEL = """const int n = k / area, pixel = k % area;
const int oy = pixel / out_width, ox = pixel % out_width;
"""
_IN_IMAGE = "y >= 0 && y < height && x >= 0 && x < width"


class _Product(NamedTuple):
    """A kind of convolution as a product of matrices, in C++.

    `channels` are those of the depth or, of a gradient of weights, those of the columns; `chunk` is
    how many bytes of them are neighbours. `tile` are statements at the beginning of a tile; `meets`
    says whether the elements from `k` on contribute to one. `place` are statements that find a row
    of the result, from which `element` is an element.
    """

    operands: tuple[_Operand, _Operand]
    rows: str
    columns: str
    depth: str
    channels: str
    chunk: int
    tile: str
    meets: str
    place: str
    element: str


def _forward() -> _Product:
    a = _Operand(
        True,
        f"""const int n = side / area, pixel = side % area;
a_at[j] = m * x_m + n * x_n + (long long)g * per_group * x_c;
a_y[j] = side < n_rows ? pixel / out_width * down - top : {_FAR};
a_x[j] = pixel % out_width * right - left;""",
        _TAP,
        f"""const int y = a_y[j] + tap_y, x = a_x[j] + tap_x;
const bool is_inside = {_IN_IMAGE};""",
        "p_x[a_at[j] + c * x_c + y * x_y + x * x_x]",
    )
    b = _Operand(
        True,
        """const long long filter = (long long)g * filters_each + side;
b_at[j] = side < n_columns ? m * w_m + filter * per_group * taps : -1;""",
        _TAP,
        "const bool is_inside = b_at[j] >= 0;",
        "p_w[b_at[j] + c * taps + tap]",
    )
    return _Product(
        (a, b),
        "images * area",
        "filters_each",
        "taps * per_group",
        "per_group",
        DEPTH_BYTES,
        "",
        "true",
        """const int n = row / area, pixel = row % area;
const long long to = m * y_m + n * y_n + (long long)g * filters_each * y_c
    + pixel / out_width * y_y + pixel % out_width * y_x;""",
        "p_out[to + column * y_c]",
    )


def _data() -> _Product:
    a = _Operand(
        True,
        f"""const int n = side / (tall * wide), pixel = side % (tall * wide);
a_at[j] = m * y_m + n * y_n + (long long)g * filters_each * y_c;
a_y[j] = side < n_rows ? pixel / wide * down + first_y + top : {_FAR};
a_x[j] = pixel % wide * right + first_x + left;""",
        _TAP,
        """const int at_y = a_y[j] - tap_y, at_x = a_x[j] - tap_x;
const int oy = at_y / down, ox = at_x / right;
const bool is_inside = at_y >= 0 && at_x >= 0 && at_y % down == 0 && at_x % right == 0
    && oy < out_height && ox < out_width;""",
        "p_y[a_at[j] + c * y_c + oy * y_y + ox * y_x]",
    )
    b = _Operand(
        False,
        """const long long weight = ((long long)g * filters_each * per_group + side) * taps;
b_at[j] = side < n_columns ? m * w_m + weight : -1;""",
        _TAP,
        "const bool is_inside = b_at[j] >= 0;",
        "p_w[b_at[j] + (long long)c * per_group * taps + tap]",
    )
    return _Product(
        (a, b),
        "images * ((height - 1) / down + 1) * ((width - 1) / right + 1)",
        "per_group",
        "taps * filters_each",
        "filters_each",
        DEPTH_BYTES,
        """const int first_y = (int)(rest % down); rest /= down;
const int first_x = (int)(rest % right); rest /= right;
const int tall = (height - first_y + down - 1) / down;
const int wide = (width - first_x + right - 1) / right;
const int n_rows = images * tall * wide;
if (first_row >= n_rows) continue;""",
        # A chunk as long as what is loaded at once is of one tap.
        """1 << shift < depth_at_once || (
    (first_y + top - (k >> shift) % taps / across * apart_y) % down == 0
    && (first_x + left - (k >> shift) % taps % across * apart_x) % right == 0)""",
        """const int n = row / (tall * wide), pixel = row % (tall * wide);
const long long to = m * x_m + n * x_n + (long long)g * per_group * x_c
    + (pixel / wide * down + first_y) * x_y + (pixel % wide * right + first_x) * x_x;""",
        "p_out[to + column * x_c]",
    )


def _weights() -> _Product:
    a = _Operand(
        False,
        "a_at[j] = side < n_rows ? m * y_m + ((long long)g * filters_each + side) * y_c : -1;",
        _PIXEL,
        "const bool is_inside = a_at[j] >= 0;",
        "p_y[a_at[j] + n * y_n + oy * y_y + ox * y_x]",
    )
    b = _Operand(
        False,
        _CHUNK.format(k="side")
        + f"""const int tap = q % taps;
b_at[j] = m * x_m + ((long long)g * per_group + c) * x_c;
b_y[j] = side < n_columns ? tap / across * apart_y - top : {_FAR};
b_x[j] = tap % across * apart_x - left;""",
        _PIXEL,
        f"""const int y = oy * down + b_y[j], x = ox * right + b_x[j];
const bool is_inside = {_IN_IMAGE};""",
        "p_x[b_at[j] + n * x_n + y * x_y + x * x_x]",
    )
    return _Product(
        (a, b),
        "filters_each",
        "taps * per_group",
        "images * area",
        "per_group",
        LOAD_BYTES,
        "",
        "true",
        """const long long filter = (long long)g * filters_each + row;
const long long to = part * part_step + m * w_m + filter * per_group * taps;""",
        "p_out[to + c * taps + q % taps]",
    )


_PRODUCTS = {"forward": _forward(), "data": _data(), "weights": _weights()}


class _Loads:
    """How the threads of a block load a tile of an operand, in C++."""

    def __init__(self, operand: _Operand, tile: Tile, many: int) -> None:
        self.operand, self.tile, self.many = operand, tile, many
        length, depth = tile.length, tile.depth
        self.number = length * depth // (many * THREADS)
        self.across = (depth if tile.by_depth else length) // many
        self.sides = self.number if tile.by_depth else 1
        self.turns = f"#pragma unroll\n        for (int i = 0; i < {self.number}; ++i)"

    @property
    def _own(self) -> tuple[str, str]:
        """Side and depth of a thread's i-th load."""
        along = f"thread % {self.across} * {self.many}"
        down = f"thread / {self.across} + i * {THREADS // self.across}"
        return (down, along) if self.tile.by_depth else (along, down)

    def declared(self) -> str:
        """Return the declarations for all tiles."""
        name, many, unit = self.tile.name, self.many, self.tile.unit
        size = many * unit.size
        return f"""struct alignas({size}) Loaded_{name} {{ {unit.element} of[{many}]; }};
    struct alignas({size}) Kept_{name} {{ {unit.word} of[{many}]; }};
    alignas({LOAD_BYTES}) __shared__ {unit.word} {name}_tile[2][{self.tile.size}];"""

    def state(self) -> str:
        """Return the statements of a new tile: where the rows or columns of a thread begin."""
        name = self.tile.name
        side, _ = self._own
        first = "first_row" if name == "a" else "first_column"
        return f"""Loaded_{name} {name}_next[{self.number}];
        long long {name}_at[{self.sides}];
        [[maybe_unused]] int {name}_y[{self.sides}], {name}_x[{self.sides}];
        #pragma unroll
        for (int j = 0; j < {self.sides}; ++j) {{
            [[maybe_unused]] const int i = j, side = {first} + {side};
            {self.operand.side}
        }}"""

    def load(self) -> str:
        """Return the statements that load a thread's elements from memory, from `begin` on."""
        operand, (_, k) = self.operand, self._own
        depth = f"const int k = begin + {k};\n{operand.depth}"
        outside, inside = (depth, "") if self.tile.by_depth else ("", depth)
        j = "i" if self.tile.by_depth else "0"
        kind = f"Loaded_{self.tile.name}"
        return f"""{{
        {outside}
        {self.turns} {{
            {inside}
            const int j = {j};
            {operand.inside}
            {kind} loaded = {{}};
            if (k < last && is_inside) loaded = *(const {kind}*)&{operand.element};
            {self.tile.name}_next[i] = loaded;
        }}
        }}"""

    def keep(self) -> str:
        """Return the statements that write a thread's elements to shared memory."""
        name = self.tile.name
        side, k = self._own
        word = f"{name}_next[i].of[e]"
        word = f"rounded({word})" if self.tile.unit.size == 4 else word
        return f"""{self.turns} {{
            Kept_{name} kept;
            #pragma unroll
            for (int e = 0; e < {self.many}; ++e) kept.of[e] = {word};
            *(Kept_{name}*)&{name}_tile[buffer][{self.tile.at(side, k)}] = kept;
        }}"""


@functools.cache
def kernel(form: Form) -> Kernel:
    """Return the kernel of a form; its parameters are those of `direct_convolution`."""
    types = form.types
    product, unit = _PRODUCTS[form.kind], UNITS[types.operands]
    depth = DEPTH_BYTES // unit.size
    a, b = (
        _Loads(operand, Tile(name, operand.by_depth, unit, length, depth), many)
        for name, operand, length, many in zip(
            "ab", product.operands, (form.rows, COLUMNS), form.many, strict=True
        )
    )
    warps_down = form.rows // 32
    wide = COLUMNS * warps_down // WARPS  # columns of a warp
    of_filter = "g * filters_each + column + e"
    value = types.finished("sums[i][j][lower * 2 + first + e]", of_filter)
    decoded = _CHUNK.format(k="column") if form.kind == "weights" else ""
    rows = "" if "n_rows" in product.tile else "const int n_rows = all_rows;"
    several, pair_bytes = product.chunk // unit.size, form.pairs * ITEM_BYTES[types.out]
    body = f"""struct alignas({pair_bytes}) Pair {{ R of[{form.pairs}]; }};
    {a.declared()}
    {b.declared()}
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int warp_row = warp % {warps_down} * 32, warp_column = warp / {warps_down} * {wide};
    [[maybe_unused]] const int depth_at_once = {depth};
    const int all_rows = {product.rows}, n_columns = {product.columns}, n_depth = {product.depth};
    int shift = 0;
    while (2 << shift <= {several} && !({product.channels} >> shift & 1)) ++shift;
    const int tiles_down = (all_rows - 1) / {form.rows} + 1;
    const int tiles_across = (n_columns - 1) / {COLUMNS} + 1;
    long long items = (long long)tiles_down * tiles_across * groups * models * parts;
    {"items *= down * right;" if form.kind == "data" else ""}
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {{
        const int first_column = (int)(item % tiles_across) * {COLUMNS};
        long long rest = item / tiles_across;
        const int first_row = (int)(rest % tiles_down) * {form.rows};
        rest /= tiles_down;
        {product.tile}
        {rows}
        const int g = (int)(rest % groups);
        const long long m = rest / groups % models, part = rest / groups / models;
        const int last = part * length + length < n_depth ? (int)(part * length + length) : n_depth;
        const auto next_from = [&](int k) {{
            while (k < last && !({product.meets})) k += {depth};
            return k;
        }};
        {a.state()}
        {b.state()}
        const auto load = [&](const int begin) {{
            {a.load()}
            {b.load()}
        }};
        const auto keep = [&](const int buffer) {{
            {a.keep()}
            {b.keep()}
        }};
        float sums[2][{wide // 8}][4] = {{}};
        int begin = next_from((int)(part * length)), buffer = 0;
        if (begin < last) {{
            load(begin);
            keep(0);
        }}
        __syncthreads();
        while (begin < last) {{
            const int next = next_from(begin + {depth});
            if (next < last) load(next);
            #pragma unroll
            for (int step = 0; step < {depth // unit.depth}; ++step) {{
                {a.tile.fragments(2)}
                {b.tile.fragments(wide // 8)}
                #pragma unroll
                for (int i = 0; i < 2; ++i)
                    #pragma unroll
                    for (int j = 0; j < {wide // 8}; ++j) multiply_add(sums[i][j], a[i], b[j]);
            }}
            buffer ^= 1;
            if (next < last) keep(buffer);
            __syncthreads();
            begin = next;
        }}
        #pragma unroll
        for (int i = 0; i < 2; ++i)
            #pragma unroll
            for (int lower = 0; lower < 2; ++lower) {{
                const int row = first_row + warp_row + i * 16 + lower * 8 + lane / 4;
                if (row >= n_rows) continue;
                {product.place}
                #pragma unroll
                for (int j = 0; j < {wide // 8}; ++j)
                    #pragma unroll
                    for (int first = 0; first < 2; first += {form.pairs}) {{
                        const int column
                            = first_column + warp_column + j * 8 + lane % 4 * 2 + first;
                        if (column >= n_columns) continue;
                        {decoded}
                        Pair pair;
                        #pragma unroll
                        for (int e = 0; e < {form.pairs}; ++e) {{
                            {value}
                            pair.of[e] = value;
                        }}
                        *(Pair*)&{product.element} = pair;
                    }}
            }}
    }}"""
    shape = "_".join(map(str, (form.rows, *form.many, form.pairs)))
    name = f"tensor_cores_{form.kind}{types.words}__tiles_{shape}"
    return types.kernel(name, form.kind, body, functions(types.operands))


def fits(problem: Convolution) -> bool:
    """Say whether 32 bits are enough for the numbers of rows and columns, and of the depth."""
    pixels = problem.images * max(math.prod(problem.size), math.prod(problem.out_size))
    depth = math.prod(problem.window) * max(problem.channels, problem.filters)
    return max(pixels, depth) <= MOST - TALL


def _tiles(problem: Convolution, rows: int) -> int:
    """Return the number of tiles of a model's result."""
    filters, channels = problem.filters // problem.groups, problem.channels // problem.groups
    pixels = problem.images * math.prod(problem.out_size)
    down, right = problem.stride
    turns = 1
    if problem.kind == "weights":
        lengths = filters, channels * math.prod(problem.window)
    elif problem.kind == "forward":
        lengths = pixels, filters
    else:
        turns = down * right
        height, width = problem.size
        lengths = problem.images * -(-height // down) * -(-width // right), channels
    tiles = -(-lengths[0] // rows) * -(-lengths[1] // COLUMNS)
    return tiles * turns * problem.groups


def _parts(problem: Convolution) -> int:
    """Return the number of parts in which the depth of a gradient of weights is summed up."""
    if problem.kind != "weights":
        return 1
    pixels = problem.images * math.prod(problem.out_size)
    return max(1, min(WANTED_BLOCKS // _tiles(problem, LOW), pixels // FEWEST_PIXELS))


def routine(ops: Any, problem: Convolution) -> Routine:
    """Return the routine of a problem that `fits`, of operands that are narrow or are rounded."""
    parts, models = _parts(problem), problem.models or 1
    size = math.prod(problem.w_shape)
    wanted = 0 if parts == 1 else parts * models * size * np.dtype(np.float32).itemsize

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        if parts == 1:
            return [(ops.run_kernels, (_launch, problem, 1, inputs, out))]
        assert workspace is not None
        partial = workspace[:wanted].view(np.float32).reshape(parts, models, size)
        return [
            (ops.run_kernels, (_launch, problem, parts, inputs, partial)),
            *ops.sum_narrow(partial, (0,), out.reshape(1, models, size)),
        ]

    return Routine("tensor_cores", -(-wanted // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, steps)


def _many(x: Any, problem: Convolution, channels: int) -> int:
    """Return how many channels of images can be loaded at once: as many as 16 bytes have, or 1."""
    many = LOAD_BYTES // int(x.dtype.itemsize)
    is_aligned = x.data.ptr % LOAD_BYTES == 0
    is_last = problem.layout == "NHWC" and not any(step % many for step in element_strides(x)[:-1])
    return many if is_last and is_aligned and channels % many == 0 else 1


def _form(problem: Convolution, inputs: Sequence[Any], out: Any) -> Form:
    """Return the form of the kernel of some arrays. Their values do not depend on it."""
    first, second = inputs[:2]
    channels, filters = (n // problem.groups for n in (problem.channels, problem.filters))
    pairs, rows = 1, LOW
    if problem.kind == "weights":
        many = _many(second, problem, filters), _many(first, problem, channels)
    else:
        depth, columns = (channels, filters) if problem.kind == "forward" else (filters, channels)
        many = _many(first, problem, depth), 1
        if many[0] > 1 and _tiles(problem, TALL) >= WANTED_BLOCKS:
            rows = TALL
        is_even = not any(step % 2 for step in element_strides(out)[:-1])
        is_aligned = out.data.ptr % (2 * out.dtype.itemsize) == 0
        pairs += problem.layout == "NHWC" and columns % 2 == 0 and is_even and is_aligned
    return Form(problem.kind, Types.of(problem, inputs, out), rows, many, pairs)


def _launch(
    launcher: Launcher, problem: Convolution, parts: int, inputs: Sequence[Any], out: Any
) -> None:
    form = _form(problem, inputs, out)
    blocks = _tiles(problem, form.rows) * (problem.models or 1) * parts
    launch(launcher, problem, kernel(form), blocks, parts, inputs, out)
