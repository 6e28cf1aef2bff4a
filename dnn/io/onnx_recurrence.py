"""Recurrent operators of ONNX: RNN, GRU and LSTM, in both directions, from any first states.

Usual cells are those of `dnn.graph.recurrent`. Cells with other activations, peepholes, limits or
another reset gate are written out, time step by time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.errors import ShapeError
from dnn.graph import operations as graph
from dnn.graph.node import Node, constant
from dnn.io.onnx_elementwise import OF_ONE_VALUE
from dnn.io.onnx_export import GATES
from dnn.io.onnx_trace import Call, operator

__all__: list[str] = []

_USUAL = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}

_Function = Callable[[Node], Node]
_OF_CELLS: dict[str, Callable[[Node, Callable[..., Any]], Node]] = {
    "affine": lambda x, get: x * get("alpha", 1.0) + get("beta", 0.0),
    "scaledtanh": lambda x, get: graph.tanh(x * get("beta", 1.0)) * get("alpha", 1.0),
    **{kind.lower(): function for kind, function in OF_ONE_VALUE.items()},
}
_WITH_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh")
_WITH_BETA = ("affine", "hardsigmoid", "scaledtanh")


class _Direction(NamedTuple):
    """One direction of a recurrent node: its weights with their gates in the order of ONNX."""

    kind: str
    weight: Node
    hidden_weight: Node
    bias: Node
    hidden_bias: Node
    first: Node | None
    first_cell: Node | None
    peepholes: Node | None
    reverse: bool


@operator("RNN", "GRU", "LSTM")
def _recurrent(call: Call) -> tuple[Node, ...]:
    kind = call.kind
    x = call.node(0)
    by_sample = bool(call.get("layout", 0))
    x = graph.transpose(x, (1, 0, 2)) if by_sample else x
    direction = call.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"direction = {direction!r}")
    count = 2 if direction == "bidirectional" else 1
    weights, hidden = call.node(1), call.node(2)
    wide, units = hidden.shape[-2:]
    if weights.shape[0] != count or int(call.get("hidden_size", units)) != units:
        raise ShapeError("recurrent", f"weights {weights.shape} for {count} directions")
    bias = call.node(3) if call.has(3) else constant(np.zeros((count, 2 * wide)), x.dtype)
    lengths = _lengths(call, x.shape[0])
    first, cell = (_first(call, index, by_sample) for index in (5, 6))
    found = []
    for k in range(count):
        way = _Direction(
            kind,
            weights[k],
            hidden[k],
            bias[k, :wide],
            bias[k, wide:],
            None if first is None else first[k],
            None if cell is None else cell[k],
            call.node(7)[k] if kind == "LSTM" and call.has(7) else None,
            direction == "reverse" or k == 1,
        )
        found.append(_run(call, way, x, lengths, k))
    states, last, *cells = ([each[i] for each in found] for i in range(len(found[0])))
    y = graph.stack(states, 1)
    ends = [graph.stack(each, 0) for each in (last, *cells)]
    if by_sample:
        y = graph.transpose(y, (2, 0, 1, 3))
        ends = [graph.transpose(each, (1, 0, 2)) for each in ends]
    return y, *ends


def _lengths(call: Call, steps: int) -> Node | None:
    """Return the lengths of sequences; None if all have all time steps."""
    if not call.has(4) or (call.is_known(4) and (call.known(4) == steps).all()):
        return None
    return call.node(4, trained=False)


def _first(call: Call, index: int, by_sample: bool) -> Node | None:
    if not call.has(index) or (call.is_known(index) and not call.known(index).any()):
        return None
    first = call.node(index)
    return graph.transpose(first, (1, 0, 2)) if by_sample else first


def _in_order(weights: Node, kind: str) -> Node:
    """Return weights with their gates in the order of `dnn.graph.recurrent`."""
    order = np.argsort(GATES[kind])
    units = weights.shape[0] // len(order)
    parts = [weights[i * units : (i + 1) * units] for i in order]
    return parts[0] if len(parts) == 1 else graph.concat(parts, 0)


def _run(call: Call, way: _Direction, x: Node, lengths: Node | None, k: int) -> tuple[Node, ...]:
    """Return states, last state and, of an LSTM, last cell of a direction."""
    names, functions = _activations(call, way.kind, k)
    cell = {"GRU": "gru", "LSTM": "lstm"}.get(way.kind, names[0])
    is_usual = names == _USUAL[way.kind] or (way.kind == "RNN" and cell == "relu")
    is_other_gru = way.kind == "GRU" and not call.get("linear_before_reset", 0)
    is_other = is_other_gru or "clip" in call.attributes or call.get("input_forget", 0)
    if not is_usual or is_other or way.peepholes is not None:
        return _by_step(call, way, x, lengths, functions)
    found = graph.recurrent(
        x,
        *(_in_order(each, way.kind) for each in way[1:5]),
        cell=cell,
        lengths=lengths,
        first=way.first,
        first_cell=way.first_cell,
        reverse=way.reverse,
    )
    return tuple(each for each in found if each is not None)


def _activations(call: Call, kind: str, k: int) -> tuple[list[str], list[_Function]]:
    """Return names and functions of a direction; parameters are of those that take any, in turn."""
    count, limit = len(_USUAL[kind]), call.get("clip")
    given = [each.lower() for each in call.get("activations", _USUAL[kind] * (k + 1))]
    alphas, betas = (iter(call.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    functions: list[_Function] = []
    for name in given:
        if name not in _OF_CELLS:
            call.refuse(f"activation {name!r} is not supported")
        own = {"alpha": next(alphas, None)} if name in _WITH_ALPHA else {}
        own |= {"beta": next(betas, None)} if name in _WITH_BETA else {}
        found = {name: value for name, value in own.items() if value is not None}

        def function(x: Node, of: Any = _OF_CELLS[name], found: Any = found) -> Node:
            y: Node = of(x if limit is None else graph.clip(x, -limit, limit), found.get)
            return y

        functions.append(function)
    return given[k * count :][:count], functions[k * count :][:count]


def _by_step(
    call: Call, way: _Direction, x: Node, lengths: Node | None, functions: Sequence[_Function]
) -> tuple[Node, ...]:
    """Return the results of any cell, written out for each time step."""
    steps, batch, _ = x.shape
    units = way.hidden_weight.shape[-1]

    def gate(values: Node, i: int) -> Node:
        return values[..., i * units : (i + 1) * units]

    zero = constant(np.zeros((batch, units)), x.dtype)
    h = zero if way.first is None else way.first
    c = zero if way.first_cell is None else way.first_cell
    peephole: Any = [None] * 3
    if way.peepholes is not None:
        peephole = [gate(way.peepholes, i) for i in range(3)]
    of_inputs = graph.dot(x, graph.transpose(way.weight)) + way.bias
    states: dict[int, Node] = {}
    for t in range(steps)[:: -1 if way.reverse else 1]:
        from_x, before = of_inputs[t], (h, c)
        if way.kind == "GRU":
            h = _gru_step(call, way, from_x, h, functions, gate)
        else:
            z = from_x + h @ graph.transpose(way.hidden_weight) + way.hidden_bias
            if way.kind == "RNN":
                h = functions[0](z)
            else:
                h, c = _lstm_step(call, z, c, peephole, functions, gate)
        states[t] = h
        if lengths is not None:
            ends = graph.expand_dims(graph.cast(lengths, np.int64), -1)
            inside = graph.greater(ends, constant(t, np.int64))
            h, c = graph.where(inside, h, before[0]), graph.where(inside, c, before[1])
            states[t] = graph.where(inside, h, zero)
    y = graph.stack([states[t] for t in range(steps)], 0)
    return (y, h, c) if way.kind == "LSTM" else (y, h)


def _gru_step(call: Call, way: _Direction, x: Node, h: Node, functions: Any, gate: Any) -> Node:
    """Return the next state of a GRU, whose gates are update, reset and new."""
    weights = [gate(graph.transpose(way.hidden_weight), i) for i in range(3)]
    biases = [gate(way.hidden_bias, i) for i in range(3)]
    update = functions[0](gate(x, 0) + h @ weights[0] + biases[0])
    reset = functions[0](gate(x, 1) + h @ weights[1] + biases[1])
    if call.get("linear_before_reset", 0):
        new = functions[1](gate(x, 2) + reset * (h @ weights[2] + biases[2]))
    else:
        new = functions[1](gate(x, 2) + (reset * h) @ weights[2] + biases[2])
    state: Node = (1.0 - update) * new + update * h
    return state


def _lstm_step(
    call: Call, z: Node, c: Node, peephole: Any, functions: Any, gate: Any
) -> tuple[Node, Node]:
    """Return the next state and cell of an LSTM, whose gates are input, output, forget and new."""

    def seen(i: int, cell: Node) -> Node:
        value: Node = gate(z, i)
        return value if peephole[i] is None else value + peephole[i] * cell

    enter = functions[0](seen(0, c))
    keep = 1.0 - enter if call.get("input_forget", 0) else functions[0](seen(2, c))
    cell = keep * c + enter * functions[1](gate(z, 3))
    state: Node = functions[0](seen(1, cell)) * functions[2](cell)
    return state, cell
