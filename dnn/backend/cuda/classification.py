"""Rows of classes: softmax, cross entropy, and counts of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.cuda.formulas import of_formula
from dnn.backend.cuda.launch import Launcher, require_contiguous
from dnn.backend.cuda.reductions import REDUCTIONS, reduce
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
    reduce(
        launcher,
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
