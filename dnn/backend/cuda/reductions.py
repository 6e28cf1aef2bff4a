"""Reductions over axes: what each contributes, its kernel, and how it is launched.

A kernel combines partial results in an order that depends on shapes and strides alone, so that the
same input gives the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnn.backend.cuda.formulas import FINITE_FLAG
from dnn.backend.cuda.launch import (
    LOAD_BYTES,
    NUMBERS,
    Launcher,
    broadcast_strides,
    collapse,
    element_strides,
    index_of,
)
from dnn.backend.cuda.source import (
    C_TYPES,
    ITEM_BYTES,
    LONG,
    SCALAR,
    SHORT,
    THREADS,
    Elementwise,
    Index,
    Kernel,
    arithmetic,
    code_of,
    function,
    lengths,
    main_type,
    stored,
)
from dnn.errors import ShapeError

__all__ = [
    "ARGMAX",
    "REDUCTIONS",
    "Reduction",
    "all_finite",
    "argmax",
    "column_sums",
    "finite_flags",
    "reduce",
    "reduction",
    "reduction_kernel",
    "sum_of_squares",
]

FEWEST_BY_ROWS = 64
"""Least elements of a result for which a block of threads is not too many."""

WARP, SECTOR_BYTES = 32, 32
"""Threads that work in step, and the bytes that a GPU reads from memory at once."""

MANY_ROWS = 256
"""Elements of a result from which on a block has as few results as make up a sector, so that more
threads share the elements, and there are more blocks. It has fewer where fewer are side by side."""

LOADS = 16
"""Elements that a thread loads before it adds up the first of them, which takes as long as to load
one, so that some thousand threads have as much of memory on its way as a GPU can."""

FEW, MANY = 32, 1 << 15
"""Most results, and least elements of each, of a reduction in parts."""

MOST_PARTS, FEWEST_PARTS = 512, 16

_Loops = tuple[Sequence[int], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Reduction:
    """Description of a reduction of many elements to one result.

    Attributes
    ----------
    name : str
    parameters : tuple of str
        Operands that are read, in the order in which they are passed; the result comes last.
    value : str
        C++ expression: what an element contributes, with ``scale`` a double that is passed.
    first : str
        C++ expression: initial value of ``total``.
    step : str
        C++ statements that combine ``value`` with ``total``; the order must not matter.
    """

    name: str
    parameters: tuple[str, ...]
    value: str
    first: str
    step: str

    def first_stage(self) -> Reduction:
        """Return the reduction of elements to partial results."""
        return replace(self, name=f"{self.name}_parts")

    def last_stage(self) -> Reduction:
        """Return the reduction of partial results to a result."""
        return replace(self, name=f"{self.name}_whole", parameters=("x",), value="x")


REDUCTIONS = {
    spec.name: spec
    for spec in (
        Reduction("sum", ("x",), "x", "A(0)", "total = total + value;"),
        Reduction("prod", ("x",), "x", "A(1)", "total = total * value;"),
        Reduction(
            "max",
            ("x",),
            "x",
            "-A(1.0 / 0.0)",
            "total = value != value || value > total ? value : total;",
        ),
        Reduction(
            "min",
            ("x",),
            "x",
            "A(1.0 / 0.0)",
            "total = value != value || value < total ? value : total;",
        ),
        # 0 if every element is finite, else NaN.
        Reduction("not_finite", ("x",), "x - x", "A(0)", "total = total + value;"),
        Reduction("sum_of_products", ("x", "y"), "x * y", "A(0)", "total = total + value;"),
        # x are logarithms, which may be -inf where y is 0; scaled first, so that no sum overflows.
        Reduction(
            "mean_of_products",
            ("x", "y"),
            "y == A(0) ? A(0) : x * y * A(scale)",
            "A(0)",
            "total = total + value;",
        ),
    )
}

# The index of the first largest element, NaN being larger than all numbers: only a larger element
# or the first NaN replaces the running maximum.
ARGMAX = Elementwise(
    "argmax",
    ("x", "out"),
    ("out",),
    """
out = 0;
auto best = p_x[at_x];
for (long long j = 1; j < length; ++j) {
    const auto value = p_x[at_x + j * stride];
    if (best == best && (value > best || value != value)) {
        best = value;
        out = j;
    }
}
""",
    pointers=("x",),
    integers=("length", "stride"),
    fixed=(("out", "i8"),),
)


REDUCED_AXES = 3
"""Axes of the results, and of what is reduced, that a reduction's kernel has."""


def _position(index: Index, name: str, kind: str, number: str, axes: int) -> str:
    """Return where an element of an operand is, by its number among the results or the reduced.

    `kind` is o or r: what begins the names of lengths and strides of the last `axes` axes.
    """
    lengths = [f"({index.number}){kind}{axis}_" for axis in range(REDUCED_AXES)]
    steps = [f"({index.place}){name}_{kind}{axis}_" for axis in range(REDUCED_AXES)]
    terms = []
    for axis in range(REDUCED_AXES - axes, REDUCED_AXES):
        at = " / ".join([number, *reversed(lengths[axis + 1 :])])
        if axis > REDUCED_AXES - axes:
            at = f"{at} % {lengths[axis]}"
        terms.append(f"({index.place})({at}) * {steps[axis]}")
    return " + ".join(terms)


@functools.cache
def reduction_kernel(
    spec: Reduction,
    codes: tuple[str, ...],
    across: int,
    axes: tuple[int, int] = (REDUCED_AXES, REDUCED_AXES),
    index: Index = SHORT,
    many: int = 1,
) -> Kernel:
    """Return the kernel of a reduction for types of operands.

    Parameters
    ----------
    spec : Reduction
    codes : tuple of str
        Types of the operands and of the result.
    across : int
        Results of a block, a power of two: 1 suits contiguous elements; with several, neighbouring
        threads of a warp read neighbours in memory.
    axes : tuple of int
        How many axes results and what is reduced have, the last of `REDUCED_AXES`.
    index : Index
    many : int
        Neighbours that a thread adds up in turn, of operands whose only reduced axis is contiguous.
        They are one load where a row is aligned.

    Returns
    -------
    Kernel
        Its parameters: operands, result, scale, number of results, number of elements for each;
        lengths of their axes but the first (2 and 2); and for each operand 3 strides over results
        and 3 over reduced elements, and for the result 3.

    Notes
    -----
    Partial results are combined in an order that depends on shapes and strides alone, so the same
    input gives the same bits.
    """
    *read, result = codes
    names, number, place = spec.parameters, index.number, index.place
    parameters = [
        f"const {C_TYPES[code]}* p_{name}" for name, code in zip(names, read, strict=True)
    ]
    parameters += [f"{C_TYPES[result]}* p_out", "const double scale"]
    parameters += [
        f"const long long {name}_" for name in ("results", "elements", "o1", "o2", "r1", "r2")
    ]
    for name in names:
        parameters += [f"const long long {name}_o{axis}_" for axis in range(REDUCED_AXES)]
        parameters += [f"const long long {name}_r{axis}_" for axis in range(REDUCED_AXES)]
    parameters += [f"const long long out_o{axis}_" for axis in range(REDUCED_AXES)]

    # Thread (x, y) takes every `along`-th element of result x.
    along = THREADS // across
    bases = [
        f"const {place} base_{name} = {_position(index, name, 'o', 'o_', axes[0])};"
        for name in names
    ]
    combined = [f"const A value = {spec.value};", *spec.step.splitlines()]

    def loads(elements: dict[str, str]) -> list[str]:
        return [
            f"const {arithmetic(code)} {name} = ({arithmetic(code)}){elements[name]};"
            for name, code in zip(names, read, strict=True)
        ]

    def element(name: str, number: str = "r_") -> str:
        return f"p_{name}[base_{name} + {_position(index, name, 'r', number, axes[1])}]"

    types = dict(zip(names, read, strict=True))
    lines, first, at_once = bases, f"{number} r_ = y_", 0
    if many > 1:
        lines, first = [*bases, *_rows_by(many, types, index)], f"{number} r_ = rest_ + y_"
        several = {name: f"v_{name}.of[v_]" for name in names}
        at_once = many
    elif axes[1] == 1:
        at_once = LOADS // len(names)
        lines, first = [*bases, f"{number} r_ = y_;"], ""
        lines.append(f"for (; r_ + {(at_once - 1) * along} < ({number})elements_;")
        lines.append(f"     r_ += {at_once * along}) {{")
        lines += [f"    {arithmetic(code)} v_{name}[{at_once}];" for name, code in types.items()]
        lines += ["    #pragma unroll", f"    for (int v_ = 0; v_ < {at_once}; ++v_) {{"]
        for name, code in types.items():
            loaded = element(name, f"(r_ + v_ * {along})")
            lines.append(f"        v_{name}[v_] = ({arithmetic(code)}){loaded};")
        lines.append("    }")
        several = {name: f"v_{name}[v_]" for name in names}
    if at_once:
        lines += ["    #pragma unroll", f"    for (int v_ = 0; v_ < {at_once}; ++v_) {{"]
        lines += [f"        {line}" for line in [*loads(several), *combined]] + ["    }", "}"]
    each = [f"    {line}" for line in [*loads({x: element(x) for x in names}), *combined]]
    head = f"for ({first}; r_ < ({number})elements_; r_ += {along}) {{"
    lines = [*lines, head, *each, "}"]
    inside = "\n            ".join(lines)
    kind = "rows" if across == 1 else f"columns_{across}"
    name = f"{spec.name}__{'_'.join(codes)}__{kind}_{axes[0]}_{axes[1]}"
    name += "_long" if index is LONG else ""
    name += f"_by_{many}" if many > 1 else ""
    body = f"""typedef {arithmetic(result)} A;
    __shared__ A partial_[{THREADS}];
    const int x_ = threadIdx.x % {across}, y_ = threadIdx.x / {across};
    const {number} groups_ = (({number})results_ + {across - 1}) / {across};
    for ({number} group_ = blockIdx.x; group_ < groups_; group_ += gridDim.x) {{
        const {number} o_ = group_ * {across} + x_;
        A total = {spec.first};
        if (o_ < ({number})results_) {{
            {inside}
        }}
        partial_[threadIdx.x] = total;
        __syncthreads();
        for (int half_ = {along // 2}; half_ > 0; half_ /= 2) {{
            if (y_ < half_) {{
                const A value = partial_[threadIdx.x + half_ * {across}];
                {spec.step}
                partial_[threadIdx.x] = total;
            }}
            __syncthreads();
        }}
        if (y_ == 0 && o_ < ({number})results_) {{
            p_out[{_position(index, "out", "o", "o_", axes[0])}] = {stored(result, "total")};
        }}
        __syncthreads();
    }}"""
    return function(name, ", ".join(parameters), body)


def _rows_by(many: int, types: dict[str, str], index: Index) -> list[str]:
    """Return the beginning of the loop that loads `many` neighbours of rows at once."""
    number, place = index.number, index.place
    aligned = [
        f"(unsigned long long)(p_{name} + base_{name}) % {many * ITEM_BYTES[code]} == 0"
        for name, code in types.items()
    ]
    lines = [
        f"const bool aligned_ = {' && '.join(aligned)};",
        f"const {number} rest_ = ({number})elements_ / {many} * {many};",
        f"for ({number} r_ = y_ * {many}; r_ < rest_; r_ += {many * THREADS}) {{",
    ]
    for name, code in types.items():
        at, size = f"base_{name} + ({place})r_", many * ITEM_BYTES[code]
        lines += [
            f"    struct alignas({size}) V_{name} {{ {C_TYPES[code]} of[{many}]; }};",
            f"    V_{name} v_{name};",
            f"    if (aligned_) v_{name} = *(const V_{name}*)&p_{name}[{at}];",
            f"    else for (int v_ = 0; v_ < {many}; ++v_) v_{name}.of[v_] = p_{name}[{at} + v_];",
        ]
    return lines


SUMMED_COLUMNS = 8
"""Columns of a block: as many floats as a GPU reads from memory at once."""


@functools.cache
def column_sums_kernel(spec: Elementwise, codes: tuple[str, ...]) -> Kernel:
    """Return the kernel of an elementwise function that also sums its result over rows.

    Parameters
    ----------
    spec : Elementwise
        It writes one operand, the last one.
    codes : tuple of str
        Types of its operands, and of the sums, whose values are those that are stored.

    Returns
    -------
    Kernel
        Its parameters: operands, sums, numbers of matrices, rows and columns; for each operand that
        is an array strides over these, and for the sums strides over matrices and columns.

    Notes
    -----
    Partial sums are combined in a fixed order, so the same input gives the same bits.
    """
    *of_operands, of_sums = codes
    types = dict(zip(spec.parameters, of_operands, strict=True))
    arrays = [name for name in types if types[name] != SCALAR]
    out, total = spec.writes[0], arithmetic(of_sums)
    parameters = []
    for name, code in types.items():
        qualifier = "" if name == out else "const "
        kind = "const double " if code == SCALAR else f"{qualifier}{C_TYPES[code]}* "
        parameters.append(f"{kind}p_{name}")
    numbers = ["models_", "rows_", "columns_", *(f"{x}_{axis}_" for x in arrays for axis in "mrc")]
    parameters += [f"{C_TYPES[of_sums]}* p_sums", lengths(" ".join([*numbers, "sums_m_ sums_c_"]))]
    places = [f"const long long at_{x} = m_ * {x}_m_ + r_ * {x}_r_ + c_ * {x}_c_;" for x in arrays]
    loads = [
        f"const A {x} = (A)p_{x};"
        if code == SCALAR
        else f"const {arithmetic(code)} {x} = ({arithmetic(code)})p_{x}[at_{x}];"
        for x, code in types.items()
        if x != out
    ]
    kept = stored(types[out], out)
    lines = [
        *places,
        *loads,
        f"{arithmetic(types[out])} {out};",
        *spec.body.strip().splitlines(),
        f"p_{out}[at_{out}] = {kept};",
        f"total_ = total_ + ({total})({arithmetic(types[out])})({kept});",
    ]
    inside = "\n                ".join(lines)
    main = main_type([types[out], *of_operands])
    along = THREADS // SUMMED_COLUMNS
    body = f"""typedef {main} A;
    __shared__ {total} partial_[{THREADS}];
    const int x_ = threadIdx.x % {SUMMED_COLUMNS}, y_ = threadIdx.x / {SUMMED_COLUMNS};
    const long long each_ = (columns_ + {SUMMED_COLUMNS - 1}) / {SUMMED_COLUMNS};
    for (long long group_ = blockIdx.x; group_ < models_ * each_; group_ += gridDim.x) {{
        const long long m_ = group_ / each_, c_ = group_ % each_ * {SUMMED_COLUMNS} + x_;
        {total} total_ = 0;
        if (c_ < columns_) {{
            for (long long r_ = y_; r_ < rows_; r_ += {along}) {{
                {inside}
            }}
        }}
        partial_[threadIdx.x] = total_;
        __syncthreads();
        for (int half_ = {along // 2}; half_ > 0; half_ /= 2) {{
            if (y_ < half_) {{
                total_ = total_ + partial_[threadIdx.x + half_ * {SUMMED_COLUMNS}];
                partial_[threadIdx.x] = total_;
            }}
            __syncthreads();
        }}
        if (y_ == 0 && c_ < columns_) {{
            p_sums[m_ * sums_m_ + c_ * sums_c_] = {stored(of_sums, "total_")};
        }}
        __syncthreads();
    }}"""
    name = f"{spec.name}_sums__{'_'.join(codes)}"
    return function(name, ", ".join(parameters), body)


def column_sums(launcher: Launcher, spec: Elementwise, operands: Sequence[Any], sums: Any) -> None:
    """Launch an elementwise kernel that sums its result over the last axis but one.

    The last operand is the one that is written, of shape (n, m) or (K, n, m), to which the
    others broadcast; `sums` is of shape (1, m) or (K, 1, m). Operands of uint16 are bfloat16.
    """
    shape = tuple(operands[-1].shape)
    models, rows, columns = (1,) * (3 - len(shape)) + shape
    codes: list[str] = []
    steps: list[int] = []
    for operand in (*operands, sums):
        if isinstance(operand, NUMBERS):
            codes.append(SCALAR)
            continue
        launcher.check(spec.name, operand, bfloat16=True)
        codes.append(code_of(operand.dtype))
        strides = broadcast_strides(tuple(operand.shape), element_strides(operand), shape)
        steps += ((0,) * (3 - len(shape)) + strides)[:: 2 if operand is sums else 1]
    kernel = column_sums_kernel(spec, tuple(codes))
    numbers = map(np.int64, (models, rows, columns, *steps))
    arguments = [np.float64(x) if isinstance(x, NUMBERS) else x for x in operands]
    launcher.launch(kernel, models * -(-columns // SUMMED_COLUMNS), [*arguments, sums, *numbers])


def reduce(
    launcher: Launcher,
    spec: Reduction,
    operands: Sequence[Any],
    axes: tuple[int, ...],
    out: Any,
    scale: float = 1.0,
    bfloat16: bool = False,
) -> None:
    """Launch a reduction of operands of one shape over axes that are not negative.

    `out` has their shape, with length 1 along `axes`. With `bfloat16` operands of uint16 are
    bfloat16.
    """
    for array in (*operands, out):
        launcher.check(spec.name, array, bfloat16)
    shape = tuple(operands[0].shape)
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    all_strides = [element_strides(x) for x in operands]
    inner, steps = _fold(spec.name, shape, axes, all_strides)
    outer, outer_steps = _fold(spec.name, shape, kept, [*all_strides, element_strides(out)])
    results = int(np.prod(outer, dtype=np.int64))
    elements = int(np.prod(inner, dtype=np.int64))
    parts = _parts(results, elements, outer, inner)
    if parts == 1:
        _launch(launcher, spec, [*operands, out], (outer, outer_steps), (inner, steps), scale)
        return
    # Few results of many elements: blocks for parts of each, then one for the parts.
    code = "f8" if operands[0].dtype == np.float64 else "f4"
    partial = launcher.workspace(FEW * MOST_PARTS, code)[: results * parts]
    length = elements // parts
    of_x = zip(outer_steps[:-1], steps, strict=True)
    over = [[s[1], along[-1] * length, s[2]] for s, along in of_x]
    over.append([outer[2] * parts, outer[2], 1])
    pieces = ([outer[1], parts, outer[2]], over), ([1, 1, length], steps)
    _launch(launcher, spec.first_stage(), [*operands, partial], *pieces, scale)
    whole = (outer, [[0, outer[2] * parts, 1], outer_steps[-1]])
    _launch(launcher, spec.last_stage(), [partial, out], whole, ([1, 1, parts], [[0, 0, outer[2]]]))


def _launch(
    launcher: Launcher,
    spec: Reduction,
    arrays: Sequence[Any],
    outer: _Loops,
    inner: _Loops,
    scale: float = 1.0,
) -> None:
    """Launch a reduction over loops: lengths, and for each array its strides."""
    lengths, outer_steps = outer
    within, steps = inner
    results, elements = (int(np.prod(x, dtype=np.int64)) for x in (lengths, within))
    if not results:
        return
    sizes = [x.dtype.itemsize for x in arrays[:-1]]
    axes = (_axes(lengths), _axes(within))
    across, many = WARP, 1
    of_sector = SECTOR_BYTES // min(sizes)
    by_rows = min(s[-1] for s in steps) <= min(s[-1] for s in outer_steps[:-1])
    if elements >= FEWEST_BY_ROWS and (by_rows or lengths[-1] == 1):
        across, each = 1, LOAD_BYTES // max(sizes)
        contiguous = axes[1] == 1 and all(step[-1] == 1 for step in steps)
        many = each if contiguous and elements >= each * THREADS else 1
    elif elements >= MANY_ROWS or (elements >= FEWEST_BY_ROWS and lengths[-1] < of_sector):
        across = min(of_sector, 1 << (lengths[-1] - 1).bit_length())
    both = [[*over, *along] for over, along in zip(outer_steps[:-1], steps, strict=True)]
    indices = index_of((*lengths, *within), both), index_of(lengths, outer_steps[-1:])
    index = LONG if LONG in indices else SHORT
    codes = tuple(code_of(x.dtype) for x in arrays)
    kernel = reduction_kernel(spec, codes, across, axes, index, many)
    numbers = [results, elements, *lengths[1:], *within[1:]]
    numbers += [step for each in both for step in each] + list(outer_steps[-1])
    arguments = [*arrays, np.float64(scale), *map(np.int64, numbers)]
    launcher.launch(kernel, -(-results // across), arguments)


def _axes(lengths: Sequence[int]) -> int:
    """Return the number of axes without the leading ones of length 1, but at least 1."""
    return next((len(lengths) - i for i, length in enumerate(lengths) if length > 1), 1)


def _parts(results: int, elements: int, outer: Sequence[int], inner: Sequence[int]) -> int:
    """Return the number of equal parts in which each result's elements are reduced; 1: no parts."""
    one_loop = outer[0] == inner[0] == inner[1] == 1
    if results > FEW or elements < MANY or not one_loop:
        return 1
    fitting = (n for n in range(MOST_PARTS, FEWEST_PARTS - 1, -1) if elements % n == 0)
    return next(fitting, 1)


def _fold(
    operation: str, shape: tuple[int, ...], axes: Sequence[int], strides: Sequence[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """Collapse some axes, and add axes of length 1 up to the number that the kernel has."""
    lengths, steps = collapse(
        tuple(shape[i] for i in axes), [tuple(s[i] for i in axes) for s in strides]
    )
    missing = REDUCED_AXES - len(lengths)
    if missing < 0:
        message = f"{shape} over axes {tuple(axes)} needs more than {REDUCED_AXES} loops"
        raise ShapeError(operation, message, shape)
    return [1] * missing + list(lengths), [[0] * missing + list(s) for s in steps]


def reduction(name: str) -> Callable[[Launcher, Any, tuple[int, ...], Any], None]:
    """Return the function that launches a reduction of `REDUCTIONS` over some axes."""

    def launched(launcher: Launcher, x: Any, axes: tuple[int, ...], out: Any) -> None:
        reduce(launcher, REDUCTIONS[name], [x], tuple(axis % x.ndim for axis in axes), out)

    return launched


def argmax(launcher: Launcher, x: Any, axis: int, out: Any) -> None:
    """Launch the search for the index of the first largest element, a thread for each result."""
    axis %= x.ndim
    integers = [x.shape[axis], element_strides(x)[axis]]
    launcher.elementwise(ARGMAX, (x, out), integers, hidden=axis)


def sum_of_squares(launcher: Launcher, g: Any, squares: Any, out: Any) -> None:
    """Launch the sum of squares over the last axis, of length 1 in `out`; needs no workspace."""
    reduce(launcher, REDUCTIONS["sum_of_products"], [g, g], (g.ndim - 1,), out)


def finite_flags(launcher: Launcher, gradients: Any, sums: Any, out: Any) -> None:
    """Launch kernels that set `out` to 1 for each finite row, else 0; `sums` is workspace."""
    reduce(launcher, REDUCTIONS["not_finite"], [gradients], (gradients.ndim - 1,), sums)
    launcher.elementwise(FINITE_FLAG, (sums.reshape(out.shape), out))


def all_finite(launcher: Launcher, x: Any, mask: Any) -> bool:
    """Return whether no element is NaN or infinite; waits for the GPU."""
    axes = tuple(range(x.ndim))
    with launcher.gpu:
        out = launcher.cupy.empty((1,) * x.ndim, x.dtype)
        reduce(launcher, REDUCTIONS["not_finite"], [x], axes, out)
        return not launcher.cupy.asnumpy(out).any()
