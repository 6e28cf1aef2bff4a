"""Reductions over axes, and the index of the largest element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnn.backend.cuda.formulas import FINITE_FLAG
from dnn.backend.cuda.launch import Launcher, element_strides
from dnn.backend.cuda.source import Elementwise, Reduction

__all__ = [
    "ARGMAX",
    "REDUCTIONS",
    "all_finite",
    "argmax",
    "finite_flags",
    "reduction",
    "sum_of_squares",
]

REDUCTIONS = {
    spec.name: spec
    for spec in (
        Reduction("sum", ("x",), "x", "A(0)", "total = total + value;"),
        Reduction("prod", ("x",), "x", "A(1)", "total = total * value;"),
        Reduction(
            "max",
            ("x",),
            "x",
            "-A(1.0 / 0.0)",
            "total = value != value || value > total ? value : total;",
        ),
        Reduction(
            "min",
            ("x",),
            "x",
            "A(1.0 / 0.0)",
            "total = value != value || value < total ? value : total;",
        ),
        # 0 if every element is finite, else NaN.
        Reduction("not_finite", ("x",), "x - x", "A(0)", "total = total + value;"),
        Reduction("sum_of_products", ("x", "y"), "x * y", "A(0)", "total = total + value;"),
        # x are logarithms, which may be -inf where y is 0; scaled first, so that no sum overflows.
        Reduction(
            "mean_of_products",
            ("x", "y"),
            "y == A(0) ? A(0) : x * y * A(scale)",
            "A(0)",
            "total = total + value;",
        ),
    )
}

# The index of the first largest element, NaN being larger than all numbers: only a larger element
# or the first NaN replaces the running maximum.
ARGMAX = Elementwise(
    "argmax",
    ("x", "out"),
    ("out",),
    """
out = 0;
for (long long j = 1; j < length; ++j) {
    const auto value = p_x[at_x + j * stride];
    const auto best = p_x[at_x + out * stride];
    if (best == best && (value > best || value != value)) out = j;
}
""",
    pointers=("x",),
    integers=("length", "stride"),
    fixed=(("out", "i8"),),
)


def reduction(name: str) -> Callable[[Launcher, Any, tuple[int, ...], Any], None]:
    """Return the function that launches a reduction of `REDUCTIONS` over some axes."""

    def reduce(launcher: Launcher, x: Any, axes: tuple[int, ...], out: Any) -> None:
        launcher.reduce(REDUCTIONS[name], [x], tuple(axis % x.ndim for axis in axes), out)

    return reduce


def argmax(launcher: Launcher, x: Any, axis: int, out: Any) -> None:
    """Launch the search for the index of the first largest element, a thread for each result."""
    axis %= x.ndim
    integers = [x.shape[axis], element_strides(x)[axis]]
    launcher.elementwise(ARGMAX, (x, out), integers, hidden=axis)


def sum_of_squares(launcher: Launcher, g: Any, squares: Any, out: Any) -> None:
    """Launch the sum of squares over the last axis, of length 1 in `out`; needs no workspace."""
    launcher.reduce(REDUCTIONS["sum_of_products"], [g, g], (g.ndim - 1,), out)


def finite_flags(launcher: Launcher, gradients: Any, sums: Any, out: Any) -> None:
    """Launch kernels that set `out` to 1 for each finite row, else 0; `sums` is workspace."""
    launcher.reduce(REDUCTIONS["not_finite"], [gradients], (gradients.ndim - 1,), sums)
    launcher.elementwise(FINITE_FLAG, (sums.reshape(out.shape), out))


def all_finite(launcher: Launcher, x: Any, mask: Any) -> bool:
    """Return whether no element is NaN or infinite; waits for the GPU."""
    axes = tuple(range(x.ndim))
    out = launcher.cupy.empty((1,) * x.ndim, x.dtype)
    launcher.reduce(REDUCTIONS["not_finite"], [x], axes, out)
    return not launcher.cupy.asnumpy(out).any()
