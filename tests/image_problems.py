"""Convolutions and poolings of random shapes, and what they are computed with."""

from __future__ import annotations

import random

import numpy as np

from dnn.backend import Convolution, Ops, Pooling, empty

ORACLE = Ops()


def convolution_of(seed, **given):
    """Draw a problem: every kind and layout, any window, stride, dilation, padding and groups."""
    draw = random.Random(seed)
    groups = draw.choice([1, 1, 2, 3])
    window = draw.randint(1, 5), draw.randint(1, 5)
    dilation = draw.choice([(1, 1), (1, 1), (2, 1)])
    padding = tuple((draw.randint(0, 3), draw.randint(0, 3)) for _ in range(2))
    size = tuple(
        max(1, (taps - 1) * apart + 1 - sum(pad)) + draw.randint(0, 20)
        for taps, apart, pad in zip(window, dilation, padding, strict=True)
    )
    problem = Convolution(
        kind=draw.choice(["forward", "data", "weights"]),
        layout=draw.choice(["NCHW", "NHWC", "CHWN"]),
        dtype="f4",
        models=None,
        stacked=(False, False),
        images=draw.randint(1, 5),
        channels=groups * draw.randint(1, 5),
        size=size,
        filters=groups * draw.randint(1, 5),
        window=window,
        stride=draw.choice([(1, 1), (1, 1), (2, 2), (1, 3)]),
        dilation=dilation,
        padding=padding,
        groups=groups,
    )
    return problem._replace(**given)


def convolution_inputs(problem, seed):
    """Return what it is computed from, a bias for each model among it."""
    generator = np.random.default_rng(seed)
    shapes = list(problem.shapes[:2])
    if problem.bias:
        models = () if problem.models is None else (problem.models,)
        shapes.append((*models, problem.filters))
    return [generator.normal(size=shape).astype(problem.dtype) for shape in shapes]


def pooling_of(kind, layout, generator, most=70):
    """Draw a pooling; `most` images or channels are the most there are."""
    window = tuple(map(int, generator.integers(1, 5, 2)))
    padding = tuple(tuple(map(int, generator.integers(0, n, 2))) for n in window)
    size = tuple(int(n + generator.integers(0, 7)) for n in window)
    dtype = ("f4", "f8")[generator.integers(2)]
    stride = tuple(map(int, generator.integers(1, 4, 2)))
    images, channels = (int((1, 2, most)[i]) for i in generator.integers(0, 3, 2))
    counts = kind.startswith("average") and bool(generator.integers(2))
    return Pooling(kind, layout, dtype, images, channels, size, window, stride, padding, counts)


def pooling_inputs(problem, generator):
    """Return small integers, so that windows have several largest elements, and NaN among them."""
    inputs = [
        generator.integers(-2, 3, shape).astype(problem.dtype) for shape in problem.shapes[:-1]
    ]
    if problem.kind.startswith("max"):
        x = inputs[-1].reshape(-1)
        x[generator.integers(0, x.size, 1 + x.size // 9)] = np.nan
        x[generator.integers(0, x.size, 1 + x.size // 5)] = -np.inf
    return inputs


def run(ops, routine, problem, inputs, dtype=None):
    """Compute on a device, in memory that holds NaN at first; return the result on the host.

    It has the problem's type, if `dtype` names no narrow one.
    """
    out = empty(ops, problem.shapes[-1], dtype or problem.dtype)
    workspace = ops.memory(routine.workspace_bytes)
    ops.load(np.array(np.nan if out.dtype.kind == "f" else 0x7FFF), out)
    ops.load(np.array(255), workspace)
    given = [ops.asarray(x) for x in inputs]
    for function, arguments in ops.link(routine.steps(given, out, workspace)):
        function(*arguments)
    return ops.to_host(out)


def exact(problem, inputs):
    """Return a convolution by NumPy in float64."""
    wide = problem._replace(dtype="f8")
    return run(ORACLE, ORACLE.convolution(wide), wide, [x.astype("f8") for x in inputs])
