"""Loops of recurrent cells over the rows of a batch, in one time step: all but the products.

`recurrence` writes the kernels that call them, for all time steps.
"""

from __future__ import annotations

from typing import Any

from dnn.backend.cpu.kernels import loop
from dnn.backend.ops import Array

__all__ = [
    "added",
    "added_rows",
    "copied",
    "copy_rows",
    "fill_rows",
    "filled",
    "gate_gradient",
    "gru_gradient_rows",
    "gru_rows",
    "lstm_gradient_rows",
    "lstm_rows",
    "multiplied",
    "product",
    "relu_gradient_rows",
    "relu_rows",
    "sigmoid_of_sum",
    "tanh_gradient_rows",
    "tanh_of_sum",
    "tanh_rows",
]

# Lengths of sequences are `gap` elements apart, since they may be a column of the samples.
#
# Each loop runs over one-dimensional parts of arrays from 0 on, since LLVM has to see that no index
# is negative, and has one result and few operands: it compares the addresses of all of them before
# it makes vector code, and gives up where there are too many.


@loop()
def sigmoid_of_sum(y: Array, x: Array, bias: Array, hidden_bias: Array, sigmoid: Any) -> None:
    """``y = sigmoid(x + bias + y + hidden_bias)``."""
    for j in range(y.size):
        y[j] = sigmoid((x[j] + bias[j]) + (y[j] + hidden_bias[j]))


@loop()
def tanh_of_sum(y: Array, x: Array, bias: Array, hidden_bias: Array, tanh: Any) -> None:
    """``y = tanh(x + bias + y + hidden_bias)``."""
    for j in range(y.size):
        y[j] = tanh((x[j] + bias[j]) + (y[j] + hidden_bias[j]))


@loop()
def copied(x: Array, out: Array) -> None:
    """``out = x``."""
    for j in range(out.size):
        out[j] = x[j]


@loop()
def filled(value: float, out: Array) -> None:
    """Set all elements of `out`."""
    for j in range(out.size):
        out[j] = value


@loop()
def multiplied(x: Array, out: Array) -> None:
    """``out *= x``."""
    for j in range(out.size):
        out[j] *= x[j]


@loop()
def product(x: Array, y: Array, out: Array) -> None:
    """``out = x y``."""
    for j in range(out.size):
        out[j] = x[j] * y[j]


@loop()
def gate_gradient(d: Array, x: Array, y: Array, out: Array) -> None:
    """``out = d x (y (1 - y))``, where y is a value of the logistic function."""
    one = y.dtype.type(1)
    for j in range(out.size):
        out[j] = d[j] * x[j] * (y[j] * (one - y[j]))


@loop()
def lstm_rows(
    gates: Array, x: Array, bias: Array, hidden_bias: Array, c: Array, c_after: Array, h: Array,
    h_after: Array, lengths: Array, gap: int, t: int, part: Any, sigmoid: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute a time step of an LSTM from the product of states and weights, in `gates`."""
    rows, n = h.shape
    for b in range(rows):
        before, after = part(c, b * n, n), part(c_after, b * n, n)
        state, state_after = part(h, b * n, n), part(h_after, b * n, n)
        if lengths[b * gap] <= t:
            copied(before, after)
            copied(state, state_after)
            continue
        at = 4 * b * n
        sigmoid_of_sum(
            part(gates, at, 2 * n), part(x, at, 2 * n), part(bias, 0, 2 * n),
            part(hidden_bias, 0, 2 * n), sigmoid,
        )  # fmt: skip
        tanh_of_sum(
            part(gates, at + 2 * n, n), part(x, at + 2 * n, n), part(bias, 2 * n, n),
            part(hidden_bias, 2 * n, n), tanh,
        )  # fmt: skip
        sigmoid_of_sum(
            part(gates, at + 3 * n, n), part(x, at + 3 * n, n), part(bias, 3 * n, n),
            part(hidden_bias, 3 * n, n), sigmoid,
        )  # fmt: skip
        i, f = part(gates, at, n), part(gates, at + n, n)
        g, o = part(gates, at + 2 * n, n), part(gates, at + 3 * n, n)
        for j in range(n):
            after[j] = f[j] * before[j] + i[j] * g[j]
        for j in range(n):
            state_after[j] = o[j] * tanh(after[j])


@loop()
def gru_rows(
    gates: Array, x: Array, bias: Array, hidden_bias: Array, c: Array, c_after: Array, h: Array,
    h_after: Array, lengths: Array, gap: int, t: int, part: Any, sigmoid: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute a time step of a GRU from the product of states and weights, in `gates`."""
    rows, n = h.shape
    one = h.dtype.type(1)
    for b in range(rows):
        state, state_after = part(h, b * n, n), part(h_after, b * n, n)
        if lengths[b * gap] <= t:
            copied(state, state_after)
            continue
        at = 4 * b * n
        reset, update = part(gates, at, n), part(gates, at + n, n)
        new, scaled = part(gates, at + 2 * n, n), part(gates, at + 3 * n, n)
        sigmoid_of_sum(
            part(gates, at, 2 * n), part(x, 3 * b * n, 2 * n), part(bias, 0, 2 * n),
            part(hidden_bias, 0, 2 * n), sigmoid,
        )  # fmt: skip
        of_hidden = part(hidden_bias, 2 * n, n)
        for j in range(n):
            scaled[j] = new[j] + of_hidden[j]
        of_input, of_bias = part(x, 3 * b * n + 2 * n, n), part(bias, 2 * n, n)
        for j in range(n):
            new[j] = (of_input[j] + of_bias[j]) + reset[j] * scaled[j]
        for j in range(n):
            new[j] = tanh(new[j])
        for j in range(n):
            state_after[j] = (one - update[j]) * new[j] + update[j] * state[j]


@loop()
def tanh_rows(
    gates: Array, x: Array, bias: Array, hidden_bias: Array, c: Array, c_after: Array, h: Array,
    h_after: Array, lengths: Array, gap: int, t: int, part: Any, sigmoid: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute a time step of a tanh cell from the product of states and weights, in `h_after`."""
    rows, n = h.shape
    for b in range(rows):
        after = part(h_after, b * n, n)
        if lengths[b * gap] > t:
            tanh_of_sum(after, part(x, b * n, n), bias, hidden_bias, tanh)
        else:
            copied(part(h, b * n, n), after)


@loop()
def relu_rows(
    gates: Array, x: Array, bias: Array, hidden_bias: Array, c: Array, c_after: Array, h: Array,
    h_after: Array, lengths: Array, gap: int, t: int, part: Any, sigmoid: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute a time step of a ReLU cell from the product of states and weights, in `h_after`."""
    rows, n = h.shape
    zero = h.dtype.type(0)
    for b in range(rows):
        after, given = part(h_after, b * n, n), part(x, b * n, n)
        if lengths[b * gap] > t:
            for j in range(n):
                y = (given[j] + bias[j]) + (after[j] + hidden_bias[j])
                after[j] = zero if y < zero else y  # NaN stays
        else:
            copied(part(h, b * n, n), after)


@loop()
def lstm_gradient_rows(
    gates: Array, c: Array, c_after: Array, h: Array, h_after: Array, dx: Array, dh: Array,
    dc: Array, space: Array, hidden: Array, lengths: Array, gap: int, t: int, part: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute the gradient of a time step of an LSTM but the product that is added to `dh`."""
    rows, n = h.shape
    zero, one = h.dtype.type(0), h.dtype.type(1)
    for b in range(rows):
        at = 4 * b * n
        if lengths[b * gap] <= t:
            filled(zero, part(dx, at, 4 * n))
            continue
        i, f = part(gates, at, n), part(gates, at + n, n)
        g, o = part(gates, at + 2 * n, n), part(gates, at + 3 * n, n)
        before, after = part(c, b * n, n), part(c_after, b * n, n)
        d_state, d_cell, s = part(dh, b * n, n), part(dc, b * n, n), part(space, b * n, n)
        for j in range(n):
            s[j] = tanh(after[j])
        gate_gradient(d_state, s, o, part(dx, at + 3 * n, n))
        for j in range(n):
            d_cell[j] += d_state[j] * o[j] * (one - s[j] * s[j])
        filled(zero, d_state)
        gate_gradient(d_cell, g, i, part(dx, at, n))
        gate_gradient(d_cell, before, f, part(dx, at + n, n))
        of_new = part(dx, at + 2 * n, n)
        for j in range(n):
            of_new[j] = d_cell[j] * i[j] * (one - g[j] * g[j])
        multiplied(f, d_cell)


@loop()
def gru_gradient_rows(
    gates: Array, c: Array, c_after: Array, h: Array, h_after: Array, dx: Array, dh: Array,
    dc: Array, space: Array, hidden: Array, lengths: Array, gap: int, t: int, part: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute the gradient of a time step of a GRU but the product that is added to `dh`."""
    rows, n = h.shape
    zero, one = h.dtype.type(0), h.dtype.type(1)
    for b in range(rows):
        if lengths[b * gap] <= t:
            filled(zero, part(dx, 3 * b * n, 3 * n))
            filled(zero, part(hidden, 3 * b * n, 3 * n))
            continue
        reset, update = part(gates, 4 * b * n, n), part(gates, 4 * b * n + n, n)
        new, scaled = part(gates, 4 * b * n + 2 * n, n), part(gates, 4 * b * n + 3 * n, n)
        state, d_state = part(h, b * n, n), part(dh, b * n, n)
        d_new, d_update = part(dx, 3 * b * n + 2 * n, n), part(dx, 3 * b * n + n, n)
        for j in range(n):
            d_new[j] = d_state[j] * (one - update[j]) * (one - new[j] * new[j])
        for j in range(n):
            d_update[j] = d_state[j] * (state[j] - new[j]) * (update[j] * (one - update[j]))
        gate_gradient(d_new, scaled, reset, part(dx, 3 * b * n, n))
        copied(part(dx, 3 * b * n, 2 * n), part(hidden, 3 * b * n, 2 * n))
        product(d_new, reset, part(hidden, 3 * b * n + 2 * n, n))
        multiplied(update, d_state)


@loop()
def tanh_gradient_rows(
    gates: Array, c: Array, c_after: Array, h: Array, h_after: Array, dx: Array, dh: Array,
    dc: Array, space: Array, hidden: Array, lengths: Array, gap: int, t: int, part: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute the gradient of a time step but the product that is added to `dh`."""
    rows, n = h.shape
    zero, one = h.dtype.type(0), h.dtype.type(1)
    for b in range(rows):
        y, d, out = part(h_after, b * n, n), part(dh, b * n, n), part(dx, b * n, n)
        if lengths[b * gap] > t:
            for j in range(n):
                out[j] = d[j] * (one - y[j] * y[j])
            filled(zero, d)
        else:
            filled(zero, out)


@loop()
def relu_gradient_rows(
    gates: Array, c: Array, c_after: Array, h: Array, h_after: Array, dx: Array, dh: Array,
    dc: Array, space: Array, hidden: Array, lengths: Array, gap: int, t: int, part: Any, tanh: Any,
) -> None:  # fmt: skip
    """Compute the gradient of a time step but the product that is added to `dh`."""
    rows, n = h.shape
    zero = h.dtype.type(0)
    for b in range(rows):
        y, d, out = part(h_after, b * n, n), part(dh, b * n, n), part(dx, b * n, n)
        if lengths[b * gap] > t:
            for j in range(n):
                out[j] = d[j] if y[j] > zero else zero
            filled(zero, d)
        else:
            filled(zero, out)


@loop()
def added(x: Array, out: Array) -> None:
    """``out += x``."""
    for j in range(out.size):
        out[j] += x[j]


@loop()
def added_rows(x: Array, out: Array) -> None:
    """``out += x``."""
    for b in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[b, j] += x[b, j]


@loop()
def fill_rows(value: float, out: Array) -> None:
    """Set all elements of `out`."""
    for b in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[b, j] = value


@loop()
def copy_rows(x: Array, out: Array, first: int) -> None:
    """Copy x to the columns of `out` from the `first` on."""
    for b in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[b, first + j] = x[b, j]
