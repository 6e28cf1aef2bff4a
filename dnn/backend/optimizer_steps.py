"""How parameters move, in NumPy: clipping of gradients and the steps of optimizers.

All in place. w, g (read only) and what an optimizer remembers have shape (n,), hyperparameters
shape (); for K networks they have shapes (K, n) and (K, 1). A `weight_decay` of None is none.
`moved` and `root` are workspace of the shape of w.
"""

from __future__ import annotations

import numpy as np

from dnn.backend.arrays import Array

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """The part of `Ops` that optimizers use."""

    # Clipping of gradients.

    @staticmethod
    def clip_value_step(g: Array, limit: Array, lowest: Array) -> None:
        """``g = min(max(g, -limit), limit)``; `lowest` is workspace of the shape of `limit`."""
        np.negative(limit, lowest)
        np.maximum(g, lowest, out=g)
        np.minimum(g, limit, out=g)

    @staticmethod
    def all_finite(x: Array, mask: Array) -> bool:
        """Say whether no element is NaN or infinite; `mask` is workspace of bool."""
        np.isfinite(x, mask)
        return bool(mask.all())

    @staticmethod
    def sum_of_squares(g: Array, squares: Array, out: Array) -> None:
        """Sum over the last axis, of length 1 in `out`; `squares` is workspace."""
        np.multiply(g, g, squares)
        np.add.reduce(squares, axis=-1, out=out, keepdims=True)

    @staticmethod
    def clip_factor(sums: Array, limit: Array, out: Array) -> None:
        """``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` over the last axis."""
        np.add.reduce(sums, axis=-1, out=out, keepdims=True)
        np.sqrt(out, out)
        np.maximum(out, limit, out=out)
        np.divide(limit, out, out)

    # Steps.

    @staticmethod
    def sgd_step(
        w: Array, g: Array, learning_rate: Array, weight_decay: Array | None, moved: Array
    ) -> None:
        """``w -= learning_rate d``, where ``d = g + weight_decay w``."""
        d = _decayed(w, g, weight_decay, moved)
        np.multiply(d, learning_rate, moved)
        np.subtract(w, moved, w)

    @staticmethod
    def momentum_step(
        w: Array,
        g: Array,
        v: Array,
        learning_rate: Array,
        momentum: Array,
        weight_decay: Array | None,
        nesterov: bool,
        moved: Array,
    ) -> None:
        """``v = momentum v + d``, ``w -= learning_rate v``; Nesterov: ``... (d + momentum v)``."""
        d = _decayed(w, g, weight_decay, moved)
        np.multiply(v, momentum, v)
        np.add(v, d, v)
        if nesterov:
            # d may stand in `moved`, so the look ahead is subtracted by itself.
            np.multiply(d, learning_rate, moved)
            np.subtract(w, moved, w)
            np.multiply(v, momentum, moved)
            np.multiply(moved, learning_rate, moved)
        else:
            np.multiply(v, learning_rate, moved)
        np.subtract(w, moved, w)

    @staticmethod
    def adagrad_step(
        w: Array,
        g: Array,
        s: Array,
        learning_rate: Array,
        epsilon: Array,
        weight_decay: Array | None,
        moved: Array,
        root: Array,
    ) -> None:
        """``s += d^2``, ``w -= learning_rate d / (sqrt(s) + epsilon)``."""
        d = _decayed(w, g, weight_decay, moved)
        np.multiply(d, d, root)
        np.add(s, root, s)
        np.sqrt(s, root)
        np.add(root, epsilon, root)
        np.divide(d, root, moved)
        np.multiply(moved, learning_rate, moved)
        np.subtract(w, moved, w)

    @staticmethod
    def rmsprop_step(
        w: Array,
        g: Array,
        s: Array,
        v: Array | None,
        learning_rate: Array,
        smoothing: Array,
        complement: Array,
        epsilon: Array,
        momentum: Array | None,
        weight_decay: Array | None,
        moved: Array,
        root: Array,
    ) -> None:
        """``s = smoothing s + complement d^2``, ``v = momentum v + d / (sqrt(s) + epsilon)``.

        Then ``w -= learning_rate v``. `complement` is ``1 - smoothing``. Without momentum both v
        and `momentum` are None.
        """
        d = _decayed(w, g, weight_decay, moved)
        np.multiply(d, d, root)
        np.multiply(root, complement, root)
        np.multiply(s, smoothing, s)
        np.add(s, root, s)
        np.sqrt(s, root)
        np.add(root, epsilon, root)
        np.divide(d, root, moved)
        if v is not None and momentum is not None:
            np.multiply(v, momentum, v)
            np.add(v, moved, v)
            np.multiply(v, learning_rate, moved)
        else:
            np.multiply(moved, learning_rate, moved)
        np.subtract(w, moved, w)

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
        """Count a step, and compute what depends on its number t alone.

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

    @staticmethod
    def adam_step(
        w: Array,
        g: Array,
        m: Array,
        s: Array,
        beta1: Array,
        complement1: Array,
        beta2: Array,
        complement2: Array,
        step_size: Array,
        correction: Array,
        epsilon: Array,
        weight_decay: Array | None,
        keep: Array | None,
        moved: Array,
        root: Array,
    ) -> None:
        """``w -= step_size m / (sqrt(s) / correction + epsilon)``.

        Before that ``m = beta1 m + complement1 d``, ``s = beta2 s + complement2 d^2``; and where
        `keep` is not None, at the very end of the old w, ``w = keep w``: AdamW's decay.
        """
        d = _decayed(w, g, weight_decay, moved)
        np.multiply(d, d, root)
        np.multiply(root, complement2, root)
        np.multiply(s, beta2, s)
        np.add(s, root, s)
        np.multiply(d, complement1, moved)
        np.multiply(m, beta1, m)
        np.add(m, moved, m)
        np.sqrt(s, root)
        np.divide(root, correction, root)
        np.add(root, epsilon, root)
        np.divide(m, root, moved)
        np.multiply(moved, step_size, moved)
        if keep is not None:
            np.multiply(w, keep, w)
        np.subtract(w, moved, w)


def _decayed(w: Array, g: Array, weight_decay: Array | None, out: Array) -> Array:
    """Return ``g + weight_decay w``, in `out`, or `g` itself."""
    if weight_decay is None:
        return g
    np.multiply(w, weight_decay, out)
    np.add(out, g, out)
    return out
