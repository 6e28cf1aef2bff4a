"""Every kernel there is, so that a test can compile all of them where there is no GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from operation_cases import FORMULAS

from dnn import SGD, AdaGrad, Adam, AdamW, NAdam, RMSProp
from dnn.backend.cuda import batches, direct_convolution, formulas, im2col, pooling, reductions
from dnn.backend.cuda.formulas import (
    ADAM_COEFFICIENTS,
    ADJUST_SCALE,
    CLIP_FACTOR,
    COUNT,
    FINITE_FLAG,
    of_formula,
)
from dnn.backend.cuda.reductions import ARGMAX, REDUCTIONS
from dnn.backend.cuda.source import (
    SCALAR,
    Elementwise,
    Kernel,
    elementwise_kernel,
    reduction_kernel,
)
from dnn.backend.formula import COPY, Formula, UpdateFormula
from dnn.backend.ops import Ops
from dnn.backend.recurrence import BACKWARD, FORWARD
from dnn.parameters import FlatBuffer, Segment

_OWN = (ARGMAX, CLIP_FACTOR, COUNT, ADAM_COEFFICIENTS, ADJUST_SCALE, FINITE_FLAG)
ELEMENTWISE = {spec.name: spec for spec in _OWN}
ELEMENTWISE["copy"] = of_formula(COPY)
ELEMENTWISE |= {name: of_formula(formula) for name, formula in FORMULAS.items()}
LARGE_NUMBERS = Formula("large_numbers", "x", f"max(min(x, 1e999), -1e999) + {10**30}")
ELEMENTWISE["large_numbers"] = of_formula(LARGE_NUMBERS)
COMPARISONS = [name for name, formula in FORMULAS.items() if formula.is_bool]
OPTIMIZERS = [
    *(SGD(0.1, 0.0, x) for x in (0.0, 0.1)),
    *(SGD(0.1, 0.9, x, nesterov=y) for x in (0.0, 0.1) for y in (False, True)),
    *(AdaGrad(weight_decay=x) for x in (0.0, 0.1)),
    *(RMSProp(momentum=x, weight_decay=y) for x in (0.0, 0.9) for y in (0.0, 0.1)),
    *(Adam(weight_decay=x) for x in (0.0, 0.1)),
    AdamW(),
    NAdam(weight_decay=0.1, decoupled=True),
]
FLOATS = ("f2", "f4", "f8")
BFLOAT16 = (("f4", "u2"), ("u2", "f4"))
AXES = {"f2": (1,), "f4": (1, 3), "f8": (1,)}


def example_chain() -> Elementwise:
    """Return a chain with every operation that may be in one; what is fused depends on the graph.

    Its inputs are a and b; each operation takes the result before it, and then b and a in turn.
    """
    members = []
    for formula in FORMULAS.values():
        if formula.has_one_type:
            last = len(members) + 1 if members else 0
            others = itertools.cycle((1, 0))
            members.append((formula, last, *(next(others) for _ in formula.names[1:])))
    return formulas.chain(tuple(members), 2)


def optimizer_updates() -> Iterator[Elementwise]:
    """Yield every variant of every optimizer's update."""
    for optimizer in OPTIMIZERS:
        buffers = [FlatBuffer([Segment("w", (3,), 0)], "f4", Ops()) for _ in range(2)]
        optimizer.bind(Recorder(), *buffers)
    yield from {formulas.of_update(formula): None for formula in Recorder.formulas}


class Recorder(Ops):
    """Keeps the formulas of updates."""

    formulas: ClassVar[list[UpdateFormula]] = []

    def update(self, formula, rows, scalars, workspace):
        self.formulas.append(formula)
        return super().update(formula, rows, scalars, workspace)


def codes_of(spec: Elementwise, code: str) -> tuple[str, ...]:
    """Return types of operands: one for all that may have any."""
    fixed = dict(spec.fixed)
    return tuple(fixed.get(name, code) for name in spec.parameters)


def all_kernels() -> Iterator[Kernel]:
    """Yield every kernel, for all types of elements and one and several axes.

    Yields
    ------
    Kernel
        Each name once.
    """
    specs = [*ELEMENTWISE.values(), *optimizer_updates(), example_chain()]
    for code, axes in ((key, axes) for key, counts in AXES.items() for axes in counts):
        for spec in specs:
            if spec.name != "count":
                yield elementwise_kernel(spec, codes_of(spec, code), axes)
        # With a number in place of an array.
        yield elementwise_kernel(ELEMENTWISE["copy"], (SCALAR, code), axes)
        for name in ("add", "multiply", "maximum", *COMPARISONS):
            spec = ELEMENTWISE[name]
            out = codes_of(spec, code)[-1]
            yield elementwise_kernel(spec, (code, SCALAR, out), axes)
    yield elementwise_kernel(ELEMENTWISE["count"], ("i8",), 1)
    # Conversions, and the types of labels, masks, seeds and steps.
    pairs = [*itertools.permutations(FLOATS, 2), ("b1", "f4"), ("f4", "b1"), ("i8", "f4")]
    for given, wanted in [*pairs, ("i8", "i8"), ("u8", "u8"), ("b1", "b1"), *BFLOAT16]:
        yield elementwise_kernel(ELEMENTWISE["copy"], (given, wanted), 1)
    for axes in (1, 2, 3):
        yield elementwise_kernel(ELEMENTWISE["copy"], ("b2", "b2"), axes)
    for code in ("i8", "u8"):
        yield elementwise_kernel(ELEMENTWISE["add"], (code, code, code), 1)
    for narrow in ("f2", "u2"):
        for codes in (("f4", narrow, narrow), (narrow, "f4", narrow), (narrow, narrow, "f4")):
            yield elementwise_kernel(example_chain(), codes, 2)
    for spec in optimizer_updates():
        gated = spec.gated()
        yield elementwise_kernel(gated, codes_of(gated, "f4"), 2)
    for reduction, code, across in itertools.product(REDUCTIONS.values(), FLOATS, (32, 1)):
        operands = tuple(code for _ in reduction.parameters)
        yield reduction_kernel(reduction, (*operands, code), across)
        if across == 1:
            part = "f8" if code == "f8" else "f4"
            yield reduction_kernel(reduction.first_stage(), (*operands, part), across)
            yield reduction_kernel(reduction.last_stage(), (part, code), across)
    total = REDUCTIONS["sum"]
    for narrow, across in itertools.product(("f2", "u2"), (32, 1)):
        yield reduction_kernel(total, (narrow, "f4"), across)
    yield reduction_kernel(total.first_stage(), ("u2", "f4"), 1)
    for code in FLOATS:
        yield reductions.log_softmax_kernel(code)
        yield reductions.narrow_log_softmax_kernel(code)
        yield batches.uniform_noise_kernel(code)
        yield batches.end_batch_kernel(code, "f8")
        yield reductions.tally_classes_kernel(code)
    yield batches.end_batch_kernel("f4", "f4")
    for formula, (code, axes) in itertools.product(
        (*FORWARD.values(), *BACKWARD.values()), (("f4", 2), ("f4", 3), ("f8", 2))
    ):
        spec = formulas.of_update(formula)
        yield elementwise_kernel(spec, codes_of(spec, code), axes)
    for narrow in ("f2", "u2"):
        yield im2col.fill_kernel(narrow)
        yield im2col.gather_kernel("f4", narrow)
    for code in ("f4", "f8"):
        for kind in pooling.KINDS:
            yield pooling.pooling_kernel(kind, code)
        yield im2col.fill_kernel(code)
        yield im2col.gather_kernel(code, code)
        for kernel in direct_convolution.FORMS.values():
            for epilogue in direct_convolution.EPILOGUES:
                yield kernel("forward", code, epilogue)
            yield kernel("data", code)
            yield kernel("weights", code)
    for code in (*FLOATS, "i8", "u1", "b1"):
        yield batches.take_rows_kernel(code)
        yield batches.take_batch_kernel(code)
        yield batches.add_rows_kernel(code)
