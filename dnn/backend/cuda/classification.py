"""Kernels of softmax and cross entropy, and of counting predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.formulas import of_formula
from dnn.backend.cuda.launch import Launcher, require_contiguous
from dnn.backend.cuda.reductions import REDUCTIONS
from dnn.backend.cuda.source import (
    C_TYPES,
    THREADS,
    Kernel,
    arithmetic,
    code_of,
    for_each,
    function,
    lengths,
    stored,
)
from dnn.backend.formula import COPY

__all__ = ["log_softmax", "mean_cross_entropy", "tally_classes"]

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

    A thread counts, among all rows of its model, the predictions of the class of its element; the
    last element of a model counts the right ones.

    Its parameters: outputs, labels, tallies, rows, outputs of a row, elements of a model's
    tallies, elements of tallies.
    """
    middle = arithmetic(code)
    body = for_each(f"""
        const long long first = i / each * rows, wanted = i % each;
        long long count = 0;
        for (long long row = first; row < first + rows; ++row) {{
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
            if (wanted == each - 1 ? best == labels[row] : best == wanted) count += 1;
        }}
        tallies[i] += count;""")
    arrays = f"const {C_TYPES[code]}* outputs, const long long* labels, long long* tallies"
    numbers = lengths("rows width each n")
    return function(f"tally_classes__{code}", f"{arrays}, {numbers}", body)


def tally_classes(
    launcher: Launcher, outputs: Any, labels: Any, guesses: Any, tallies: Any
) -> None:
    """Launch the count of predictions, a thread for each class of each model."""
    for array in (outputs, labels, tallies):
        require_contiguous("tally_classes", array)
    kernel = tally_classes_kernel(code_of(outputs.dtype))
    sizes = (*outputs.shape[-2:], tallies.shape[-1], tallies.size)
    numbers = [np.int64(n) for n in sizes]
    launcher.for_each(kernel, tallies.size, [outputs, labels, tallies, *numbers])
