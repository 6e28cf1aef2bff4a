"""Formulas, chains of them and updates as kernels: what happens to one element, in C++."""

from __future__ import annotations

import functools
import hashlib

from dnn.backend.cuda.source import Elementwise
from dnn.backend.formula import Formula, UpdateFormula
from dnn.backend.formula_writer import Language, Writer
from dnn.backend.ops import Chain

__all__ = ["chain", "of_formula", "of_update"]


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


@functools.cache
def of_update(formula: UpdateFormula) -> Elementwise:
    """Return an update as one kernel."""
    writer = Writer(CUDA, "A")
    writer.update(formula, {name: name for name in formula.rows}, "{0} = {1};")
    body = "\n".join(writer.lines)
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    parameters = (*formula.rows, *formula.scalars)
    return Elementwise(f"update_{digest}", parameters, formula.written, body, only_written=())
