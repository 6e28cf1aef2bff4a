"""Computing with tensors: operators, NumPy's elementwise functions, reductions, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.backend.device import CPU, Device, current_device, import_cupy
from dnn.errors import DeviceError, OutOfRangeError, ShapeError
from dnn.graph.node import Shape
from dnn.memory import MemoryKind, MemoryManager
from dnn.tensor.elements import Elements, View, is_foreign

__all__ = ["Arithmetic"]

Kind = TypeVar("Kind", bound="Arithmetic")
Axes = int | tuple[int, ...] | None


def _reduction(name: str, result: str) -> Callable[..., Any]:
    """Return a method that calls an array's method of this name; `result` is for its docstring."""

    def reduced(
        self: Arithmetic,
        axis: Axes = None,
        *,
        keepdims: bool = False,
        dtype: npt.DTypeLike | None = None,
        out: Any = None,
    ) -> Any:
        options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        if keepdims:
            options["keepdims"] = True
        with current_device(self.device):
            values = self._result(getattr(self._array(), name)(axis=axis, **options))
        if out is None:
            return values
        out[...] = values
        return out

    reduced.__name__ = name
    reduced.__qualname__ = f"Arithmetic.{name}"
    reduced.__doc__ = f"""Return {result} over axes.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Over all axes if left out; for `argmax` one axis, or all elements in a row if left out.
        keepdims : bool
            The axes stay, with length 1.
        dtype : type of elements, optional
            Of a sum, mean or product, where it is not that of NumPy.
        out : Tensor or array, optional
            Tensor or array that the result is written to and returned in.

        Returns
        -------
        Tensor
        """
    return reduced


class Arithmetic(Elements, np.lib.mixins.NDArrayOperatorsMixin):
    """Elements that compute as an array does, on the host with NumPy or on a GPU with CuPy.

    Results are tensors in memory of the same kind; complex numbers are returned as an array.
    MANAGED memory is used on the GPU, unless the other operand is on the host.
    """

    __slots__ = ()

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        where = options.pop("where", None)
        on_host = self._computes_on_host(ufunc.__name__, (*inputs, *out, where))

        def array_of(x: Any, for_writing: bool = False) -> Any:
            return x._array(for_writing, on_host) if isinstance(x, Elements) else x

        gpu = CPU if on_host else self.device
        targets = tuple(array_of(x, True) for x in out)
        # CuPy's functions take no mask: what it leaves out is computed, and not copied.
        masked = where is not None and gpu != CPU and method == "__call__"
        if where is not None and not masked:
            options["where"] = array_of(where)
        if targets and not masked:
            options["out"] = targets
        try:
            with current_device(gpu):
                result = getattr(ufunc, method)(*map(array_of, inputs), **options)
                if masked:
                    for target, values in zip(targets, _as_tuple(result), strict=False):
                        import_cupy().copyto(target, values, where=array_of(where))
        except ValueError as error:
            shapes = [np.shape(x) for x in inputs], [np.shape(x) for x in out]
            if method != "__call__" or _fit(ufunc, *shapes):
                raise
            given = " and ".join(str(shape) for part in shapes for shape in part)
            raise ShapeError(ufunc.__name__, f"{given} do not fit: {error}", *shapes[0]) from None
        if out:
            return out[0] if len(out) == 1 else out
        with current_device(gpu):
            if isinstance(result, tuple):
                return tuple(self._result(each) for each in result)
            return self._result(result)

    def _computes_on_host(self, where: str, operands: Sequence[Any]) -> bool:
        """Return whether operands meet on the host.

        Raises
        ------
        DeviceError
            If some are on the host alone and others on a GPU alone, or on two GPUs.
        """
        tensors = [x for x in operands if isinstance(x, Elements)]
        devices = {x.device for x in tensors} - {CPU}
        on_host = any(isinstance(x, np.ndarray | list | tuple) and np.ndim(x) for x in operands)
        on_host = on_host or any(x.device == CPU for x in tensors)
        on_gpu = [x for x in tensors if x.memory.kind is MemoryKind.DEVICE]
        if len(devices) > 1 or (on_host and on_gpu):
            names = sorted({*map(str, devices), *(["cpu"] if on_host else [])})
            message = f"{where}: operands on {' and '.join(names)}"
            raise DeviceError(f"{message}: Tensor.from_array(x, device={names[-1]!r}) moves one")
        return on_host

    def _result(self: Kind, values: Any) -> Kind | Array:
        """Return a computed array as a tensor in memory of this kind, or as it is if complex."""
        array: Any = values if is_foreign(values) else np.asarray(values)
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            return array  # type: ignore[no-any-return]
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        managed = self.memory.kind in (MemoryKind.MANAGED, MemoryKind.CUDA_MANAGED)
        if is_foreign(array):
            memory = MemoryManager.wrap(array, Device("cuda", array.device.id), managed=managed)
        elif self.device == CPU:
            memory = MemoryManager.wrap(array, managed=managed)
        else:
            memory = MemoryManager(array.size, array.dtype, MemoryKind.MANAGED, self.device)
            memory.copy_from(MemoryManager.wrap(array))
        return self._dense(memory, tuple(array.shape))

    def __bool__(self) -> bool:
        if self.size != 1:
            message = f"a tensor {self.shape} is neither true nor false: use any() or all()"
            raise ShapeError("tensor", message, self.shape)
        return bool(self.item())

    # Elements by number.

    def get(self, *index: int) -> float | int | bool:
        """Return one element.

        Parameters
        ----------
        *index : int
            An index for each axis, negative from the end.

        Returns
        -------
        float, int or bool of Python

        Raises
        ------
        OutOfRangeError
            If there is no such element, or not one index for each axis.
        """
        self._check_count(len(index))
        element: float | int | bool = self[index]
        return element

    def set(self, *index_and_value: float) -> None:
        """Change one element: ``x.set(0, 2, 1.5)`` is ``x[0, 2] = 1.5``.

        Parameters
        ----------
        *index_and_value : int, ..., and a number
            An index for each axis, and behind them the value.

        Raises
        ------
        OutOfRangeError
            If there is no such element, or not one index for each axis.
        """
        self._check_count(len(index_and_value) - 1)
        self[index_and_value[:-1]] = index_and_value[-1]

    def _check_count(self, indices: int) -> None:
        if indices != self.ndim:
            message = f"{indices} indices for an element of a tensor {self.shape}"
            raise OutOfRangeError(message)

    # Reductions; NumPy's functions of these names call them.

    sum = _reduction("sum", "the sum")
    mean = _reduction("mean", "the mean")
    prod = _reduction("prod", "the product")
    max = _reduction("max", "the largest element")
    min = _reduction("min", "the smallest element")
    all = _reduction("all", "whether all elements are true")
    any = _reduction("any", "whether any element is true")
    argmax = _reduction("argmax", "where the first largest element stands,")

    # Products.

    @property
    def T(self: Kind) -> Kind:
        """The tensor with its last two axes exchanged; it shares memory.

        Raises
        ------
        ShapeError
            If there are fewer than two.
        """
        if self.ndim < 2:
            raise ShapeError("T", f"a tensor {self.shape} has fewer than two axes", self.shape)
        shape, strides = (
            (*each[:-2], each[-1], each[-2]) for each in (self.view.shape, self.view.strides)
        )
        return self._at(self.memory, View(shape, strides, self.view.offset))

    def dot(self, other: npt.ArrayLike) -> Any:
        """Return the product with a vector or matrix, as `numpy.matmul` has it; also ``a @ b``.

        Parameters
        ----------
        other : Tensor or array_like, shape (k,) or (..., k, m)

        Returns
        -------
        Tensor
            Of two vectors of shape ().

        Raises
        ------
        ShapeError
            If the shapes do not fit.
        """
        return self @ other


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _fit(ufunc: np.ufunc, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    """Say whether elementwise operands broadcast to the shapes of the outputs."""
    if ufunc.signature is not None:  # such as matmul's
        return False
    try:
        result = np.broadcast_shapes(*inputs)
        return all(np.broadcast_shapes(result, shape) == shape for shape in outputs)
    except ValueError:
        return False
