"""Operators of ONNX that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.graph import operations as graph
from dnn.graph.node import Node, constant
from dnn.graph.operation import apply
from dnn.io.onnx_trace import OPERATORS, Call, is_usual, operator

_Get = Callable[[str, Any], Any]
__all__ = ["ELEMENTWISE", "OF_ONE_VALUE", "binary", "floor", "rounded"]

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

# -- of one value ----------------------------------------------------------------------------------


def floor(x: Node) -> Node:
    """Return the largest integers that are not above `x`."""
    if x.dtype.kind != "f":
        return x
    whole = constant(2.0 ** np.finfo(x.dtype).nmant, x.dtype)  # from here on all are integers
    is_small = graph.greater(whole, abs(x))
    near = graph.where(is_small, x, constant(0.0, x.dtype))
    cut = graph.cast(graph.cast(near, np.int64), x.dtype)
    return graph.where(is_small, graph.where(graph.greater(cut, near), cut - 1.0, cut), x)


def rounded(x: Node) -> Node:
    """Return the nearest integers, of two the even one."""
    low = floor(x)
    part = x - low
    odd = graph.equal(floor(low * 0.5) * 2.0 + 1.0, low)
    up = graph.greater(part, constant(0.5, x.dtype))
    tie = graph.equal(part, constant(0.5, x.dtype)) * odd
    return graph.where(up + tie, low + 1.0, low)


def _not(x: Node) -> Node:
    return graph.equal(x, constant(False, bool))


def _sine(x: Node) -> Node:
    """Return the sine, computed in float64: a series after x is brought into -pi / 2 .. pi / 2."""
    wide = graph.cast(x, np.float64)
    turns = rounded(wide * (1.0 / math.pi))
    rest = wide - turns * math.pi - turns * 1.2246467991473532e-16
    square = rest * rest
    series = constant(0.0, np.float64)
    for n in range(10, 0, -1):
        series = (series + 1.0) * square * (-1.0 / (2 * n * (2 * n + 1)))
    is_odd = graph.equal(floor(turns * 0.5) * 2.0 + 1.0, turns)
    y = rest + rest * series
    return graph.cast(graph.where(is_odd, -y, y), x.dtype)


def _cosine(x: Node) -> Node:
    return graph.cast(_sine(graph.cast(x, np.float64) + math.pi / 2), x.dtype)


def _sinh(x: Node) -> Node:
    y = graph.expm1(abs(x))
    return apply("sign", x) * (y + y / (y + 1.0)) * 0.5


_UNARY: dict[str, Callable[[Node], Node]] = {
    "Abs": graph.abs,
    "Ceil": lambda x: -floor(-x) if x.dtype.kind == "f" else x,
    "Cos": _cosine,
    "Cosh": lambda x: (graph.exp(x) + graph.exp(-x)) * 0.5,
    "Erf": lambda x: graph.normal_cdf(x * math.sqrt(2.0)) * 2.0 - 1.0,
    "Exp": graph.exp,
    "Floor": floor,
    "HardSwish": graph.hard_swish,
    "Identity": lambda x: x,
    "IsNaN": lambda x: _not(graph.equal(x, x)),
    "Log": graph.log,
    "Mish": lambda x: x * graph.tanh(graph.softplus(x)),
    "Neg": lambda x: -x,
    "Not": _not,
    "Reciprocal": lambda x: 1.0 / x,
    "Relu": graph.relu,
    "Round": rounded,
    "Sigmoid": graph.sigmoid,
    "Sign": lambda x: apply("sign", x),
    "Sin": _sine,
    "Sinh": _sinh,
    "Softplus": graph.softplus,
    "Softsign": lambda x: x / (abs(x) + 1.0),
    "Sqrt": graph.sqrt,
    "Tan": lambda x: _sine(x) / _cosine(x),
    "Tanh": graph.tanh,
}
_WITH_ATTRIBUTES: dict[str, Callable[[Node, _Get], Node]] = {
    "Elu": lambda x, get: graph.elu(x, get("alpha", 1.0)),
    "Gelu": lambda x, get: (
        graph.gelu(x) if get("approximate", "none") == "tanh" else graph.exact_gelu(x)
    ),
    "HardSigmoid": lambda x, get: graph.clip(x * get("alpha", 0.2) + get("beta", 0.5), 0.0, 1.0),
    "LeakyRelu": lambda x, get: graph.leaky_relu(x, get("alpha", 0.01)),
    "Selu": lambda x, get: graph.elu(x, get("alpha", SELU_ALPHA)) * get("gamma", SELU_GAMMA),
}
OF_ONE_VALUE: dict[str, Callable[[Node, _Get], Node]] = {
    **{kind: lambda x, get, of=of: of(x) for kind, of in _UNARY.items()},  # type: ignore[misc]
    **_WITH_ATTRIBUTES,
}
"""For each operator of one value its function, of a node and of what returns its attributes."""
OPERATORS.update(
    {
        kind: lambda call, of=of: of(call.node(), call.get)  # type: ignore[misc]
        for kind, of in OF_ONE_VALUE.items()
    }
)


@operator("Dropout")
def _dropout(call: Call) -> tuple[Node, Array]:
    if call.has(2) and call.known(2).any():
        call.refuse("it is to drop elements in a prediction too")
    return call.node(), np.ones(call.shape(), bool)


@operator("Cast", "CastLike")
def _cast(call: Call) -> Node:
    if call.kind == "CastLike":
        dtype = call.inputs[1].dtype
    else:
        dtype = call.trace.file.dtype(call.get("to"))
    if not is_usual(dtype):
        call.refuse(f"the type of its result, {dtype}, is of no numbers that are computed with")
    x = call.node()
    if dtype.kind == "b" != x.dtype.kind:
        return _not(graph.equal(x, constant(0, x.dtype)))
    return graph.cast(x, dtype)


@operator("PRelu")
def _prelu(call: Call) -> Node:
    x, slope = call.node(0), call.node(1)
    if x.ndim > 2 and slope.ndim == 1 and slope.shape[0] == x.shape[1] != x.shape[-1]:
        slope = graph.reshape(slope, (-1, *(1,) * (x.ndim - 2)))  # older opsets: by channel
    return graph.relu(x) + graph.clip(x, high=0.0) * slope


@operator("IsInf")
def _is_inf(call: Call) -> Node:
    x = call.node()
    y = constant(np.zeros(x.shape, bool), bool)
    for name, end in (("detect_negative", -np.inf), ("detect_positive", np.inf)):
        if call.get(name, 1):
            y = y + graph.equal(x, constant(end, x.dtype))
    return y


@operator("Clip")
def _clip(call: Call) -> Node:
    x = call.node()
    limits: list[Any] = []
    for index, name in ((1, "min"), (2, "max")):
        if call.has(index) and not call.is_known(index):
            limits.append(call.node(index))
        else:
            limits.append(call.number(name, index))
    return graph.clip(x, *limits)


# -- of several values -----------------------------------------------------------------------------


def _quotient(a: Node, b: Node) -> Node:
    if a.dtype.kind == "f":
        return a / b
    return graph.cast(graph.cast(a, np.float64) / graph.cast(b, np.float64), a.dtype)


_BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": graph.add,
    "And": graph.multiply,
    "Div": _quotient,
    "Equal": graph.equal,
    "Greater": graph.greater,
    "GreaterOrEqual": graph.greater_equal,
    "Less": lambda a, b: graph.greater(b, a),
    "LessOrEqual": lambda a, b: graph.greater_equal(b, a),
    "Mul": graph.multiply,
    "Or": graph.add,
    "Sub": graph.subtract,
    "Xor": lambda a, b: _not(graph.equal(a, b)),
}


def binary(function: Callable[[Node, Node], Node]) -> Callable[[Call], Node]:
    """Return the function of an operator of two inputs."""
    return lambda call: function(call.node(0), call.node(1))


OPERATORS.update({kind: binary(function) for kind, function in _BINARY.items()})


@operator("Sum", "Mean")
def _sum_of_all(call: Call) -> Node:
    several = call.nodes()
    total = reduce(graph.add, several)
    return total * (1.0 / len(several)) if call.kind == "Mean" else total


@operator("Max", "Min")
def _extreme_of_all(call: Call) -> Node:
    return reduce(graph.maximum if call.kind == "Max" else graph.minimum, call.nodes())


@operator("Pow")
def _power(call: Call) -> Node:
    x = call.node(0)
    if call.is_known(1) and call.known(1).size == 1 and call.known(1).ndim <= x.ndim:
        exponent = call.known(1).item()
        if exponent == 3:
            return x * x * x
        if exponent in (0.5, 1, 2) and (x.dtype.kind == "f" or exponent != 0.5):
            return graph.power(x, exponent)
    if x.dtype.kind == "f":
        return graph.power(x, graph.cast(call.node(1), x.dtype))
    wide = graph.power(graph.cast(x, np.float64), graph.cast(call.node(1), np.float64))
    return graph.cast(wide, x.dtype)


@operator("Mod")
def _modulo(call: Call) -> Node:
    a, b = call.node(0), call.node(1)
    dtype = a.dtype
    if dtype.kind != "f":
        a, b = graph.cast(a, np.float64), graph.cast(b, np.float64)
    ratio = a / b
    is_c = call.get("fmod", 0)  # rounded towards 0
    whole = graph.cast(graph.cast(ratio, np.int64), a.dtype) if is_c else floor(ratio)
    return graph.cast(a - whole * b, dtype)


@operator("Where")
def _where(call: Call) -> Node:
    return graph.where(*(call.node(i) for i in range(3)))


ELEMENTWISE = frozenset(OPERATORS) - {"Cast", "CastLike", "Dropout", "Identity", "IsInf", "PRelu"}
"""Operators above: a result is a function of single elements."""
