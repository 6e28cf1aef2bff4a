"""Pooling of images: one pass over x, with the windows of some vectors in registers.

Vectors are parts of lines of y. In CHWN and NHWC a line is the innermost axis, all images or all
channels, of one window; in NCHW it is a row of windows, and the elements of x that one tap of the
window meets are a stride apart. A map, of a channel or an image, is computed by one thread.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from dnn.backend.convolution import Routine
from dnn.backend.cpu.cache import entry_of, source_of
from dnn.backend.cpu.kernels import SPLIT_ELEMENTS, cuts
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.cpu.registers import lanes_of
from dnn.backend.ops import Array, Step
from dnn.backend.pooling import Pooling

__all__ = ["PoolingFields", "routine"]

MOST_VECTORS = 4
"""Vectors of a line that are computed at once."""

PoolingFields = namedtuple(
    "PoolingFields",
    "first last height width inner out_height out_width rows columns down across top before counts"
    " x y given",
)
"""Fields of the kernel: maps from `first` to `last`, sizes in elements, and addresses. `given` are
the bytes from dx, which is `x` for a gradient, to x."""

KINDS = ("max", "max_gradient", "average", "average_gradient")


def routine(problem: Pooling) -> Routine | None:
    """Return the routine of a pooling in one pass, or None for a kind that it does not compute."""
    if problem.kind not in KINDS or not prod(problem.x_shape):
        return None
    kernel = _kernel(problem)

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        return [(kernel, (*inputs, out))]

    return Routine("lines", 0, steps)


@cache
def _kernel(problem: Pooling) -> _Lines:
    """Return the kernel; it exists as long as the process, since programs point to its counts."""
    return _Lines(problem)


class _Lines(Native):
    """A pooling as a kernel of arrays and, for a part of it, a range of the maps."""

    def __init__(self, problem: Pooling) -> None:
        super().__init__(self._record, None, self._in_parts)
        self.problem = problem
        inner = {"CHWN": problem.images, "NHWC": problem.channels, "NCHW": 1}[problem.layout]
        self.maps = problem.images * problem.channels // inner
        is_exact = problem.window == problem.stride and not any(map(any, problem.padding))
        is_exact = is_exact and all(
            n % step == 0 for n, step in zip(problem.size, problem.stride, strict=True)
        )
        self.counts = problem.counts() if problem.kind.startswith("average") else np.zeros(1)
        (top, _), (left, _) = problem.padding
        self.fields = [*problem.size, inner, *problem.out_size, *problem.window, *problem.stride]
        self.fields += [top, left, address_of(self.counts)]
        line = inner if inner > 1 else problem.out_size[1]
        vectors = min(MOST_VECTORS, -(-line // lanes_of(problem.dtype)))
        self.source = _source(problem.kind, problem.dtype, inner == 1, not is_exact, vectors)

    def __repr__(self) -> str:
        return f"pooling: {self.problem.kind}"

    def _in_parts(self, arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        if prod(self.problem.x_shape) < SPLIT_ELEMENTS:
            return []
        return [(*arguments, cut) for cut in cuts(self.maps, parts)]

    def _record(self, *arguments: Any) -> Record | None:
        arrays = [x for x in arguments if not isinstance(x, slice)]
        part = arguments[-1] if isinstance(arguments[-1], slice) else slice(0, self.maps)
        if not all(x.flags.c_contiguous and x.dtype == self.problem.dtype for x in arrays):
            return None
        # A gradient passes dx in place of x, and the distance in bytes from dx to x.
        of_x, of_y = arrays[0], arrays[-1]
        x_offset = 0
        if self.problem.kind.endswith("gradient"):
            of_x, of_y = of_y, of_x
            x_offset = address_of(arrays[-2]) - address_of(of_x)
        arrays = [address_of(of_x), address_of(of_y)]
        fields = PoolingFields._make([part.start, part.stop, *self.fields, *arrays, x_offset])
        return entry_of(self.source), list(fields)


@cache
def _source(kind: str, code: str, *shape: int) -> str:
    made = f"pooling_kernel({kind!r}, {code!r}, {', '.join(map(str, shape))})"
    return source_of("pooling_kernels", made)
