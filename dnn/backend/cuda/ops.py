"""The functions a plan is made of, on a GPU."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnn.backend.cuda import elementwise, kernels
from dnn.backend.cuda.blas import Cublas, product_of
from dnn.backend.cuda.elementwise import ELEMENTWISE
from dnn.backend.cuda.kernels import REDUCTIONS
from dnn.backend.cuda.launch import Launcher, Replay
from dnn.backend.cuda.layout import element_strides
from dnn.backend.cuda.source import THREADS, Elementwise, code_of
from dnn.backend.device import Device, import_cupy
from dnn.backend.formula import COPY, Formula, UpdateFormula
from dnn.backend.ops import Array, Chain, Ops, Step
from dnn.errors import DtypeError, ShapeError

__all__ = ["CudaOps"]


class CudaOps(Ops):
    """Array functions on a GPU; what they compute and how they are called is told in `Ops`.

    Parameters
    ----------
    device : Device
    cupy : module, optional
        What stands in for CuPy in tests.
    blas : Cublas, optional
        What stands in for cuBLAS in tests.

    Raises
    ------
    DeviceError
        If the GPU cannot be used; it says what is missing.

    Notes
    -----
    Everything runs in CuPy's current stream. Sums are taken in a fixed order, so that the same
    input gives the same bits on one kind of GPU; no GPU has run it yet.
    """

    description = "CUDA kernels"
    passes = ("elementwise_fusion",)
    in_blocks = False

    def __init__(self, device: Device, cupy: Any = None, blas: Any = None) -> None:
        if cupy is None:
            device.require()
            cupy = import_cupy()
            cupy.cuda.Device(device.index).use()
        self.device = str(device)
        self.cupy = cupy
        self.launcher = Launcher(cupy)
        self.blas = Cublas(cupy) if blas is None else blas
        self._replays: weakref.WeakSet[Replay] = weakref.WeakSet()

    # Plans.

    def chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the call of one kernel for a chain."""
        return [(self.run_elementwise, (elementwise.chain(chain, len(inputs)), *inputs, out))]

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], out: Array, workspace: Sequence[Array] = ()
    ) -> Step:
        """Return the call of a formula's kernel; it needs no workspace."""
        return self.run_elementwise, (elementwise.of_formula(formula), *inputs, out)

    def update(
        self,
        formula: UpdateFormula,
        rows: Sequence[Array],
        scalars: Sequence[Array],
        workspace: Callable[[Sequence[np.dtype[Any]]], Sequence[Array]],
    ) -> Step:
        """Return the call of an update's kernel; it needs no workspace."""
        return self.run_elementwise, (elementwise.of_update(formula), *rows, *scalars)

    def run_elementwise(self, spec: Elementwise, *operands: Any) -> None:
        """Launch the kernel of a formula, a chain or an update."""
        self.launcher.elementwise(spec, operands)

    def link(self, steps: Sequence[Step], scratch: Array | None = None) -> list[Step]:
        """Record what the steps launch; it is replayed as one CUDA graph where that can be.

        A function from outside is called between two graphs.
        """
        linked: list[Step] = []
        for ours, part in itertools.groupby(steps, self._is_ours):
            if not ours:
                linked += part
                continue
            self.launcher.begin_recording()
            try:
                for function, arguments in part:
                    function(*arguments)
            finally:
                calls = self.launcher.end_recording()
            if calls:
                replay = Replay(self.cupy, calls, self.blas.use_current_stream)
                self._replays.add(replay)
                linked.append((replay.run, ()))
        return linked

    def _is_ours(self, step: Step) -> bool:
        return getattr(step[0], "__self__", None) is self

    def replays(self) -> list[str]:
        """Say of every plan that is still there how it is replayed, and with how many calls."""
        return sorted(f"{len(replay)} calls as {replay.how}" for replay in self._replays)

    # Memory.

    def memory(self, size_bytes: int) -> Array:  # type: ignore[override]
        """Return new memory as bytes, not initialised; CuPy aligns it to 512 bytes."""
        raw: Array = self.cupy.empty(size_bytes, np.uint8)
        return raw

    def asarray(self, x: Array) -> Array:  # type: ignore[override]
        """Return an array on the GPU, the same one if it is there."""
        array: Array = self.cupy.asarray(x)
        return array

    def to_host(self, x: Array) -> Array:  # type: ignore[override]
        """Return a copy on the host, when all work before is done."""
        host: Array = self.cupy.asnumpy(x)
        return host

    def load(self, x: Array, out: Array) -> None:  # type: ignore[override]
        """Copy from the host, broadcast to the shape of `out` and cast to its type."""
        # Not `ascontiguousarray`: it would make an axis where there is none.
        host = np.array(np.broadcast_to(x, out.shape), out.dtype, order="C")
        if out.flags.c_contiguous:
            out.set(host)  # type: ignore[attr-defined]
        else:
            self.copy(self.asarray(host), out)

    def copy(self, x: Array, out: Array) -> None:  # type: ignore[override]
        """Copy, broadcast and cast, in one kernel."""
        self.run_elementwise(elementwise.of_formula(COPY), x, out)

    def fill(self, value: float, out: Array) -> None:  # type: ignore[override]
        """Set every element."""
        self.run_elementwise(elementwise.of_formula(COPY), float(value), out)

    def take_rows(self, x: Array, rows: Array, out: Array) -> None:  # type: ignore[override]
        """Gather rows, a thread for each element."""
        width = int(np.prod(x.shape[1:], dtype=np.int64))
        self._by_rows("take_rows", kernels.take_rows(code_of(x.dtype)), x, rows, out, len(x), width)

    def take_batch(  # type: ignore[override]
        self, x: Array, order: Array, position: Array, out: Array
    ) -> None:
        """Gather the next batch; where it begins is read on the GPU."""
        for array in (x, order, out):
            self._contiguous("take_batch", array)
        width = int(np.prod(x.shape[1:], dtype=np.int64))
        kernel = kernels.take_batch(code_of(x.dtype))
        batch = out.shape[order.ndim - 1]
        numbers = [np.int64(n) for n in (order.shape[-1], batch, max(1, width), out.size)]
        self.launcher.for_each(kernel, out.size, [x, order, position, out, *numbers])

    def end_batch(  # type: ignore[override]
        self, loss: Array, losses: Array, position: Array
    ) -> None:
        """Note a loss and go on to the next batch, on the GPU."""
        steps = (*element_strides(losses), 0)
        kernel = kernels.end_batch(code_of(loss.dtype), code_of(losses.dtype))
        numbers = [np.int64(loss.size), np.int64(steps[0]), np.int64(steps[1])]
        self.launcher.launch(kernel, 1, [loss, losses, position, *numbers])

    def tally_classes(  # type: ignore[override]
        self, outputs: Array, labels: Array, guesses: Array, tallies: Array
    ) -> None:
        """Count predictions, a thread for each class of each model."""
        for array in (outputs, labels, tallies):
            self._contiguous("tally_classes", array)
        kernel = kernels.tally_classes(code_of(outputs.dtype))
        sizes = (*outputs.shape[-2:], tallies.shape[-1], tallies.size)
        numbers = [np.int64(n) for n in sizes]
        self.launcher.for_each(kernel, tallies.size, [outputs, labels, tallies, *numbers])

    def add_rows(self, x: Array, rows: Array, out: Array) -> None:  # type: ignore[override]
        """Add up rows, a thread for each element of the result, in the order of the rows."""
        width = int(np.prod(out.shape[1:], dtype=np.int64))
        kernel = kernels.add_rows(code_of(out.dtype))
        self._by_rows("add_rows", kernel, x, rows, out, rows.size, width)

    def _by_rows(
        self, name: str, kernel: Any, x: Array, rows: Array, out: Array, length: int, width: int
    ) -> None:
        if rows.dtype != np.intp:
            raise DtypeError(f"{name}: rows must be {np.dtype(np.intp)}, not {rows.dtype}")
        for array in (x, rows, out):
            self._contiguous(name, array)
        numbers = [np.int64(length), np.int64(max(1, width)), np.int64(out.size)]
        self.launcher.for_each(kernel, out.size, [x, rows, out, *numbers])

    def _contiguous(self, name: str, x: Any) -> None:
        if not x.flags.c_contiguous:
            raise ShapeError(name, f"an array {x.shape} is not contiguous", tuple(x.shape))

    # Reductions.

    def _reduce(self, name: str, x: Array, axes: tuple[int, ...], out: Array) -> None:
        positive = tuple(axis % x.ndim for axis in axes)
        self.launcher.reduce(REDUCTIONS[name], [x], positive, out)

    def argmax(self, x: Array, axis: int, out: Array) -> None:  # type: ignore[override]
        """Where the first largest element stands, a thread for each result."""
        axis %= x.ndim
        integers = [x.shape[axis], element_strides(x)[axis]]
        self.launcher.elementwise(ELEMENTWISE["argmax"], (x, out), integers, hidden=axis)

    def log_softmax(  # type: ignore[override]
        self, x: Array, column: Array, exponentials: Array, out: Array
    ) -> None:
        """Logarithm of the softmax, a block of threads for each row; needs no workspace."""
        if not x.flags.c_contiguous:
            self.copy(x, out)
            x = out
        self._contiguous("log_softmax", out)
        width = x.shape[-1]
        rows = x.size // max(1, width)
        kernel = kernels.log_softmax(code_of(x.dtype))
        if rows:
            self.launcher.launch(kernel, rows, [x, out, np.int64(rows), np.int64(width)])

    def mean_cross_entropy(  # type: ignore[override]
        self, log_probabilities: Array, target: Array, mask: Array, terms: Array, out: Array
    ) -> None:
        """``-sum(target * log_probabilities) / rows``; needs no workspace."""
        axes = (terms.ndim - 2, terms.ndim - 1)
        self.launcher.reduce(
            REDUCTIONS["mean_of_products"],
            [log_probabilities, target],
            axes,
            out.reshape((*out.shape, 1, 1)),
            scale=-1.0 / terms.shape[-2],
        )

    def all_finite(self, x: Array, mask: Array) -> bool:  # type: ignore[override]
        """Say whether no element is NaN or infinite; waits for the GPU."""
        axes = tuple(range(x.ndim))
        out = self.cupy.empty((1,) * x.ndim, x.dtype)
        self.launcher.reduce(REDUCTIONS["not_finite"], [x], axes, out)
        return not self.to_host(out).any()

    # Of optimizers, besides updates.

    def sum_of_squares(  # type: ignore[override]
        self, g: Array, squares: Array, out: Array
    ) -> None:
        """Sum over the last axis, of length 1 in `out`; needs no workspace."""
        self.launcher.reduce(REDUCTIONS["sum_of_products"], [g, g], (g.ndim - 1,), out)

    def clip_factor(self, sums: Array, limit: Array, out: Array) -> None:  # type: ignore[override]
        """``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` over the last axis."""
        integers = [sums.shape[-1], element_strides(sums)[-1]]
        limits = limit.reshape(limit.shape[:-1])
        operands = (sums, limits, out.reshape(out.shape[:-1]))
        spec = ELEMENTWISE["clip_factor"]
        self.launcher.elementwise(spec, operands, integers, hidden=sums.ndim - 1)

    def adam_coefficients(  # type: ignore
        self,
        count,
        learning_rate,
        beta1,
        beta2,
        weight_decay,
        power,
        complement1,
        complement2,
        step_size,
        correction,
        keep,
    ):
        """See `Ops.adam_coefficients`."""
        # Two kernels: no thread of the second may see a count that others still change.
        self.launcher.elementwise(ELEMENTWISE["count"], (count,))
        settings = (learning_rate, beta1, beta2, weight_decay, count)
        found = (complement1, complement2, step_size, correction, keep)
        self.launcher.elementwise(ELEMENTWISE["adam_coefficients"], (*settings, *found))

    # Linear algebra.

    def gemm(self, a: Array, b: Array, out: Array) -> None:  # type: ignore[override]
        """Matrix products by cuBLAS, a call for each of the leading axes but the last."""
        if not a.shape[-1]:
            self.fill(0.0, out)
            return
        if not out.size:
            return
        code = code_of(out.dtype)
        size = out.dtype.itemsize
        for product, at_b, at_a, at_out in product_of(a, b, out):
            self.launcher.call(
                self.blas.multiply,
                code,
                product,
                b.data.ptr + at_b * size,  # type: ignore[attr-defined]
                a.data.ptr + at_a * size,  # type: ignore[attr-defined]
                out.data.ptr + at_out * size,  # type: ignore[attr-defined]
                (a, b, out),
            )

    # Random numbers.

    def uniform_noise(
        self, seed: Array, step: Array, stream: int, words: Array, keys: Array, out: Array
    ) -> None:
        """Draw floats from [0, 1): the same as `dnn.backend.philox`, bit for bit."""
        self._contiguous("uniform_noise", out)
        models = max(1, seed.size)
        elements = out.size // models
        blocks = models * -(-elements // 4)
        numbers = [np.int64(stream), np.int64(models), np.int64(elements)]
        kernel = kernels.uniform_noise(code_of(out.dtype))
        if blocks:
            self.launcher.launch(kernel, -(-blocks // THREADS), [seed, step, out, *numbers])


def _reduction(name: str) -> Any:
    def function(self: CudaOps, x: Any, axes: tuple[int, ...], out: Any) -> None:
        self._reduce(name, x, axes, out)

    function.__name__ = name
    function.__doc__ = f"See `Ops.{name}`."
    return function


for _name in ("sum", "prod", "max", "min"):
    setattr(CudaOps, _name, _reduction(_name))
