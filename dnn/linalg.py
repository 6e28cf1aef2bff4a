"""Linear algebra and Fourier transforms of tensors: by NumPy on the host, by CuPy on a GPU.

Functions of a tensor return a tensor in memory of the same kind; complex numbers, which tensors do
not hold, are returned as an array of NumPy or CuPy. Functions of an array return an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.backend.device import CPU, Device, current_device, import_cupy
from dnn.errors import DataError, DeviceError, DtypeError, ShapeError, explains_arguments
from dnn.tensor import Tensor
from dnn.tensor.elements import is_foreign

__all__ = ["bmatmul", "eigh", "eigvals", "eigvalsh", "fft", "ifft", "svd"]


@explains_arguments
def bmatmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two batches of matrices, one matrix of each at a time.

    Parameters
    ----------
    a : Tensor, shape (..., n, k), of at least three axes
    b : Tensor, shape (..., k, m)
        With the same leading axes.

    Returns
    -------
    Tensor, shape (..., n, m)

    Raises
    ------
    ShapeError
        If there are fewer than three axes, or the shapes do not fit; ``a @ b`` broadcasts.
    DeviceError
        If one is on the host alone and the other on a GPU.
    """
    if min(a.ndim, b.ndim) < 3 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        message = f"{a.shape} and {b.shape} are no batches of matrices that fit"
        raise ShapeError("bmatmul", message, a.shape, b.shape)
    product: Tensor = a @ b
    return product


def svd(x: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition ``x = u diag(s) vh``.

    Parameters
    ----------
    x : Tensor, shape (..., n, m)
        Of float32 or float64.
    full_matrices : bool
        `u` and `vh` are square; else their inner length is ``min(n, m)``.

    Returns
    -------
    u, s, vh : Tensor
        The singular values `s`, of shape (..., min(n, m)), are in descending order.

    Raises
    ------
    ShapeError, DtypeError
        If `x` is no matrix, or of a type that the library does not take.
    DataError
        If it does not converge, such as for NaN.
    """
    u, s, vh = _computed("svd", x, lambda xp, a: xp.linalg.svd(a, full_matrices), 2)
    return u, s, vh


def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of symmetric matrices; the lower triangle is read.

    Parameters
    ----------
    x : Tensor, shape (..., n, n)
        Of float32 or float64.

    Returns
    -------
    values : Tensor, shape (..., n)
        In ascending order.
    vectors : Tensor, shape (..., n, n)
        An eigenvector in each column.

    Raises
    ------
    ShapeError, DtypeError, DataError
        As for `svd`, or if a matrix is not square.
    """
    values, vectors = _computed("eigh", x, lambda xp, a: xp.linalg.eigh(a), 2, square=True)
    return values, vectors


def eigvalsh(x: Tensor) -> Tensor:
    """Return the eigenvalues of symmetric matrices in ascending order, from the lower triangle.

    Parameters
    ----------
    x : Tensor, shape (..., n, n)

    Returns
    -------
    Tensor, shape (..., n)

    Raises
    ------
    ShapeError, DtypeError, DataError
        As for `eigh`.
    """
    values: Tensor = _computed("eigvalsh", x, lambda xp, a: xp.linalg.eigvalsh(a), 2, square=True)
    return values


def eigvals(x: Tensor) -> Tensor | Array:
    """Return the eigenvalues of any square matrices, in no particular order.

    Parameters
    ----------
    x : Tensor, shape (..., n, n)

    Returns
    -------
    Tensor or array of complex, shape (..., n)
        A tensor if the library says that all are real.

    Raises
    ------
    ShapeError, DtypeError, DataError
        As for `eigh`.
    DeviceError
        If `x` is on a GPU and CuPy has no such function.
    """

    def compute(xp: Any, a: Any) -> Any:
        if not hasattr(xp.linalg, "eigvals"):
            message = "eigvals: this CuPy has none: take x.to('cpu'), or eigvalsh of a symmetric x"
            raise DeviceError(message)
        return xp.linalg.eigvals(a)

    values: Tensor | Array = _computed("eigvals", x, compute, 2, square=True)
    return values


def fft(x: Tensor | npt.ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Return the discrete Fourier transform along an axis.

    Parameters
    ----------
    x : Tensor or array
    n : int, optional
        Length along the axis, for which `x` is cut or filled up with zeros.
    axis : int

    Returns
    -------
    array of complex
        Of NumPy, or of CuPy where `x` is on a GPU.

    Raises
    ------
    ShapeError
        If `x` has no axis.
    """
    values: Array = _computed("fft", x, lambda xp, a: xp.fft.fft(a, n, axis), 1)
    return values


def ifft(x: Tensor | npt.ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Return the inverse of `fft` along an axis; ``.real`` are its real parts.

    Parameters
    ----------
    x : Tensor or array
        Such as `fft` returns.
    n : int, optional
    axis : int
        Both as for `fft`.

    Returns
    -------
    array of complex
        Of NumPy, or of CuPy where `x` is on a GPU.

    Raises
    ------
    ShapeError
        If `x` has no axis.
    """
    values: Array = _computed("ifft", x, lambda xp, a: xp.fft.ifft(a, n, axis), 1)
    return values


def _computed(
    name: str,
    x: Any,
    function: Callable[[Any, Any], Any],
    axes: int,
    square: bool = False,
) -> Any:
    """Call `function` with NumPy or CuPy and the array of `x`, which needs at least `axes` axes."""
    if isinstance(x, Tensor):
        array = x._array()
    else:
        array = import_cupy().asarray(x) if is_foreign(x) else np.asarray(x)
    shape = tuple(array.shape)
    if len(shape) < axes or (square and shape[-1] != shape[-2]):
        wanted = "square matrices" if square else f"an array of at least {axes} axes"
        raise ShapeError(name, f"it takes {wanted}, not {shape}", shape)
    try:
        with current_device(Device("cuda", array.device.id) if is_foreign(array) else CPU):
            found = function(import_cupy() if is_foreign(array) else np, array)
    except np.linalg.LinAlgError as error:
        raise DataError(f"{name}: {error}") from None
    except TypeError as error:
        raise DtypeError(f"{name}: {error}") from None
    if not isinstance(x, Tensor):
        return found
    return tuple(map(x._result, found)) if isinstance(found, tuple) else x._result(found)
