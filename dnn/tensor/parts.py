"""Parts of tensors, read and written, and tensors with other axes: what shares memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from dnn.backend.device import import_cupy
from dnn.errors import ShapeError
from dnn.graph.node import Shape
from dnn.memory import MemoryKind, MemoryManager
from dnn.tensor.elements import Elements
from dnn.tensor.shapes import is_integer
from dnn.tensor.sources import on_host
from dnn.tensor.view import View

__all__ = ["Parts"]

Kind = TypeVar("Kind", bound="Parts")


class Parts(Elements):
    """Elements that can be cut into others, which look at the same memory."""

    __slots__ = ()

    @classmethod
    def _at(cls: type[Kind], memory: MemoryManager, view: View) -> Kind:
        tensor = cls.__new__(cls)
        tensor.memory = memory
        tensor.view = view
        return tensor

    @classmethod
    def _dense(cls: type[Kind], memory: MemoryManager, shape: Shape) -> Kind:
        return cls._at(memory, View.dense(shape))

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", "a tensor without axes has no length", ())
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self: Kind, index: Any) -> Any:
        """Return a part that shares memory, or a number where every axis has an integer.

        Parameters
        ----------
        index : int, slice, ..., None, or a tuple of them
            As in NumPy; integers count from the end where negative.

        Returns
        -------
        Tensor, or float, int or bool of Python

        Raises
        ------
        OutOfRangeError
            If an integer is outside its axis, or there are more than there are axes.
        DtypeError
            If there is something else in the index.
        """
        part = self._at(self.memory, self.view.part(index))
        whole = index if isinstance(index, tuple) else (index,)
        integers = all(is_integer(i) for i in whole) and len(whole) == self.ndim
        return part.item() if integers else part

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a number, an array or a tensor that broadcasts to the part.

        Parameters
        ----------
        index : int, slice, ..., None, or a tuple of them
        value : number, array of NumPy or CuPy, or Tensor

        Raises
        ------
        ShapeError
            If it does not broadcast.
        OutOfRangeError, DtypeError
            As for reading.
        """
        part = self.view.part(index)
        array = np.asarray(value if isinstance(value, Elements) else on_host(value))
        try:
            fits = np.broadcast_shapes(array.shape, part.shape) == part.shape
        except ValueError:
            fits = False
        if not fits:
            message = f"{array.shape} does not broadcast to {part.shape}"
            raise ShapeError("tensor", message, array.shape, part.shape)
        if self.memory.kind is MemoryKind.DEVICE:
            # Not through the host: other parts of the memory stay where they are.
            there = import_cupy().asarray(array.astype(self.dtype))
            part.of_device(self.memory.write_device())[...] = there
        else:
            part.of_host(self.memory.write_host())[...] = array

    def squeeze(self: Kind, axis: int | None = None) -> Kind:
        """Return a tensor without axes of length 1 that shares memory.

        Parameters
        ----------
        axis : int, optional
            The one to leave out, negative from the end; all of length 1 if left out.

        Returns
        -------
        Tensor

        Raises
        ------
        OutOfRangeError
            If there is no such axis.
        ShapeError
            If its length is not 1.
        """
        return self._at(self.memory, self.view.squeeze(axis))

    def unsqueeze(self: Kind, axis: int = 0) -> Kind:
        """Return a tensor with a new axis of length 1 that shares memory.

        Parameters
        ----------
        axis : int
            Which axis of the result it is, negative from the end: -1 is behind the last.

        Returns
        -------
        Tensor

        Raises
        ------
        OutOfRangeError
            If there is no such place.
        """
        return self._at(self.memory, self.view.unsqueeze(axis))
