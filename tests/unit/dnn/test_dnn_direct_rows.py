"""Direct convolution by rows: against NumPy's, in parts and in K models."""

import numpy as np
import pytest

from dnn.backend import Convolution, Ops, empty

pytest.importorskip("numba")

from dnn.backend.cpu import convolution_work, depthwise, direct_rows
from dnn.backend.cpu.program import Program

TOLERANCE = {"f4": 1e-5, "f8": 1e-13}
"""Of the largest difference, over the largest value."""


def drawn(generator, kind):
    """Return a problem, in one of few tiles, since each is compiled."""
    groups, per_group, filters = ((1, 1, 3), (1, 3, 7), (2, 1, 3), (3, 2, 3), (5, 1, 1))[
        generator.integers(5)
    ]
    filters = filters if kind == "forward" else 3
    per_group = 3 if kind == "data" else per_group
    window = (int(generator.integers(1, 5)), 3)
    dilation = tuple(map(int, generator.integers(1, 3, 2)))
    padding = tuple(tuple(map(int, generator.integers(0, 4, 2))) for _ in range(2))
    size = tuple(
        int(generator.integers(1, 9)) + (n - 1) * d for n, d in zip(window, dilation, strict=True)
    )
    models = (None, None, 2)[generator.integers(3)]
    stacked = (False, False)
    if models:
        stacked = ((True, True), (True, False), (False, True))[generator.integers(3)]
    layout = ("CHWN", "CHWN", "NCHW")[generator.integers(3)]
    stride = tuple(map(int, generator.integers(1, 4, 2)))
    if layout == "NCHW":
        stride = (stride[0], 1)
    forward = kind == "forward"
    return Convolution(
        *(kind, layout, ("f4", "f4", "f8")[generator.integers(3)], models, stacked),
        int((1, 3, 16, 21, 40)[generator.integers(5)]),
        *(groups * per_group, size, groups * filters, window, stride, dilation, padding, groups),
        *(forward and bool(generator.integers(2)), forward and bool(generator.integers(2))),
    )


def run(routine, problem, inputs):
    out = np.full(problem.shapes[2], np.nan, problem.dtype)
    space = empty(Ops(), (routine.workspace_bytes,), np.uint8) if routine.workspace_bytes else None
    for function, arguments in routine.steps(inputs, out, space):
        function(*arguments)
    return out


def inputs_of(problem, generator):
    shapes = list(problem.shapes[:2])
    if problem.bias:
        shapes.append(
            (problem.filters,) if problem.models is None else (problem.models, problem.filters)
        )
    return [generator.normal(size=shape).astype(problem.dtype) for shape in shapes]


@pytest.mark.parametrize("kind", ["forward", "data", "weights"])
def test_it_is_the_definition(kind):
    generator = np.random.default_rng(14)
    for _ in range(40):
        problem = drawn(generator, kind)
        inputs = inputs_of(problem, generator)
        found = run(direct_rows.routine(problem), problem, inputs)
        exact = problem._replace(dtype="f8")
        (oracle,) = Ops().convolutions(exact)
        expected = run(oracle, exact, [x.astype("f8") for x in inputs])
        error = np.abs(found - expected).max() / (np.abs(expected).max() or 1)
        assert error < TOLERANCE[problem.dtype], problem


@pytest.mark.parametrize("kind", ["forward", "data", "weights"])
def test_parts_and_models_have_the_bits_of_one(kind, monkeypatch):
    monkeypatch.setattr(convolution_work, "SPLIT_OPERATIONS", 0)
    generator = np.random.default_rng(5)
    for stacked in ((True, True), (False, True), (True, False)):
        problem = drawn(generator, kind)._replace(models=3, stacked=stacked, bias=False)
        inputs = inputs_of(problem, generator)
        together = run(direct_rows.routine(problem), problem, inputs)
        in_parts = np.full_like(together, np.nan)
        ((kernel, (*given, _)),) = direct_rows.routine(problem).steps(inputs, in_parts, None)
        parts = kernel.parts((*given, in_parts), 3)
        assert len(parts) == 3
        Program(parts, inputs).run()
        np.testing.assert_array_equal(in_parts, together)
        alone = problem._replace(models=None, stacked=(False, False))
        for k in range(3):
            of_k = [x[k] if has else x for x, has in zip(inputs, stacked, strict=True)]
            one = run(direct_rows.routine(alone), alone, of_k)
            np.testing.assert_array_equal(one, together[k])


@pytest.mark.parametrize("kind", ["forward", "data", "weights"])
def test_channels_by_themselves(kind, monkeypatch):
    monkeypatch.setattr(convolution_work, "SPLIT_OPERATIONS", 0)
    generator = np.random.default_rng(8)
    for channels in (1, 5, 16, 40, 130, 64, 3, 70):
        every = dict.fromkeys(("groups", "channels", "filters"), channels)
        problem = drawn(generator, kind)._replace(layout="NHWC", **every)
        inputs = inputs_of(problem, generator)
        routine = depthwise.routine(problem)
        found = run(routine, problem, inputs)
        exact = problem._replace(dtype="f8")
        (oracle,) = Ops().convolutions(exact)
        expected = run(oracle, exact, [x.astype("f8") for x in inputs])
        error = np.abs(found - expected).max() / (np.abs(expected).max() or 1)
        assert error < TOLERANCE[problem.dtype], problem
        in_parts = np.full_like(found, np.nan)
        space = empty(Ops(), (routine.workspace_bytes,), np.uint8)
        *before, (kernel, arguments) = routine.steps(inputs, in_parts, space)
        for function, turned in before:
            function(*turned)
        Program(kernel.parts(arguments, 2), arguments).run()
        np.testing.assert_array_equal(in_parts, found)
    assert depthwise.routine(problem._replace(groups=1)) is None


def test_it_leaves_to_others_what_it_is_not_for():
    problem = drawn(np.random.default_rng(0), "forward")
    assert direct_rows.routine(problem._replace(layout="NHWC")) is None
    assert direct_rows.routine(problem._replace(layout="NCHW", stride=(1, 2))) is None
