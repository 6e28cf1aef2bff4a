"""CUDA C++ of kernels, from a few lines of C that compute one element.

A kernel is described by a few lines of C in which each operand is a variable, in the type that
arithmetic has: float for float16, bfloat16 and float32, double for float64. ``A`` names that type
of the kernel's result, so that ``A(0.5)`` makes no double of a float::

    Elementwise("relu", ("x", "out"), ("out",), "out = x > A(0) || x != x ? x : A(0);")
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "HEADERS",
    "ITEM_BYTES",
    "LONG",
    "SCALAR",
    "SHORT",
    "Elementwise",
    "Index",
    "Kernel",
    "Reduction",
    "column_sums_kernel",
    "elementwise_kernel",
    "for_each",
    "function",
    "lengths",
    "load",
    "main_type",
    "reduction_kernel",
]

HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
"""Headers that declare types which the language does not have."""

C_TYPES = {
    "f2": "__half",
    "u2": "__nv_bfloat16",  # NumPy and CuPy have no such type: uint16 holds its bits
    "b2": "unsigned short",  # copied, whatever it means
    "f4": "float",
    "f8": "double",
    "i4": "int",
    "i8": "long long",
    "u1": "unsigned char",
    "u4": "unsigned int",
    "u8": "unsigned long long",
    "b1": "bool",
}
ITEM_BYTES = {code: int(code[1]) for code in C_TYPES}

NARROW = ("f2", "u2")
"""Types that are only stored; arithmetic is in float."""

SCALAR = "s"
"""The type of an operand that is a number of Python: passed by value, as a double."""

THREADS = 256
"""Threads of a block; reductions need a power of two."""


@dataclass(frozen=True)
class Kernel:
    """A function in CUDA C++.

    Attributes
    ----------
    name : str
        Name of the function; different functions have different names.
    parameters : str
        Their declarations in C++, of which those of arrays that are only read say ``const``.
    body : str
        Statements.
    functions : str
        Functions that the statements call.
    """

    name: str
    parameters: str
    body: str
    functions: str = ""

    @property
    def source(self) -> str:
        """A whole program, without includes."""
        head = f'extern "C" __global__ void {self.name}(\n    {self.parameters})'
        return f"{self.functions}{head}\n{{\n    {self.body}\n}}\n"

    @property
    def program(self) -> str:
        """The source with its includes, as a compiler takes it."""
        needed = [file for word, file in HEADERS.items() if word in self.source]
        return "".join(f"#include <{file}>\n" for file in needed) + self.source


def lengths(names: str) -> str:
    """Return the declarations of parameters that are numbers of 64 bits."""
    return ", ".join(f"const long long {name}" for name in names.split())


def function(name: str, parameters: str, body: str, functions: str = "") -> Kernel:
    """Return the kernel of parameters, as C++ declares them, and statements."""
    return Kernel(name, parameters, body, functions)


def for_each(body: str, suffix: str = "") -> str:
    """Return the loop over all i < n that a thread has, whatever the number of threads.

    The variables i, n and step have a suffix, where operands could have these names.
    """
    i, n, step = (f"{name}{suffix}" for name in ("i", "n", "step"))
    first = f"long long {i} = (long long)blockIdx.x * blockDim.x + threadIdx.x"
    return f"""const long long {step} = (long long)gridDim.x * blockDim.x;
    for ({first}; {i} < {n}; {i} += {step}) {{
        {body.strip()}
    }}"""


@dataclass(frozen=True)
class Elementwise:
    """Description of an elementwise kernel by what it does to one element.

    Attributes
    ----------
    name : str
    parameters : tuple of str
        Operands, in the order in which they are passed.
    writes : tuple of str
        Operands whose value after `body` is stored.
    body : str
        C++ statements.
    only_written : tuple of str
        Those of `writes` whose value before is not loaded.
    pointers : tuple of str
        Operands that are not loaded: ``p_x[at_x]`` is the element.
    integers : tuple of str
        Further parameters of type long long.
    fixed : tuple of (str, str)
        Operands that have one type of elements only, with its code.
    gate : str
        The operand that is 0 where nothing is stored; if empty, all is stored.
    """

    name: str
    parameters: tuple[str, ...]
    writes: tuple[str, ...]
    body: str
    only_written: tuple[str, ...] = ("out",)
    pointers: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    gate: str = ""

    def gated(self) -> Elementwise:
        """Return the same kernel, storing only where a further operand, the last one, is not 0."""
        gate = "gate"
        parameters = (*self.parameters, gate)
        return replace(self, name=f"{self.name}_gated", parameters=parameters, gate=gate)


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


def code_of(dtype: npt.DTypeLike) -> str:
    """Return the code of a type of elements in kernels, such as ``"f4"`` for float32."""
    code: str = np.dtype(dtype).str[1:]
    if code not in C_TYPES:
        raise TypeError(f"kernels know no {np.dtype(dtype)}")
    return code


def arithmetic(code: str) -> str:
    """Return the C type that values of a type have between loading and storing."""
    return "float" if code in NARROW else C_TYPES[code]


def stored(code: str, expression: str) -> str:
    """Return the C expression that converts a value to the type of elements in memory."""
    through = "(float)" if code in NARROW else ""
    return f"({C_TYPES[code]}){through}({expression})"


def main_type(codes: Sequence[str]) -> str:
    """Return the arithmetic type of a kernel: that of its first operand that is a float.

    Else of the first one that is no truth value.
    """
    real = [code for code in codes if code not in (SCALAR, "b1")] or ["b1"]
    floats = [code for code in real if code[0] == "f" or code in NARROW]
    return arithmetic((floats or real)[0])


def _parameters(spec: Elementwise, types: dict[str, str], arrays: list[str], axes: int) -> str:
    """Return the declarations of the parameters of an elementwise kernel."""
    operands = []
    for name, code in types.items():
        qualifier = "" if name in spec.writes else "const "
        declared = "const double" if code == SCALAR else f"{qualifier}{C_TYPES[code]}*"
        operands.append(f"{declared} p_{name}")
    numbers = [*spec.integers, "n_", *(f"n{axis}_" for axis in range(1, axes))]
    numbers += [f"{name}_{axis}_" for name in arrays for axis in range(axes)]
    return f"{', '.join(operands)}, {lengths(' '.join(numbers))}"


class Index(NamedTuple):
    """C types of the number of an element, and of its distance from the first one in memory."""

    number: str
    place: str


SHORT, LONG = Index("unsigned int", "int"), Index("long long", "long long")
"""Numbers of 32 bits, below 2^31 elements, of which a GPU computes quotients faster; of 64."""


def _places(arrays: list[str], axes: int, index: Index, many: int = 1) -> list[str]:
    """Return the statements that compute where the elements of a thread are.

    Of `many` neighbours along the last axis, where the first one is.
    """
    number, place = index
    times = f" * {many}" if many > 1 else ""
    lines = [f"{number} rest_ = i_;"] if axes > 1 else []
    for axis in reversed(range(1, axes)):
        last = axis == axes - 1
        length = f"({number})n{axis}_"
        if last and many > 1:
            length = f"({length} / {many})"
        at = f"rest_ % {length}{times if last else ''}"
        lines.append(f"const {place} i{axis}_ = {at}; rest_ /= {length};")
    lines.append(f"const {place} i0_ = {'rest_' if axes > 1 else f'i_{times}'};")
    for name in arrays:
        terms = " + ".join(f"i{axis}_ * ({place}){name}_{axis}_" for axis in range(axes))
        lines.append(f"const {place} at_{name} = {terms};")
    return lines


def _each_index(index: Index, first: str, end: str, lines: Sequence[str]) -> str:
    """Return the loop over all i_ from `first` to `end` that a thread has."""
    number, body = index.number, "\n        ".join(lines)
    start = f"{first}({number})blockIdx.x * blockDim.x + threadIdx.x"
    return f"""for ({number} i_ = {start}; i_ < ({number})({end}); i_ += step_) {{
        {body}
    }}"""


def load(spec: Elementwise, name: str, code: str, element: str) -> str:
    """Return the statement that declares the variable of an operand."""
    if code == SCALAR:
        return f"const A {name} = (A)p_{name};"
    kind = arithmetic(code)
    if name in spec.only_written:
        return f"{kind} {name};"
    qualifier = "" if name in spec.writes else "const "
    return f"{qualifier}{kind} {name} = ({kind}){element};"


def _words(spec: Elementwise) -> set[str]:
    """Return the names in a kernel's body and of what it writes, but not of its pointers."""
    return {*re.findall(r"\w+", spec.body), *spec.writes, spec.gate} - {*spec.pointers}


def _one_by_one(spec: Elementwise, types: dict[str, str], places: list[str]) -> list[str]:
    """Return the statements that compute one element."""
    words = _words(spec)
    loads = [
        load(spec, name, code, f"p_{name}[at_{name}]")
        for name, code in types.items()
        if name in words
    ]
    condition = f"if ({spec.gate} != 0) " if spec.gate else ""
    stores = [
        f"{condition}p_{name}[at_{name}] = {stored(types[name], name)};" for name in spec.writes
    ]
    return [*places, *loads, *spec.body.strip().splitlines(), *stores]


def _several_at_once(
    spec: Elementwise, types: dict[str, str], places: list[str], shared: frozenset[str], many: int
) -> list[str]:
    """Return the statements that compute `many` elements, all operands but `shared` by one load."""
    lines = list(places)
    single, inner, words = [], [], _words(spec)
    for name, code in types.items():
        if name not in words:
            continue
        if code == SCALAR or name in shared:
            single.append(load(spec, name, code, f"p_{name}[at_{name}]"))
            continue
        kind = f"V_{name}"
        size = many * ITEM_BYTES[code]
        first = "" if name in spec.only_written else f" = *(const {kind}*)&p_{name}[at_{name}]"
        lines.append(f"struct alignas({size}) {kind} {{ {C_TYPES[code]} of[{many}]; }};")
        lines.append(f"{kind} v_{name}{first};")
        inner.append(load(spec, name, code, f"v_{name}.of[v_]"))
    inner += spec.body.strip().splitlines()
    inner += [f"v_{name}.of[v_] = {stored(types[name], name)};" for name in spec.writes]
    condition = f"if ({spec.gate} != 0) " if spec.gate else ""
    return [
        *lines,
        *single,
        "#pragma unroll",
        f"for (int v_ = 0; v_ < {many}; ++v_) {{",
        *(f"    {line}" for line in inner),
        "}",
        *(f"{condition}*(V_{name}*)&p_{name}[at_{name}] = v_{name};" for name in spec.writes),
    ]


@functools.cache
def elementwise_kernel(
    spec: Elementwise,
    codes: tuple[str, ...],
    axes: int,
    index: Index = SHORT,
    many: int = 1,
    shared: frozenset[str] = frozenset(),
) -> Kernel:
    """Return the kernel of an elementwise function.

    Parameters
    ----------
    spec : Elementwise
    codes : tuple of str
        Type of each operand.
    axes : int
    index : Index
    many : int
        Neighbours along the last axis that a thread loads, computes and stores at once. There may
        be a remainder if that is the only axis.
    shared : frozenset of str
        Operands of which, with `many`, one element serves all neighbours.

    Returns
    -------
    Kernel
        Its parameters: each operand, the integers of `spec`, the number of elements, the lengths of
        all axes but the first, and for each operand that is an array its strides.
    """
    types = dict(zip(spec.parameters, codes, strict=True))
    arrays = [name for name in spec.parameters if types[name] != SCALAR]
    written = [types[name] for name in spec.writes]
    main = main_type([*written, *codes])
    words = _words(spec)
    used = [name for name in arrays if name in words or f"at_{name}" in words]
    one = _one_by_one(spec, types, _places(used, axes, index))
    name = f"{spec.name}__{'_'.join(codes)}__{axes}{'_long' if index is LONG else ''}"
    loops = [f"const {index.number} step_ = ({index.number})gridDim.x * blockDim.x;"]
    if many == 1:
        loops.append(_each_index(index, "", "n_", one))
    else:
        name += f"_by_{many}_{''.join(str(int(x in shared)) for x in arrays)}"
        places = _places(used, axes, index, many)
        several = _several_at_once(spec, types, places, shared, many)
        loops.append(_each_index(index, "", f"n_ / {many}", several))
        if axes == 1:
            first = f"({index.number})(n_ / {many} * {many}) + "
            loops.append(_each_index(index, first, "n_", one))
    body = "\n    ".join([f"typedef {main} A;", *loops])
    return function(name, _parameters(spec, types, arrays, axes), body)


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
