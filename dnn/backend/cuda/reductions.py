"""Reductions over axes, softmax and cross entropy over rows, and counts of predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnn.backend.cuda.formulas import FINITE_FLAG, of_formula
from dnn.backend.cuda.launch import Launcher, element_strides, require_contiguous
from dnn.backend.cuda.source import (
    C_TYPES,
    THREADS,
    Elementwise,
    Kernel,
    Reduction,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.backend.formula import COPY

__all__ = [
    "ARGMAX",
    "REDUCTIONS",
    "all_finite",
    "argmax",
    "finite_flags",
    "log_softmax",
    "mean_cross_entropy",
    "reduction",
    "sum_of_squares",
    "tally_classes",
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
auto best = p_x[at_x];
for (long long j = 1; j < length; ++j) {
    const auto value = p_x[at_x + j * stride];
    if (best == best && (value > best || value != value)) {
        best = value;
        out = j;
    }
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
    with launcher.gpu:
        out = launcher.cupy.empty((1,) * x.ndim, x.dtype)
        launcher.reduce(REDUCTIONS["not_finite"], [x], axes, out)
        return not launcher.cupy.asnumpy(out).any()


NARROW = 64
"""Rows of up to that width get a thread each, longer ones a block."""


def log_softmax_kernel(code: str) -> Kernel:
    """Return the kernel of ``x - max(x) - log(sum(exp(x - max(x))))``, a block for each row.

    Its parameters: x, out (which may be x), number of rows, width of a row.
    """
    kind = C_TYPES[code]
    tree = f"""
        __syncthreads();
        for (int half = {THREADS // 2}; half > 0; half /= 2) {{
            if (threadIdx.x < half) {{
                const A other = partial[threadIdx.x + half];
                partial[threadIdx.x] = COMBINE;
            }}
            __syncthreads();
        }}
        """
    largest = tree.replace(
        "COMBINE",
        "other != other || other > partial[threadIdx.x] ? other : partial[threadIdx.x]",
    )
    total = tree.replace("COMBINE", "partial[threadIdx.x] + other")
    body = f"""typedef {arithmetic(code)} A;
    __shared__ A partial[{THREADS}];
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {{
        const {kind}* from = x + row * width;
        {kind}* to = out + row * width;
        A largest = -A(1.0 / 0.0);
        for (long long i = threadIdx.x; i < width; i += {THREADS}) {{
            const A value = (A)from[i];
            largest = value != value || value > largest ? value : largest;
        }}
        partial[threadIdx.x] = largest;{largest}largest = partial[0];
        __syncthreads();
        A total = A(0);
        for (long long i = threadIdx.x; i < width; i += {THREADS})
            total = total + exp((A)from[i] - largest);
        partial[threadIdx.x] = total;{total}const A logarithm = log(partial[0]);
        for (long long i = threadIdx.x; i < width; i += {THREADS})
            to[i] = {stored(code, "((A)from[i] - largest) - logarithm")};
        __syncthreads();
    }}"""
    parameters = f"const {kind}* x, {kind}* out, {lengths('rows width')}"
    return function(f"log_softmax__{code}", parameters, body)


def narrow_log_softmax_kernel(code: str) -> Kernel:
    """Return the kernel that writes what `log_softmax_kernel` writes, a thread for each row."""
    kind = C_TYPES[code]
    body = for_each(f"""
        const {kind}* from = x + i * width;
        {kind}* to = out + i * width;
        A largest = -A(1.0 / 0.0);
        for (long long j = 0; j < width; ++j) {{
            const A value = (A)from[j];
            largest = value != value || value > largest ? value : largest;
        }}
        A total = A(0);
        for (long long j = 0; j < width; ++j) total = total + exp((A)from[j] - largest);
        const A logarithm = log(total);
        for (long long j = 0; j < width; ++j)
            to[j] = {stored(code, "((A)from[j] - largest) - logarithm")};""")
    parameters = f"const {kind}* x, {kind}* out, {lengths('n width')}"
    body = f"typedef {arithmetic(code)} A;\n    {body}"
    return function(f"narrow_log_softmax__{code}", parameters, body)


def log_softmax(launcher: Launcher, x: Any, column: Any, exponentials: Any, out: Any) -> None:
    """Launch the logarithm of the softmax, a block or a thread for each row, without workspace."""
    if not x.flags.c_contiguous:
        launcher.elementwise(of_formula(COPY), (x, out))
        x = out
    require_contiguous("log_softmax", out)
    width = x.shape[-1]
    rows = x.size // max(1, width)
    arguments = [x, out, np.int64(rows), np.int64(width)]
    if width <= NARROW:
        launcher.for_each(narrow_log_softmax_kernel(code_of(x.dtype)), rows, arguments)
    elif rows:
        launcher.launch(log_softmax_kernel(code_of(x.dtype)), rows, arguments)


def mean_cross_entropy(
    launcher: Launcher, log_probabilities: Any, target: Any, mask: Any, terms: Any, out: Any
) -> None:
    """Launch ``-sum(target * log_probabilities) / rows``; needs no workspace."""
    axes = (terms.ndim - 2, terms.ndim - 1)
    launcher.reduce(
        REDUCTIONS["mean_of_products"],
        [log_probabilities, target],
        axes,
        out.reshape((*out.shape, 1, 1)),
        scale=-1.0 / terms.shape[-2],
    )


def tally_classes_kernel(code: str) -> Kernel:
    """Return the kernel that adds the predictions of each class, and the right ones, to tallies.

    A block has all rows of a model: its threads find the predictions, of a row each, and then share
    the rows among those that count a class. The last element of a model's tallies counts the right
    ones.

    Its parameters: outputs, labels, predictions (workspace), tallies, models, rows, outputs of a
    row, elements of a model's tallies.
    """
    middle = arithmetic(code)
    body = f"""__shared__ long long partial[{THREADS}];
    for (long long model = blockIdx.x; model < models; model += gridDim.x) {{
        const long long first = model * rows;
        for (long long row = first + threadIdx.x; row < first + rows; row += {THREADS}) {{
            long long best = 0;
            {middle} largest = ({middle})outputs[row * width];
            if (width == 1 && largest > 0) best = 1;
            for (long long j = 1; j < width; ++j) {{
                const {middle} x = ({middle})outputs[row * width + j];
                if (x > largest) {{
                    largest = x;
                    best = j;
                }}
            }}
            guesses[row] = best;
        }}
        __syncthreads();
        for (long long begin = 0; begin < each; begin += {THREADS}) {{
            const int classes = (int)(each - begin < {THREADS} ? each - begin : {THREADS});
            const int parts = {THREADS} / classes, part = threadIdx.x / classes;
            const long long wanted = begin + threadIdx.x % classes;
            long long count = 0;
            for (long long row = first + part; part < parts && row < first + rows; row += parts) {{
                const long long guess = guesses[row];
                if (wanted == each - 1 ? guess == labels[row] : guess == wanted) count += 1;
            }}
            partial[threadIdx.x] = count;
            __syncthreads();
            if (part == 0) {{
                for (int i = 1; i < parts; ++i) count += partial[i * classes + threadIdx.x];
                tallies[model * each + wanted] += count;
            }}
            __syncthreads();
        }}
    }}"""
    arrays = f"const {C_TYPES[code]}* outputs, const long long* labels"
    arrays += ", long long* guesses, long long* tallies"
    numbers = lengths("models rows width each")
    return function(f"tally_classes__{code}", f"{arrays}, {numbers}", body)


def tally_classes(
    launcher: Launcher, outputs: Any, labels: Any, guesses: Any, tallies: Any
) -> None:
    """Launch the count of predictions, a block for each model."""
    for array in (outputs, labels, guesses, tallies):
        require_contiguous("tally_classes", array)
    kernel = tally_classes_kernel(code_of(outputs.dtype))
    each = tallies.shape[-1]
    models = tallies.size // each
    numbers = [np.int64(n) for n in (models, *outputs.shape[-2:], each)]
    launcher.launch(kernel, models, [outputs, labels, guesses, tallies, *numbers])
