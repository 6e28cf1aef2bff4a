"""Updates of optimizers as one loop over a block, clipping, and Adam's coefficients.

An update has rows of K networks and scalars, one for each of them::

    record:  | K | n | address | step | address | step | ...       a step of 0: the same for all

Where a step of training is known as a whole, the optimizer need not wait for the last gradient: it
finds the result of ``gemm x^T, dy -> g`` in the cache if it runs right after it (`fuse_update`).
Nothing but the order changes, so no bit of a result does. No other step may use these pieces in
between; the pass `products_last` ensures that the weights are not needed then. All gradients of
products share one piece of memory, small enough to stay in the cache. In buffers of K networks, of
shape (K, P), the ranges of the first network stand for all.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.chains import NUMBA
from dnn.backend.cpu.kernels import LINE_ELEMENTS, SPLIT_ELEMENTS, array_kernel, cuts, loop
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.formula import UpdateFormula, Writer
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Ops, Step

__all__ = ["UpdateKernel", "adam_coefficients", "clip_factor", "fuse_update", "update_kernel"]


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
        pieces = cuts(w.shape[-1], parts, LINE_ELEMENTS)
        return [self.piece(arguments, cut.start, cut.stop) for cut in pieces]

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


Range = tuple[int, int]
Interval = tuple[int, int]


def fuse_update(steps: Sequence[Step], scratch: Array, gemm: Callable[..., object]) -> list[Step]:
    """Return the same steps, with updates of weights right after the products of their gradients.

    `scratch`, of shape (P,) or (K, P), holds the gradients, and is not read after the steps. `gemm`
    is the product as it occurs in `steps`.
    """
    memory = _Memory(scratch)
    touching = [(step, memory.ranges(step[1])) for step in steps]
    steps, touched = zip(*_preparations_first(touching), strict=True) if steps else ((), ())
    gradients = memory.range(scratch)
    networks = math.prod(scratch.shape[:-1])
    found: dict[int, _Pieces] = {}
    moved: dict[int, list[Interval]] = {}
    for product, (function, arguments) in enumerate(steps):
        if function is not gemm or _common(memory.range(arguments[-1]), gradients) is None:
            continue
        pieces = _pieces_of(steps, touched, memory, product)
        # A product of one of K networks, as in a convolution, is not the gradient of all of them.
        if pieces is not None and arguments[-1].size == networks * pieces.elements:
            found[product] = pieces
            for i, interval in pieces.intervals:
                moved.setdefault(i, []).append(interval)
    models = scratch.shape[:-1]
    size = max((pieces.elements for pieces in found.values()), default=0)
    line = ALIGNMENT_BYTES // scratch.itemsize
    shared = Ops.memory(math.prod(models) * -(-size // line) * line * scratch.itemsize)
    shared = shared.view(scratch.dtype).reshape(*models, -1)
    result: list[Step] = []
    for i, (function, arguments) in enumerate(steps):
        if i in moved:
            assert isinstance(function, UpdateKernel)
            left = _rest(arguments[0].shape[-1], moved[i])
            result += [(function, function.piece(arguments, *interval)) for interval in left]
        elif i in found:
            pieces = found[i]
            g = shared[..., : pieces.elements]
            w, _, *rest = pieces.arguments
            result.append((function, (*arguments[:-1], g.reshape(arguments[-1].shape))))
            result.append((pieces.update, (w, g, *rest)))
        else:
            result.append((function, arguments))
    return result


class _Pieces(NamedTuple):
    """Pieces of updates that cover the result of a product, joined to one call after it."""

    update: UpdateKernel
    arguments: tuple[Any, ...]
    elements: int
    intervals: list[tuple[int, Interval]]


def _pieces_of(
    steps: Sequence[Step], touched: Sequence[Sequence[Range]], memory: _Memory, product: int
) -> _Pieces | None:
    """Return the update by a product's result if it may come right after the product."""
    wanted = memory.range(steps[product][1][-1])
    at = wanted[0]
    intervals: list[tuple[int, Interval]] = []
    pieces: list[tuple[Any, ...]] = []
    kernels = set()
    for i in range(product + 1, len(steps)):
        update, arguments = steps[i]
        if not _any_overlap(touched[i], [wanted]):
            continue
        if not isinstance(update, UpdateKernel):
            return None  # another step uses the gradient
        block = memory.range(arguments[1])
        part = _common(block, wanted)
        if part is None or part[0] != at:
            return None
        size = arguments[0].itemsize
        interval = (part[0] - block[0]) // size, (part[1] - block[0]) // size
        piece = update.piece(arguments, *interval)
        if _is_touched_between(steps, touched, memory, product, i, piece):
            return None
        kernels.add(update)
        pieces.append(piece)
        intervals.append((i, interval))
        at = part[1]
    if at != wanted[1] or len(kernels) != 1:
        return None
    (kernel,) = kernels
    whole = kernel.joined(pieces)
    if whole is None or kernel.record(*whole) is None:
        return None
    return _Pieces(kernel, whole, whole[0].shape[-1], intervals)


def _is_touched_between(
    steps: Sequence[Step],
    touched: Sequence[Sequence[Range]],
    memory: _Memory,
    product: int,
    update: int,
    piece: tuple[Any, ...],
) -> bool:
    """Return whether a step between a product and an update touches arrays of a piece of it."""
    piece_ranges = memory.ranges(piece)
    kernel = steps[update][0]
    assert isinstance(kernel, UpdateKernel)
    rows = memory.ranges(kernel.rows(piece))
    for i in range(product + 1, update):
        function, arguments = steps[i]
        if isinstance(function, UpdateKernel):  # hyperparameters are read only, workspace not used
            if _any_overlap(memory.ranges(function.rows(arguments)), rows):
                return True
        elif _any_overlap(touched[i], piece_ranges):
            return True
    return False


def _preparations_first(
    steps: Sequence[tuple[Step, list[Range]]],
) -> list[tuple[Step, list[Range]]]:
    """Move kernels to the front that touch no memory which any step before them touches.

    Each step comes with the ranges of memory that it touches.
    """
    first: list[tuple[Step, list[Range]]] = []
    later: list[tuple[Step, list[Range]]] = []
    seen: list[Range] = []
    for step, ranges in steps:
        if isinstance(step[0], Native) and later and not _any_overlap(ranges, seen):
            first.append((step, ranges))
        else:
            later.append((step, ranges))
            seen += ranges
    return [*first, *later]


class _Memory:
    """Finds the addresses of arrays; in buffers of K networks, of the first network's part."""

    def __init__(self, buffer: Array) -> None:
        self._pitch = buffer.strides[0] if buffer.ndim == 2 else None

    def ranges(self, arguments: Sequence[Any]) -> list[Range]:
        return [self.range(x) for x in _arrays(arguments)]

    def range(self, x: Array) -> Range:
        """Return the addresses of an array's first byte and behind its last."""
        if self._pitch is not None and x.ndim >= 2 and x.strides[0] == self._pitch:
            x = x[0]
        start = stop = int(x.ctypes.data)
        if not x.size:
            return start, start
        for length, stride in zip(x.shape, x.strides, strict=True):
            if stride < 0:
                start += (length - 1) * stride
            else:
                stop += (length - 1) * stride
        return start, stop + x.itemsize


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for x in arguments:
        if isinstance(x, np.ndarray):
            yield x
        elif isinstance(x, tuple | list):
            yield from _arrays(x)


def _rest(size: int, taken: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the intervals of 0 .. size that are not taken."""
    at = 0
    for start, stop in [*sorted(taken), (size, size)]:
        if at < start:
            yield at, start
        at = stop


def _any_overlap(ranges: Sequence[Range], other_ranges: Sequence[Range]) -> bool:
    for a in ranges:  # loops and not `any`: most of the time of `fuse_update` passes here
        for b in other_ranges:
            if a[0] < b[1] and b[0] < a[1]:
                return True
    return False


def _common(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
