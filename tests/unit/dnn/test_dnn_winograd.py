"""Winograd's convolution: against the definition in float64, in parts and in K models."""

from dataclasses import replace

import numpy as np
import pytest

from dnn.backend import Convolution, Ops, empty

pytest.importorskip("numba")

from dnn.backend.cpu import winograd
from dnn.backend.cpu.program import Program

ROUTINES = {"winograd2": winograd.winograd2, "winograd4": winograd.winograd4}
TOLERANCE = {"winograd2": 3e-6, "winograd4": 3e-5}
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
    "few channels": (2, 3, (30, 30), 5),
    "no padding": (1, 33, (5, 4), 70, ((0, 0), (0, 0))),
    "many": (40, 40, (8, 8), 40),
    "deep": (2, 150, (3, 3), 40),
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROUTINES)
def test_it_is_the_definition(name, kind, shape):
    more = {"bias": True, "relu": shape == "whole"} if kind == "forward" else {}
    problem = problem_of(kind, *SHAPES[shape], **more)
    inputs = inputs_of(problem, np.random.default_rng(14))
    routine = ROUTINES[name](problem)
    assert routine.name == name
    exact = replace(problem, dtype="f8")
    (oracle,) = Ops().convolutions(exact)
    expected = run(oracle, exact, [x.astype("f8") for x in inputs])
    found = run(routine, problem, inputs)
    assert np.abs(found - expected).max() < TOLERANCE[name] * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["many", "nothing divides"])
def test_parts_have_the_bits_of_the_whole(kind, shape, monkeypatch):
    monkeypatch.setattr(winograd, "blas_threads", lambda: 3)
    problem = problem_of(kind, *SHAPES[shape])
    inputs = inputs_of(problem, np.random.default_rng(5))
    routine = winograd.winograd4(problem)
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
def test_each_of_k_models_has_its_bits_alone(kind, stacked):
    generator = np.random.default_rng(7)
    alone = problem_of(kind, *SHAPES["nothing divides"], bias=kind == "forward")
    problem = replace(alone, models=3, stacked=stacked)
    inputs = inputs_of(problem, generator)
    together = run(winograd.winograd4(problem), problem, inputs)
    for k in range(3):
        of_k = [x[k] if has else x for x, has in zip(inputs, (*stacked, True), strict=False)]
        found = run(winograd.winograd4(alone), alone, of_k)
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
        assert winograd.winograd4(replace(problem, **change)) is None
