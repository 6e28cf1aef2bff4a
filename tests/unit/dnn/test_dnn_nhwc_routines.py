"""Routines for images in NHWC: against the definition in float64, in parts and in K models."""

import numpy as np
import pytest

from dnn.backend import Convolution, Ops, empty

pytest.importorskip("numba")

from dnn.backend.cpu import convolution_work, indirect, registers, winograd
from dnn.backend.cpu.kernels import cuts
from dnn.backend.cpu.program import Program

ROUTINES = {
    "winograd2": winograd.winograd2,
    "winograd4": winograd.winograd4,
    "indirect": indirect.routine,
}
TOLERANCE = {"winograd2": 3e-6, "winograd4": 3e-5, "indirect": 3e-6}
"""Of the largest difference, over the largest value."""
KINDS = ("forward", "data", "weights")


def problem_of(kind, images, channels, size, filters, padding=((1, 1), (1, 1)), **more):
    return Convolution(
        *(kind, "NHWC", "f4", None, (False, False), images, channels, size, filters),
        *((3, 3), (1, 1), (1, 1), padding, 1),
        **more,
    )


# Lanes, panels, rows of a product and tiles each divide or do not; many tiles and few.
SHAPES = {
    "whole": (4, 64, (16, 16), 64),
    "nothing divides": (3, 40, (9, 13), 41, ((0, 2), (4, 3))),
    "few channels": (2, 9, (30, 30), 9),
    "no padding": (1, 33, (10, 6), 70, ((0, 0), (0, 0))),
    "many": (40, 40, (8, 8), 40),
    "deep": (2, 150, (4, 4), 40),
}


def inputs_of(problem, generator):
    shapes = list(problem.shapes[:2])
    if problem.bias:
        shapes.append(
            (problem.filters,) if problem.models is None else (problem.models, problem.filters)
        )
    return [generator.normal(size=shape).astype(problem.dtype) for shape in shapes]


def memory(problem, routine):
    """Return a result and memory to work in, both with NaN in them."""
    space = empty(Ops(), (routine.workspace_bytes,), np.uint8) if routine.workspace_bytes else None
    if space is not None:
        space.fill(255)
    return np.full(problem.shapes[2], np.nan, problem.dtype), space


def run(routine, problem, inputs):
    out, space = memory(problem, routine)
    for function, arguments in routine.steps(inputs, out, space):
        function(*arguments)
    return out


def assert_right(name, problem, generator):
    inputs = inputs_of(problem, generator)
    routine = ROUTINES[name](problem)
    assert routine.name == name
    exact = problem._replace(dtype="f8")
    (*_, oracle) = Ops().convolutions(exact)
    expected = run(oracle, exact, [x.astype("f8") for x in inputs])
    error = np.abs(run(routine, problem, inputs) - expected).max()
    assert error <= TOLERANCE[name] * np.abs(expected).max(), problem


def test_pieces_end_where_the_whole_ends():
    for length, parts, unit in ((135, 46, 8), (7, 3, 8), (64, 4, 16), (1, 5, 1)):
        pieces = cuts(length, parts, unit)
        covered = [i for piece in pieces for i in range(piece.start, piece.stop)]
        assert covered == list(range(length))
        assert all(piece.start % unit == 0 for piece in pieces)


@pytest.mark.parametrize("found", [(32, 64), (16, 32), (32, 16), (16, 16)])
def test_no_block_has_more_rows_than_a_vector_has_lanes(found, monkeypatch):
    monkeypatch.setattr(registers, "vector_registers", lambda: found)
    lanes, panel, rows, _ = registers.registers.__wrapped__()
    assert rows <= lanes == found[1] // 4 == panel // 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROUTINES)
def test_it_is_the_definition(name, kind, shape):
    more = {"bias": True, "relu": shape == "whole"} if kind == "forward" else {}
    problem = problem_of(kind, *SHAPES[shape], **more)
    assert_right(name, problem, np.random.default_rng(14))


@pytest.mark.parametrize("kind", KINDS)
def test_any_window_stride_and_dilation(kind):
    generator = np.random.default_rng(3)
    for _ in range(25):
        window, stride, dilation = (
            tuple(map(int, generator.integers(1, most, 2))) for most in (6, 4, 3)
        )
        padding = tuple(tuple(map(int, generator.integers(0, 4, 2))) for _ in range(2))
        size = tuple(
            int(generator.integers(1, 12)) + (n - 1) * d
            for n, d in zip(window, dilation, strict=True)
        )
        channels, filters = map(int, generator.choice([1, 3, 16, 24, 40, 300], 2))
        images = int(generator.integers(1, 20))
        problem = problem_of(kind, images, channels, size, filters, padding)
        problem = problem._replace(window=window, stride=stride, dilation=dilation)
        assert_right("indirect", problem, generator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["many", "nothing divides"])
@pytest.mark.parametrize("name", ["winograd4", "indirect"])
def test_parts_have_the_bits_of_the_whole(name, kind, shape, monkeypatch):
    monkeypatch.setattr(convolution_work, "blas_threads", lambda: 3)
    monkeypatch.setattr(convolution_work, "SPLIT_OPERATIONS", 0)
    problem = problem_of(kind, *SHAPES[shape])
    inputs = inputs_of(problem, np.random.default_rng(5))
    routine = ROUTINES[name](problem)
    expected = run(routine, problem, inputs)
    out, space = memory(problem, routine)
    *before, (kernel, arguments) = routine.steps(inputs, out, space)
    for function, given in before:
        function(*given)
    parts = kernel.parts(arguments, 3)
    assert len(parts) > 1
    Program(parts, arguments).run()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stacked", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("name", ["winograd4", "indirect"])
def test_each_of_k_models_has_its_bits_alone(name, kind, stacked):
    generator = np.random.default_rng(7)
    alone = problem_of(kind, *SHAPES["nothing divides"], bias=kind == "forward")
    problem = alone._replace(models=3, stacked=stacked)
    inputs = inputs_of(problem, generator)
    together = run(ROUTINES[name](problem), problem, inputs)
    for k in range(3):
        of_k = [x[k] if has else x for x, has in zip(inputs, (*stacked, True), strict=False)]
        found = run(ROUTINES[name](alone), alone, of_k)
        np.testing.assert_array_equal(found, together[k])


def test_it_leaves_to_others_what_it_is_not_for():
    problem = problem_of("forward", *SHAPES["whole"])
    for change in (
        {"layout": "NCHW"},
        {"dtype": "f8"},
        {"stride": (2, 2)},
        {"dilation": (1, 2)},
        {"groups": 2},
        {"window": (3, 1)},
        {"images": 0},
    ):
        assert winograd.winograd4(problem._replace(**change)) is None
    # Where tiles would multiply more often than the taps that meet the image: channels are padded
    # to a vector.
    for change in ({"size": (2, 2)}, {"channels": 1}):
        assert winograd.winograd4(problem._replace(**change)) is None
    for change in ({"layout": "NCHW"}, {"dtype": "f8"}, {"groups": 2}, {"images": 0}):
        assert indirect.routine(problem._replace(**change)) is None
