"""Compiled pooling against the one of any device."""

from itertools import product

import numpy as np
import pytest

from dnn.backend import Ops, Pooling, empty

pytest.importorskip("numba")

from dnn.backend.cpu import pooling
from dnn.backend.cpu.program import Program

KINDS = ("max", "max_gradient", "average", "average_gradient")
DRAWS = 12


def run(routine, problem, inputs):
    out = np.full(problem.shapes[-1], np.nan, problem.dtype)
    space = empty(Ops(), (routine.workspace_bytes,), np.uint8) if routine.workspace_bytes else None
    for function, arguments in routine.steps(inputs, out, space):
        function(*arguments)
    return out


def drawn(kind, layout, generator):
    window = tuple(map(int, generator.integers(1, 5, 2)))
    padding = tuple(tuple(map(int, generator.integers(0, n, 2))) for n in window)
    size = tuple(int(n + generator.integers(0, 7)) for n in window)
    dtype = ("f4", "f8")[generator.integers(2)]
    stride = tuple(map(int, generator.integers(1, 4, 2)))
    images, channels = (int((1, 2, 70)[i]) for i in generator.integers(0, 3, 2))
    counts = kind.startswith("average") and bool(generator.integers(2))
    return Pooling(kind, layout, dtype, images, channels, size, window, stride, padding, counts)


@pytest.mark.parametrize(("kind", "layout"), list(product(KINDS, ["CHWN", "NHWC", "NCHW"])))
def test_it_is_the_same(kind, layout):
    generator = np.random.default_rng(7)
    for _ in range(DRAWS):
        problem = drawn(kind, layout, generator)
        # Small integers, so that windows have several largest elements.
        inputs = [
            generator.integers(-2, 3, shape).astype(problem.dtype) for shape in problem.shapes[:-1]
        ]
        if kind.startswith("max"):
            x = inputs[-1].reshape(-1)
            x[generator.integers(0, x.size, 1 + x.size // 9)] = np.nan
            x[generator.integers(0, x.size, 1 + x.size // 5)] = -np.inf
        found = run(pooling.routine(problem), problem, inputs)
        expected = run(Ops().pooling(problem), problem, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=str(problem))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_bits_of_the_whole(kind, monkeypatch):
    monkeypatch.setattr(pooling, "SPLIT_ELEMENTS", 0)
    generator = np.random.default_rng(3)
    padding = ((1, 0), (1, 1))
    problem = Pooling(kind, "CHWN", "f4", 20, 5, (9, 8), (3, 2), (2, 1), padding)
    inputs = [generator.normal(size=shape).astype("f4") for shape in problem.shapes[:-1]]
    whole = run(pooling.routine(problem), problem, inputs)
    in_parts = np.full_like(whole, np.nan)
    routine = pooling.routine(problem)
    space = empty(Ops(), (routine.workspace_bytes,), np.uint8) if routine.workspace_bytes else None
    ((kernel, arguments),) = routine.steps(inputs, in_parts, space)
    parts = kernel.parts(arguments, 3)
    assert len(parts) == 3
    Program(parts, arguments).run()
    np.testing.assert_array_equal(in_parts, whole)
