"""Chains of elementwise operations as one loop each, generated.

A chain is a tuple of instructions, each a name and the places of its operands: first come the
inputs, then the results of the instructions before. ``(("add", 0, 1), ("tanh", 2))`` is
``tanh(a + b)``.

The loop runs over three axes at most, which is what broadcasting commonly leaves when neighbours
that are contiguous in every array are one::

    for i in range(n0):
        for j in range(n1):
            for k in range(n2):                 out[k] = f(a[k], b[0], ...), in vector registers
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernel_wrappers import type_code
from dnn.backend.cpu.program import Record, address_of
from dnn.backend.ops import Array, Chain

__all__ = ["EXPRESSIONS", "WITH_BOOL", "chain_record", "chain_source", "operand_count"]

EXPRESSIONS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "negative": "-{0}",
    "square": "{0} * {0}",
    "exp": "vector_math.exp_{type}({0})",
    "expm1": "vector_math.expm1_{type}({0})",
    "log": "vector_math.log_{type}({0})",
    "tanh": "vector_math.tanh_{type}({0})",
    "sigmoid": "vector_math.sigmoid_{type}({0})",
    # Written so that NaN takes the branch in which it stays NaN.
    "relu": "({type}(0) if {0} < {type}(0) else {0})",
    "positive": "({type}(1) if {0} > {type}(0) else {type}(0))",
    "where_greater": "({0} if {1} > {2} else {type}(0))",
    "where_equal": "({0} if {1} == {2} else {type}(0))",
    "maximum": "({0} if {0} > {1} or {0} != {0} else {1})",
    "minimum": "({0} if {0} < {1} or {0} != {0} else {1})",
    "clip": "({2} if ({1} if {0} < {1} else {0}) > {2} else {1} if {0} < {1} else {0})",
    "abs": "abs({0})",
    "sign": "({type}(1) if {0} > {type}(0) else {type}(-1) if {0} < {type}(0) else {0})",
    "sqrt": "np.sqrt({0})",
    "log1p": "{type}(np.log1p({0}))",
    "power": "{type}({0} ** {1})",
    "copy": "{0}",
}
"""What each operation is in the source; those that are missing are not fused."""

WITH_BOOL = {
    "greater": "{type}({0} > {1})",
    "greater_equal": "{type}({0} >= {1})",
    "equal": "{type}({0} == {1})",
    "where": "({1} if {0} else {2})",
    "cast": "{type}({0})",
}
"""Like `EXPRESSIONS`, of operands of several types: alone, never part of a longer chain."""

COUNTING = ("add", "copy")
"""What is done to integers: alone too."""

LARGEST_AXES = 3


def operand_count(expression: str) -> int:
    """Return how many operands an expression of one of these tables has."""
    return sum(f"{{{place}}}" in expression for place in range(3))


def chain_record(chain: Chain, inputs: Sequence[Array], out: Array) -> Record | None:
    """Return the kernel of a chain and its fields, or None for arrays that it does not take."""
    code = _element_code(out.dtype)
    codes = tuple(_element_code(x.dtype) for x in inputs)
    if code is None or None in codes or not out.size:
        return None
    name = chain[0][0]
    if name not in WITH_BOOL and set(codes) != {code}:
        return None
    if code not in ("f4", "f8") and name not in (*WITH_BOOL, *COUNTING):
        return None
    views = [np.broadcast_to(x, out.shape) for x in inputs]
    shape, strides = collapse(out.shape, [view.strides for view in (*views, out)])
    if len(shape) > LARGEST_AXES or strides[-1][-1] not in (0, out.itemsize):
        return None
    forms = ""
    for x, steps in zip(inputs, strides, strict=False):
        if steps[-1] not in (0, x.itemsize):
            return None
        if steps == strides[-1] and address_of(x) == address_of(out) and x.dtype == out.dtype:
            forms += "="  # in place: the compiler must know, or it takes this for an overlap
        else:
            forms += "k" if steps[-1] else "1"
    fields = [*shape, address_of(out), *strides[-1][:-1]]
    for x, steps in zip(inputs, strides, strict=False):
        fields += [address_of(x), *steps[:-1]]
    return entry_of(chain_source(chain, forms, (*codes, code))), fields


def _element_code(dtype: np.dtype[Any]) -> str | None:
    return "b1" if dtype == np.bool_ else type_code(dtype)


def collapse(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring axes that are one in every array; always return `LARGEST_AXES` or more."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        joined = bool(lengths) and all(
            mine[-1] == given[axis] * length for mine, given in zip(steps, strides, strict=True)
        )
        if joined:
            lengths[-1] *= length
        else:
            lengths.append(length)
        for mine, given in zip(steps, strides, strict=True):
            if joined:
                mine[-1] = given[axis]
            else:
                mine.append(given[axis])
    while len(lengths) < LARGEST_AXES:
        lengths.insert(0, 1)
        for mine in steps:
            # A single element has no stride of its own; as if contiguous.
            mine.insert(0, 0)
    return lengths, steps


# Without contraction: where an input is the same all along, its products leave the loop and are
# rounded, and inside they would not be, so that one network and K at once would differ.
_HEADER = HEADER.replace("**FLAGS", '**{**FLAGS, "fastmath": {"nsz"}}')


def _expression(name: str) -> str:
    return EXPRESSIONS.get(name) or WITH_BOOL[name]


@cache
def chain_source(chain: Chain, forms: str, codes: tuple[str, ...]) -> str:
    """Return the source of a chain's kernel.

    Parameters
    ----------
    chain : tuple of instructions
    forms : str
        A letter for each input: ``k`` runs along the innermost axis, ``1`` is the same all along,
        ``=`` is the very memory of the result.
    codes : tuple of str
        ``"f4"``, ``"f8"``, ``"b1"``, ``"i8"`` or ``"u8"`` for each input and for the result.
    """
    lines = []
    names = []
    result = codes[-1]
    for number, (form, code) in enumerate(zip(forms, codes, strict=False)):
        at = 6 + 3 * number
        place = f"pointer(r[{at}] + i * r[{at + 1}] + j * r[{at + 2}])"
        if form == "k":
            lines.append(f"            x{number} = carray({place}, (n,), {code})")
            names.append(f"x{number}[k]")
        elif form == "1":
            lines.append(f"            x{number} = carray({place}, (1,), {code})[0]")
            names.append(f"x{number}")
        else:
            names.append("out[k]")
    lines.append("            for k in range(n):")
    for number, (name, *operands) in enumerate(chain):
        given = [names[operand] for operand in operands]
        lines.append(f"                t{number} = {_expression(name).format(*given, type=result)}")
        names.append(f"t{number}")
    lines.append(f"                out[k] = {names[-1]}")
    return (
        f"{_HEADER}    n = r[2]\n    for i in range(r[0]):\n        for j in range(r[1]):\n"
        f"            out = carray(pointer(r[3] + i * r[4] + j * r[5]), (n,), {result})\n"
        + "\n".join(lines)
        + "\n"
    )
