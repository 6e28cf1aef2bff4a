"""Formulas as kernels: single ones, chains, and the updates and scalars of optimizers."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from dnn.backend.cuda.launch import Launcher, element_strides
from dnn.backend.cuda.source import SCALAR, Elementwise
from dnn.backend.formula import Formula, Language, UpdateFormula, Writer
from dnn.backend.ops import Chain

__all__ = [
    "ADAM_COEFFICIENTS",
    "ADJUST_SCALE",
    "CLIP_FACTOR",
    "COUNT",
    "FINITE_FLAG",
    "adam_coefficients",
    "adjust_scale",
    "chain",
    "clip_factor",
    "of_formula",
    "of_update",
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
    # NVRTC refuses numbers that are out of range, and has no name for this without a header.
    infinity="A({0}1.0/0.0)",
)


@functools.cache
def of_formula(formula: Formula) -> Elementwise:
    """Return the elementwise kernel of a formula."""
    writer = Writer(CUDA, "A")
    value = writer.formula(formula, formula.names)
    body = "\n".join([*writer.lines, f"out = {value};"])
    conditions = () if formula.has_one_type or formula.is_bool else (("condition", "b1"),)
    fixed = (("out", "b1"),) if formula.is_bool else conditions
    return Elementwise(formula.name, (*formula.names, "out"), ("out",), body, fixed=fixed)


@functools.cache
def chain(members: Chain, inputs: int) -> Elementwise:
    """Return the kernel of a chain of elementwise operations on a number of inputs."""
    names = [f"x{i}" for i in range(inputs)]
    writer = Writer(CUDA, "A")
    for formula, *operands in members:
        value = writer.formula(formula, [names[place] for place in operands])
        names.append(writer.named(value))
    body = "\n".join([*writer.lines, f"out = {names[-1]};"])
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    return Elementwise(f"chain_{digest}", (*names[:inputs], "out"), ("out",), body)


@functools.cache
def of_update(formula: UpdateFormula) -> Elementwise:
    """Return the elementwise kernel of an update."""
    writer = Writer(CUDA, "A")
    writer.update(formula, {name: name for name in formula.rows}, "{0} = {1};")
    body = "\n".join(writer.lines)
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    parameters = (*formula.rows, *formula.scalars)
    return Elementwise(f"update_{digest}", parameters, formula.written, body, only_written=())


CLIP_FACTOR = Elementwise(
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
)

COUNT = Elementwise(
    "count",
    ("count",),
    ("count",),
    "count = count + 1;",
    only_written=(),
    fixed=(("count", "i8"),),
)

ADAM_COEFFICIENTS = Elementwise(
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
)


FINITE_FLAG = Elementwise("finite_flag", ("x", "out"), ("out",), "out = x == A(0) ? A(1) : A(0);")
"""1 where `REDUCTIONS["not_finite"]`, which is x, found all elements to be finite, else 0."""

ADJUST_SCALE = Elementwise(
    "adjust_scale",
    ("flag", "limit", "scale", "since", "skipped"),
    ("scale", "since", "skipped"),
    """
if (flag != A(0)) {
    since = since + 1;
    if (since >= interval) {
        scale = scale * A(2) < limit ? scale * A(2) : limit;
        since = 0;
    }
} else {
    scale = scale * A(0.5) > A(1) ? scale * A(0.5) : A(1);
    since = 0;
    skipped = skipped + 1;
}
""",
    only_written=(),
    integers=("interval",),
    fixed=(("limit", SCALAR), ("since", "i8"), ("skipped", "i8")),
)


def clip_factor(launcher: Launcher, sums: Any, limit: Any, out: Any) -> None:
    """Launch ``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` over the last axis."""
    integers = [sums.shape[-1], element_strides(sums)[-1]]
    limits = limit.reshape(limit.shape[:-1])
    operands = (sums, limits, out.reshape(out.shape[:-1]))
    launcher.elementwise(CLIP_FACTOR, operands, integers, hidden=sums.ndim - 1)


def adjust_scale(
    launcher: Launcher, flags: Any, scale: Any, counts: Any, interval: int, largest: float
) -> None:
    """Launch the kernel that halves, keeps or doubles loss scales; see `Ops.adjust_scale`."""
    since, skipped = (counts[..., i].reshape(flags.shape) for i in (0, 1))
    operands = (flags, largest, scale.reshape(flags.shape), since, skipped)
    launcher.elementwise(ADJUST_SCALE, operands, [interval])


def adam_coefficients(launcher: Launcher, *operands: Any) -> None:
    """Launch the kernels that count a step of Adam and compute `Ops.adam_coefficients`."""
    count, learning_rate, beta1, beta2, weight_decay, _, *results = operands
    # Two kernels: no thread of the second may read a count that is still being changed.
    launcher.elementwise(COUNT, (count,))
    settings = (learning_rate, beta1, beta2, weight_decay, count)
    launcher.elementwise(ADAM_COEFFICIENTS, (*settings, *results))
