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
    "elementwise_kernel",
    "for_each",
    "function",
    "lengths",
    "load",
    "main_type",
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


def for_each(body: str, suffix: str = "", number: str = "long long") -> str:
    """Return the loop over all i < n that a thread has, whatever the number of threads.

    The variables i, n and step have a suffix, where operands could have these names. Of i the type
    is `number`.
    """
    i, n, step = (f"{name}{suffix}" for name in ("i", "n", "step"))
    first = f"{number} {i} = ({number})blockIdx.x * blockDim.x + threadIdx.x"
    return f"""const {number} {step} = ({number})gridDim.x * blockDim.x;
    for ({first}; {i} < ({number}){n}; {i} += {step}) {{
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
