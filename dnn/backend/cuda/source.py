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

import numpy as np
import numpy.typing as npt

__all__ = [
    "HEADERS",
    "SCALAR",
    "Elementwise",
    "Kernel",
    "Reduction",
    "elementwise_kernel",
    "for_each",
    "function",
    "lengths",
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
        Name of the function in `source`; different sources have different names.
    source : str
        A whole program, without includes.
    """

    name: str
    source: str

    @property
    def program(self) -> str:
        """The source with its includes, as a compiler takes it."""
        needed = [file for word, file in HEADERS.items() if word in self.source]
        return "".join(f"#include <{file}>\n" for file in needed) + self.source


def lengths(names: str) -> str:
    """Return the declarations of parameters that are numbers of 64 bits."""
    return ", ".join(f"const long long {name}" for name in names.split())


def function(name: str, parameters: str, body: str) -> Kernel:
    """Return the kernel of parameters, as C++ declares them, and statements."""
    source = f'extern "C" __global__ void {name}(\n    {parameters})\n{{\n    {body}\n}}\n'
    return Kernel(name, source)


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


def _main_type(codes: Sequence[str]) -> str:
    """Return the arithmetic type of a kernel: that of its first operand that is a float."""
    real = [code for code in codes if code != SCALAR]
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


def _places(arrays: list[str], axes: int) -> list[str]:
    """Return the statements that compute where the elements of a thread are."""
    lines = ["long long rest_ = i_;"] if axes > 1 else []
    for axis in reversed(range(1, axes)):
        lines.append(f"const long long i{axis}_ = rest_ % n{axis}_; rest_ /= n{axis}_;")
    lines.append(f"const long long i0_ = {'rest_' if axes > 1 else 'i_'};")
    for name in arrays:
        terms = " + ".join(f"i{axis}_ * {name}_{axis}_" for axis in range(axes))
        lines.append(f"const long long at_{name} = {terms};")
    return lines


def _load(spec: Elementwise, name: str, code: str) -> str:
    """Return the statement that declares the variable of an operand."""
    if code == SCALAR:
        return f"const A {name} = (A)p_{name};"
    kind = arithmetic(code)
    if name in spec.only_written:
        return f"{kind} {name};"
    qualifier = "" if name in spec.writes else "const "
    return f"{qualifier}{kind} {name} = ({kind})p_{name}[at_{name}];"


@functools.cache
def elementwise_kernel(spec: Elementwise, codes: tuple[str, ...], axes: int) -> Kernel:
    """Return the kernel of an elementwise function for types of operands and a number of axes.

    Its parameters: each operand, the integers of `spec`, the number of elements, the lengths of all
    axes but the first, and for each operand that is an array its strides.
    """
    types = dict(zip(spec.parameters, codes, strict=True))
    arrays = [name for name in spec.parameters if types[name] != SCALAR]
    words = {*re.findall(r"\w+", spec.body), *spec.writes, spec.gate} - {*spec.pointers}
    loads = [_load(spec, name, types[name]) for name in types if name in words]
    condition = f"if ({spec.gate} != 0) " if spec.gate else ""
    stores = [
        f"{condition}p_{name}[at_{name}] = {stored(types[name], name)};" for name in spec.writes
    ]
    used = [name for name in arrays if name in words or f"at_{name}" in words]
    lines = [*_places(used, axes), *loads, *spec.body.strip().splitlines(), *stores]
    written = [types[name] for name in spec.writes]
    main = _main_type([code for code in (*written, *codes) if code != "b1"] or ["b1"])
    body = for_each("\n        ".join(lines), "_")
    name = f"{spec.name}__{'_'.join(codes)}__{axes}"
    return function(name, _parameters(spec, types, arrays, axes), f"typedef {main} A;\n    {body}")


REDUCED_AXES = 3
"""Axes of the results, and of what is reduced, that a reduction's kernel has."""


@functools.cache
def reduction_kernel(spec: Reduction, codes: tuple[str, ...], by_rows: bool) -> Kernel:
    """Return the kernel of a reduction for types of operands.

    Parameters
    ----------
    spec : Reduction
    codes : tuple of str
        Types of the operands and of the result.
    by_rows : bool
        A block of threads for each result, which suits contiguous elements; else 32 results for
        each block, so that neighbouring threads of a warp read neighbours in memory.

    Returns
    -------
    Kernel
        Its parameters: operands, result, scale, number of results, number of elements for each;
        lengths of their axes but the first (2 and 2); and for each operand 3 strides over results
        and 3 over reduced elements, and for the result 3.

    Notes
    -----
    Partial results are combined in a fixed order, so the same input gives the same bits.
    """
    *read, result = codes
    names = spec.parameters
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

    def index(name: str, kind: str, number: str) -> str:
        return (
            f"{number} / {kind}2_ / {kind}1_ * {name}_{kind}0_ + "
            f"{number} / {kind}2_ % {kind}1_ * {name}_{kind}1_ + "
            f"{number} % {kind}2_ * {name}_{kind}2_"
        )

    kind = arithmetic(result)
    bases = "\n            ".join(
        f"const long long base_{name} = {index(name, 'o', 'o_')};" for name in names
    )
    loads = "\n                ".join(
        f"const {arithmetic(code)} {name} = "
        f"({arithmetic(code)})p_{name}[base_{name} + {index(name, 'r', 'r_')}];"
        for name, code in zip(names, read, strict=True)
    )
    # By rows: 1 x 256 threads, all for one result; else 32 x 8, thread (x, y) taking every 8th
    # element of result x.
    across, along = (1, THREADS) if by_rows else (32, THREADS // 32)
    name = f"{spec.name}__{'_'.join(codes)}__{'rows' if by_rows else 'columns'}"
    body = f"""typedef {kind} A;
    __shared__ A partial_[{THREADS}];
    const int x_ = threadIdx.x % {across}, y_ = threadIdx.x / {across};
    const long long groups_ = (results_ + {across - 1}) / {across};
    for (long long group_ = blockIdx.x; group_ < groups_; group_ += gridDim.x) {{
        const long long o_ = group_ * {across} + x_;
        A total = {spec.first};
        if (o_ < results_) {{
            {bases}
            for (long long r_ = y_; r_ < elements_; r_ += {along}) {{
                {loads}
                const A value = {spec.value};
                {spec.step}
            }}
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
        if (y_ == 0 && o_ < results_) {{
            p_out[{index("out", "o", "o_")}] = {stored(result, "total")};
        }}
        __syncthreads();
    }}"""
    return function(name, ", ".join(parameters), body)
