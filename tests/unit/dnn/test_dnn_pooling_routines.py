"""Compiled pooling against the one of any device."""

from itertools import product

import numpy as np
import pytest
from image_problems import ORACLE, pooling_inputs, pooling_of, run

from dnn.backend import Ops, Pooling, empty

pytest.importorskip("numba")

from dnn.backend.cpu import pooling
from dnn.backend.cpu.program import Program

KINDS = ("max", "max_gradient", "average", "average_gradient")
DRAWS = 12


@pytest.mark.parametrize(("kind", "layout"), list(product(KINDS, ["CHWN", "NHWC", "NCHW"])))
def test_it_is_the_same(kind, layout):
    generator = np.random.default_rng(7)
    for _ in range(DRAWS):
        problem = pooling_of(kind, layout, generator)
        inputs = pooling_inputs(problem, generator)
        found = run(ORACLE, pooling.routine(problem), problem, inputs)
        expected = run(ORACLE, ORACLE.pooling(problem), problem, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=str(problem))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_bits_of_the_whole(kind, monkeypatch):
    monkeypatch.setattr(pooling, "SPLIT_ELEMENTS", 0)
    generator = np.random.default_rng(3)
    padding = ((1, 0), (1, 1))
    problem = Pooling(kind, "CHWN", "f4", 20, 5, (9, 8), (3, 2), (2, 1), padding)
    inputs = [generator.normal(size=shape).astype("f4") for shape in problem.shapes[:-1]]
    whole = run(ORACLE, pooling.routine(problem), problem, inputs)
    in_parts = np.full_like(whole, np.nan)
    routine = pooling.routine(problem)
    space = empty(Ops(), (routine.workspace_bytes,), np.uint8) if routine.workspace_bytes else None
    ((kernel, arguments),) = routine.steps(inputs, in_parts, space)
    parts = kernel.parts(arguments, 3)
    assert len(parts) == 3
    Program(parts, arguments).run()
    np.testing.assert_array_equal(in_parts, whole)
