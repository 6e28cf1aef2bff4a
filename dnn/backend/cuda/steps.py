"""Clipping of gradients and steps of optimizers on a GPU, most of them one kernel."""

from __future__ import annotations

from typing import Any

from dnn.backend.cuda import elementwise
from dnn.backend.cuda.elementwise import ELEMENTWISE
from dnn.backend.cuda.kernels import REDUCTIONS
from dnn.backend.cuda.launch import Launcher
from dnn.backend.cuda.layout import element_strides
from dnn.backend.ops import Array, Ops

__all__ = ["CudaSteps"]


class CudaSteps(Ops):
    """What is done to parameters and gradients in place; how it is called is told in `Ops`.

    Attributes
    ----------
    launcher : Launcher
    """

    launcher: Launcher

    # Clipping of gradients.

    def clip_value_step(  # type: ignore[override]
        self, g: Array, limit: Array, lowest: Array
    ) -> None:
        """``g = min(max(g, -limit), limit)``; needs no workspace."""
        self.launcher.elementwise(ELEMENTWISE["clip_value_step"], (g, limit))

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

    # Steps of optimizers.

    def sgd_step(self, w, g, learning_rate, weight_decay, moved):  # type: ignore
        """See `Ops.sgd_step`; one kernel."""
        spec = elementwise.sgd_step(weight_decay is not None)
        self.launcher.elementwise(spec, _given(w, g, learning_rate, weight_decay))

    def momentum_step(  # type: ignore
        self, w, g, v, learning_rate, momentum, weight_decay, nesterov, moved
    ):
        """See `Ops.momentum_step`; one kernel."""
        spec = elementwise.momentum_step(weight_decay is not None, bool(nesterov))
        self.launcher.elementwise(spec, _given(w, g, v, learning_rate, momentum, weight_decay))

    def adagrad_step(  # type: ignore
        self, w, g, s, learning_rate, epsilon, weight_decay, moved, root
    ):
        """See `Ops.adagrad_step`; one kernel."""
        spec = elementwise.adagrad_step(weight_decay is not None)
        self.launcher.elementwise(spec, _given(w, g, s, learning_rate, epsilon, weight_decay))

    def rmsprop_step(  # type: ignore
        self,
        w,
        g,
        s,
        v,
        learning_rate,
        smoothing,
        complement,
        epsilon,
        momentum,
        weight_decay,
        moved,
        root,
    ):
        """See `Ops.rmsprop_step`; one kernel."""
        moves = v is not None and momentum is not None
        spec = elementwise.rmsprop_step(weight_decay is not None, moves)
        rest = (v, momentum) if moves else ()
        operands = (w, g, s, learning_rate, smoothing, complement, epsilon, *rest, weight_decay)
        self.launcher.elementwise(spec, _given(*operands))

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

    def adam_step(  # type: ignore
        self,
        w,
        g,
        m,
        s,
        beta1,
        complement1,
        beta2,
        complement2,
        step_size,
        correction,
        epsilon,
        weight_decay,
        keep,
        moved,
        root,
    ):
        """See `Ops.adam_step`; one kernel."""
        spec = elementwise.adam_step(weight_decay is not None, keep is not None)
        operands = (w, g, m, s, beta1, complement1, beta2, complement2, step_size, correction)
        self.launcher.elementwise(spec, _given(*operands, epsilon, weight_decay, keep))


def _given(*operands: Any) -> tuple[Any, ...]:
    return tuple(operand for operand in operands if operand is not None)
