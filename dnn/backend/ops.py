"""`Ops`: every function of arrays that a plan calls, in NumPy; the reference for all devices.

Every function writes into its last parameter, ``out``, and allocates no array: arrays for
intermediate values are passed in as workspace. The generic class here is the oracle of the tests; a
class for another device or compiler inherits from it and replaces functions where that is faster.

Simple functions are NumPy's own ufuncs and not wrappers round them: a layer of Python at each
call costs 40% of a small training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend.convolution import ALIGNMENT_BYTES, Convolution, Routine, direct
from dnn.backend.formula import ADD, RELU, Formula, Step, UpdateFormula
from dnn.backend.normalisation import BatchNormSums
from dnn.backend.philox import uniform_noise
from dnn.backend.pooling import Pooling, pool_by_taps
from dnn.backend.recurrence import GradientArrays, Recurrence, gradient_steps, recurrence_steps
from dnn.backend.rounding import HALF, SINGLE, narrow, round_tf32, widen
from dnn.backend.routines import RoutineTable

__all__ = ["ALIGNMENT_BYTES", "Array", "Chain", "Ops", "Step", "empty"]

Array = npt.NDArray[Any]
"""An array of any device: NumPy's, or CuPy's on a GPU."""

Chain = tuple[tuple[Any, ...], ...]
"""Elementwise operations in sequence: for each its formula and the positions of its operands among
the inputs and, after them, the results so far. ``((add, 0, 1), (tanh, 2))`` is ``tanh(a + b)``."""

# Formulas of loss scaling; `condition` is a bool.
_ZERO_IF_FINITE = Formula("zero_if_finite", "x", "x - x")
_IS_ZERO = Formula("is_zero", "x", "x == 0")
_BEFORE_IF_ZERO = Formula("before_if_zero", "flag before x", "before if flag == 0 else x")
_IS_SET = Formula("is_set", "flag", "flag > 0", is_bool=True)
_IS_NOT_SET = Formula("is_not_set", "flag", "flag == 0", is_bool=True)
_COUNT_OR_ZERO = Formula("count_or_zero", "condition x", "x + 1 if condition else 0")
_COUNT = Formula("count_where", "condition x", "x + 1 if condition else x")
_HALVE = Formula("halve_where", "condition x", "max(x * 0.5, 1) if condition else x")
_REACHES = Formula("reaches", "x wanted", "x >= wanted", is_bool=True)
_DOUBLE = Formula("double_where", "condition x limit", "min(x * 2, limit) if condition else x")
_ZERO = Formula("zero_where", "condition x", "0 if condition else x")


class Ops:
    """Array functions on the CPU, in NumPy."""

    device = "cpu"

    description: str = "NumPy alone; small ones several times faster: pip install 'diel[fast]'"
    """Text for logs: the libraries and kernels that compute."""

    passes: tuple[str, ...] = ()
    """Names of graph passes that are worthwhile with this class, besides the general ones."""

    takes_narrow: bool = False
    """Whether kernels take arrays of narrow types; else these are converted to float32 first."""

    in_blocks: bool = True
    """Whether a pass over all parameters is cut into blocks that stay in the cache."""

    def __init__(self, routines: RoutineTable | None = None) -> None:
        """Store a table of routines, by which subclasses choose how to compute an operation."""
        self.routines = routines

    def candidates(self) -> Iterable[tuple[str, int, Mapping[str, Callable[[], object]]]]:
        """Return the calls that `RoutineTable.measure` times: operation, size, calls by routine."""
        return ()

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], out: Array, workspace: Sequence[Array] = ()
    ) -> Step:
        """Return the call that computes a formula, element by element.

        `inputs`, arrays or numbers, broadcast to `out`, which may be one of the operands in
        `Formula.overwrites`; `workspace` has its shape, and the types that `Formula.workspace` asks
        for.
        """
        return formula.numpy, (*inputs, *workspace, out)

    def update(
        self,
        formula: UpdateFormula,
        rows: Sequence[Array],
        scalars: Sequence[Array],
        workspace: Callable[[Sequence[np.dtype[Any]]], Sequence[Array]],
    ) -> Step:
        """Return the call that computes the statements of an update, in place.

        `rows` are of shape (n,) or (K, n), `scalars` of shape () or (K, 1). `workspace` returns,
        for types of elements, arrays of these types and of the shape of the rows.
        """
        spaces = workspace(formula.in_numpy.types(rows[0].dtype))
        return formula.in_numpy.function, (*rows, *scalars, *spaces)

    def chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the calls of a chain as one kernel; None if each operation needs its own call."""
        return None

    def chain_sum(
        self, chain: Chain, inputs: Sequence[Array], axes: tuple[int, ...], out: Array
    ) -> list[Step] | None:
        """Return the calls of a chain and its sum over axes, of length 1 in `out`, as one kernel.

        None if the result of the chain has to be written to memory first.
        """
        return None

    # Precision: arrays of float16 and bfloat16, see `dnn.backend.rounding`.

    def convert(self, x: Array, out: Array) -> list[Step]:
        """Return the calls that round float32 to a narrow type, or convert that to float32."""
        if HALF in (x.dtype, out.dtype):
            return [(self.copy, (x, out))]
        return [(widen if out.dtype == SINGLE else narrow, (x, out))]

    def product(
        self,
        a: Array,
        b: Array,
        out: Array,
        precision: str,
        bias: Array | None = None,
        relu: bool = False,
        workspace: Sequence[Array] = (),
    ) -> list[Step]:
        """Return the calls of ``a @ b + bias``, summed up in float32 and rounded once, to `out`.

        Operands of ``"float16"`` and ``"bfloat16"`` are of that type, and so is `bias`; those of
        ``"tf32"`` and ``"float32"`` are of float32. With `relu` negative sums become 0, before they
        are rounded. Unless `takes_narrow`, `workspace` has an array of float32 for each of a, b,
        bias and `out`, in this order, that is narrow or to be rounded to TF32.
        """
        steps: list[Step] = []
        spaces = iter(workspace)

        def operand(x: Array, rounds: bool) -> Array:
            if x.dtype == SINGLE and not rounds:
                return x
            wide = next(spaces)
            steps.extend([(round_tf32, (x, wide))] if rounds else self.convert(x, wide))
            return wide

        rounds = precision == "tf32"
        operands = operand(a, rounds), operand(b, rounds)
        added = None if bias is None else operand(bias, False)
        result = out if out.dtype == SINGLE else next(spaces)
        steps.append((self.gemm, (*operands, result)))
        if added is not None:
            steps.append(self.elementwise(ADD, (result, added), result))
        if relu:
            steps.append(self.elementwise(RELU, (result,), result))
        return steps if result is out else [*steps, *self.convert(result, out)]

    def rounded_chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the calls of a chain in float32 whose inputs or result are of a narrow type.

        None if it needs separate calls: to convert inputs to float32, for the chain, to round.
        """
        return None

    def sum_narrow(
        self, x: Array, axes: tuple[int, ...], out: Array, workspace: Sequence[Array] = ()
    ) -> list[Step]:
        """Return the calls of the sum over `axes` of a narrow array, in float32 as `out` is.

        Unless `takes_narrow`, `workspace` is an array of float32 of the shape of `x`.
        """
        (wide,) = workspace
        return [*self.convert(x, wide), (self.sum, (wide, axes, out))]

    def link(self, steps: Sequence[Step], scratch: Array | None = None) -> list[Step]:
        """Return calls that do the same as `steps` with less overhead; done once for a plan.

        `scratch` is memory that is not read after the steps, so that it need not be written.
        """
        return list(steps)

    def ready(self, calls: Sequence[Step]) -> Sequence[Step]:
        """Return calls that can be timed: compiled before, and complete when they return."""
        return calls

    # Memory.

    @staticmethod
    def memory(size_bytes: int) -> Array:
        """Return new memory as bytes, aligned and not initialised."""
        raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        skip = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[skip : skip + size_bytes]

    @staticmethod
    def asarray(x: Array) -> Array:
        """Return a host array as an array of this device, without a copy where possible."""
        return np.asarray(x)

    @staticmethod
    def to_host(x: Array) -> Array:
        """Return an array of this device as a host array, without a copy where possible."""
        return np.asarray(x)

    @staticmethod
    def load(x: Array, out: Array) -> None:
        """Copy a host array to one of this device, broadcast to its shape and cast to its type."""
        np.copyto(out, x, casting="unsafe")

    @staticmethod
    def copy(x: Array, out: Array) -> None:
        """Copy `x`, broadcast to the shape of `out` and cast to its type."""
        np.copyto(out, x, "unsafe")  # floats become integers too

    @staticmethod
    def take_rows(x: Array, rows: Array, out: Array) -> None:
        """Gather rows of `x`: ``out[i] = x[rows[i]]``; `rows` are in range."""
        # Any other mode makes NumPy gather into a new array first.
        np.take(x, rows, 0, out, "clip")

    @staticmethod
    def add_rows(x: Array, rows: Array, out: Array) -> None:
        """Add up rows: ``out[rows[i]] += x[i]``, `out` beginning as zeros."""
        out.fill(0)
        np.add.at(out, rows, x)

    @staticmethod
    def fill(value: float, out: Array) -> None:
        """Set every element of `out` to a value."""
        out.fill(value)

    @staticmethod
    def take_batch(x: Array, order: Array, position: Array, out: Array) -> None:
        """Gather the next batch: ``out[..., i] = x[order[..., position[0] + i]]``."""
        start = int(position[0])
        rows = order[..., start : start + out.shape[order.ndim - 1]]
        np.take(x, rows, 0, out, "clip")

    @staticmethod
    def take_images(
        pixels: Array,
        places: Array,
        rows: Array,
        columns: Array,
        boxes: Array,
        scale: Array,
        offset: Array,
        out: Array,
    ) -> None:
        """Gather images, each by its own rows and columns, as numbers.

        ``out[i, c, y, x] = pixels[places[i], c, rows[i, y], columns[i, x]] scale[c] + offset[c]``,
        the pixel being 0 where its row or column is negative; then 0 inside of an image's boxes.

        Parameters
        ----------
        pixels : array of uint8 or float32, shape (images, channels, height, width)
        places : array of int64, shape (n,)
        rows, columns : array of int64, shape (n, out height), (n, out width)
        boxes : array of int64, shape (n, boxes, 4)
            First and last row, first and last column; the last ones are outside.
        scale, offset : array of float32, shape (channels,)
        out : array of float32, shape (n, channels, out height, out width)
        """
        place, channel = places[:, None, None, None], np.arange(len(scale))[:, None, None]
        found = pixels[place, channel, rows[:, None, :, None], columns[:, None, None, :]]
        np.multiply(found, scale[:, None, None], out=out, casting="unsafe")
        outside = (rows < 0)[:, :, None] | (columns < 0)[:, None, :]
        np.copyto(out, 0, where=outside[:, None])
        out += offset[:, None, None]
        for i, image in enumerate(boxes):
            for top, bottom, left, right in image:
                out[i, :, top:bottom, left:right] = 0

    @staticmethod
    def end_batch(loss: Array, losses: Array, position: Array) -> None:
        """Record the loss of a batch, and advance the position to the next batch.

        `position` holds three integers: the row where the batch begins, its number, and the rows
        of a batch. ``losses[position[1]] = loss``.
        """
        losses[position[1]] = loss
        position[0] += position[2]
        position[1] += 1

    @staticmethod
    def tally_classes(outputs: Array, labels: Array, guesses: Array, tallies: Array) -> None:
        """Count the predictions of each class, and the right ones.

        The prediction is the class of the largest output; of a single output, whether it is above
        0; with NaN it is arbitrary. ``tallies[..., c] += 1`` for each prediction c, and
        ``tallies[..., -1] += 1`` for each right one. Outputs are (..., rows, outputs), labels
        (..., rows); `guesses` is workspace for indices, of the labels' shape.
        """
        if outputs.shape[-1] == 1:
            np.greater(outputs[..., 0], 0, out=guesses)
        else:
            np.argmax(outputs, axis=-1, out=guesses)
        width = tallies.shape[-1]
        tallies[..., -1] += np.count_nonzero(guesses == labels, axis=-1)
        by_model = guesses.reshape(-1, guesses.shape[-1])
        np.add(by_model, width * np.arange(len(by_model))[:, None], by_model)
        np.add.at(tallies.reshape(-1), by_model, 1)

    # Reductions; an axis that is summed over has length 1 in `out`.

    @staticmethod
    def sum(x: Array, axes: tuple[int, ...], out: Array) -> None:
        """Sum over `axes`."""
        np.add.reduce(x, axis=axes, out=out, keepdims=True)

    @staticmethod
    def max(x: Array, axes: tuple[int, ...], out: Array) -> None:
        """Write the largest element over `axes`."""
        np.maximum.reduce(x, axis=axes, out=out, keepdims=True)

    @staticmethod
    def min(x: Array, axes: tuple[int, ...], out: Array) -> None:
        """Write the smallest element over `axes`."""
        np.minimum.reduce(x, axis=axes, out=out, keepdims=True)

    @staticmethod
    def prod(x: Array, axes: tuple[int, ...], out: Array) -> None:
        """Write the product over `axes`."""
        np.multiply.reduce(x, axis=axes, out=out, keepdims=True)

    @staticmethod
    def argmax(x: Array, axis: int, out: Array) -> None:
        """Write the index of the first largest element along an axis, which `out` does not have."""
        np.argmax(x, axis, out)

    @staticmethod
    def log_softmax(x: Array, column: Array, exponentials: Array, out: Array) -> None:
        """Compute the logarithm of the softmax over the last axis, ``x - log(sum(exp(x)))``.

        Shifted by the largest element of the row, so that nothing overflows and the logarithm is
        of a number of at least 1. `column` and `exponentials` are workspace.
        """
        np.maximum.reduce(x, axis=-1, out=column, keepdims=True)
        np.subtract(x, column, out)
        np.exp(out, exponentials)
        np.add.reduce(exponentials, axis=-1, out=column, keepdims=True)
        np.log(column, column)
        np.subtract(out, column, out)

    @staticmethod
    def mean_cross_entropy(
        log_probabilities: Array, target: Array, mask: Array, terms: Array, out: Array
    ) -> None:
        """Compute ``-sum(target * log_probabilities) / rows`` over the last two axes.

        Where the target is 0 the term is too, though the logarithm be -inf. Each row is divided
        before rows are added, so that no sum overflows where the mean does not. `mask` (of bool)
        and `terms` are workspace; leading axes, of models, stay: (..., rows, classes) to (...).
        """
        np.not_equal(target, 0.0, mask)
        terms.fill(0.0)
        np.multiply(log_probabilities, target, terms, where=mask)
        np.multiply(terms, -1.0 / terms.shape[-2], terms)
        np.add.reduce(terms, axis=(-2, -1), out=out, keepdims=False)

    # Functions of optimizers, besides updates.

    @staticmethod
    def all_finite(x: Array, mask: Array) -> bool:
        """Return whether no element is NaN or infinite; `mask` is workspace of bool."""
        np.isfinite(x, mask)
        return bool(mask.all())

    def finite_flags(self, gradients: Array, out: Array) -> list[Step]:
        """Return the calls that set ``out[k]`` to 1 if row k has no NaN and no infinity, else to 0.

        `gradients` is of shape (n,) or (K, n), `out` of shape () or (K, 1).
        """
        zeros = empty(self, gradients.shape, gradients.dtype)
        total = empty(self, (*gradients.shape[:-1], 1), gradients.dtype)
        return [
            self._formula(_ZERO_IF_FINITE, gradients, out=zeros),
            (self.sum, (zeros, (gradients.ndim - 1,), total)),
            self._formula(_IS_ZERO, total.reshape(out.shape), out=out),
        ]

    def conditional(
        self, flags: Array, steps: Sequence[Step], written: Sequence[Array]
    ) -> list[Step]:
        """Return `steps`, such that rows of `written` whose flag is 0 stay as they are.

        `flags` is of shape () or (K, 1), each of `written` of shape (n,) or (K, n).
        """
        pairs = [(x, empty(self, x.shape, x.dtype)) for x in written]
        return [
            *((self.copy, pair) for pair in pairs),
            *steps,
            *(self._formula(_BEFORE_IF_ZERO, flags, before, x, out=x) for x, before in pairs),
        ]

    def adjust_scale(
        self, flags: Array, scale: Array, counts: Array, interval: int, largest: float
    ) -> list[Step]:
        """Return the calls that halve loss scales where flags are 0, or double them after a while.

        `flags` and `scale` are of shape () or (K, 1), `counts` are (..., 2) integers: the steps
        since the scale changed, which is doubled when they reach `interval`, and the steps whose
        flag was 0. The scale stays in 1 .. `largest`.
        """
        since, skipped = (counts[..., i].reshape(flags.shape) for i in (0, 1))
        finite, overflowed, grows = (empty(self, flags.shape, bool) for _ in range(3))
        wanted = self.asarray(np.array(interval, since.dtype))
        limit = self.asarray(np.array(largest, scale.dtype))
        return [
            self._formula(_IS_SET, flags, out=finite),
            self._formula(_IS_NOT_SET, flags, out=overflowed),
            self._formula(_COUNT_OR_ZERO, finite, since, out=since),
            self._formula(_COUNT, overflowed, skipped, out=skipped),
            self._formula(_HALVE, overflowed, scale, out=scale),
            self._formula(_REACHES, since, wanted, out=grows),
            self._formula(_DOUBLE, grows, scale, limit, out=scale),
            self._formula(_ZERO, grows, since, out=since),
        ]

    def _formula(self, formula: Formula, *inputs: Array, out: Array) -> Step:
        workspace = [empty(self, out.shape, dtype) for dtype in formula.workspace(out.dtype)]
        return self.elementwise(formula, inputs, out, workspace)

    @staticmethod
    def sum_of_squares(g: Array, squares: Array, out: Array) -> None:
        """Sum the squares of g over the last axis, of length 1 in `out`; `squares` is workspace."""
        np.multiply(g, g, squares)
        np.add.reduce(squares, axis=-1, out=out, keepdims=True)

    @staticmethod
    def clip_factor(sums: Array, limit: Array, out: Array) -> None:
        """Compute ``limit / max(norm, limit)``; ``norm = sqrt(sum(sums))`` over the last axis."""
        np.add.reduce(sums, axis=-1, out=out, keepdims=True)
        np.sqrt(out, out)
        np.maximum(out, limit, out=out)
        np.divide(limit, out, out)

    @staticmethod
    def adam_coefficients(
        count: Array,
        learning_rate: Array,
        beta1: Array,
        beta2: Array,
        weight_decay: Array,
        power: Array,
        complement1: Array,
        complement2: Array,
        step_size: Array,
        correction: Array,
        keep: Array,
    ) -> None:
        """Count a step of Adam, and compute the coefficients that depend on its number t alone.

        `count` is an int64 of shape (), `power` workspace of float64. Written are
        ``complement1 = 1 - beta1``, ``complement2 = 1 - beta2``,
        ``step_size = learning_rate / (1 - beta1^t)``, ``correction = sqrt(1 - beta2^t)`` and
        ``keep = 1 - learning_rate weight_decay``.
        """
        np.add(count, 1, count)
        np.subtract(1.0, beta1, complement1)
        np.subtract(1.0, beta2, complement2)
        np.copyto(power, beta1)
        np.power(power, count, power)
        np.subtract(1.0, power, power)
        np.divide(learning_rate, power, step_size, casting="same_kind")
        np.copyto(power, beta2)
        np.power(power, count, power)
        np.subtract(1.0, power, power)
        np.sqrt(power, correction, casting="same_kind")
        np.multiply(learning_rate, weight_decay, keep)
        np.subtract(1.0, keep, keep)

    # Recurrent cells.

    def recurrence(
        self,
        recurrence: Recurrence,
        inputs: Array,
        bias: Array,
        hidden_bias: Array,
        transposed: Array,
    ) -> list[Step]:
        """Return the calls that compute a recurrence; for arguments see `recurrence_steps`.

        `transposed` is workspace of shape (units, products units).
        """
        return recurrence_steps(self, recurrence, inputs, bias, hidden_bias)

    def recurrence_gradient(self, recurrence: Recurrence, arrays: GradientArrays) -> list[Step]:
        """Return the calls that compute the gradient of a recurrence."""
        return gradient_steps(self, recurrence, arrays)

    def weights_and_bias(
        self, dy: Array, x: Array, weights: Array, bias: Array, space: Array, rows: slice
    ) -> list[Step]:
        """Return the calls of ``weights = dy^T x`` and of the sums of dy over its rows.

        Shapes are (..., n, wide), (..., n, units), (..., wide, units) and (..., 1, wide). Of x only
        some `rows` are not 0. `space` has as many elements as `weights`, and 128 times `wide` more.
        """
        used = (..., rows, slice(None))
        product = (self.gemm, (dy[used].swapaxes(-1, -2), x[used], weights))
        return [product, (self.sum, (dy, (dy.ndim - 2,), bias))]

    # Linear algebra.

    gemm = staticmethod(np.matmul)

    # Images.

    def convolutions(self, problem: Convolution) -> Sequence[Routine]:
        """Return the routines that compute a convolution on this device, the preferred first."""
        return [direct(self, problem)]

    def convolution(self, problem: Convolution) -> Routine:
        """Return the routine that is chosen for a convolution."""
        return self.convolutions(problem)[0]

    def image_layout(self, problems: Sequence[Convolution]) -> str:
        """Return the layout of images in which a sequence of convolutions is fastest."""
        return "NCHW"

    def pooling(self, problem: Pooling) -> Routine:
        """Return the routine that computes a pooling."""
        return pool_by_taps(self, problem)

    def batch_norm(self, problem: BatchNormSums) -> Routine:
        """Return the routine that sums up numbers of batch normalisation.

        Only where the pass ``batch_norm_sums`` is one of `passes`.
        """
        raise NotImplementedError

    # Random numbers.

    uniform_noise = staticmethod(uniform_noise)


def empty(ops: Ops, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return a new array on a device, aligned and not initialised."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return ops.memory(size).view(dtype).reshape(shape)
