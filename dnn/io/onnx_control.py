"""Operators of ONNX with graphs among their attributes: If, and Loop and Scan, written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.graph import operations as graph
from dnn.graph.node import Node
from dnn.io.onnx_file import node_name
from dnn.io.onnx_shapes import take
from dnn.io.onnx_trace import LARGEST_BY_VALUE, Call, UnknownValue, Value, operator

__all__: list[str] = []

MOST_STEPS = 100_000
"""Most nodes of ONNX that a loop may be written out to."""


def _node(call: Call, value: Value) -> Node:
    if isinstance(value, Node):
        return value
    return call.trace.leaves.node("", value, trained=False)


@operator("If")
def _branch(call: Call) -> Sequence[Value]:
    """Return the results of the branch that is taken, or choose from those of both."""
    follow, graphs = call.trace.graph, [call.get(name) for name in ("then_branch", "else_branch")]
    if call.is_known(0):
        return follow(graphs[0 if call.known(0).any() else 1], {}, call.values)
    condition = call.node(0)
    unknown = UnknownValue([condition], f"{node_name(call.onnx_node)}: which branch is taken")
    if all(each.size <= LARGEST_BY_VALUE for each in unknown.inputs):
        raise unknown
    pairs = list(zip(*(follow(each, {}, call.values) for each in graphs), strict=True))
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        call.refuse("its branches have results of different shapes, and values decide which")
    is_true = graph.reshape(condition, ())
    return [graph.where(is_true, _node(call, a), _node(call, b)) for a, b in pairs]


def _stacked(call: Call, parts: Sequence[Value], axis: int) -> Value:
    """Return the results of all steps along an axis."""
    known = [each for each in parts if isinstance(each, np.ndarray)]
    if len(known) == len(parts):
        return np.stack(known, axis)
    return graph.stack([_node(call, each) for each in parts], axis)


def _check_steps(call: Call, steps: int, body: Any) -> None:
    if steps * max(1, len(body.node)) > MOST_STEPS:
        call.refuse(f"{steps} steps of {len(body.node)} nodes, more than are written out")


@operator("Loop")
def _loop(call: Call) -> Sequence[Value | None]:
    """Return the last states and all results of a loop, whose end has to be known."""
    body, states = call.get("body"), list(call.inputs[2:])
    most = int(call.known(0).item()) if call.has(0) else MOST_STEPS
    goes_on = not call.has(1) or bool(call.known(1).any())
    names = [each.name for each in body.input]
    rows: list[list[Value]] = []
    while goes_on and len(rows) < most:
        _check_steps(call, len(rows), body)
        first = [np.array(len(rows), np.int64), np.array(True)]
        given = dict(zip(names, [*first, *states], strict=True))
        condition, *results = call.trace.graph(body, given, call.values)
        if isinstance(condition, Node):
            message = "whether it goes on must be known when a plan is compiled"
            raise UnknownValue([condition], f"{node_name(call.onnx_node)}: {message}")
        goes_on = bool(condition.any())
        states, rest = results[: len(states)], results[len(states) :]
        rows.append(rest)
    if not rows and len(call.results) > len(states):
        call.refuse("no step, so that its results have no shape")
    return [*states, *(_stacked(call, parts, 0) for parts in zip(*rows, strict=True))]


@operator("Scan")
def _scan(call: Call) -> Sequence[Value]:
    """Return the last states and all results of steps over sequences."""
    body, count = call.get("body"), int(call.get("num_scan_inputs"))
    states, sequences = list(call.inputs[:-count]), list(call.inputs[-count:])
    outputs = len(body.output) - len(states)
    if call.opset < 9:
        call.refuse("before opset 9 it is not supported")

    def settings(name: str, length: int) -> list[int]:
        return list(call.get(name, [0] * length))

    axes, backward = settings("scan_input_axes", count), settings("scan_input_directions", count)
    steps = sequences[0].shape[axes[0]]
    _check_steps(call, steps, body)
    names = [each.name for each in body.input]
    rows: list[list[Value]] = []
    for t in range(steps):
        places = [np.array(steps - 1 - t if turned else t) for turned in backward]
        parts = [
            take(x, at, axis % x.ndim) if isinstance(x, Node) else np.take(x, at, axis)
            for x, at, axis in zip(sequences, places, axes, strict=True)
        ]
        results = call.trace.graph(
            body, dict(zip(names, [*states, *parts], strict=True)), call.values
        )
        states, rest = results[: len(states)], results[len(states) :]
        rows.append(rest)
    turned, along = (settings(f"scan_output_{name}", outputs) for name in ("directions", "axes"))
    columns = [list(each) for each in zip(*rows, strict=True)]
    return [
        *states,
        *(
            _stacked(call, each[::-1] if back else each, axis)
            for each, back, axis in zip(columns, turned, along, strict=True)
        ),
    ]
