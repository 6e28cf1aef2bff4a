"""What happens to one element: formulas in C++, and what is no formula beside NumPy's oracle."""

from __future__ import annotations

import functools
import hashlib

from dnn.backend.cuda.source import Elementwise
from dnn.backend.formula import Formula, Language, Writer
from dnn.backend.ops import Chain

__all__ = [
    "CUDA",
    "ELEMENTWISE",
    "adagrad_step",
    "adam_step",
    "chain",
    "momentum_step",
    "of_formula",
    "rmsprop_step",
    "sgd_step",
]


CUDA = Language(
    number="A({0})",  # A is the type of arithmetic
    power="pow({0}, {1})",
    choice="{0} ? {1} : {2}",
    either="{0} || {1}",
    both="{0} && {1}",
    inverse="!{0}",
    truth="{0}",
    assignment="const A {0} = {1};",
    # Of integers and floats alike.
    functions={"abs": "{0} < A(0) ? -{0} : {0} == A(0) ? A(0) : {0}"},
)


@functools.cache
def of_formula(formula: Formula) -> Elementwise:
    """Return a formula as a kernel."""
    writer = Writer(CUDA, "A")
    value = writer.formula(formula, formula.names)
    body = "\n".join([*writer.lines, f"out = {value};"])
    conditions = () if formula.has_one_type or formula.is_bool else (("condition", "b1"),)
    fixed = (("out", "b1"),) if formula.is_bool else conditions
    return Elementwise(formula.name, (*formula.names, "out"), ("out",), body, fixed=fixed)


@functools.cache
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
    """
    names = [f"x{i}" for i in range(inputs)]
    writer = Writer(CUDA, "A")
    for formula, *operands in members:
        value = writer.formula(formula, [names[place] for place in operands])
        names.append(writer.named(value))
    body = "\n".join([*writer.lines, f"out = {names[-1]};"])
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    return Elementwise(f"chain_{digest}", (*names[:inputs], "out"), ("out",), body)


ELEMENTWISE = {
    spec.name: spec
    for spec in (
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
