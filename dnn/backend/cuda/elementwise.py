"""What happens to one element, for every elementwise method of `Ops`: C++ beside NumPy's oracle."""

from __future__ import annotations

import functools

from dnn.backend.cuda.source import Elementwise

__all__ = [
    "ELEMENTWISE",
    "adagrad_step",
    "adam_step",
    "momentum_step",
    "rmsprop_step",
    "sgd_step",
]


def _one(name: str, expression: str) -> Elementwise:
    return Elementwise(name, ("x", "out"), ("out",), f"out = {expression};")


def _two(name: str, expression: str) -> Elementwise:
    return Elementwise(name, ("a", "b", "out"), ("out",), f"out = {expression};")


ELEMENTWISE = {
    spec.name: spec
    for spec in (
        _one("copy", "x"),
        _one("fill", "x"),
        _two("add", "a + b"),
        _two("subtract", "a - b"),
        _two("multiply", "a * b"),
        _two("divide", "a / b"),
        _one("negative", "-x"),
        _one("exp", "exp(x)"),
        _one("log", "log(x)"),
        _one("square", "x * x"),
        _one("tanh", "tanh(x)"),
        _one("sqrt", "sqrt(x)"),
        _one("log1p", "log1p(x)"),
        _two("power", "pow(a, b)"),
        _one("abs", "x < A(0) ? -x : x == A(0) ? A(0) : x"),
        _one("sign", "x != x ? x : A((x > A(0)) - (x < A(0)))"),
        # NaN wins on either side.
        _two("maximum", "a != a || a > b ? a : b"),
        _two("minimum", "a != a || a < b ? a : b"),
        _two("greater", "a > b"),
        _two("greater_equal", "a >= b"),
        _two("equal", "a == b"),
        Elementwise("where", ("condition", "a", "b", "out"), ("out",), "out = condition ? a : b;"),
        _one("relu", "x > A(0) || x != x ? x : A(0)"),
        _one("positive", "x > A(0) ? A(1) : A(0)"),
        _one("sigmoid", "A(0.5) + A(0.5) * tanh(A(0.5) * x)"),
        Elementwise("count", ("count",), ("count",), "count = count + 1;", only_written=()),
        Elementwise(
            "adam_coefficients",
            (
                "learning_rate",
                "beta1",
                "beta2",
                "weight_decay",
                "count",
                "complement1",
                "complement2",
                "step_size",
                "correction",
                "keep",
            ),
            ("complement1", "complement2", "step_size", "correction", "keep"),
            """
const double t = (double)count;
complement1 = A(1) - beta1;
complement2 = A(1) - beta2;
step_size = (double)learning_rate / (1.0 - pow((double)beta1, t));
correction = sqrt(1.0 - pow((double)beta2, t));
keep = A(1) - learning_rate * weight_decay;
""",
            only_written=("complement1", "complement2", "step_size", "correction", "keep"),
        ),
        # The first of the largest, and NaN before all: a running maximum that only a larger one
        # or the first NaN replaces.
        Elementwise(
            "argmax",
            ("x", "out"),
            ("out",),
            """
out = 0;
for (long long j = 1; j < length; ++j) {
    const auto value = p_x[at_x + j * stride];
    const auto best = p_x[at_x + out * stride];
    if (best == best && (value > best || value != value)) out = j;
}
""",
            pointers=("x",),
            integers=("length", "stride"),
        ),
    )
}


def _step(
    name: str, parameters: tuple[str, ...], writes: tuple[str, ...], body: str
) -> Elementwise:
    return Elementwise(name, parameters, writes, body, only_written=())


def _decayed(decays: bool) -> str:
    return "const A d = g + weight_decay * w;" if decays else "const A d = g;"


@functools.cache
def sgd_step(decays: bool) -> Elementwise:
    """Return `Ops.sgd_step`, with or without weight decay."""
    decay = ("weight_decay",) if decays else ()
    body = f"{_decayed(decays)}\nw = w - learning_rate * d;"
    return _step(f"sgd_step_{decays:d}", ("w", "g", "learning_rate", *decay), ("w",), body)


@functools.cache
def momentum_step(decays: bool, nesterov: bool) -> Elementwise:
    """Return `Ops.momentum_step`."""
    decay = ("weight_decay",) if decays else ()
    move = "(d + momentum * v)" if nesterov else "v"
    body = f"{_decayed(decays)}\nv = momentum * v + d;\nw = w - learning_rate * {move};"
    names = ("w", "g", "v", "learning_rate", "momentum", *decay)
    return _step(f"momentum_step_{decays:d}{nesterov:d}", names, ("w", "v"), body)


@functools.cache
def adagrad_step(decays: bool) -> Elementwise:
    """Return `Ops.adagrad_step`."""
    decay = ("weight_decay",) if decays else ()
    body = f"{_decayed(decays)}\ns = s + d * d;\nw = w - learning_rate * d / (sqrt(s) + epsilon);"
    names = ("w", "g", "s", "learning_rate", "epsilon", *decay)
    return _step(f"adagrad_step_{decays:d}", names, ("w", "s"), body)


@functools.cache
def rmsprop_step(decays: bool, moves: bool) -> Elementwise:
    """Return `Ops.rmsprop_step`, with or without momentum."""
    body = f"""{_decayed(decays)}
s = smoothing * s + complement * (d * d);
const A moved = d / (sqrt(s) + epsilon);
"""
    body += "v = momentum * v + moved;\nw = w - learning_rate * v;" if moves else ""
    body += "" if moves else "w = w - learning_rate * moved;"
    names = ("w", "g", "s", "learning_rate", "smoothing", "complement", "epsilon")
    names += ("v", "momentum") if moves else ()
    names += ("weight_decay",) if decays else ()
    writes = ("w", "s", "v") if moves else ("w", "s")
    return _step(f"rmsprop_step_{decays:d}{moves:d}", names, writes, body)


@functools.cache
def adam_step(decays: bool, keeps: bool) -> Elementwise:
    """Return `Ops.adam_step`; `keeps`: the old parameters are multiplied by `keep`, as in AdamW."""
    body = f"""{_decayed(decays)}
m = beta1 * m + complement1 * d;
s = beta2 * s + complement2 * (d * d);
const A moved = m / (sqrt(s) / correction + epsilon) * step_size;
w = {"keep * w" if keeps else "w"} - moved;
"""
    names: tuple[str, ...] = ("w", "g", "m", "s", "beta1", "complement1", "beta2", "complement2")
    names += ("step_size", "correction", "epsilon")
    names += ("weight_decay",) if decays else ()
    names += ("keep",) if keeps else ()
    return _step(f"adam_step_{decays:d}{keeps:d}", names, ("w", "m", "s"), body)
