"""Shared parts of compiled convolutions: pieces of work, memory, K models.

`UnitKernel` is for kernels that compute their result in place. `Kernels` is for products of our
own: the weights are packed, or transformed, by a kernel of their own; then each thread does all of
its piece of the work in memory of its own. A piece is cut out of the result, never out of a sum, so
no bit depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.blas import blas_threads
from dnn.backend.cpu.cache import entry_of
from dnn.backend.cpu.kernels import SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record, address_of
from dnn.backend.cpu.registers import registers
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Step

__all__ = [
    "FLOAT_BYTES",
    "Kernels",
    "Piece",
    "Task",
    "UnitKernel",
    "by_model",
    "cut_pieces",
    "round_up",
    "row_bytes",
]

FLOAT_BYTES = 4

Piece = tuple[slice, slice]
"""Rows and panels of the result, or channels and panels of the weights' gradient."""

Arguments = tuple[Any, ...]
"""Arguments of a kernel: task, arrays, memory, piece."""


class Task(Protocol):
    """Sizes of a problem, and its pieces of work, for the kernels of a routine."""

    @property
    def panels(self) -> int:
        """Number of panels of filters."""

    @property
    def weight_bytes(self) -> int:
        """Size of the packed weights in bytes, 0 where they are not kept."""

    @property
    def operations(self) -> int:
        """Number of operations in all products."""

    def pieces(self, number: int) -> list[Piece]:
        """Cut the work into at most `number` pieces."""

    def piece_bytes(self, first: slice, panels: slice) -> int:
        """Return how many bytes of memory a piece takes."""


def round_up(length: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-length // unit) * unit


def row_bytes() -> int:
    """Return the bytes of a row of a panel."""
    return registers().panel * FLOAT_BYTES


class Kernels:
    """Kernels of a routine, which take a task, its arrays, memory and a piece of its work.

    Parameters
    ----------
    pack : function (task, w, packed, panels) -> Record
    maps : function (task, x, w, packed or None, bias or None, out, memory, piece) -> Record
        For results in the form of images.
    gradient : function (task, x, dy, dw, memory, piece) -> Record
        For the gradient of the weights.
    """

    def __init__(
        self,
        pack: Callable[..., Record],
        maps: Callable[..., Record],
        gradient: Callable[..., Record],
    ) -> None:
        self._pack = Native(pack, None, _split_panels)
        self._maps = Native(maps, None, _split)
        self._gradient = Native(gradient, None, _split)

    def routine(self, name: str, task: Task, problem: Convolution) -> Routine:
        """Return the routine that computes a problem, whose sizes are in `task`."""
        threads = range(1, blas_threads() + 1)
        size = max(_space_bytes(task, number) for number in threads)
        kept = task.weight_bytes
        (whole,) = task.pieces(1)

        def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
            assert workspace is not None
            space, packed = workspace[kept:], workspace[:kept] if kept else None
            made: list[Step] = []
            for k, (first, second, result) in enumerate(by_model(problem, inputs, out)):
                if problem.kind == "weights":
                    made.append((self._gradient, (task, first, second, result, space, whole)))
                    continue
                bias = inputs[2] if problem.bias else None
                if bias is not None and bias.ndim == 2:
                    bias = bias[k]
                if packed is not None:
                    made.append((self._pack, (task, second, packed, slice(0, task.panels))))
                arrays = (first, second, packed, bias, result)
                made.append((self._maps, (task, *arrays, space, whole)))
            return made

        return Routine(name, kept + size, steps)


class UnitKernel(Native):
    """A kernel of arrays whose result is cut into units; a part of it has a slice of the units too.

    An array is that of one model, contiguous, or has an axis of models, of any stride, before it.

    Parameters
    ----------
    name : str
    problem : Convolution
    units : int
    source : str
        See `source_of`.
    fields : callable
        Returns the kernel's fields, given `first` and `last` unit, and for each array its address,
        under its name, and the bytes from model to model, 0 if they share it, as ``NAME_model``.
    axes : mapping of str to int
        For each array, the result last, its name and the number of its axes in one model.
    tables : sequence of array
        Arrays whose addresses are among the fields.
    """

    def __init__(
        self,
        name: str,
        problem: Convolution,
        units: int,
        source: str,
        fields: Callable[..., Sequence[int]],
        axes: Mapping[str, int],
        tables: Sequence[Array],
    ) -> None:
        super().__init__(self._record, None, self._in_parts)
        self.name, self.problem, self.units = name, problem, units
        self.source, self.fields, self.axes, self.tables = source, fields, axes, tables

    def __repr__(self) -> str:
        return self.name

    def _in_parts(self, arguments: Arguments, parts: int) -> list[Arguments]:
        problem = self.problem
        products = prod(problem.y_shape) * prod(problem.w_shape[1:])
        if 2 * (problem.models or 1) * products < SPLIT_OPERATIONS:
            return []
        return [(*arguments, cut) for cut in cuts(self.units, parts)]

    def _record(self, *arguments: Any) -> Record | None:
        part = slice(0, self.units)
        if isinstance(arguments[-1], slice):
            *arguments, part = arguments  # type: ignore[assignment]
        given = {"first": part.start, "last": part.stop}
        for (name, axes), x in zip(self.axes.items(), arguments, strict=True):
            of_model = x[0] if x.ndim > axes else x
            if not of_model.flags.c_contiguous or x.dtype != self.problem.dtype:
                return None
            given[name] = address_of(x)
            given[f"{name}_model"] = x.strides[0] if x.ndim > axes else 0
        return entry_of(self.source), list(self.fields(**given))


def by_model(
    problem: Convolution, inputs: Sequence[Array], out: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """Return an iterator over the two inputs and the result of each model."""
    if problem.models is None:
        return iter([(inputs[0], inputs[1], out)])
    first, second = (
        x if stacked else [x] * problem.models
        for x, stacked in zip(inputs[:2], problem.stacked, strict=True)
    )
    return zip(first, second, out, strict=True)


def cut_pieces(length: int, unit: int, panels: int, number: int, by_panels: bool) -> list[Piece]:
    """Cut rows or channels, at multiples of a unit, or else panels, into pieces of work."""
    if by_panels:
        return [(slice(0, length), cut) for cut in cuts(panels, number)]
    return [(cut, slice(0, panels)) for cut in cuts(length, number, unit)]


def _space_bytes(task: Task, number: int) -> int:
    """Return how many bytes of memory the work takes in a number of pieces."""
    return sum(round_up(task.piece_bytes(*piece), ALIGNMENT_BYTES) for piece in task.pieces(number))


def _split(arguments: Arguments, number: int) -> list[Arguments]:
    task, *arrays, space, _ = arguments
    if task.operations < SPLIT_OPERATIONS:
        return []
    # There may be more threads now than when the size of the memory was computed.
    while _space_bytes(task, number) > space.size:
        number -= 1
    at, pieces = 0, []
    for piece in task.pieces(number):
        end = at + round_up(task.piece_bytes(*piece), ALIGNMENT_BYTES)
        pieces.append((task, *arrays, space[at:end], piece))
        at = end
    return pieces


def _split_panels(arguments: Arguments, number: int) -> list[Arguments]:
    *rest, panels = arguments
    if arguments[0].operations < SPLIT_OPERATIONS:
        return []
    return [(*rest, cut) for cut in cuts(panels.stop, number)]
