"""Convolution as a product of cuBLAS: the window's columns, written out, times the weights.

A row of columns has the pixels under the window for one pixel of y; so y with channels last is
columns times weights, in one call for as many images as fit. The gradient of the images is a
product of dy and weights, gathered from columns; that of the weights is a product of dy and the
columns of x. With windows of one pixel images are multiplied in place. In other layouts there is a
transpose of y besides.

Columns that are filled have the order of the weights, channels and then taps, so that weights are
read, and their gradient is written, where they are stored. Columns that are gathered have taps and
then channels, so that neighbouring threads read neighbours; weights are a small part of that
memory, and are brought into this order first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.convolution import ALIGNMENT_BYTES, Convolution, Routine, image_view
from dnn.backend.cuda.images import DECLARED, PARAMETERS, geometry, with_axis
from dnn.backend.cuda.launch import (
    FEWEST_FOR_LOADS,
    LOAD_BYTES,
    Launcher,
    element_strides,
    index_of,
)
from dnn.backend.cuda.source import (
    C_TYPES,
    ITEM_BYTES,
    LONG,
    SHORT,
    THREADS,
    Index,
    Kernel,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.backend.formula import ADD, RELU
from dnn.backend.ops import Array, Chain, Step

__all__ = ["fill_kernel", "gather_kernel", "is_pointwise", "routine"]

COLUMNS_BYTES = 128 << 20
"""Largest size of columns at once; with more, images or models are done in several turns."""

LANES, TURNS, BATCH = 32, 16, 4
"""Threads that write neighbouring elements of one row of columns, how many elements each of them
has before it has to divide, and how many it loads before it stores the first."""


@functools.cache
def fill_kernel(code: str, index: Index = SHORT, batch: int = 1) -> Kernel:
    """Return the kernel that writes the columns of x, (models, groups, pixels, channels, taps).

    Lanes have a run of rows of columns, or a part of a row. They divide where it begins, and go on
    from there by sums.

    Its parameters: x, columns, rows of a run, parts of a row, elements of a part, and `GEOMETRY`.
    """
    kind, (number, place) = C_TYPES[code], index
    body = f"""{DECLARED}
    const int lane = threadIdx.x % {LANES}, depth = taps * per_group;
    const int more_taps = {LANES} % taps, more_channels = {LANES} / taps;
    const int more_rows = more_taps / across, more_across = more_taps % across;
    const {number} lines = ({number})(models * groups * images * area);
    const {number} units = (lines + ({number})run - 1) / ({number})run * ({number})parts;
    const {number} step = ({number})gridDim.x * {THREADS // LANES};
    for ({number} unit = ({number})blockIdx.x * {THREADS // LANES} + threadIdx.x / {LANES};
         unit < units; unit += step) {{
        const int begin = (int)(unit % ({number})parts) * (int)each + lane;
        const int end = depth < begin - lane + (int)each ? depth : begin - lane + (int)each;
        const int first_c = begin / taps, first_r = begin % taps / across;
        const int first_s = begin % taps % across;
        {number} line = unit / ({number})parts * ({number})run;
        const {number} last = lines - line < ({number})run ? lines : line + ({number})run;
        int pixel = (int)(line % area), ox = pixel % out_width, oy = pixel / out_width;
        {number} rest = line / area;
        int n = (int)(rest % images), g = (int)(rest / images % groups);
        {place} m = ({place})(rest / images / groups);
        for (; line < last; ++line) {{
            const int first_y = oy * down - top, first_x = ox * right - left;
            const {kind}* from = p_x + m * ({place})x_m + n * ({place})x_n
                + g * per_group * ({place})x_c;
            {kind}* to = p_columns + ({place})line * depth;
            int c = first_c, r = first_r, s = first_s;
            for (int k = begin; k < end; k += {LANES * batch}) {{
                {kind} values[{batch}];
                #pragma unroll
                for (int at = 0; at < {batch}; ++at) {{
                    const int y = first_y + r * apart_y, x = first_x + s * apart_x;
                    values[at] = {stored(code, "0")};
                    if (k + at * {LANES} < end && y >= 0 && y < height && x >= 0 && x < width)
                        values[at] = from[c * ({place})x_c + y * ({place})x_y + x * ({place})x_x];
                    s += more_across;
                    r += more_rows;
                    c += more_channels;
                    if (s >= across) {{ s -= across; ++r; }}
                    if (r >= rows) {{ r -= rows; ++c; }}
                }}
                #pragma unroll
                for (int at = 0; at < {batch}; ++at)
                    if (k + at * {LANES} < end) to[k + at * {LANES}] = values[at];
            }}
            if (++ox < out_width) continue;
            ox = 0;
            if (++oy < out_height) continue;
            oy = 0;
            if (++n < images) continue;
            n = 0;
            if (++g < groups) continue;
            g = 0;
            ++m;
        }}
    }}"""
    numbers = lengths("run parts each")
    parameters = f"const {kind}* p_x, {kind}* p_columns, {numbers}, {PARAMETERS}"
    name = f"fill_columns__{code}__lanes_by_{batch}{'_long' if index is LONG else ''}"
    return function(name, parameters, body)


@functools.cache
def gather_kernel(
    code: str, out: str, index: Index = SHORT, many: int = 1, strides: bool = True
) -> Kernel:
    """Return the kernel that sums all occurrences of each element of x in columns, of type `out`.

    Columns are (models, groups, pixels, taps, channels). A thread has `many` neighbouring channels
    of a group. Without `strides` the window goes by one pixel.

    Its parameters: columns, x, and `GEOMETRY`.
    """
    kind, (number, place) = C_TYPES[code], index
    skips = ("at_y % down || ", "at_x % right || ") if strides else ("", "")
    oy, ox = ("at_y / down", "at_x / right") if strides else ("at_y", "at_x")
    body = for_each(
        f"""
        const int chunks = channels / {many};
        const int c = (int)(i_ % chunks) * {many}, x = (int)(i_ / chunks % width);
        const {number} row = i_ / chunks / width;
        const int y = (int)(row % height), g = c / per_group;
        const {place} n = ({place})(row / height % images), m = ({place})(row / height / images);
        const {kind}* from = p_columns
            + ((m * groups + g) * images + n) * area * taps * per_group + c % per_group;
        {kind} total[{many}] = {{}};
        for (int r = 0; r < rows; ++r) {{
            const int at_y = y + top - r * apart_y, oy = {oy};
            if (at_y < 0 || {skips[0]}oy >= out_height) continue;
            for (int s = 0; s < across; ++s) {{
                const int at_x = x + left - s * apart_x, ox = {ox};
                if (at_x < 0 || {skips[1]}ox >= out_width) continue;
                const {place} at = ({place})(oy * out_width + ox) * taps + r * across + s;
                const Terms terms = *(const Terms*)&from[at * per_group];
                #pragma unroll
                for (int j = 0; j < {many}; ++j) total[j] = total[j] + terms.of[j];
            }}
        }}
        Sums sums;
        #pragma unroll
        for (int j = 0; j < {many}; ++j) sums.of[j] = {stored(out, "total[j]")};
        *(Sums*)&p_x[m * ({place})x_m + n * ({place})x_n + c * ({place})x_c
                     + y * ({place})x_y + x * ({place})x_x] = sums;""",
        "_",
        number,
    )
    parameters = f"const {kind}* p_columns, {C_TYPES[out]}* p_x, {PARAMETERS}"
    structs = [
        f"struct alignas({many * ITEM_BYTES[each]}) {name} {{ {C_TYPES[each]} of[{many}]; }};"
        for name, each in (("Terms", code), ("Sums", out))
    ]
    elements = f"const long long n_ = models * images * height * width * (channels / {many});"
    body = "\n    ".join([DECLARED, *structs, elements, body])
    name = f"gather_columns__{code}_{out}__channels_by_{many}{'_strides' if strides else ''}"
    name += "_long" if index is LONG else ""
    return function(name, parameters, body)


def fill(launcher: Launcher, problem: Convolution, x: Any, y: Any, columns: Any) -> None:
    """Launch the kernel that writes the columns of x."""
    depth = columns.shape[-1]
    lines = columns.size // depth
    turns = -(-depth // LANES)
    parts = -(-turns // TURNS)
    turns = -(-turns // parts)
    run = TURNS // turns
    kernel = fill_kernel(code_of(x.dtype), _index(x, columns), BATCH if turns >= BATCH else 1)
    numbers = [np.int64(n) for n in (run, parts, turns * LANES)]
    arguments = [x, columns, *numbers, *geometry(problem, len(x), x, y, 0)]
    launcher.for_each(kernel, -(-lines // run) * parts * LANES, arguments)


def gather(launcher: Launcher, problem: Convolution, columns: Any, y: Any, x: Any) -> None:
    """Launch the kernel that sums columns up to x."""
    arguments = [columns, x, *geometry(problem, len(x), x, y, 0)]
    many = LOAD_BYTES // columns.dtype.itemsize
    of_models, of_images, of_channels, *steps = element_strides(image_view(x, problem.layout))
    steps += [of_models, of_images]
    fits = of_channels == 1 and problem.channels // problem.groups % many == 0
    fits = fits and not any(step % many for step in steps)
    fits = fits and not any(z.data.ptr % (many * z.dtype.itemsize) for z in (columns, x))
    many = many if fits and x.size >= FEWEST_FOR_LOADS else 1
    codes = code_of(columns.dtype), code_of(x.dtype)
    kernel = gather_kernel(*codes, _index(x, columns), many, problem.stride != (1, 1))
    launcher.for_each(kernel, x.size, arguments, each=many)


def _index(x: Any, columns: Any) -> Index:
    """Return the types of numbers of elements, and of their places, in images and columns."""
    of_x = index_of(x.shape, [element_strides(x)])
    return LONG if LONG in (of_x, index_of((columns.size,), [(1,)])) else SHORT


class _Sizes(NamedTuple):
    """Models and images that are done at once, and the elements of each array of workspace."""

    models: int
    images: int
    is_pointwise: bool
    columns: int
    weights: int
    maps: int
    term: int


def is_pointwise(problem: Convolution) -> bool:
    """Say whether images are themselves the columns, of which none are written then."""
    plain = problem.window == problem.stride == (1, 1) and not any(map(any, problem.padding))
    return plain and problem.layout == "NHWC"


def _sizes(problem: Convolution) -> _Sizes:
    item = np.dtype(problem.dtype).itemsize
    area, depth = math.prod(problem.out_size), math.prod(problem.w_shape[1:])
    taps, is_last = math.prod(problem.window), problem.layout == "NHWC"
    in_place = is_pointwise(problem)
    each = area * depth * problem.groups  # columns of an image
    models = problem.models or 1
    several = models if problem.kind == "data" or problem.stacked[0] else 1
    room = max(1, COLUMNS_BYTES // (each * item))  # images
    at_once = max(1, min(several, room // problem.images))
    images = min(problem.images, room)
    turns_of_images = problem.kind == "weights" and images < problem.images
    # Weights with taps first, or a gradient that is added up in float32 and rounded once.
    narrow = problem.precision in ("float16", "bfloat16")
    packs = taps > 1 if problem.kind == "data" else turns_of_images and narrow
    weights = models * math.prod(problem.w_shape) if packs else 0
    result_models = models if several == 1 else at_once
    maps = 0 if is_last else result_models * images * area * problem.filters
    return _Sizes(
        at_once if several > 1 else models,
        images,
        in_place,
        0 if in_place else at_once * images * each,
        weights,
        maps,
        models * math.prod(problem.w_shape) if turns_of_images else 0,
    )


def routine(ops: Any, problem: Convolution) -> Routine:
    """Return the routine; it takes every problem that has elements, of any precision.

    Operands may be narrow; columns that are to be gathered, and gradients of weights that are
    added up, are still of float32.
    """
    sizes = _sizes(problem)
    item = np.dtype(problem.dtype).itemsize
    lengths = [
        -(-count * item // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for count in (sizes.columns, sizes.weights, sizes.maps, sizes.term)
    ]

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        sums = np.dtype(problem.dtype)
        a, b = (x.dtype for x in inputs[:2])
        types = {
            "forward": (a, b, out.dtype, sums),
            "data": (sums, b, a, sums),
            "weights": (a, sums, b, sums),
        }[problem.kind]
        spaces, begin = [], 0
        for count, length, dtype in zip(sizes[-4:], lengths, types, strict=True):
            part = None
            if count:
                assert workspace is not None
                part = workspace[begin : begin + count * dtype.itemsize].view(dtype)
            spaces.append(part)
            begin += length
        return _Calls(ops, problem, sizes, inputs, out, spaces).steps

    return Routine("im2col", sum(lengths), steps)


class _Calls:
    """The calls of one convolution; arrays have a leading axis of models."""

    def __init__(
        self,
        ops: Any,
        problem: Convolution,
        sizes: _Sizes,
        inputs: Sequence[Array],
        out: Array,
        spaces: Sequence[Any],
    ) -> None:
        self.ops, self.problem, self.sizes = ops, problem, sizes
        self.columns, self.weights, self.maps, self.term = spaces
        self.steps: list[Step] = []
        self.bias = inputs[2] if problem.bias else None
        stacked = [problem.models is not None and has for has in problem.stacked]
        a, b = (with_axis(x, has) for x, has in zip(inputs[:2], stacked, strict=True))
        result = with_axis(out, problem.models is not None)
        getattr(self, f"_{problem.kind}")(a, b, result)

    def _turns(self) -> Iterator[tuple[slice, slice]]:
        """Yield the models and the images that are done at once, turn by turn."""
        models = self.problem.models or 1
        for m in range(0, models, self.sizes.models):
            for n in range(0, self.problem.images, self.sizes.images):
                yield (
                    slice(m, min(m + self.sizes.models, models)),
                    slice(n, min(n + self.sizes.images, self.problem.images)),
                )

    def _part(self, x: Array, models: slice, images: slice) -> Array:
        """Return some images of some models; an array of one model is used for all."""
        at = 1 + self.problem.layout.index("N")
        of_models = x if len(x) == 1 else x[models]
        part: Array = of_models[(slice(None),) * at + (images,)]
        return part

    def _matrices(self, x: Array) -> Array:
        """Return (models, groups, ...), without the axis of groups if there is only one group."""
        view: Array = x[:, 0] if self.problem.groups == 1 else x
        return view

    def _by_group(self, w: Array) -> Array:
        """Return weights as matrices, (models, groups, filters, depth)."""
        groups = self.problem.groups
        filters = self.problem.filters // groups
        return self._matrices(w.reshape(len(w), groups, filters, -1))

    def _taps_first(self, w: Array) -> Array:
        """Return weights as matrices whose depth has taps first; windows of one pixel have none."""
        if self.weights is None:
            return self._by_group(w)
        seen = w.reshape(*w.shape[:3], -1).swapaxes(-1, -2)
        packed = self.weights[: w.size].reshape(seen.shape)
        self.steps += self.ops.convert(seen, packed)
        return self._by_group(packed)

    def _columns_of(self, x: Array, y: Array) -> Array:
        """Return memory for columns, (models, groups, pixels, depth), or x itself if pointwise."""
        problem = self.problem
        if self.sizes.is_pointwise:
            pixels = x.reshape(len(x), -1, problem.groups, problem.channels // problem.groups)
            return self._matrices(pixels.swapaxes(1, 2))
        rows = image_view(x, problem.layout).shape[1] * math.prod(problem.out_size)
        shape = (len(x), problem.groups, rows, math.prod(problem.w_shape[1:]))
        columns = self.columns[: math.prod(shape)].reshape(shape)
        return self._matrices(columns)

    def _filled(self, x: Array, y: Array) -> Array:
        columns = self._columns_of(x, y)
        if not self.sizes.is_pointwise:
            self.steps.append((self.ops.run_kernels, (fill, self.problem, x, y, columns)))
        return columns

    def _rows_of(self, y: Array) -> tuple[Array, Array, Array]:
        """Return memory for y with channels last, as rows and as images, and y as such a view."""
        problem = self.problem
        seen = image_view(y, problem.layout).transpose(0, 1, 3, 4, 2)
        images = seen if self.maps is None else self.maps[: y.size].reshape(seen.shape)
        groups = problem.groups
        rows = images.reshape(len(y), -1, groups, problem.filters // groups).swapaxes(1, 2)
        return self._matrices(rows), images, seen

    def _forward(self, x: Array, w: Array, y: Array) -> None:
        ops, weights = self.ops, self._by_group(w)
        for models, images in self._turns():
            target = y[models][self._of_images(images)]
            columns = self._filled(self._part(x, models, images), target)
            rows, maps, seen = self._rows_of(target)
            own_weights = weights if len(weights) == 1 else weights[models]
            self._multiply(columns, own_weights.swapaxes(-1, -2), rows, self._bias_of(models))
            if self.maps is not None:
                self.steps += ops.convert(maps, seen)

    def _bias_of(self, models: slice) -> Array | None:
        """Return the bias of some models, broadcast to all rows of the matrices."""
        if self.bias is None:
            return None
        bias = self.bias[models] if self.bias.ndim == 2 else self.bias[None]
        return self._matrices(bias.reshape(len(bias), self.problem.groups, 1, -1))

    def _multiply(self, a: Array, b: Array, out: Array, bias: Array | None = None) -> None:
        """Add the calls of a product, with bias and relu in a forward convolution."""
        ops, precision = self.ops, self.problem.precision
        relu = self.problem.relu
        if out.dtype != np.float64:
            self.steps += ops.product(a, b, out, precision, bias, relu)
            return
        self.steps.append((ops.gemm, (a, b, out)))
        chain: Chain = () if bias is None else ((ADD, 0, 1),)
        operands = [out] if bias is None else [out, bias]
        if relu:
            chain += ((RELU, 0 if bias is None else 2),)
        if chain:
            self.steps += ops.chain(chain, operands, out)

    def _of_images(self, images: slice) -> tuple[slice, ...]:
        return (slice(None),) * (1 + self.problem.layout.index("N")) + (images,)

    def _data(self, dy: Array, w: Array, dx: Array) -> None:
        ops, weights = self.ops, self._taps_first(w)
        for models, images in self._turns():
            gradients = self._part(dy, models, images)
            rows, maps, seen = self._rows_of(gradients)
            if self.maps is not None:
                self.steps += ops.convert(seen, maps)
            target = dx[models][self._of_images(images)]
            columns = self._columns_of(target, gradients)
            own_weights = weights if len(weights) == 1 else weights[models]
            self._multiply(rows, own_weights, columns)
            if not self.sizes.is_pointwise:
                arguments = gather, self.problem, columns, gradients, target
                self.steps.append((ops.run_kernels, arguments))

    def _weights(self, x: Array, dy: Array, dw: Array) -> None:
        ops = self.ops
        whole = dw if self.weights is None else self.weights.reshape(dw.shape)
        for models, images in self._turns():
            gradients = self._part(dy, models, images)
            columns = self._filled(self._part(x, models, images), gradients)
            rows, maps, seen = self._rows_of(gradients)
            if self.maps is not None:
                self.steps += ops.convert(seen, maps)
            target = total = self._by_group(whole[models])
            if images.start:
                target = self._by_group(self.term[: total.size].reshape(whole[models].shape))
            self._multiply(rows.swapaxes(-1, -2), columns, target)
            if target is not total:
                self.steps.append(ops.elementwise(ADD, (total, target), total))
        if self.weights is not None:
            self.steps += ops.convert(whole, dw)
