"""Kernels that are neither elementwise nor plain reductions, and the reductions' table."""

from __future__ import annotations

from dnn.backend.cuda.source import C_TYPES, THREADS, Kernel, Reduction, arithmetic, stored

__all__ = [
    "REDUCTIONS",
    "add_rows",
    "end_batch",
    "log_softmax",
    "take_batch",
    "take_rows",
    "tally_classes",
    "uniform_noise",
]

PHILOX_ROUNDS = 10

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
        # Of logarithms x, which may be -inf where y is 0; scaled before, so that no sum overflows.
        Reduction(
            "mean_of_products",
            ("x", "y"),
            "y == A(0) ? A(0) : x * y * A(scale)",
            "A(0)",
            "total = total + value;",
        ),
    )
}


def take_rows(code: str) -> Kernel:
    """Write ``out[i] = x[rows[i]]``, rows out of range being the nearest one.

    Its parameters: x, rows, out, rows of x, width of a row, elements of out.
    """
    name = f"take_rows__{code}"
    kind = C_TYPES[code]
    source = f"""extern "C" __global__ void {name}(
    const {kind}* x, const long long* rows, {kind}* out,
    const long long length, const long long width, const long long n)
{{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        long long row = rows[i / width];
        row = row < 0 ? 0 : row >= length ? length - 1 : row;
        out[i] = x[row * width + i % width];
    }}
}}
"""
    return Kernel(name, source, code == "f2")


def take_batch(code: str) -> Kernel:
    """Write ``out[..., i] = x[order[..., position[0] + i]]``.

    Its parameters: x, order, position, out, length of an order, rows of a batch, width of a row,
    elements of out.
    """
    name = f"take_batch__{code}"
    kind = C_TYPES[code]
    source = f"""extern "C" __global__ void {name}(
    const {kind}* x, const long long* order, const long long* position, {kind}* out,
    const long long length, const long long batch, const long long width, const long long n)
{{
    const long long start = position[0];
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        const long long row = i / width;
        const long long at = row / batch * length + start + row % batch;
        out[i] = x[order[at] * width + i % width];
    }}
}}
"""
    return Kernel(name, source, code == "f2")


def end_batch(code: str, kept: str) -> Kernel:
    """Write ``losses[position[1]] = loss`` and go on to the next batch.

    Its parameters: loss, losses, position, losses of a step (one for each model), and the losses'
    distance from step to step and from model to model, in elements.
    """
    name = f"end_batch__{code}_{kept}"
    value = stored(kept, f"({arithmetic(code)})loss[k]")
    source = f"""extern "C" __global__ void {name}(
    const {C_TYPES[code]}* loss, {C_TYPES[kept]}* losses, long long* position,
    const long long models, const long long by_step, const long long by_model)
{{
    if (blockIdx.x || threadIdx.x) return;
    for (long long k = 0; k < models; ++k)
        losses[position[1] * by_step + k * by_model] = {value};
    position[0] += position[2];
    position[1] += 1;
}}
"""
    return Kernel(name, source, "f2" in (code, kept))


def tally_classes(code: str) -> Kernel:
    """Count predictions of each class, and how many are right, into ``tallies[k, c]``.

    A thread looks through all rows of its model for those that its element counts; the last
    element of a model counts the right ones.

    Its parameters: outputs, labels, tallies, rows, outputs of a row, elements of a model's
    tallies, elements of tallies.
    """
    name = f"tally_classes__{code}"
    middle = arithmetic(code)
    source = f"""extern "C" __global__ void {name}(
    const {C_TYPES[code]}* outputs, const long long* labels, long long* tallies,
    const long long rows, const long long width, const long long each, const long long n)
{{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
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
        tallies[i] += count;
    }}
}}
"""
    return Kernel(name, source, code == "f2")


def add_rows(code: str) -> Kernel:
    """Write ``out[rows[i]] += x[i]``, out beginning as zeros.

    A thread looks through all rows for those that its element gets, in their order: no two
    threads write one element, so the same input gives the same bits.

    Its parameters: x, rows, out, number of rows, width of a row, elements of out.
    """
    name = f"add_rows__{code}"
    kind, middle = C_TYPES[code], arithmetic(code)
    source = f"""extern "C" __global__ void {name}(
    const {kind}* x, const long long* rows, {kind}* out,
    const long long count, const long long width, const long long n)
{{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        {middle} total = 0;
        for (long long j = 0; j < count; ++j)
            if (rows[j] == i / width) total = total + ({middle})x[j * width + i % width];
        out[i] = {stored(code, "total")};
    }}
}}
"""
    return Kernel(name, source, code == "f2")


def log_softmax(code: str) -> Kernel:
    """Write ``x - max(x) - log(sum(exp(x - max(x))))`` over contiguous rows, a block for each.

    Its parameters: x, out (which may be x), number of rows, width of a row.
    """
    name = f"log_softmax__{code}"
    kind, middle = C_TYPES[code], arithmetic(code)
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
    source = f"""extern "C" __global__ void {name}(
    const {kind}* x, {kind}* out, const long long rows, const long long width)
{{
    typedef {middle} A;
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
    }}
}}
"""
    return Kernel(name, source, code == "f2")


def uniform_noise(code: str) -> Kernel:
    """Write Philox-4x32-10 to floats in [0, 1), see `dnn.backend.philox`: the same integers.

    A thread computes one block of four words. Its parameters: seeds, step, out, stream, number
    of seeds, elements for each.
    """
    name = f"uniform_noise__{code}"
    bits = 11 if code == "f2" else 24
    middle = arithmetic(code)
    value = f"({middle})(word[lane] >> {32 - bits}) * ({middle})(1.0 / {1 << bits})"
    source = f"""extern "C" __global__ void {name}(
    const unsigned long long* seeds, const unsigned long long* step, {C_TYPES[code]}* out,
    const long long stream, const long long models, const long long n)
{{
    const long long blocks = (n + 3) / 4;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < models * blocks;
         i += stride) {{
        const long long model = i / blocks, block = i % blocks;
        unsigned int key0 = (unsigned int)seeds[model];
        unsigned int key1 = (unsigned int)(seeds[model] >> 32);
        unsigned int word[4] = {{(unsigned int)block, (unsigned int)*step,
                                (unsigned int)(*step >> 32), (unsigned int)stream}};
        for (int round = 0; round < {PHILOX_ROUNDS}; ++round) {{
            const unsigned long long p0 = 0xD2511F53ull * word[0];
            const unsigned long long p1 = 0xCD9E8D57ull * word[2];
            word[0] = (unsigned int)(p1 >> 32) ^ word[1] ^ key0;
            word[1] = (unsigned int)p1;
            word[2] = (unsigned int)(p0 >> 32) ^ word[3] ^ key1;
            word[3] = (unsigned int)p0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }}
        for (int lane = 0; lane < 4; ++lane) {{
            const long long at = 4 * block + lane;
            if (at < n) out[model * n + at] = {stored(code, value)};
        }}
    }}
}}
"""
    return Kernel(name, source, code == "f2")
