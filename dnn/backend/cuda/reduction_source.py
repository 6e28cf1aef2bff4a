"""CUDA C++ of kernels that reduce many elements to one, from a few lines of C.

The lines combine the value of an element with those before it::

    Reduction("sum", ("x",), "x", "A(0)", "total = total + value;")
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

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
    function,
    lengths,
    main_type,
    stored,
)

__all__ = [
    "REDUCED_AXES",
    "SUMMED_COLUMNS",
    "Reduction",
    "column_sums_kernel",
    "reduction_kernel",
]


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

    one = {
        name: f"p_{name}[base_{name} + {_position(index, name, 'r', 'r_', axes[1])}]"
        for name in names
    }
    lines, first = bases, "y_"
    if many > 1:
        lines, first = (
            [*bases, *_rows_by(many, dict(zip(names, read, strict=True)), index)],
            "rest_ + y_",
        )
        several = loads({name: f"v_{name}.of[v_]" for name in names})
        lines += ["    #pragma unroll", f"    for (int v_ = 0; v_ < {many}; ++v_) {{"]
        lines += [f"        {line}" for line in [*several, *combined]] + ["    }", "}"]
    each = [f"    {line}" for line in [*loads(one), *combined]]
    head = f"for ({number} r_ = {first}; r_ < ({number})elements_; r_ += {along}) {{"
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
