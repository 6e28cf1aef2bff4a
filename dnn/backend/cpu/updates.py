"""Kernels of optimizers: updates as one loop over a block, clipping, and Adam's coefficients.

An update has rows of K networks and scalars, one for each of them::

    record:  | K | n | address | step | address | step | ...       a step of 0: the same for all
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.chains import NUMBA
from dnn.backend.cpu.kernels import SPLIT_ELEMENTS, array_kernel, loop
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.formula import UpdateFormula, Writer
from dnn.backend.ops import Array, Ops

__all__ = ["UpdateKernel", "adam_coefficients", "clip_factor", "update_kernel"]


class UpdateKernel(Native):
    """The loop of an update over blocks: of one network, or of K networks one after the other.

    Its arguments are the rows and the scalars of the formula.
    """

    def __init__(self, formula: UpdateFormula) -> None:
        super().__init__(self._record, None, self._in_parts)
        self.formula = formula
        self._rows = len(formula.rows)

    def rows(self, arguments: Sequence[Array]) -> Sequence[Array]:
        """Return the arguments that are rows."""
        return arguments[: self._rows]

    def piece(self, arguments: Sequence[Array], start: int, stop: int) -> tuple[Array, ...]:
        """Return the arguments for a part of the rows."""
        rows = (x[..., start:stop] for x in self.rows(arguments))
        return (*rows, *arguments[self._rows :])

    def _in_parts(self, arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        """Split a large block, at a cache line."""
        w = arguments[0]
        if w.size < SPLIT_ELEMENTS:
            return []
        n = w.shape[-1]
        at = [n * part // parts // 16 * 16 for part in range(parts)] + [n]
        return [self.piece(arguments, a, b) for a, b in pairwise(at) if a < b]

    def joined(self, pieces: Sequence[tuple[Array, ...]]) -> tuple[Array, ...] | None:
        """Return the arguments for adjacent pieces as one, or None if they are not adjacent."""
        first = pieces[0]
        length = sum(piece[0].shape[-1] for piece in pieces)
        whole = []
        for column, x in enumerate(self.rows(first)):
            at = address_of(x)
            for piece in pieces:
                if address_of(piece[column]) != at:
                    return None
                at += piece[column].shape[-1] * x.itemsize
            shape = (*x.shape[:-1], length)
            whole.append(np.lib.stride_tricks.as_strided(x, shape, x.strides))
        scalars = first[self._rows :]
        for piece in pieces:
            if any(x is not y for x, y in zip(piece[self._rows :], scalars, strict=True)):
                return None
        return (*whole, *scalars)

    def _record(self, *arguments: Array) -> Record | None:
        w = arguments[0]
        code = type_code(w.dtype)
        if code not in ("f4", "f8") or not w.size or any(x.dtype != w.dtype for x in arguments):
            return None
        fields = [w.shape[0] if w.ndim == 2 else 1, w.shape[-1]]
        for x in self.rows(arguments):
            if x.shape != w.shape or x.strides[-1] != x.itemsize:
                return None
        for x in arguments[self._rows :]:
            if x.shape not in ((), (w.shape[0], 1)):
                return None
        for x in arguments:
            fields += [address_of(x), x.strides[0] if x.ndim == 2 else 0]
        return entry_of(_update_source(self.formula, code)), fields


@cache
def update_kernel(formula: UpdateFormula) -> UpdateKernel:
    """Return the kernel of an update; equal formulas share one."""
    return UpdateKernel(formula)


@cache
def _update_source(formula: UpdateFormula, code: str) -> str:
    lines = []
    for i, name in enumerate((*formula.rows, *formula.scalars)):
        place = f"pointer(r[{2 + 2 * i}] + k * r[{3 + 2 * i}])"
        if name in formula.rows:
            lines.append(f"{name} = carray({place}, (n,), {code})")
        else:
            lines.append(f"{name} = carray({place}, (1,), {code})[0]")
    writer = Writer(NUMBA, code)
    statements = []
    inverses = _Inverses(formula.scalars)
    for target, part in formula.parts:
        tree = inverses.visit(deepcopy(part.tree))
        statements.append((target, ast.unparse(tree)))
    lines += [f"inverse_{name} = {code}(1) / {name}" for name in sorted(inverses.found)]
    scalars = (*formula.scalars, *(f"inverse_{name}" for name in sorted(inverses.found)))
    whole = replace(formula, scalars=scalars, statements=tuple(statements))
    # What is only read is loaded first: the order decides which product is contracted with a sum.
    read = [name for name in formula.rows if name not in formula.written]
    elements = {name: f"{name}[i]" for name in formula.written} | {
        name: f"{name}_i" for name in read
    }
    writer.lines += [f"{name}_i = {name}[i]" for name in read]
    # What is stored is not loaded again, as a compiler would where rows might overlap.
    writer.update(whole, elements, "new_{2} = {1}\n{0} = new_{2}", "new_{2}")
    return (
        f"{HEADER}    n = r[1]\n    for k in range(r[0]):\n"
        + "".join(f"        {line}\n" for line in [*lines, "for i in range(n):"])
        + "".join(f"            {line}\n" for line in writer.lines)
    )


class _Inverses(ast.NodeTransformer):
    """Replaces divisions by a scalar by products with its inverse, which is computed once."""

    def __init__(self, scalars: Collection[str]) -> None:
        self.scalars = scalars
        self.found: set[str] = set()

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        by = node.right
        if isinstance(node.op, ast.Div) and isinstance(by, ast.Name) and by.id in self.scalars:
            self.found.add(by.id)
            return ast.BinOp(node.left, ast.Mult(), ast.Name(f"inverse_{by.id}", ast.Load()))
        return node


@loop()
def clip_factor_loop(sums: Array, limit: Array, out: Array) -> None:
    """``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` for each row."""
    for i in range(out.size):
        total = sums[i, 0]
        for j in range(1, sums.shape[1]):
            total += sums[i, j]
        norm = np.sqrt(total)
        out[i] = limit[i] / (limit[i] if norm < limit[i] else norm)


def _clip_factor(sums: Array, limit: Array, out: Array) -> Sequence[Array] | None:
    arrays = (sums, limit, out)
    if limit.size != out.size or not all(array.flags.c_contiguous for array in arrays):
        return None
    return sums.reshape(-1, sums.shape[-1]), limit.reshape(-1), out.reshape(-1)


@loop()
def adam_coefficients_loop(
    count: Array, learning_rate: Array, beta1: Array, beta2: Array, weight_decay: Array,
    complement1: Array, complement2: Array, step_size: Array, correction: Array, keep: Array,
) -> None:  # fmt: skip
    """Count a step, and compute each network's coefficients, which depend on its number alone."""
    count[0] += 1
    for k in range(beta1.size):
        complement1[k] = 1 - beta1[k]
        complement2[k] = 1 - beta2[k]
        step_size[k] = learning_rate[k] / (1.0 - np.float64(beta1[k]) ** np.float64(count[0]))
        correction[k] = math.sqrt(1.0 - np.float64(beta2[k]) ** np.float64(count[0]))
        keep[k] = 1 - learning_rate[k] * weight_decay[k]


def _coefficients(
    count: Array, learning_rate: Array, beta1: Array, beta2: Array, weight_decay: Array,
    power: Array, *results: Array,
) -> Sequence[Array] | None:  # fmt: skip
    arrays = (learning_rate, beta1, beta2, weight_decay, *results)
    if any(x.shape != beta1.shape or not x.flags.c_contiguous for x in arrays):
        return None
    return [x.reshape(-1) for x in (count, *arrays)]


clip_factor = array_kernel(clip_factor_loop, (2, 1, 1), _clip_factor, Ops.clip_factor)
adam_coefficients = array_kernel(
    adam_coefficients_loop, (1,) * 10, _coefficients, Ops.adam_coefficients
)
