"""Kernels over contiguous arrays: loops written in Python, which Numba compiles, as C functions.

One body serves all types of elements. What a body writes never overlaps what it only reads. The
record of a kernel is one group for each array::

    record:  | address | length | length | ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from dnn.backend.cpu.cache import FLAGS, HEADER, entry_of
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.ops import Array

__all__ = [
    "LINE_ELEMENTS",
    "LOOPS",
    "SPLIT_ELEMENTS",
    "SPLIT_OPERATIONS",
    "Flags",
    "array_kernel",
    "cuts",
    "loop",
    "range_kernel",
]

Flags = Mapping[str, object]
"""How Numba compiles a function."""

SPLIT_ELEMENTS = 16384
"""A kernel of fewer elements is not split: it is done before a helper has begun."""

SPLIT_OPERATIONS = 2_000_000
"""A product or a convolution of fewer operations is not split."""

LINE_ELEMENTS = 16
"""Elements of float32 in a cache line."""

_ALL = 1 << 60
"""Length given for an array whose true end follows from other arguments of its kernel."""

LOOPS = """\
import {module}
from dnn.backend.cpu.cache import compiled_loops

loops = compiled_loops({module})
"""
"""Beginning of the source of a kernel whose body is a `loop` of some module."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


INLINED: Flags = {**FLAGS, "inline": "always"}
"""Flags of a function that is compiled as a part of the kernel that calls it, with the flags of
that: once, not three times (by itself, for Numba's own use and in the kernel)."""


def loop(flags: Flags = INLINED) -> Callable[[_Function], _Function]:
    """Mark a function for `compiled_loops`, which compiles it, also for calls by other loops.

    The function itself stays as it is, so that a module of loops is imported without Numba. It uses
    numbers, NumPy and `math`, and other loops of its module.
    """

    def mark(function: _Function) -> _Function:
        function.numba_flags = flags  # type: ignore[attr-defined]
        return function

    return mark


def array_kernel(
    body: Callable[..., None],
    axes: Sequence[int],
    arrange: Callable[..., Sequence[Array] | None],
    oracle: Callable[..., object],
    extra: Callable[[str, Sequence[Array]], str] = lambda code, arrays: "",
    number: Callable[..., int] | None = None,
    split: Callable[[tuple[Any, ...], int], Sequence[tuple[Any, ...]]] | None = None,
) -> Native:
    """Return a kernel over contiguous arrays.

    Parameters
    ----------
    body : callable
        A `loop`.
    axes : sequence of int
        Number of axes of each of its arrays.
    arrange : callable
        Converts the arguments of the `Ops` method to these arrays; None if they do not fit.
    oracle : callable
        The `Ops` method in NumPy, for arrays that do not fit.
    extra : callable
        Returns, for the code of the first array's type and the arrays, further source arguments.
    number : callable, optional
        Converts the arguments of the `Ops` method to an integer, the last argument of the body.
    split : callable, optional
        As in `Native`.
    """

    def record(*arguments: Any) -> Record | None:
        arrays = arrange(*arguments)
        if arrays is None:
            return None
        codes = [type_code(array.dtype) for array in arrays]
        fits = all(array.flags.c_contiguous and array.size for array in arrays)
        if not fits or None in codes or [array.ndim for array in arrays] != list(axes):
            return None
        fields: list[int] = []
        for array in arrays:
            fields += [address_of(array), *array.shape]
        further = extra(str(codes[0]), arrays)
        if number is not None:
            further += f", r[{len(fields)}]"
            fields.append(number(*arguments))
        return entry_of(_array_source(body, tuple(axes), tuple(codes), further)), fields

    return Native(record, oracle, split)


@cache
def _array_source(
    body: Callable[..., None],
    axes: tuple[int, ...],
    codes: tuple[str | None, ...],
    extra: str,
) -> str:
    at = 0
    arrays = []
    for ndim, code in zip(axes, codes, strict=True):
        shape = "".join(f"r[{at + 1 + axis}], " for axis in range(ndim))
        arrays.append(f"carray(pointer(r[{at}]), ({shape}), {code})")
        at += 1 + ndim
    call = f"loops.{body.__name__}({', '.join(arrays)}{extra})"
    return f"{LOOPS.format(module=body.__module__)}{HEADER}    {call}\n"


def cuts(length: int, parts: int, unit: int = 1) -> list[slice]:
    """Cut a length into parts of about the same size, at multiples of a unit."""
    starts = (round(length * part / parts / unit) * unit for part in range(parts))
    at = [*(min(start, length) for start in starts), length]
    return [slice(a, b) for a, b in pairwise(at) if a < b]


def range_kernel(body: Callable[..., None]) -> Native:
    """Return a kernel over a range of lines of some array, from two arrays and integers.

    Parameters
    ----------
    body : callable
        A `loop` of (x, out, begin, end, numbers): arrays with one axis, which begin where those
        given begin and have their types, and a named tuple of integers. It does the lines from
        `begin` to `end`, and no line depends on another one, so it is split there.

    Returns
    -------
    Native
        Takes the same; the arrays need not be contiguous, since the body computes indices from the
        integers.
    """

    def record(x: Array, out: Array, begin: int, end: int, numbers: tuple[int, ...]) -> Record:
        codes = type_code(x.dtype), type_code(out.dtype)
        fields = [address_of(x), address_of(out), begin, end, *numbers]
        return entry_of(_range_source(body, codes, type(numbers).__name__, len(numbers))), fields

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        x, out, begin, end, numbers = arguments
        if out.size < SPLIT_ELEMENTS or end - begin < parts:
            return []
        pieces = cuts(end - begin, parts)
        return [(x, out, begin + cut.start, begin + cut.stop, numbers) for cut in pieces]

    return Native(record, None, split)


@cache
def _range_source(
    body: Callable[..., None], codes: tuple[str | None, ...], kind: str, length: int
) -> str:
    """Return the source of a `range_kernel` whose numbers are of a class of the body's module."""
    arrays = [f"carray(pointer(r[{at}]), ({_ALL},), {code})" for at, code in enumerate(codes)]
    numbers = f"loops.{kind}({', '.join(f'r[{4 + at}]' for at in range(length))})"
    passed = ", ".join([*arrays, "r[2]", "r[3]", numbers])
    return f"{LOOPS.format(module=body.__module__)}{HEADER}    loops.{body.__name__}({passed})\n"
