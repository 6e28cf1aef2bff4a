"""The array functions that plans consist of, as compiled kernels on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu import batches, chains, products, reductions, updates
from dnn.backend.cpu.blas import blas_threads
from dnn.backend.cpu.cache import measured_with
from dnn.backend.cpu.program import Native, link
from dnn.backend.formula import Formula, UpdateFormula
from dnn.backend.ops import Array, Chain, Ops, Step
from dnn.backend.pooling import Pooling
from dnn.backend.recurrence import GradientArrays, Recurrence
from dnn.backend.routines import (
    CANDIDATES,
    ConvolutionChoices,
    choose_convolution,
    machine_choices,
)

__all__ = ["CpuOps"]


FEW_CHANNELS = 32
"""Up to so many channels, vectors hold neighbouring images (CHWN); above, channels (NHWC)."""


class CpuOps(Ops):
    """Array functions on the CPU, in compiled loops.

    NumPy does what no kernel supports (strided arrays, other types of elements). Kernels of images
    and sequences are imported only for networks that have any, so that others start sooner.
    """

    description = "compiled kernels"
    passes = ("elementwise_fusion", "chain_sums", "matmul_bias_activation", "products_last")
    in_blocks = False  # an update is one pass anyway

    copy: Any = chains.copy
    fill: Any = chains.fill
    take_rows: Any = batches.take_rows
    take_batch: Any = batches.take_batch
    take_images: Any = batches.take_images
    end_batch: Any = batches.end_batch
    sum: Any = reductions.sum_over_axes
    sum_of_squares: Any = reductions.sum_of_squares
    log_softmax: Any = reductions.log_softmax
    mean_cross_entropy: Any = reductions.mean_cross_entropy
    tally_classes: Any = reductions.tally_classes
    uniform_noise: Any = batches.uniform_noise
    clip_factor: Any = updates.clip_factor
    adam_coefficients: Any = updates.adam_coefficients
    gemm: Any = products.gemm

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], out: Array, workspace: Sequence[Array] = ()
    ) -> Step:
        """Return the compiled loop of a formula; workspace is for NumPy, if it has to compute."""
        return chains.elementwise_kernel(formula), (*inputs, *workspace, out)

    def update(
        self,
        formula: UpdateFormula,
        rows: Sequence[Array],
        scalars: Sequence[Array],
        workspace: Callable[[Sequence[np.dtype[Any]]], Sequence[Array]],
    ) -> Step:
        """Return the compiled loop of an update; for other types of elements NumPy's function."""
        kernel = updates.update_kernel(formula)
        if kernel.record(*rows, *scalars) is None:
            return super().update(formula, rows, scalars, workspace)
        return kernel, (*rows, *scalars)

    def chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the call of one kernel for a chain, None for arrays that it does not take."""
        if chains.chain_record(chain, inputs, out) is None:
            return None
        return [(chains.chain_kernel(chain), (*inputs, out))]

    def chain_sum(
        self, chain: Chain, inputs: Sequence[Array], axes: tuple[int, ...], out: Array
    ) -> list[Step] | None:
        """Return the call of one kernel for a chain and its sum, None where there is none."""
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        kernel = chains.chain_sum(chain, shape, axes)
        arguments = (*inputs, out)
        return None if kernel.record(*arguments) is None else [(kernel, arguments)]

    def convolutions(self, problem: Convolution) -> Sequence[Routine]:
        """Return the compiled routines for a convolution, and last the generic one."""
        from dnn.backend.cpu.convolutions import ROUTINES

        compiled = (routine(problem) for routine in ROUTINES)
        return [*(found for found in compiled if found), *super().convolutions(problem)]

    @property
    def choices(self) -> ConvolutionChoices:
        """Choices of convolutions that were measured on this processor with as many threads."""
        return machine_choices(*measured_with(blas_threads()))

    def convolution(self, problem: Convolution) -> Routine:
        """Return the routine that the table of this network names, else the fastest one here."""
        return choose_convolution(self, problem, self.choices)

    def recurrence(
        self,
        recurrence: Recurrence,
        inputs: Array,
        bias: Array,
        hidden_bias: Array,
        transposed: Array,
    ) -> list[Step]:
        """Return the calls of a recurrence: for each model one kernel over all time steps."""
        arrays = (inputs, bias, hidden_bias, transposed)
        if recurrence.packed.ndim == 4:
            each = zip(recurrence.each(), *arrays, strict=True)
            return [step for arguments in each for step in self.recurrence(*arguments)]
        from dnn.backend.cpu import recurrence as compiled

        return compiled.steps(recurrence, *arrays) or super().recurrence(recurrence, *arrays)

    def recurrence_gradient(self, recurrence: Recurrence, arrays: GradientArrays) -> list[Step]:
        """Return the calls of a recurrence's gradient: one kernel over all steps for each model."""
        if recurrence.packed.ndim == 4:
            each = zip(recurrence.each(), arrays.each(), strict=True)
            return [step for arguments in each for step in self.recurrence_gradient(*arguments)]
        from dnn.backend.cpu import recurrence as compiled

        found = compiled.gradient_steps(recurrence, arrays)
        return found or super().recurrence_gradient(recurrence, arrays)

    def weights_and_bias(
        self, dy: Array, x: Array, weights: Array, bias: Array, space: Array, rows: slice
    ) -> list[Step]:
        """Return the calls of the gradient of weights and bias: one kernel for each model."""
        arrays = (dy, x, weights, bias, space)
        if dy.ndim == 3:
            each = zip(*arrays, strict=True)
            return [step for arguments in each for step in self.weights_and_bias(*arguments, rows)]
        from dnn.backend.cpu import recurrence

        return recurrence.weight_steps(*arrays, rows) or super().weights_and_bias(*arrays, rows)

    def pooling(self, problem: Pooling) -> Routine:
        """Return the compiled routine of a pooling if there is one, else the generic one."""
        from dnn.backend.cpu import pooling

        return pooling.routine(problem) or super().pooling(problem)

    def image_layout(self, problems: Sequence[Convolution]) -> str:
        """Return CHWN, for vectors of images, where channels are few; else NHWC, of channels."""
        if not problems:
            return "NCHW"
        few = all(max(each.channels, each.filters) <= FEW_CHANNELS for each in problems)
        return "CHWN" if few else "NHWC"

    def link(
        self,
        steps: Sequence[Step],
        scratch: Array | None = None,
    ) -> list[Step]:
        """Join neighbouring kernels into programs."""
        if scratch is not None:
            steps = updates.fuse_update(steps, scratch, self.gemm)
        return link([self._routine(step) for step in steps], self._splits)

    def _splits(self, function: Native, arguments: tuple[Any, ...]) -> bool:
        if self.routines is None or function is not self.gemm:
            return True
        a, _, out = arguments
        # The size of one network's product, so that K at once get what each would get alone.
        rows, columns = out.shape[-2:]
        return self.routines("product", rows * columns * a.shape[-1]) != "whole"

    def _routine(self, step: Step) -> Step:
        """Replace a sum over rows by the routine that the table names."""
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
