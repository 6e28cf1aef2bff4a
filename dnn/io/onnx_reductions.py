"""Operators of ONNX that reduce, normalise or multiply matrices, also of quantised values."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnn.graph import operations as graph
from dnn.graph.node import Node, constant
from dnn.graph.operation import apply
from dnn.io.onnx_elementwise import binary, rounded
from dnn.io.onnx_trace import OPERATORS, Call, Value, is_usual, operator

__all__ = ["by_channel", "part_along", "repeated", "requantised", "shifted"]

# -- reductions ------------------------------------------------------------------------------------


def _log_sum_exp(x: Node, axes: Sequence[int], keepdims: bool) -> Node:
    largest = graph.max(x, axes, keepdims=True)
    finite = graph.where(graph.equal(largest - largest, largest * 0.0), largest, largest * 0.0)
    total = graph.log(graph.sum(graph.exp(x - finite), axes, keepdims=True)) + finite
    return total if keepdims else graph.squeeze(total, list(axes))


def _mean(x: Node, axes: Sequence[int], keepdims: bool) -> Node:
    if x.dtype.kind == "f":
        return graph.mean(x, axes, keepdims=keepdims)
    count = math.prod(x.shape[i] for i in axes)
    total = graph.sum(graph.cast(x, np.float64), axes, keepdims=keepdims)
    return graph.cast(total * (1.0 / count), x.dtype)


_Reduction = Callable[[Node, Sequence[int], bool], Node]
_REDUCTIONS: dict[str, _Reduction] = {
    "ReduceL1": lambda x, axes, keep: graph.sum(abs(x), axes, keepdims=keep),
    "ReduceL2": lambda x, axes, keep: graph.sqrt(graph.sum(x * x, axes, keepdims=keep)),
    "ReduceLogSum": lambda x, axes, keep: graph.log(graph.sum(x, axes, keepdims=keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": lambda x, axes, keep: graph.max(x, axes, keepdims=keep),
    "ReduceMean": _mean,
    "ReduceMin": lambda x, axes, keep: graph.min(x, axes, keepdims=keep),
    "ReduceProd": lambda x, axes, keep: graph.prod(x, axes, keepdims=keep),
    "ReduceSum": lambda x, axes, keep: graph.sum(x, axes, keepdims=keep),
    "ReduceSumSquare": lambda x, axes, keep: graph.sum(x * x, axes, keepdims=keep),
}


def _reduction(function: _Reduction) -> Callable[[Call], Node]:
    def reduced(call: Call) -> Node:
        x, axes = call.node(), call.integers("axes", 1)
        if not axes and call.get("noop_with_empty_axes", 0):
            return x
        where = [n % x.ndim for n in axes] if axes else list(range(x.ndim))
        return function(x, sorted(where), bool(call.get("keepdims", 1)))

    return reduced


OPERATORS.update({kind: _reduction(function) for kind, function in _REDUCTIONS.items()})


@operator("ArgMax", "ArgMin")
def _arg_extreme(call: Call) -> Node:
    x, axis = call.node(), call.axis(0)
    if call.kind == "ArgMin":
        x = -graph.cast(x, np.int64 if x.dtype.kind in "ub" else x.dtype)
    last = call.get("select_last_index", 0)
    if last:
        x = part_along(x, axis, slice(None, None, -1))
    at = graph.argmax(x, axis)
    at = x.shape[axis] - 1 - at if last else at
    return graph.expand_dims(at, axis) if call.get("keepdims", 1) else at


def part_along(x: Node, axis: int, key: Any) -> Node:
    """Return a part of `x` along an axis."""
    return x[tuple(key if i == axis else slice(None) for i in range(axis + 1))]


def along_last(x: Node, axis: int, function: Callable[[Node], Node]) -> Node:
    """Return a function of the last axis, of another one."""
    if axis == x.ndim - 1:
        return function(x)
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    back = [order.index(i) for i in range(x.ndim)]
    return graph.transpose(function(graph.transpose(x, order)), back)


def _hardmax(x: Node) -> Node:
    return graph.one_hot(graph.argmax(x, -1), x.shape[-1], x.dtype)


def _by_class(function: Callable[[Node], Node]) -> Callable[[Call], Node]:
    """Return the function of an operator over an axis; before opset 13, all from that on."""

    def over_axis(call: Call) -> Node:
        x = call.node()
        if call.opset >= 13:
            return along_last(x, call.axis(-1), function)
        axis = call.axis(1) if x.ndim > 1 else 0
        rows = math.prod(x.shape[:axis])
        return graph.reshape(function(graph.reshape(x, (rows, x.size // rows))), x.shape)

    return over_axis


OPERATORS["Softmax"] = _by_class(graph.softmax)
OPERATORS["LogSoftmax"] = _by_class(graph.log_softmax)
OPERATORS["Hardmax"] = _by_class(_hardmax)


@operator("CumSum")
def _cumulative_sum(call: Call) -> Node:
    x, axis = call.node(), int(call.known(1).item())
    n = x.shape[axis]
    kept = np.tril(np.ones((n, n)), -1 if call.get("exclusive", 0) else 0)
    kept = kept[::-1, ::-1] if call.get("reverse", 0) else kept
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    matrix = constant(kept.T, dtype)

    def summed(part: Node) -> Node:
        return graph.cast(graph.dot(graph.cast(part, dtype), matrix), x.dtype)

    return along_last(x, axis % x.ndim, summed)


# -- normalisation ---------------------------------------------------------------------------------


def by_channel(values: Node, ndim: int) -> Node:
    """Return one number for each channel in a shape that broadcasts with a value of images."""
    return graph.reshape(values, (-1, *(1,) * (ndim - 2))) if ndim > 1 else values


@operator("BatchNormalization")
def _batch_norm(call: Call) -> tuple[Node, ...]:
    x, scale, shift = (call.node(i) for i in range(3))
    mean, variance = (call.node(i, trained=False) for i in (3, 4))
    rest: tuple[Node, ...] = ()
    if call.get("training_mode", 0):
        axes = [i for i in range(x.ndim) if i != 1]
        momentum = call.get("momentum", 0.9)
        now = graph.mean(x, axes)
        spread = graph.mean(graph.square(x - by_channel(now, x.ndim)), axes)
        rest = (mean * momentum + now * (1 - momentum),)
        rest += (variance * momentum + spread * (1 - momentum),)
        mean, variance = now, spread
    factor = scale / graph.sqrt(variance + call.get("epsilon", 1e-5))
    y = (x - by_channel(mean, x.ndim)) * by_channel(factor, x.ndim) + by_channel(shift, x.ndim)
    return y, *rest


@operator("InstanceNormalization")
def _instance_norm(call: Call) -> Node:
    x = call.node()
    y = graph.normalise(x, tuple(range(2, x.ndim)), call.get("epsilon", 1e-5)).values
    return y * by_channel(call.node(1), x.ndim) + by_channel(call.node(2), x.ndim)


@operator("LayerNormalization")
def _layer_norm(call: Call) -> tuple[Node, ...]:
    x, epsilon = call.node(), call.get("epsilon", 1e-5)
    axes = tuple(range(call.axis(-1), x.ndim))
    found = graph.normalise(x, axes, epsilon)
    y = found.values * call.node(1)
    y = y + call.node(2) if call.has(2) else y
    if len(call.results) == 1:
        return (y,)
    return y, found.mean, 1.0 / graph.sqrt(found.variance + epsilon)


@operator("LpNormalization")
def _lp_norm(call: Call) -> Node:
    x, axis = call.node(), call.axis(-1)
    if call.get("p", 2) == 1:
        norm = graph.sum(abs(x), axis, keepdims=True)
    else:
        norm = graph.sqrt(graph.sum(x * x, axis, keepdims=True))
    zero = constant(0.0, x.dtype)
    return graph.where(graph.equal(norm, zero), zero, x / graph.maximum(norm, 1e-30))


@operator("LRN")
def _local_response_norm(call: Call) -> Node:
    x, size = call.node(), int(call.get("size"))
    squares, channels = x * x, x.shape[1]
    before, total = (size - 1) // 2, None
    for offset in range(-before, size - before):
        first, last = max(0, offset), min(channels, channels + offset)
        if first < last:
            index = ((0, x.shape[0], 1), (first - offset, last - offset, 1))
            part = apply("unslice", squares[:, first:last], index=index, shape=x.shape)
            total = part if total is None else total + part
    assert total is not None
    base = total * (call.get("alpha", 1e-4) / size) + call.get("bias", 1.0)
    return x / graph.power(base, call.get("beta", 0.75))


# -- products --------------------------------------------------------------------------------------


def _product(a: Node, b: Node) -> Node:
    if a.dtype.kind == "f":
        if a.ndim > 2 and b.ndim == 2:  # one product takes less time than many small ones
            rows = graph.reshape(a, (a.size // a.shape[-1], a.shape[-1])) if a.size else a
            return graph.reshape(graph.dot(rows, b), (*a.shape[:-1], b.shape[-1]))
        return graph.dot(a, b)
    wide = graph.dot(graph.cast(a, np.float64), graph.cast(b, np.float64))  # exact below 2^53
    return graph.cast(wide, a.dtype)


OPERATORS["MatMul"] = binary(_product)


@operator("Gemm")
def _gemm(call: Call) -> Node:
    return graph.gemm(
        call.node(0),
        call.node(1),
        call.node(2) if call.has(2) else None,
        alpha=call.get("alpha", 1.0),
        beta=call.get("beta", 1.0),
        transpose_a=bool(call.get("transA", 0)),
        transpose_b=bool(call.get("transB", 0)),
    )


@operator("Einsum")
def _einsum(call: Call) -> Node:
    """Compute a sum of products, two values at a time."""
    text = call.get("equation").replace(" ", "")
    inputs, arrow, out = text.partition("->")
    terms = inputs.split(",")
    operands = call.nodes()
    if not arrow:
        out = "".join(sorted(x for x in set(inputs) - set(",.") if inputs.count(x) == 1))
        out = f"...{out}" if "..." in text else out
    rest = max(x.ndim - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True))
    letters = "".join(x for x in string.ascii_letters if x not in text)[:rest]
    terms, out = [each.replace("...", letters) for each in terms], out.replace("...", letters)
    if any(len(t) != x.ndim for t, x in zip(terms, operands, strict=True)):
        call.refuse(f"equation {text!r}: values of different numbers of axes are not supported")
    term, x = terms[0], operands[0]
    for number in range(1, len(terms)):
        later = set(out).union(*terms[number + 1 :])
        term, x = _contracted(term, x, terms[number], operands[number], later)
    if len(set(term)) != len(term):
        call.refuse(f"equation {text!r}: diagonals are not supported")
    summed = [i for i, letter in enumerate(term) if letter not in out]
    x = graph.sum(x, summed) if summed else x
    term = "".join(letter for letter in term if letter in out)
    return graph.transpose(x, [term.index(letter) for letter in out])


def _contracted(a: str, x: Node, b: str, y: Node, later: set[str]) -> tuple[str, Node]:
    """Return the product of two values, summed over the letters that nothing needs later."""
    both = [letter for letter in a if letter in b and letter in later]
    inner = [letter for letter in a if letter in b and letter not in later]
    left = [letter for letter in a if letter not in b]
    right = [letter for letter in b if letter not in a]
    size = dict(zip(a + b, x.shape + y.shape, strict=True))

    def arranged(term: str, value: Node, *groups: list[str]) -> Node:
        order = [term.index(letter) for group in groups for letter in group]
        lengths = [math.prod(size[letter] for letter in group) for group in groups]
        return graph.reshape(graph.transpose(value, order), lengths)

    product = graph.matmul(arranged(a, x, both, left, inner), arranged(b, y, both, inner, right))
    letters = [*both, *left, *right]
    return "".join(letters), graph.reshape(product, [size[letter] for letter in letters])


def repeated(x: Node, times: int, axis: int) -> Node:
    """Return `x` with each of its parts along an axis so often in succession."""
    before, n, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    apart = graph.reshape(x, (*before, n, 1, *behind))
    wide = graph.broadcast_to(apart, (*before, n, times, *behind))
    return graph.reshape(wide, (*before, n * times, *behind))


# -- quantised values ------------------------------------------------------------------------------


def _along(call: Call, value: Node, index: int) -> Node:
    """Return a scale or a zero point, one number or one for each slice along an axis."""
    x = call.node(0)
    if value.ndim != 1 or value.size == 1:
        return graph.reshape(value, ()) if value.size == 1 else value
    axis = call.axis(1)
    return graph.reshape(value, (-1, *(1,) * (x.ndim - 1 - axis)))


@operator("DequantizeLinear")
def _dequantised(call: Call) -> Node:
    scale = _along(call, call.node(1), 1)
    x = graph.cast(call.node(0), scale.dtype)
    if call.has(2):
        x = x - graph.cast(_along(call, call.node(2), 2), scale.dtype)
    return x * scale


def _quantised(x: Node, zero: Node, dtype: Any) -> Node:
    ends = np.iinfo(dtype)
    shifted = rounded(x) + graph.cast(zero, x.dtype)
    return graph.cast(graph.clip(shifted, float(ends.min), float(ends.max)), dtype)


@operator("QuantizeLinear")
def _quantise(call: Call) -> Node:
    if call.has(2) and not is_usual(call.inputs[2].dtype):
        call.refuse(f"its zero point is of {call.inputs[2].dtype}")
    zero = call.node(2) if call.has(2) else constant(0, np.uint8)
    x = call.node(0) / _along(call, call.node(1), 1)
    return _quantised(x, _along(call, zero, 2), zero.dtype)


def shifted(call: Call, index: int, zero: int, axis: int) -> Node:
    """Return an input of integers less its zero point, as floats that hold products exactly."""
    x = graph.cast(call.node(index), np.float64)
    if not call.has(zero):
        return x
    point = graph.cast(call.node(zero), np.float64)
    if point.ndim == 1 and point.size > 1:
        shape = [1] * x.ndim
        shape[axis] = point.size
        point = graph.reshape(point, shape)
    return x - point


@operator("MatMulInteger")
def _integer_product(call: Call) -> Value:
    a, b = shifted(call, 0, 2, -2), shifted(call, 1, 3, -1)
    return graph.cast(graph.dot(a, b), np.int32)


def requantised(y: Node, scale: Node, zero: Node) -> Node:
    """Return sums of products of integers as integers of another scale."""
    return _quantised(graph.cast(y * graph.cast(scale, y.dtype), np.float32), zero, zero.dtype)


@operator("QLinearMatMul")
def _quantised_product(call: Call) -> Node:
    y = graph.dot(shifted(call, 0, 2, -2), shifted(call, 3, 5, -1))
    return requantised(y, call.node(1) * call.node(4) / call.node(6), call.node(7))
