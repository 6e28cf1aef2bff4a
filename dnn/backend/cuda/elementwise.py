"""What happens to one element, for every elementwise method of `Ops`: C++ beside NumPy's oracle."""

from __future__ import annotations

import functools
import hashlib

from dnn.backend.cuda.source import Elementwise
from dnn.backend.ops import Chain

__all__ = [
    "COMPARISONS",
    "ELEMENTWISE",
    "EXPRESSIONS",
    "adagrad_step",
    "adam_step",
    "chain",
    "momentum_step",
    "operand_count",
    "rmsprop_step",
    "sgd_step",
]


EXPRESSIONS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "power": "pow({0}, {1})",
    # NaN wins on either side.
    "maximum": "{0} != {0} || {0} > {1} ? {0} : {1}",
    "minimum": "{0} != {0} || {0} < {1} ? {0} : {1}",
    "negative": "-{0}",
    "exp": "exp({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "square": "{0} * {0}",
    "sqrt": "sqrt({0})",
    "tanh": "tanh({0})",
    "abs": "{0} < A(0) ? -{0} : {0} == A(0) ? A(0) : {0}",
    "sign": "{0} != {0} ? {0} : A(({0} > A(0)) - ({0} < A(0)))",
    "relu": "{0} > A(0) || {0} != {0} ? {0} : A(0)",
    "positive": "{0} > A(0) ? A(1) : A(0)",
    "where_greater": "{1} > {2} ? {0} : A(0)",
    "where_equal": "{1} == {2} ? {0} : A(0)",
    "clip": "({0} < {1} ? {1} : {0}) > {2} ? {2} : {0} < {1} ? {1} : {0}",
    # Neither exponential overflows, and neither form cancels.
    "sigmoid": "{0} < A(0) ? exp({0}) / (A(1) + exp({0})) : A(1) / (A(1) + exp(-{0}))",
    "copy": "{0}",
    "fill": "{0}",
}
"""What each operation is in CUDA C++, by the places of its operands: as the plain kernel of its
name and as a member of a fused chain."""

COMPARISONS = {
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "equal": "{0} == {1}",
}
"""Like `EXPRESSIONS`; the result is of bool."""


def operand_count(expression: str) -> int:
    """Return how many operands an expression of one of these tables has."""
    return sum(f"{{{place}}}" in expression for place in range(3))


def _plain(name: str, expression: str, fixed: tuple[tuple[str, str], ...] = ()) -> Elementwise:
    count = operand_count(expression)
    operands = ("x",) if count == 1 else ("a", "b", "c")[:count]
    body = f"out = {expression.format(*operands)};"
    return Elementwise(name, (*operands, "out"), ("out",), body, fixed=fixed)


def chain(members: Chain, inputs: int) -> Elementwise:
    """Return a chain of elementwise operations as one.

    Parameters
    ----------
    members : Chain
        See `dnn.backend.ops`.
    inputs : int
        Places below that are inputs.

    Returns
    -------
    Elementwise

    Raises
    ------
    KeyError
        If `EXPRESSIONS` lacks one of the operations.
    """
    names = [f"x{i}" for i in range(inputs)]
    lines = []
    for number, (kind, *operands) in enumerate(members):
        expression = EXPRESSIONS[kind].format(*(names[place] for place in operands))
        lines.append(f"const A t{number} = {expression};")
        names.append(f"t{number}")
    lines.append(f"out = {names[-1]};")
    digest = hashlib.sha256(repr(members).encode()).hexdigest()[:12]
    return Elementwise(f"chain_{digest}", (*names[:inputs], "out"), ("out",), "\n".join(lines))


ELEMENTWISE = {
    spec.name: spec
    for spec in (
        *(_plain(name, expression) for name, expression in EXPRESSIONS.items()),
        *(_plain(name, expr, (("out", "b1"),)) for name, expr in COMPARISONS.items()),
        Elementwise(
            "where",
            ("condition", "a", "b", "out"),
            ("out",),
            "out = condition ? a : b;",
            fixed=(("condition", "b1"),),
        ),
        # NaN stays NaN.
        Elementwise(
            "clip_value_step",
            ("g", "limit"),
            ("g",),
            "g = g < -limit ? -limit : g > limit ? limit : g;",
            only_written=(),
        ),
        Elementwise(
            "clip_factor",
            ("sums", "limit", "out"),
            ("out",),
            """
A total = 0;
for (long long j = 0; j < length; ++j) total = total + (A)p_sums[at_sums + j * stride];
const A norm = sqrt(total);
out = limit / (norm != norm || norm > limit ? norm : limit);
""",
            pointers=("sums",),
            integers=("length", "stride"),
        ),
        Elementwise(
            "binary_cross_entropy",
            ("logits", "target", "out"),
            ("out",),
            """
const A size = logits < A(0) ? -logits : logits;
const A linear = (logits > A(0) || logits != logits ? logits : A(0)) - logits * target;
out = linear + log1p(exp(-size));
""",
        ),
        Elementwise(
            "count",
            ("count",),
            ("count",),
            "count = count + 1;",
            only_written=(),
            fixed=(("count", "i8"),),
        ),
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
            fixed=(("count", "i8"),),
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
            fixed=(("out", "i8"),),
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
    names: tuple[str, ...] = ("w", "g", "s", "learning_rate", "smoothing", "complement", "epsilon")
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
