"""Recurrent cells over all time steps as one kernel each, forward and gradient.

Rows of a batch do not depend on each other, so a block of threads computes `ROWS` of them over all
time steps and waits for no other block. Their states stay in its shared memory; of the weights,
which every block needs whole in every time step, it reads 16 bytes at a time, from the cache of the
GPU. That takes as long as there are weights: beyond `MOST_WEIGHT_BYTES` a time step is a product
by cuBLAS and a kernel (`dnn.backend.recurrence`).

References
----------
.. [1] Diamos et al., Persistent RNNs: stashing recurrent weights on-chip, 2016: one kernel for all
   time steps. There, the weights are spread over the processors, which then wait for each other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dnn.backend.cuda.formulas import CUDA
from dnn.backend.cuda.launch import LOAD_BYTES, Launcher, element_strides
from dnn.backend.cuda.source import C_TYPES, THREADS, Kernel, code_of, function, lengths
from dnn.backend.formula import UpdateFormula, Writer
from dnn.backend.recurrence import BACKWARD, FORWARD, Cell, GradientArrays, Recurrence

__all__ = ["fits", "forward", "forward_kernel", "gradient", "gradient_kernel", "is_aligned"]

ROWS = 4
"""Rows of the batch of a block; each weight that it reads is used so many times."""

MOST_WEIGHT_BYTES = 1 << 19
"""An H100's processor reads about 64 bytes a cycle from the cache, so 512 KiB in about 5 us, for
which two launches within a graph and their work can be estimated; an LSTM of float32 has so many
with 181 units. It has not been measured."""

SHORTEST = 8
"""Least length of the parts of a sum that threads share."""


def fits(recurrence: Recurrence) -> bool:
    """Return whether kernels over all time steps are to compute a recurrence."""
    *_, wide, units = recurrence.weight.shape
    size = int(wide * units * recurrence.weight.dtype.itemsize)
    packed = recurrence.packed[(0,) * (recurrence.packed.ndim - 3)]
    return size <= MOST_WEIGHT_BYTES and packed.size > 0 and bool(packed.flags.c_contiguous)


def is_aligned(weight: Any) -> bool:
    """Return whether a kernel can read the weights where they are, `LOAD_BYTES` at a time."""
    size = weight.dtype.itemsize
    contiguous = weight.strides[-2:] == (weight.shape[-1] * size, size)
    return contiguous and not any(x % LOAD_BYTES for x in (weight.data.ptr, *weight.strides[:-2]))


def _product(rows: str, depth: int, columns: int, code: str) -> tuple[str, int]:
    """Return statements of a product of `rows`, in shared memory, with the weights, and its parts.

    ``sums_`` gets the parts of each sum, of shape (parts, rows, columns). Their number depends on
    the lengths alone.
    """
    size = np.dtype(code).itemsize
    vector = LOAD_BYTES // size if columns * size % LOAD_BYTES == 0 else 1
    parts = max(1, min(THREADS * LOAD_BYTES // size // columns, depth // SHORTEST))
    length = -(-depth // parts)
    across = columns // vector
    statements = f"""for (int e_ = threadIdx.x; e_ < {parts * across}; e_ += {THREADS}) {{
            const int part_ = e_ / {across}, column_ = e_ % {across} * {vector};
            const int next_ = (part_ + 1) * {length}, end_ = next_ < {depth} ? next_ : {depth};
            struct alignas({vector * size}) Vector {{ A of[{vector}]; }};
            Vector total_[{ROWS}] = {{}};
            #pragma unroll 8
            for (int d_ = part_ * {length}; d_ < end_; ++d_) {{
                const Vector weight_ = *(const Vector*)(weights_ + d_ * {columns} + column_);
                const Rows row_ = {rows}[d_];
                #pragma unroll
                for (int r_ = 0; r_ < {ROWS}; ++r_)
                    #pragma unroll
                    for (int v_ = 0; v_ < {vector}; ++v_)
                        total_[r_].of[v_] = total_[r_].of[v_] + row_.of[r_] * weight_.of[v_];
            }}
            #pragma unroll
            for (int r_ = 0; r_ < {ROWS}; ++r_)
                *(Vector*)&sums_[(part_ * {ROWS} + r_) * {columns} + column_] = total_[r_];
        }}
        __syncthreads();"""
    return statements, parts


def _sum_of_parts(parts: int, columns: int, column: str) -> str:
    """Return the expression of an element of the product of `_product`."""
    terms = [f"sums_[({part * ROWS} + r_) * {columns} + {column}]" for part in range(parts)]
    return " + ".join(terms)


def _each_element(units: int, *lines: str) -> str:
    """Return the loop of a thread over its elements: unit u_ of row r_, row b_ of the batch."""
    count = ROWS * units
    body = "\n                ".join(lines)
    return f"""#pragma unroll
            for (int k_ = 0; k_ < {-(-count // THREADS)}; ++k_) {{
                const int e_ = threadIdx.x + k_ * {THREADS}, r_ = e_ / {units}, u_ = e_ % {units};
                const long long b_ = first_ + r_;
                if (e_ >= {count} || b_ >= batch_) continue;
                {body}
            }}"""


AFTER, BEFORE = "(reverse_ ? t_ : t_ + 1)", "(reverse_ ? t_ + 1 : t_)"
"""Rows of states and cells after and before the time step t_."""


def _at(row: str, units: int) -> str:
    """Return the position of an element of `_each_element` in a row of states or cells."""
    return f"{row} * line_ + b_ * {units} + u_"


def _statements(formula: UpdateFormula) -> list[str]:
    writer = Writer(CUDA, "A")
    writer.update(formula, {name: name for name in formula.rows}, "{0} = {1};")
    return writer.lines


def _kernel(
    name: str, cell: Cell, code: str, units: int, arrays: str, numbers: str, shared: str, body: str
) -> Kernel:
    """Return the kernel of a body that computes `ROWS` rows of a model.

    Its last parameters: elements to the next model of weights and of packed arrays, number of
    models, of rows of the batch, of time steps, and whether it runs in reverse.
    """
    kind, size = C_TYPES[code], np.dtype(code).itemsize
    declared = []
    for each in arrays.split():
        constant, array = ("", each[1:]) if each[0] == "=" else ("const ", each)
        declared.append(f"{constant}{kind}* p_{array}")
    constant = "" if "=packed" in arrays.split() else "const "
    # Where in a packed array the cells and the gates begin, in rows of shape (batch, units).
    of_cells = f"{constant}A* cells_ = states_ + (steps_ + 1) * line_;" if cell.has_cell else ""
    of_gates = f"{constant}A* gates_ = states_ + (steps_ + 1) * {1 + cell.has_cell} * line_;"
    text = f"""typedef {kind} A;
    struct alignas({min(LOAD_BYTES, ROWS * size)}) Rows {{ A of[{ROWS}]; }};
    {shared}
    const long long groups_ = (batch_ + {ROWS - 1}) / {ROWS}, line_ = batch_ * {units};
    for (long long group_ = blockIdx.x; group_ < models_ * groups_; group_ += gridDim.x) {{
        const long long m_ = group_ / groups_, first_ = group_ % groups_ * {ROWS};
        const A* weights_ = p_weights + m_ * weights_m_;
        {constant}A* states_ = p_packed + m_ * packed_m_;
        {of_cells}
        {of_gates if cell.gates else ""}
        {body}
        __syncthreads();
    }}"""
    all_numbers = f"{numbers} weights_m_ packed_m_ models_ batch_ steps_ reverse_"
    return function(name, f"{', '.join(declared)},\n    {lengths(all_numbers)}", text)


@functools.cache
def forward_kernel(cell: Cell, code: str, units: int) -> Kernel:
    """Return the kernel of all time steps of a cell.

    Its parameters: the inputs' products, both biases, transposed weights, lengths of sequences,
    the packed array; elements to the next model, time step, row and column of the inputs'
    products, model and column of each bias, model and row of lengths; and those of `_kernel`.
    """
    formula, wide = FORWARD[cell.name], cell.products * units
    product, parts = _product("h_", units, wide, code)
    gates = formula.rows[: cell.gates]
    after = _at(AFTER, units)
    products = formula.rows[: cell.products]
    loads = [
        f"ahead_[k_][{i}] = p_x[m_ * x_m_ + t_ * x_t_ + b_ * x_b_ + ({i * units} + u_) * x_1_];"
        for i in range(cell.products)
    ]
    lines = [f"A {name} = {_sum_of_parts(parts, wide, f'{i * units} + u_')};"
             for i, name in enumerate(products)]  # fmt: skip
    lines += [f"A {name};" for name in formula.rows[cell.products :]]
    for i, name in enumerate(products):
        column = f"({i * units} + u_)"
        lines += [
            f"const A x_{name} = ahead_[k_][{i}];",
            f"const A b_{name} = p_bias[m_ * bias_m_ + {column} * bias_1_];",
            f"const A c_{name} = p_hidden_bias[m_ * hidden_m_ + {column} * hidden_1_];",
        ]
    lines += ["const A before = c_[u_].of[r_];"] if cell.has_cell else []
    lines += ["const A h = h_[u_].of[r_], t = (A)t_;",
              "const A length = p_lengths[m_ * lengths_m_ + b_ * lengths_b_];",
              *_statements(formula)]  # fmt: skip
    lines += [
        f"gates_[(t_ * batch_ + b_) * {cell.gates * units} + {i * units} + u_] = {name};"
        for i, name in enumerate(gates)
    ]
    lines += [f"cells_[{after}] = c_[u_].of[r_] = c;"] if cell.has_cell else []
    lines += [f"states_[{after}] = h_[u_].of[r_] = y;"]
    at = _at("(reverse_ ? steps_ : 0)", units)
    begin = [f"h_[u_].of[r_] = states_[{at}];"]
    begin += [f"c_[u_].of[r_] = cells_[{at}];"] if cell.has_cell else []
    body = f"""for (int e_ = threadIdx.x; e_ < {ROWS * units}; e_ += {THREADS})
            h_[e_ / {ROWS}].of[e_ % {ROWS}] = A(0);
        __syncthreads();
            {_each_element(units, *begin)}
        __syncthreads();
        for (long long s_ = 0; s_ < steps_; ++s_) {{
            const long long t_ = reverse_ ? steps_ - 1 - s_ : s_;
            A ahead_[{-(-ROWS * units // THREADS)}][{cell.products}];
            {_each_element(units, *loads)}
            {product}
            {_each_element(units, *lines)}
            __syncthreads();
        }}"""
    shared = f"__shared__ Rows h_[{units}]{f', c_[{units}]' if cell.has_cell else ''};\n"
    shared += f"    alignas({LOAD_BYTES}) __shared__ A sums_[{parts * ROWS * wide}];"
    numbers = "x_m_ x_t_ x_b_ x_1_ bias_m_ bias_1_ hidden_m_ hidden_1_ lengths_m_ lengths_b_"
    arrays = "x bias hidden_bias weights lengths =packed"
    name = f"{cell.name}_forward__{code}_{units}"
    return _kernel(name, cell, code, units, arrays, numbers, shared, body)


@functools.cache
def gradient_kernel(cell: Cell, of_cells: bool, code: str, units: int) -> Kernel:
    """Return the kernel of the gradient of all time steps of a cell.

    Its parameters: the packed array, weights, lengths of sequences, the gradient of the states (or
    cells), that of the inputs' products; elements to the next model and row of lengths, model, time
    step, row and column of the gradient of states, and model of that of products, of which the last
    time step is that of the first state and cell if the number `starts_` is not 0; and those of
    `_kernel`.
    """
    formula, wide = BACKWARD[cell.name, of_cells], cell.products * units
    product, parts = _product("through_", wide, units, code)
    scalars = formula.scalars[1:-2]  # between the product, and length and time step
    addresses = {"dy": "p_dy[m_ * dy_m_ + t_ * dy_t_ + b_ * dy_b_ + u_ * dy_1_]"}
    of_gates = scalars[1 : 1 + cell.gates]
    for i, name in enumerate(of_gates):
        place = f"(t_ * batch_ + b_) * {cell.gates * units} + {i * units} + u_"
        addresses[name] = f"gates_[{place}]"
    addresses |= {
        "y": f"states_[{_at(AFTER, units)}]",
        "h": f"states_[{_at(BEFORE, units)}]",
        "c": f"cells_[{_at(AFTER, units)}]",
        "before": f"cells_[{_at(BEFORE, units)}]",
    }
    loads = [f"ahead_[k_][{i}] = {addresses[name]};" for i, name in enumerate(scalars)]
    carried = {"dh": "dh_[k_]", "dc": "dc_[k_]"}
    of_product = _sum_of_parts(parts, units, "u_")
    lines = [f"const A {name} = ahead_[k_][{i}];" for i, name in enumerate(scalars)]
    lines += [f"A {name}{f' = {carried[name]}' if name in carried else ''};"
              for name in formula.rows]  # fmt: skip
    lines += [
        "const A t = (A)t_, length = p_lengths[m_ * lengths_m_ + b_ * lengths_b_];",
        f"A product = A(0);\n                if (s_ > 0) product = {of_product};",
        *_statements(formula),
    ]
    written = formula.rows[: cell.products]
    # What goes through the weights differs from the gradient of the products for a GRU alone.
    through = formula.rows[cell.products : 2 * cell.products] if cell.name == "gru" else written
    for i, (mine, passed) in enumerate(zip(written, through, strict=True)):
        lines += [
            f"dx_[(t_ * batch_ + b_) * {wide} + {i * units} + u_] = {mine};",
            f"through_[{i * units} + u_].of[r_] = {passed};",
        ]
    lines += [f"{carried[name]} = {name};" for name in formula.rows if name in carried]
    start = [f"dx_[(steps_ * batch_ + b_) * {wide} + u_] = dh_[k_] + ({of_product});"]
    if cell.has_cell:
        start += [f"dx_[(steps_ * batch_ + b_) * {wide} + {units} + u_] = dc_[k_];"]
    each = -(-ROWS * units // THREADS)
    body = f"""A* dx_ = p_dx + m_ * dx_m_;
        A dh_[{each}] = {{}}{f", dc_[{each}] = {{}}" if cell.has_cell else ""};
        for (int e_ = threadIdx.x; e_ < {ROWS * wide}; e_ += {THREADS})
            through_[e_ / {ROWS}].of[e_ % {ROWS}] = A(0);
        for (long long s_ = 0; s_ < steps_; ++s_) {{
            const long long t_ = reverse_ ? s_ : steps_ - 1 - s_;
            A ahead_[{each}][{len(scalars)}];
            {_each_element(units, *loads)}
            __syncthreads();
            if (s_ > 0) {{
            {product}
            }}
            {_each_element(units, *lines)}
        }}
        if (starts_) {{
            __syncthreads();
            {product}
            {_each_element(units, *start)}
        }}"""
    shared = f"__shared__ Rows through_[{wide}];\n    "
    shared += f"alignas({LOAD_BYTES}) __shared__ A sums_[{parts * ROWS * units}];"
    numbers = "lengths_m_ lengths_b_ dy_m_ dy_t_ dy_b_ dy_1_ dx_m_ starts_"
    name = f"{cell.name}_gradient{'_of_cells' if of_cells else ''}__{code}_{units}"
    return _kernel(name, cell, code, units, "packed weights lengths dy =dx", numbers, shared, body)


def _steps(*arrays: tuple[Any, int]) -> list[int]:
    """Return the strides of arrays in elements, with 0 for the axis of models that one lacks.

    Each comes with its number of axes for one model.
    """
    steps: list[int] = []
    for x, ndim in arrays:
        steps += [*(0,) * (ndim + 1 - x.ndim), *element_strides(x)]
    return steps


def _launch(
    launcher: Launcher, kernel: Kernel, recurrence: Recurrence, arrays: Any, numbers: list[int]
) -> None:
    packed = recurrence.packed
    models = packed.shape[0] if packed.ndim == 4 else 1
    batch = packed.shape[-2]
    numbers += [_steps((packed, 3))[0], models, batch, recurrence.steps, int(recurrence.reverse)]
    blocks = models * -(-batch // ROWS)
    launcher.launch(kernel, blocks, [*arrays, *map(np.int64, numbers)], joins=False)


def forward(
    launcher: Launcher,
    recurrence: Recurrence,
    inputs: Any,
    bias: Any,
    hidden_bias: Any,
    transposed: Any,
) -> None:
    """Launch the kernel of a recurrence; the weights are in `transposed`."""
    lengths = recurrence.lengths
    kernel = forward_kernel(recurrence.cell, code_of(inputs.dtype), recurrence.units)
    numbers = _steps((inputs, 3), (bias, 1), (hidden_bias, 1), (lengths, 1))
    numbers.append(_steps((transposed, 2))[0])
    arrays = (inputs, bias, hidden_bias, transposed, lengths, recurrence.packed)
    _launch(launcher, kernel, recurrence, arrays, numbers)


def gradient(
    launcher: Launcher, recurrence: Recurrence, gradients: GradientArrays, weight: Any
) -> None:
    """Launch the kernel of the gradient of a recurrence, with its weights where `is_aligned`."""
    dy, dx, lengths = gradients.outputs, gradients.products, recurrence.lengths
    cell, code = recurrence.cell, code_of(dx.dtype)
    kernel = gradient_kernel(cell, gradients.of_cells, code, recurrence.units)
    numbers = [*_steps((lengths, 1), (dy, 3)), _steps((dx, 3))[0]]
    numbers += [int(dx.shape[-3] > recurrence.steps), _steps((weight, 2))[0]]
    arrays = (recurrence.packed, weight, lengths, dy, dx)
    _launch(launcher, kernel, recurrence, arrays, numbers)
