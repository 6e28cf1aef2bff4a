"""Shared parts of convolutions by products of our own: pieces of work, memory, K models.

The weights are packed, or transformed, by a kernel of their own; then each thread does all of its
piece of the work in memory of its own. A piece is cut out of the result, never out of a sum, so no
bit depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cpu.blas import blas_threads
from dnn.backend.cpu.kernels import SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record
from dnn.backend.cpu.registers import registers
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Step

__all__ = ["FLOAT_BYTES", "Kernels", "Piece", "Task", "round_up", "row_bytes"]

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
            for first, second, bias, result in _models(problem, inputs, out):
                if problem.kind == "weights":
                    made.append((self._gradient, (task, first, second, result, space, whole)))
                    continue
                if packed is not None:
                    made.append((self._pack, (task, second, packed, slice(0, task.panels))))
                arrays = (first, second, packed, bias, result)
                made.append((self._maps, (task, *arrays, space, whole)))
            return made

        return Routine(name, kept + size, steps)


def _models(
    problem: Convolution, inputs: Sequence[Array], out: Array
) -> list[tuple[Array, Array, Array | None, Array]]:
    """Return the inputs, the bias and the result of each model."""
    bias = inputs[2] if problem.bias else None
    if problem.models is None:
        return [(inputs[0], inputs[1], bias, out)]
    made = []
    for k in range(problem.models):
        first, second = (
            x[k] if has else x for x, has in zip(inputs[:2], problem.stacked, strict=True)
        )
        of_k = bias[k] if bias is not None and bias.ndim == 2 else bias
        made.append((first, second, of_k, out[k]))
    return made


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
