"""Direct convolution: kernels that read images of any layout in place, without columns.

``direct`` has a thread for each element of the result; so it suits few channels, and depthwise
convolution. ``tiles`` is a product of matrices whose operands are never written to memory: a block
computes 64 x 64 elements of the result, and loads 16 of the depth at a time from images and weights
into shared memory. Either has three kinds, forward and both gradients::

    kind       rows of the result     columns            depth
    forward    pixels of y            filters            taps x channels
    data       pixels of x            channels           taps x filters
    weights    filters                taps x channels    pixels of y, in parts

Gradients of weights have a long depth and few elements: parts of the depth are summed up
separately, and then the parts, in an order that depends on the shape of one model alone.

References
----------
.. [1] Chetlur et al., cuDNN: Efficient primitives for deep learning, arXiv:1410.0759, 2014: the
   product whose matrix of columns is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import ALIGNMENT_BYTES, Convolution, Routine
from dnn.backend.cuda.images import DECLARED, PARAMETERS, geometry, with_axis
from dnn.backend.cuda.launch import Launcher, element_strides
from dnn.backend.cuda.source import (
    C_TYPES,
    THREADS,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.backend.ops import Array, Step

__all__ = [
    "Types",
    "direct",
    "direct_kernel",
    "launch",
    "tiles",
    "tiles_kernel",
]

OPERANDS = {"forward": ("x", "w"), "data": ("y", "w"), "weights": ("x", "y")}

TILE, DEPTH = 64, 16
"""Rows and columns of a tile, and the part of the depth that is loaded at a time."""

WHOLE = 1 << 62
"""The length of a part where the depth is not cut, more than any depth."""

LANES = 32
"""Neighbouring gradients of weights that a block of the direct kernel computes."""

WANTED_BLOCKS, FEWEST_PIXELS = 528, 256
"""A gradient of weights is cut into parts until there are so many blocks, 4 for each of an H200's
132 processors, or a part has so few pixels."""


class Types(NamedTuple):
    """Types of a kernel's arrays, by their codes, and what it does with a sum before it is stored.

    Attributes
    ----------
    operands, out : str
    bias : str
        Of the bias that is added, or empty.
    relu : bool
        Whether a negative result becomes 0.
    """

    operands: str
    out: str
    bias: str = ""
    relu: bool = False

    @classmethod
    def of(cls, problem: Convolution, inputs: Sequence[Any], out: Any) -> Types:
        """Return the types of the arrays of a problem."""
        bias = code_of(inputs[2].dtype) if problem.bias else ""
        return cls(code_of(inputs[0].dtype), code_of(out.dtype), bias, problem.relu)

    @property
    def words(self) -> str:
        """What begins and ends the name of a kernel, which two underscores part."""
        added = ["bias"] * bool(self.bias) + ["relu"] * self.relu
        codes = [self.operands, self.out, *[self.bias] * bool(self.bias)]
        return "_".join(["", *added, "", *codes])

    def finished(self, value: str, f: str) -> str:
        """Return the statements that make `value` of a sum, as it is stored, for filter `f`."""
        lines = [f"A sum_ = {value};"]
        if self.bias:
            lines.append(f"sum_ = sum_ + (A)p_bias[m * bias_m + {f}];")
        if self.relu:
            lines.append("sum_ = sum_ > A(0) || sum_ != sum_ ? sum_ : A(0);")
        return " ".join([*lines, f"const R value = {stored(self.out, 'sum_')};"])

    def kernel(self, name: str, kind: str, body: str, functions: str = "") -> Kernel:
        """Return the kernel of a body, in which T, R and A are operands, result and arithmetic.

        Its parameters: both operands, a bias, the result, elements to the next model's bias, number
        of parts, pixels of a part, elements to the next part of the result, and `GEOMETRY`.
        """
        operand, result = C_TYPES[self.operands], C_TYPES[self.out]
        arrays = [f"const {operand}* p_{each}" for each in OPERANDS[kind]]
        arrays += [f"const {C_TYPES[self.bias]}* p_bias"] if self.bias else []
        numbers = lengths("bias_m parts length part_step")
        parameters = f"{', '.join(arrays)}, {result}* p_out, {numbers},\n    {PARAMETERS}"
        defined = f"typedef {operand} T; typedef {result} R; typedef {arithmetic(self.operands)} A;"
        return function(name, parameters, f"{defined}\n    {DECLARED}\n    {body}", functions)


def _direct_forward(types: Types) -> str:
    place = "m * y_m + n * y_n + f * y_c + oy * y_y + ox * y_x"
    elements = "const long long n_ = models * images * area * filters;\n    "
    return elements + for_each(
        f"""
        const int f = (int)(i_ % filters), pixel = (int)(i_ / filters % area);
        const long long n = i_ / filters / area % images, m = i_ / filters / area / images;
        const int oy = pixel / out_width, ox = pixel % out_width;
        const T* image = p_x + m * x_m + n * x_n + (long long)(f / filters_each) * per_group * x_c;
        const T* filter = p_w + m * w_m + (long long)f * per_group * taps;
        A total = 0;
        for (int r = 0; r < rows; ++r) {{
            const int y = oy * down - top + r * apart_y;
            if (y < 0 || y >= height) continue;
            for (int s = 0; s < across; ++s) {{
                const int x = ox * right - left + s * apart_x;
                if (x < 0 || x >= width) continue;
                const T* met = image + y * x_y + x * x_x;
                const T* by = filter + r * across + s;
                for (int c = 0; c < per_group; ++c)
                    total = total + (A)met[c * x_c] * (A)by[c * taps];
            }}
        }}
        {types.finished("total", "f")}
        p_out[{place}] = value;""",
        "_",
    )


def _direct_data(types: Types) -> str:
    elements = "const long long n_ = models * images * height * width * channels;\n    "
    return elements + for_each(
        f"""
        const int c = (int)(i_ % channels), x = (int)(i_ / channels % width);
        const long long row = i_ / channels / width;
        const int y = (int)(row % height), first = c / per_group * filters_each;
        const long long n = row / height % images, m = row / height / images;
        const T* maps = p_y + m * y_m + n * y_n + first * y_c;
        const T* weights = p_w + m * w_m + ((long long)first * per_group + c % per_group) * taps;
        A total = 0;
        for (int r = 0; r < rows; ++r) {{
            const int at_y = y + top - r * apart_y, oy = at_y / down;
            if (at_y < 0 || at_y % down || oy >= out_height) continue;
            for (int s = 0; s < across; ++s) {{
                const int at_x = x + left - s * apart_x, ox = at_x / right;
                if (at_x < 0 || at_x % right || ox >= out_width) continue;
                const T* met = maps + oy * y_y + ox * y_x;
                const T* by = weights + r * across + s;
                for (int f = 0; f < filters_each; ++f)
                    total = total + (A)met[f * y_c] * (A)by[(long long)f * per_group * taps];
            }}
        }}
        {types.finished("total", "")}
        p_out[m * x_m + n * x_n + c * x_c + y * x_y + x * x_x] = value;""",
        "_",
    )


def _direct_weights(types: Types) -> str:
    return f"""__shared__ A partial[{THREADS}];
    const int lane = threadIdx.x % {LANES}, along = threadIdx.x / {LANES};
    const long long results = models * taps * per_group * filters;
    const long long pixels = (long long)images * area;
    const long long blocks = (results + {LANES - 1}) / {LANES};
    for (long long item = blockIdx.x; item < blocks * parts; item += gridDim.x) {{
        const long long o = item % blocks * {LANES} + lane, part = item / blocks;
        const int f = (int)(o % filters), c = (int)(o / filters % per_group);
        const long long window = o / filters / per_group, m = window / taps;
        const int tap = (int)(window % taps), r = tap / across, s = tap % across;
        const long long last = part * length + length < pixels ? part * length + length : pixels;
        A total = 0;
        if (o < results) {{
            const T* image = p_x + m * x_m + (f / filters_each * per_group + c) * x_c;
            const T* maps = p_y + m * y_m + f * y_c;
            for (long long k = part * length + along; k < last; k += {THREADS // LANES}) {{
                const int pixel = (int)(k % area), oy = pixel / out_width, ox = pixel % out_width;
                const int y = oy * down - top + r * apart_y, x = ox * right - left + s * apart_x;
                if (y < 0 || y >= height || x < 0 || x >= width) continue;
                const long long n = k / area;
                total = total + (A)image[n * x_n + y * x_y + x * x_x]
                    * (A)maps[n * y_n + oy * y_y + ox * y_x];
            }}
        }}
        partial[threadIdx.x] = total;
        __syncthreads();
        for (int half = {THREADS // LANES // 2}; half > 0; half /= 2) {{
            if (along < half)
                partial[threadIdx.x] = partial[threadIdx.x] + partial[threadIdx.x + half * {LANES}];
            __syncthreads();
        }}
        if (along == 0 && o < results) {{
            {types.finished("partial[threadIdx.x]", "")}
            p_out[part * part_step + m * w_m + ((long long)f * per_group + c) * taps + tap] = value;
        }}
        __syncthreads();
    }}"""


def direct_kernel(kind: str, types: Types) -> Kernel:
    """Return the kernel with a thread, or for a gradient of weights a few, for each element."""
    body = {"forward": _direct_forward, "data": _direct_data, "weights": _direct_weights}[kind]
    return types.kernel(f"direct_{kind}{types.words}", kind, body(types))


class _Product(NamedTuple):
    """A kind of convolution as a product of matrices, in C++.

    `rows`, `columns` and `depth` are expressions of its lengths. `row` and `column` are statements
    that compute the addresses of the j-th row and column of a thread, `at_depth` those of an
    element k of the depth, `left` and `right` load an element of the operands, and `store` writes
    one of the result.
    """

    rows: str
    columns: str
    depth: str
    row: str
    column: str
    at_depth: str
    left: str
    right: str
    store: str


_FAR = "-(1 << 30)"
"""A row of an image that is outside of every image, whatever a window adds to it."""

_TAP = """
const int tap = (int)(k / {channels}), r = tap / across, s = tap % across;
const long long c = k % {channels};
const int over_y = r * apart_y, over_x = s * apart_x;
"""
_INSIDE = "y >= 0 && y < height && x >= 0 && x < width"


def _product(kind: str, types: Types) -> _Product:
    if kind == "forward":
        place = "m * y_m + n * y_n + f * y_c + oy * y_y + ox * y_x"
        return _Product(
            "(long long)images * area",
            "filters_each",
            "(long long)taps * per_group",
            f"""
const int pixel = (int)(row % area);
row_at[j] = m * x_m + row / area * x_n + (long long)g * per_group * x_c;
row_y[j] = row < n_rows ? pixel / out_width * down - top : {_FAR};
row_x[j] = pixel % out_width * right - left;
""",
            """
column_at[j] = m * w_m + ((long long)g * filters_each + column) * per_group * taps;
""",
            _TAP.format(channels="per_group"),
            f"""
const int y = row_y[j] + over_y, x = row_x[j] + over_x;
if ({_INSIDE}) value = p_x[row_at[j] + c * x_c + y * x_y + x * x_x];
""",
            "if (column < n_columns) value = p_w[column_at[j] + c * taps + tap];",
            f"""
const int pixel = (int)(row % area), oy = pixel / out_width, ox = pixel % out_width;
const long long n = row / area, f = g * filters_each + column;
{types.finished("sum", "f")}
p_out[{place}] = value;
""",
        )
    if kind == "data":
        return _Product(
            "(long long)images * height * width",
            "per_group",
            "(long long)taps * filters_each",
            f"""
row_at[j] = m * y_m + row / width / height * y_n + (long long)g * filters_each * y_c;
row_y[j] = row < n_rows ? (int)(row / width % height) + top : {_FAR};
row_x[j] = (int)(row % width) + left;
""",
            "column_at[j] = m * w_m + ((long long)g * filters_each * per_group + column) * taps;",
            _TAP.format(channels="filters_each"),
            """
const int at_y = row_y[j] - over_y, at_x = row_x[j] - over_x;
const int oy = at_y / down, ox = at_x / right;
if (at_y >= 0 && at_x >= 0 && at_y % down == 0 && at_x % right == 0 && oy < out_height
    && ox < out_width) value = p_y[row_at[j] + c * y_c + oy * y_y + ox * y_x];
""",
            "if (column < n_columns) value = p_w[column_at[j] + c * per_group * taps + tap];",
            """
const long long n = row / width / height, c = g * per_group + column;
p_out[m * x_m + n * x_n + c * x_c + row / width % height * x_y + row % width * x_x] = sum;
""",
        )
    return _Product(
        "filters_each",
        "(long long)taps * per_group",
        "(long long)images * area",
        "row_at[j] = m * y_m + ((long long)g * filters_each + row) * y_c;",
        f"""
const int tap = (int)(column / per_group);
column_at[j] = m * x_m + ((long long)g * per_group + column % per_group) * x_c;
column_y[j] = column < n_columns ? tap / across * apart_y - top : {_FAR};
column_x[j] = tap % across * apart_x - left;
""",
        """
const int pixel = (int)(k % area), oy = pixel / out_width, ox = pixel % out_width;
const long long n = k / area;
""",
        "if (row < n_rows) value = p_y[row_at[j] + n * y_n + oy * y_y + ox * y_x];",
        f"""
const int y = oy * down + column_y[j], x = ox * right + column_x[j];
if ({_INSIDE}) value = p_x[column_at[j] + n * x_n + y * x_y + x * x_x];
""",
        """
const long long f = g * filters_each + row, c = column % per_group, tap = column / per_group;
p_out[part * part_step + m * w_m + (f * per_group + c) * taps + tap] = sum;
""",
    )


def tiles_kernel(kind: str, types: Types) -> Kernel:
    """Return the kernel that multiplies tile by tile.

    Thread (x, y) of 16 x 16 sums up rows y, y + 16, ... by columns x, x + 16, ... of a tile. It
    loads element x of the depth into shared memory, for rows and for columns y, y + 16, ...
    """
    p = _product(kind, types)
    each = THREADS // DEPTH
    some = TILE // each
    body = f"""__shared__ A left_tile[{DEPTH}][{TILE + 1}], right_tile[{DEPTH}][{TILE + 1}];
    const int place_x = threadIdx.x % {DEPTH}, place_y = threadIdx.x / {DEPTH};
    const long long n_rows = {p.rows}, n_columns = {p.columns}, n_depth = {p.depth};
    const long long down_tiles = (n_rows + {TILE - 1}) / {TILE};
    const long long across_tiles = (n_columns + {TILE - 1}) / {TILE};
    const long long items = down_tiles * across_tiles * groups * models * parts;
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {{
        const long long first_column = item % across_tiles * {TILE};
        const long long first_row = item / across_tiles % down_tiles * {TILE};
        const long long rest = item / across_tiles / down_tiles;
        const int g = (int)(rest % groups);
        const long long m = rest / groups % models, part = rest / groups / models;
        const long long first = part * length;
        const long long last = first + length < n_depth ? first + length : n_depth;
        long long row_at[{some}], column_at[{some}];
        [[maybe_unused]] int row_y[{some}], row_x[{some}], column_y[{some}], column_x[{some}];
        A sums[{some}][{some}];
        for (int j = 0; j < {some}; ++j) {{
            const long long row = first_row + place_y + j * {each};
            const long long column = first_column + place_y + j * {each};
            {{{p.row}}}
            {{{p.column}}}
            for (int b = 0; b < {some}; ++b) sums[j][b] = 0;
        }}
        for (long long begin = first; begin < last; begin += {DEPTH}) {{
            const long long k = begin + place_x;
            {p.at_depth}
            for (int j = 0; j < {some}; ++j) {{
                [[maybe_unused]] const long long row = first_row + place_y + j * {each};
                [[maybe_unused]] const long long column = first_column + place_y + j * {each};
                A value = 0;
                if (k < last) {{{p.left}}}
                left_tile[place_x][place_y + j * {each}] = value;
                value = 0;
                if (k < last) {{{p.right}}}
                right_tile[place_x][place_y + j * {each}] = value;
            }}
            __syncthreads();
            for (int d = 0; d < {DEPTH}; ++d)
                for (int a = 0; a < {some}; ++a)
                    for (int b = 0; b < {some}; ++b)
                        sums[a][b] = sums[a][b] + left_tile[d][place_y + a * {each}]
                            * right_tile[d][place_x + b * {each}];
            __syncthreads();
        }}
        for (int a = 0; a < {some}; ++a)
            for (int b = 0; b < {some}; ++b) {{
                const long long row = first_row + place_y + a * {each};
                const long long column = first_column + place_x + b * {each};
                if (row >= n_rows || column >= n_columns) continue;
                const A sum = sums[a][b];
                {p.store}
            }}
    }}"""
    return types.kernel(f"tiles_{kind}{types.words}", kind, body)


FORMS: dict[str, Callable[..., Kernel]] = {"direct": direct_kernel, "tiles": tiles_kernel}


def _blocks(name: str, problem: Convolution) -> int:
    """Return how many blocks a model's result takes if the depth is not cut into parts."""
    depth = math.prod(problem.w_shape[1:])
    filters = problem.filters // problem.groups
    if name == "tiles":
        pixels = problem.images * math.prod(
            problem.size if problem.kind == "data" else problem.out_size
        )
        rows, columns = {
            "forward": (pixels, filters),
            "data": (pixels, problem.channels // problem.groups),
            "weights": (filters, depth),
        }[problem.kind]
        return -(-rows // TILE) * -(-columns // TILE) * problem.groups
    results = math.prod(problem.w_shape if problem.kind == "weights" else problem.shapes[-1][-4:])
    return -(-results // (LANES if problem.kind == "weights" else THREADS))


def _parts(name: str, problem: Convolution) -> int:
    """Return the number of parts in which the depth of a gradient of weights is summed up."""
    if problem.kind != "weights":
        return 1
    pixels = problem.images * math.prod(problem.out_size)
    return max(1, min(WANTED_BLOCKS // _blocks(name, problem), pixels // FEWEST_PIXELS))


def direct(ops: Any, problem: Convolution) -> Routine:
    """Return the routine of direct convolution with a thread for each element."""
    return _routine(ops, problem, "direct")


def tiles(ops: Any, problem: Convolution) -> Routine:
    """Return the routine of direct convolution as a product, tile by tile."""
    return _routine(ops, problem, "tiles")


def _routine(ops: Any, problem: Convolution, name: str) -> Routine:
    parts, models = _parts(name, problem), problem.models or 1
    size = math.prod(problem.w_shape)
    wanted = 0 if parts == 1 else parts * models * size * np.dtype(problem.dtype).itemsize

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        if parts == 1:
            return [(ops.run_kernels, (_launch_form, name, problem, 1, inputs, out))]
        assert workspace is not None
        partial = workspace[:wanted].view(problem.dtype).reshape(parts, models, size)
        total = with_axis(out, problem.models is not None).reshape(1, models, size)
        return [
            (ops.run_kernels, (_launch_form, name, problem, parts, inputs, partial)),
            *ops.sum_narrow(partial, (0,), total),
        ]

    return Routine(name, -(-wanted // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, steps)


def _launch_form(
    launcher: Launcher,
    name: str,
    problem: Convolution,
    parts: int,
    inputs: Sequence[Any],
    out: Any,
) -> None:
    kernel = FORMS[name](problem.kind, Types.of(problem, inputs, out))
    blocks = _blocks(name, problem) * (problem.models or 1) * parts
    launch(launcher, problem, kernel, blocks, parts, inputs, out)


def launch(
    launcher: Launcher,
    problem: Convolution,
    kernel: Kernel,
    blocks: int,
    parts: int,
    inputs: Sequence[Any],
    out: Any,
) -> None:
    """Launch a kernel over all models; for a gradient of weights `out` may have its parts."""
    models = problem.models or 1
    a, b, *bias = (
        with_axis(x, problem.models is not None and has)
        for x, has in zip(inputs, (*problem.stacked, inputs[-1].ndim == 2), strict=False)
    )
    length, part_step = WHOLE, 0
    if parts > 1:
        length = -(-problem.images * math.prod(problem.out_size) // parts)
        part_step, weights_step, _ = element_strides(out)
        numbers = geometry(problem, models, a, b, weights_step)
    else:
        result = with_axis(out, problem.models is not None)
        x, y, w = {
            "forward": (a, result, b),
            "data": (result, a, b),
            "weights": (a, b, result),
        }[problem.kind]
        numbers = geometry(problem, models, x, y, element_strides(w)[0] if len(w) > 1 else 0)
    bias_step = element_strides(bias[0])[0] if bias and len(bias[0]) > 1 else 0
    arrays = [*inputs[:2], *(inputs[2:] if problem.bias else ()), out]
    further = [np.int64(n) for n in (bias_step, parts, length, part_step)]
    launcher.launch(kernel, blocks, [*arrays, *further, *numbers], joins=False)
