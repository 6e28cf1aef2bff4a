"""C functions around hand-written kernels: source that unpacks a record and calls a body.

Two kinds of arguments make up nearly all kernels. Contiguous arrays of a known number of axes::

    record:  | address | length | length | ...          one group for each array

and, for optimizers, rows of K networks and one hyperparameter for each::

    record:  | K | n | address | step | address | step | ...       a step of 0: the same for all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.ops import Array

__all__ = ["RowKernel", "array_kernel", "type_code"]

SPLIT_ELEMENTS = 16384
"""Below this a block is done before a helper has begun."""


def type_code(dtype: np.dtype[Any]) -> str | None:
    """Return the type of elements as kernels spell it, None for one that they do not take."""
    return {"f4": "f4", "f8": "f8", "i8": "i8", "u8": "u8"}.get(dtype.str.lstrip("<=|"))


def array_kernel(
    body: str,
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
    body : str
        Name in `kernels`.
    axes : sequence of int
        Number of axes of each of its arrays.
    arrange : callable
        From the arguments of the `Ops` method to those arrays, or None if they do not fit.
    oracle : callable
    extra : callable
        From the code of the first array's type, and the arrays, to further source arguments.
    number : callable, optional
        From the arguments of the `Ops` method to an integer, the last argument of the body.
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
    body: str, axes: tuple[int, ...], codes: tuple[str | None, ...], extra: str
) -> str:
    at = 0
    arrays = []
    for ndim, code in zip(axes, codes, strict=True):
        shape = "".join(f"r[{at + 1 + axis}], " for axis in range(ndim))
        arrays.append(f"carray(pointer(r[{at}]), ({shape}), {code})")
        at += 1 + ndim
    return f"{HEADER}    kernels.{body}({', '.join(arrays)}{extra})\n"


class RowKernel(Native):
    """A kernel of an optimizer's step.

    Parameters
    ----------
    body : str
        Name in `kernels`.
    oracle : callable
        The `Ops` method, whose arguments `pattern` and `flags` describe.
    pattern : str
        A letter for each argument: ``r`` rows of shape (n,) or (K, n), ``h`` a hyperparameter of
        shape () or (K, 1), ``i`` one whose reciprocal is wanted, ``b`` a literal bool, ``-``
        workspace that the kernel does not need. Rows and hyperparameters may be None.
    flags : str
        Indices of the arguments, as hexadecimal digits, for which a literal bool follows behind
        all others: whether it is there, or what it is.
    """

    def __init__(self, body: str, oracle: Callable[..., object], pattern: str, flags: str) -> None:
        super().__init__(self._record, oracle, self._in_parts)
        self._body = body
        self._pattern = pattern
        self._flags = [int(digit, 16) for digit in flags]

    def piece(self, arguments: Sequence[Any], start: int, stop: int) -> tuple[Any, ...]:
        """Return the arguments for a part of the rows."""
        kinds = zip(self._pattern, arguments, strict=True)
        # Workspace it does not need stays what it is.
        return tuple(
            x[..., start:stop] if kind == "r" and x is not None else x for kind, x in kinds
        )

    def _in_parts(self, arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        """Split a large block, at a cache line."""
        w = arguments[0]
        if w.size < SPLIT_ELEMENTS:
            return []
        n = w.shape[-1]
        at = [n * part // parts // 16 * 16 for part in range(parts)] + [n]
        return [self.piece(arguments, a, b) for a, b in pairwise(at) if a < b]

    def joined(self, pieces: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
        """Return the arguments for pieces that lie one behind the other, or None."""
        first = pieces[0]
        length = sum(piece[0].shape[-1] for piece in pieces)
        whole = []
        for column, kind in enumerate(self._pattern):
            x = first[column]
            if kind == "r" and x is not None:
                at = address_of(x)
                for piece in pieces:
                    if piece[column] is None or address_of(piece[column]) != at:
                        return None
                    at += piece[column].shape[-1] * x.itemsize
                shape = (*x.shape[:-1], length)
                whole.append(np.lib.stride_tricks.as_strided(x, shape, x.strides))
            elif any(piece[column] is not x for piece in pieces) and kind not in "r-":
                return None
            else:
                whole.append(x)
        return tuple(whole)

    def rows(self, arguments: Sequence[Any]) -> list[Array]:
        """Return the arguments that are rows."""
        kinds = zip(self._pattern, arguments, strict=True)
        return [x for kind, x in kinds if kind == "r" and x is not None]

    def _record(self, *arguments: Any) -> Record | None:
        w = arguments[0]
        code = type_code(w.dtype)
        if code not in ("f4", "f8") or not w.size:
            return None
        fields = [w.shape[0] if w.ndim == 2 else 1, w.shape[-1]]
        given = []
        for kind, x in zip(self._pattern, arguments, strict=True):
            if kind in "-b":
                continue
            given.append(x is not None)
            if x is None:
                continue
            if x.dtype != w.dtype:
                return None
            if kind == "r":
                if x.shape != w.shape or x.strides[-1] != x.itemsize:
                    return None
            elif x.shape not in ((), (w.shape[0], 1)):
                return None
            fields += [address_of(x), x.strides[0] if x.ndim == 2 else 0]
        literals = tuple(
            bool(arguments[i]) if self._pattern[i] == "b" else arguments[i] is not None
            for i in self._flags
        )
        source = _row_source(self._body, self._pattern, tuple(given), literals, code)
        return entry_of(source), fields


@cache
def _row_source(
    body: str, pattern: str, given: tuple[bool, ...], literals: tuple[bool, ...], code: str
) -> str:
    kinds = [kind for kind in pattern if kind not in "-b"]
    at = 2
    values = []
    for kind, there in zip(kinds, given, strict=True):
        if not there:  # never read: a literal says so
            values.append("w" if kind == "r" else f"{code}(0)")
            continue
        address = f"pointer(r[{at}] + k * r[{at + 1}])"
        at += 2
        if kind == "r":
            values.append(f"carray({address}, (n,), {code})")
        else:
            number = f"carray({address}, (1,), {code})[0]"
            values.append(f"{code}(1) / {number}" if kind == "i" else number)
    values[0], w = "w", values[0]
    arguments = ", ".join([*values, *map(str, literals)])
    return (
        f"{HEADER}    n = r[1]\n    for k in range(r[0]):\n        w = {w}\n"
        f"        kernels.{body}({arguments})\n"
    )
