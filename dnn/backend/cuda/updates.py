"""What optimizers compute besides updates: clipping, and Adam's coefficients."""

from __future__ import annotations

from typing import Any

from dnn.backend.cuda.launch import Launcher, element_strides
from dnn.backend.cuda.source import Elementwise

__all__ = ["ADAM_COEFFICIENTS", "CLIP_FACTOR", "COUNT", "adam_coefficients", "clip_factor"]

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


def clip_factor(launcher: Launcher, sums: Any, limit: Any, out: Any) -> None:
    """``limit / max(norm, limit)``, where ``norm = sqrt(sum(sums))`` over the last axis."""
    integers = [sums.shape[-1], element_strides(sums)[-1]]
    limits = limit.reshape(limit.shape[:-1])
    operands = (sums, limits, out.reshape(out.shape[:-1]))
    launcher.elementwise(CLIP_FACTOR, operands, integers, hidden=sums.ndim - 1)


def adam_coefficients(launcher: Launcher, *operands: Any) -> None:
    """Count a step, and compute what depends on its number; see `Ops.adam_coefficients`."""
    count, learning_rate, beta1, beta2, weight_decay, _, *results = operands
    # Two kernels: no thread of the second may see a count that others still change.
    launcher.elementwise(COUNT, (count,))
    settings = (learning_rate, beta1, beta2, weight_decay, count)
    launcher.elementwise(ADAM_COEFFICIENTS, (*settings, *results))
