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

    A thread finds the prediction of a row, and a block counts those of its rows of a model. Whole
    numbers are added up by atomic operations, as their order does not matter. The last element of a
    model's tallies counts the right ones.

    Its parameters: outputs, labels, tallies, models, rows, outputs of a row, elements of a model's
    tallies.
    """
    middle = arithmetic(code)
    body = f"""__shared__ int counts[{THREADS}];
    const long long parts = (rows + {THREADS - 1}) / {THREADS};
    for (long long part = blockIdx.x; part < models * parts; part += gridDim.x) {{
        const long long model = part / parts;
        const long long row = part % parts * {THREADS} + threadIdx.x;
        long long guess = -1;
        bool is_right = false;
        if (row < rows) {{
            const {C_TYPES[code]}* from = outputs + (model * rows + row) * width;
            {middle} largest = ({middle})from[0];
            guess = width == 1 && largest > 0 ? 1 : 0;
            for (long long j = 1; j < width; ++j) {{
                const {middle} x = ({middle})from[j];
                if (x > largest) {{
                    largest = x;
                    guess = j;
                }}
            }}
            is_right = guess == labels[model * rows + row];
        }}
        for (long long begin = 0; begin < each; begin += {THREADS}) {{
            const long long of_guess = guess - begin, of_right = each - 1 - begin;
            counts[threadIdx.x] = 0;
            __syncthreads();
            if (of_guess >= 0 && of_guess < {THREADS}) atomicAdd(&counts[of_guess], 1);
            if (is_right && of_right < {THREADS}) atomicAdd(&counts[of_right], 1);
            __syncthreads();
            const unsigned long long count = counts[threadIdx.x];
            long long* tally = tallies + model * each + begin + threadIdx.x;
            if (count) atomicAdd((unsigned long long*)tally, count);
        }}
    }}"""
    arrays = f"const {C_TYPES[code]}* outputs, const long long* labels, long long* tallies"
    numbers = lengths("models rows width each")
    return function(f"tally_classes__{code}", f"{arrays}, {numbers}", body)


def tally_classes(
    launcher: Launcher, outputs: Any, labels: Any, guesses: Any, tallies: Any
) -> None:
    """Launch the count of predictions, a thread for each row; needs no workspace."""
    for array in (outputs, labels, tallies):
        require_contiguous("tally_classes", array)
    kernel = tally_classes_kernel(code_of(outputs.dtype))
    each = tallies.shape[-1]
    models = tallies.size // each
    rows, width = outputs.shape[-2:]
    numbers = [np.int64(n) for n in (models, rows, width, each)]
    launcher.launch(kernel, models * -(-rows // THREADS), [outputs, labels, tallies, *numbers])
