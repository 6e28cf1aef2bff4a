"""The functions a plan is made of, compiled with Numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnn.backend.cpu.chains import chain_record
from dnn.backend.cpu.fused_update import fuse_update
from dnn.backend.cpu.kernel_wrappers import array_kernel, update_kernel
from dnn.backend.cpu.products import gemm_record
from dnn.backend.cpu.program import Native, Record, link
from dnn.backend.formula import COPY, Formula, UpdateFormula
from dnn.backend.ops import Array, Chain, Ops, Step
from dnn.backend.routines import CANDIDATES

__all__ = ["CpuOps"]


# Below this a kernel is done before a helper has begun.
SPLIT_ELEMENTS = 16384
SPLIT_OPERATIONS = 2_000_000
LINE_ELEMENTS = 16
# Rows so short have a kernel of their own for each length.
FEW_COLUMNS = 16


def _cuts(length: int, parts: int, unit: int = 1) -> list[slice]:
    """Cut a length into parts of about the same size, at multiples of a unit."""
    at = [round(length * part / parts / unit) * unit for part in range(parts)] + [length]
    return [slice(a, b) for a, b in pairwise(at) if a < b]


def _split_elements(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    *inputs, out = arguments
    if out.size < SPLIT_ELEMENTS:
        return []
    axis = next(i for i, length in enumerate(out.shape) if length > 1)
    unit = LINE_ELEMENTS if axis == out.ndim - 1 else 1
    if out.shape[axis] < parts:
        return []
    views = [np.broadcast_to(x, out.shape) for x in inputs]
    result = []
    for cut in _cuts(out.shape[axis], parts, unit):
        place = (slice(None),) * axis + (cut,)
        result.append((*(view[place] for view in views), out[place]))
    return result


def _split_product(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    a, b, out = arguments
    if 2 * out.size * a.shape[-1] < SPLIT_OPERATIONS:
        return []
    if out.ndim == 3 and len(out) >= parts:
        a, b = (np.broadcast_to(x, (len(out), *x.shape[-2:])) for x in (a, b))
        return [(a[cut], b[cut], out[cut]) for cut in _cuts(len(out), parts)]
    rows, columns = out.shape[-2:]
    if rows >= columns:
        cuts = _cuts(rows, parts, LINE_ELEMENTS)
        return [(a[..., cut, :], b, out[..., cut, :]) for cut in cuts]
    cuts = _cuts(columns, parts, LINE_ELEMENTS)
    return [(a, b[..., cut], out[..., cut]) for cut in cuts]


def _split_batch(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    x, order, position, out = arguments
    if out.size < SPLIT_ELEMENTS or order.ndim != 1:
        return []
    return [(x, order[cut.start :], position, out[cut]) for cut in _cuts(len(out), parts)]


@cache
def _elementwise(formula: Formula) -> Native:
    """Return the kernel of a formula: a chain of length 1."""
    count = len(formula.names)

    def record(*arguments: Any) -> Record | None:
        # Between the inputs and the result there may be workspace, which it does not need.
        return chain_record(((formula, *range(count)),), arguments[:count], arguments[-1])

    return Native(record, formula.numpy, _split_elements)


def _copy() -> Native:
    """Return the kernel that copies and, between types that it knows, casts."""

    def record(x: Array, out: Array) -> Record | None:
        if x.dtype != out.dtype and (out.dtype.kind != "f" or x.ndim > out.ndim):
            return None
        return chain_record(((COPY, 0),), (x,), out)

    return Native(record, Ops.copy, _split_elements)


def _rows(x: Array, rows: Array, out: Array) -> Sequence[Array] | None:
    if x.ndim < 1 or out.shape != (*rows.shape, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and rows.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    return x.reshape(x.shape[0], -1), rows.reshape(-1), out.reshape(rows.size, -1)


def _batch(x: Array, order: Array, position: Array, out: Array) -> Sequence[Array] | None:
    groups, batch = order.shape[:-1], out.shape[order.ndim - 1]
    if order.ndim > 2 or out.shape != (*groups, batch, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and order.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    models = groups[0] if groups else 1
    rows = x.reshape(x.shape[0], -1)
    return rows, order.reshape(models, -1), position, out.reshape(models, batch, -1)


def _end(loss: Array, losses: Array, position: Array) -> Sequence[Array] | None:
    if not (loss.flags.c_contiguous and losses.flags.c_contiguous):
        return None
    return loss.reshape(-1), losses.reshape(losses.shape[0], -1), position


def _tally(outputs: Array, labels: Array, guesses: Array, tallies: Array) -> Sequence[Array] | None:
    if not all(x.flags.c_contiguous for x in (outputs, labels, tallies)):
        return None
    rows, width = outputs.shape[-2:]
    models = labels.size // rows
    return outputs.reshape(-1, rows, width), labels.reshape(-1, rows), tallies.reshape(models, -1)


def _summed(x: Array, axes: tuple[int, ...], out: Array) -> tuple[Array, Array] | None:
    """Return x as (groups, summed, kept), where the axes that are summed are neighbours."""
    if not axes or not (x.flags.c_contiguous and out.flags.c_contiguous) or x.dtype != out.dtype:
        return None
    first, last = min(axes), max(axes) + 1
    if len(axes) != last - first or out.size * x.size == 0:
        return None
    groups, kept = (int(np.prod(part)) for part in (x.shape[:first], x.shape[last:]))
    return x.reshape(groups, -1, kept), out.reshape(groups, kept)


def _column_sums(x: Array, axes: tuple[int, ...], out: Array) -> Sequence[Array] | None:
    return _summed(x, axes, out)


def _row_sums(x: Array, axes: tuple[int, ...], out: Array) -> Sequence[Array] | None:
    found = _summed(x, axes, out)
    if found is None or found[0].shape[2] != 1:
        return None
    return found[0][:, :, 0], found[1][:, 0]


def _sum() -> Native:
    columns = array_kernel("column_sums", (3, 2), _column_sums, Ops.sum)
    rows = array_kernel("row_sums", (2, 1), _row_sums, Ops.sum)

    def record(*arguments: Any) -> Record | None:
        return rows.record(*arguments) or columns.record(*arguments)

    return Native(record, Ops.sum)


def _log_softmax(
    x: Array, column: Array, exponentials: Array, out: Array
) -> Sequence[Array] | None:
    arrays = (x, exponentials, out)
    if not all(array.flags.c_contiguous and array.size for array in arrays):
        return None
    return [array.reshape(-1, x.shape[-1]) for array in arrays]


def _columns(code: str, arrays: Sequence[Array]) -> str:
    first = arrays[0]
    # As a literal it makes straight lines of the loops over a row.
    few = first.shape[-1] <= FEW_COLUMNS
    return f", {first.shape[-1]}" if few else f", r[{first.ndim}]"


def _softmax_extra(code: str, arrays: Sequence[Array]) -> str:
    return f", vector_math.exp_{code}, vector_math.log_{code}{_columns(code, arrays)}"


def _cross_entropy(
    log_probabilities: Array, target: Array, mask: Array, terms: Array, out: Array
) -> Sequence[Array] | None:
    arrays = (log_probabilities, target, out)
    if log_probabilities.shape != target.shape or out.shape != target.shape[:-2]:
        return None
    if not all(array.flags.c_contiguous and array.size for array in arrays):
        return None
    rows = target.shape[-2:]
    return log_probabilities.reshape(-1, *rows), target.reshape(-1, *rows), out.reshape(-1)


def _noise(
    seed: Array, step: Array, stream: int, words: Array, keys: Array, out: Array
) -> Sequence[Array] | None:
    if out.dtype.itemsize < 4 or not (seed.flags.c_contiguous and out.flags.c_contiguous):
        return None
    if not out.size or out.shape[: seed.ndim] != seed.shape:
        return None
    return seed.reshape(-1), step.reshape(1), out.reshape(seed.size, -1)


def _coefficients(
    count: Array, learning_rate: Array, beta1: Array, beta2: Array, weight_decay: Array,
    power: Array, *results: Array,
) -> Sequence[Array] | None:  # fmt: skip
    arrays = (learning_rate, beta1, beta2, weight_decay, *results)
    if any(x.shape != beta1.shape or not x.flags.c_contiguous for x in arrays):
        return None
    return [x.reshape(-1) for x in (count, *arrays)]


def _sum_of_squares(g: Array, squares: Array, out: Array) -> Sequence[Array] | None:
    if not (g.flags.c_contiguous and out.flags.c_contiguous) or g.dtype != out.dtype:
        return None
    return g.reshape(-1, g.shape[-1]), out.reshape(-1)


def _clip_factor(sums: Array, limit: Array, out: Array) -> Sequence[Array] | None:
    arrays = (sums, limit, out)
    if limit.size != out.size or not all(array.flags.c_contiguous for array in arrays):
        return None
    return sums.reshape(-1, sums.shape[-1]), limit.reshape(-1), out.reshape(-1)


class CpuOps(Ops):
    """Array functions on the CPU, in compiled loops.

    What a kernel does not take (strided arrays, other types of elements) is NumPy's to do.
    """

    description = "compiled kernels"
    passes = ("elementwise_fusion", "matmul_bias_activation", "products_last")
    in_blocks = False  # an update is one pass anyway

    copy: Any = _copy()
    take_rows: Any = array_kernel("take_rows", (2, 1, 2), _rows, Ops.take_rows)

    take_batch: Any = array_kernel(
        "take_batch", (2, 2, 1, 3), _batch, Ops.take_batch, split=_split_batch
    )
    end_batch: Any = array_kernel("end_batch", (1, 2, 1), _end, Ops.end_batch)

    tally_classes: Any = array_kernel(
        "tally_classes", (3, 2, 2), _tally, Ops.tally_classes, _columns
    )

    sum: Any = _sum()
    log_softmax: Any = array_kernel(
        "log_softmax",
        (2, 2, 2),
        _log_softmax,
        Ops.log_softmax,
        _softmax_extra,
    )
    mean_cross_entropy: Any = array_kernel(
        "mean_cross_entropy", (3, 3, 1), _cross_entropy, Ops.mean_cross_entropy
    )
    uniform_noise: Any = array_kernel(
        "uniform_noise", (1, 1, 2), _noise, Ops.uniform_noise, number=lambda *given: given[2]
    )
    gemm: Any = Native(gemm_record, Ops.gemm, _split_product)

    sum_of_squares: Any = array_kernel(
        "sum_of_squares", (2, 1), _sum_of_squares, Ops.sum_of_squares
    )
    clip_factor: Any = array_kernel("clip_factor", (2, 1, 1), _clip_factor, Ops.clip_factor)

    adam_coefficients: Any = array_kernel(
        "adam_coefficients", (1,) * 10, _coefficients, Ops.adam_coefficients
    )

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], out: Array, workspace: Sequence[Array] = ()
    ) -> Step:
        """Return the compiled loop of a formula; it takes workspace for what NumPy has to do."""
        return _elementwise(formula), (*inputs, *workspace, out)

    def update(
        self,
        formula: UpdateFormula,
        rows: Sequence[Array],
        scalars: Sequence[Array],
        workspace: Callable[[Sequence[np.dtype[Any]]], Sequence[Array]],
    ) -> Step:
        """Return the compiled loop of an update; for other types of elements it is NumPy's."""
        kernel = update_kernel(formula)
        if kernel.record(*rows, *scalars) is None:
            return super().update(formula, rows, scalars, workspace)
        return kernel, (*rows, *scalars)

    def chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return a chain as one kernel."""
        if chain_record(chain, inputs, out) is None:
            return None

        def record(*arguments: Any) -> Record | None:
            return chain_record(chain, arguments[:-1], arguments[-1])

        return [(Native(record, _no_oracle, _split_elements), (*inputs, out))]

    def link(
        self,
        steps: Sequence[Step],
        scratch: Array | None = None,
    ) -> list[Step]:
        """Join neighbouring kernels into programs."""
        if scratch is not None:
            steps = fuse_update(steps, scratch, self.gemm)
        return link([self._routine(step) for step in steps], self._splits)

    def _splits(self, function: Native, arguments: tuple[Any, ...]) -> bool:
        if self.routines is None or function is not self.gemm:
            return True
        a, _, out = arguments
        # Of one network, so that K at once get what each would get alone.
        rows, columns = out.shape[-2:]
        return self.routines("product", rows * columns * a.shape[-1]) != "whole"

    def _routine(self, step: Step) -> Step:
        """Replace a sum over rows by what the table says."""
        function, arguments = step
        if self.routines is None or function is not self.sum:
            return step
        x, axes, out = arguments
        if x.ndim < 2 or axes != (x.ndim - 2,) or x.dtype != out.dtype:
            return step
        how = self.routines("sum", x.shape[-2] * x.shape[-1])
        return self._sum_by(how, x, axes, out)

    def _sum_by(self, how: str | None, x: Array, axes: tuple[int, ...], out: Array) -> Step:
        if how == "numpy":
            return Ops.sum, (x, axes, out)
        if how == "ones":
            return self.gemm, (np.ones((1, x.shape[-2]), x.dtype), x, out)
        return self.sum, (x, axes, out)

    def candidates(self) -> Iterator[tuple[str, int, Mapping[str, Callable[[], object]]]]:
        """Return sums of rows and products, from small to large."""
        for rows, columns in ((16, 16), (32, 64), (100, 128), (100, 528), (512, 1024)):
            x, out = np.ones((rows, columns), "f4"), np.empty((1, columns), "f4")
            sums = {name: self._sum_by(name, x, (0,), out) for name in CANDIDATES["sum"]}
            yield "sum", x.size, {name: _caller(link([step])) for name, step in sums.items()}
        for n in (64, 96, 128, 192, 256, 512):
            a, c = np.ones((n, n), "f4"), np.empty((n, n), "f4")
            step = (self.gemm, (a, a, c))
            whole = link([step], lambda function, arguments: False)
            yield "product", n**3, {"parts": _caller(link([step])), "whole": _caller(whole)}


def _caller(calls: Sequence[Step]) -> Callable[[], None]:
    def call() -> None:
        for function, arguments in calls:
            function(*arguments)

    return call


def _no_oracle(*arguments: Any) -> None:
    raise AssertionError("a chain was compiled for arrays that it does not take")
