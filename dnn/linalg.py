"""Linear algebra and Fourier transforms of tensors: by NumPy on the host, by CuPy on a GPU.

Functions of a tensor return a tensor in memory of the same kind; complex numbers, which tensors do
not hold, are returned as an array of NumPy or CuPy. Functions of an array return an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.backend.device import CPU, Device, current_device, import_cupy
from dnn.errors import (
    ConfigurationError,
    DataError,
    DeviceError,
    DtypeError,
    ShapeError,
    explains_arguments,
)
from dnn.tensor import Tensor
from dnn.tensor.elements import is_foreign

__all__ = [
    "bmatmul",
    "cholesky",
    "eigh",
    "eigvals",
    "eigvalsh",
    "fft",
    "fft2",
    "fftn",
    "ifft",
    "ifft2",
    "ifftn",
    "inv",
    "lstsq",
    "qr",
    "solve",
    "svd",
]


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


def solve(a: Tensor, b: Tensor | npt.ArrayLike) -> Tensor:
    """Return x with ``a x = b``, of square matrices.

    `dnn.graph.solve` does the same for nodes, with gradients.

    Parameters
    ----------
    a : Tensor, shape (..., n, n)
        Of float32 or float64.
    b : Tensor or array, shape (n,) or (..., n, m)
        Leading axes broadcast with those of `a`.

    Returns
    -------
    Tensor, of the shape of `b`
        With the leading axes of both.

    Raises
    ------
    ShapeError, DtypeError
        If `a` is not square, they do not fit, or are of a type that the library does not take.
    DataError
        If a matrix is singular; on a GPU the result has NaN or infinity then.
    DeviceError
        If one is on the host alone and the other on a GPU.
    """
    if np.ndim(b) == 0 or (np.ndim(b) == 1 and np.shape(b) != a.shape[-1:]):
        raise ShapeError("solve", f"{a.shape} and {np.shape(b)} do not fit", a.shape, np.shape(b))

    def compute(xp: Any, a: Any, b: Any) -> Any:
        from dnn.graph.operations.systems import solved

        return solved(xp, a, b[:, None])[..., 0] if b.ndim == 1 else solved(xp, a, b)

    x: Tensor = _computed("solve", a, compute, 2, True, b)
    return x


def inv(x: Tensor) -> Tensor:
    """Return the inverses of square matrices; to solve a system, `solve` is faster and more exact.

    Parameters
    ----------
    x : Tensor, shape (..., n, n)

    Returns
    -------
    Tensor, shape (..., n, n)

    Raises
    ------
    ShapeError, DtypeError, DataError
        As for `solve`.
    """
    inverse: Tensor = _computed("inv", x, lambda xp, a: xp.linalg.inv(a), 2, square=True)
    return inverse


def lstsq(
    a: Tensor, b: Tensor | npt.ArrayLike, rcond: float | None = None
) -> tuple[Tensor, Tensor, int, Tensor]:
    """Return x that minimises ``|a x - b|``, the shortest of all if there are several.

    Parameters
    ----------
    a : Tensor, shape (n, k)
    b : Tensor or array, shape (n,) or (n, m)
    rcond : float, optional
        Singular values below this share of the largest count as 0; left out, the rounding of the
        type times the longer side of `a`.

    Returns
    -------
    x : Tensor, shape (k,) or (k, m)
    residuals : Tensor, shape (m,)
        Sums of squared errors; empty where the rank is below k, or n is not above k.
    rank : int
        Of `a`.
    s : Tensor, shape (min(n, k),)
        The singular values of `a`.

    Raises
    ------
    ShapeError, DtypeError, DataError, DeviceError
        As for `solve`.
    """
    if a.ndim != 2 or np.ndim(b) not in (1, 2) or np.shape(b)[0] != a.shape[0]:
        raise ShapeError("lstsq", f"{a.shape} and {np.shape(b)} do not fit", a.shape, np.shape(b))
    x, residuals, rank, s = _computed(
        "lstsq", a, lambda xp, a, b: tuple(xp.linalg.lstsq(a, b, rcond)), 2, False, b
    )
    return x, residuals, int(rank.item()), s


def qr(x: Tensor, mode: Literal["reduced", "complete"] = "reduced") -> tuple[Tensor, Tensor]:
    """Return the factors ``x = q r``: orthogonal columns, and an upper triangle.

    Parameters
    ----------
    x : Tensor, shape (..., n, m)
    mode : "reduced" or "complete"
        With the second, `q` is square.

    Returns
    -------
    q : Tensor, shape (..., n, min(n, m))
    r : Tensor, shape (..., min(n, m), m)

    Raises
    ------
    ConfigurationError
        If there is no such mode.
    ShapeError, DtypeError
        As for `svd`.
    """
    if mode not in ("reduced", "complete"):
        raise ConfigurationError(f'qr: mode is "reduced" or "complete", not {mode!r}')
    q, r = _computed("qr", x, lambda xp, a: tuple(xp.linalg.qr(a, mode)), 2)
    return q, r


def cholesky(x: Tensor) -> Tensor:
    """Return l with ``x = l l^T``, a lower triangle, of symmetric positive definite matrices.

    Parameters
    ----------
    x : Tensor, shape (..., n, n)
        Its lower triangle is read.

    Returns
    -------
    Tensor, shape (..., n, n)

    Raises
    ------
    ShapeError, DtypeError
        As for `solve`.
    DataError
        If a matrix is not positive definite; on a GPU the result has NaN then.
    """
    lower: Tensor = _computed("cholesky", x, lambda xp, a: xp.linalg.cholesky(a), 2, square=True)
    return lower


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


def fftn(
    x: Tensor | npt.ArrayLike,
    shape: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Array:
    """Return the discrete Fourier transform along several axes.

    Parameters
    ----------
    x : Tensor or array
    shape : sequence of int, optional
        Length along each of these axes, for which `x` is cut or filled up with zeros.
    axes : sequence of int, optional
        All if left out; with `shape` the last ones.

    Returns
    -------
    array of complex
        Of NumPy, or of CuPy where `x` is on a GPU.

    Raises
    ------
    ShapeError
        If `x` has no such axes, or lengths do not fit them.
    """
    return _fourier("fftn", x, shape, axes)


def ifftn(
    x: Tensor | npt.ArrayLike,
    shape: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Array:
    """Return the inverse of `fftn`, with the same parameters; ``.real`` are its real parts."""
    return _fourier("ifftn", x, shape, axes)


def fft2(x: Tensor | npt.ArrayLike, axes: Sequence[int] = (-2, -1)) -> Array:
    """Return `fftn` along two axes, the last ones if left out, as of images."""
    return _fourier("fft2", x, None, axes)


def ifft2(x: Tensor | npt.ArrayLike, axes: Sequence[int] = (-2, -1)) -> Array:
    """Return the inverse of `fft2`."""
    return _fourier("ifft2", x, None, axes)


def _fourier(
    name: str,
    x: Tensor | npt.ArrayLike,
    shape: Sequence[int] | None,
    axes: Sequence[int] | None,
) -> Array:
    ndim = np.ndim(x)
    count = ndim if shape is None else len(shape)
    wanted = [*range(-count, 0)] if axes is None else [*axes]
    is_wrong = any(not -ndim <= axis < ndim for axis in wanted) or len({*wanted}) < len(wanted)
    if is_wrong or (shape is not None and (len(shape) != len(wanted) or min(shape, default=1) < 1)):
        sizes = "" if shape is None else f" of lengths {tuple(shape)}"
        raise ShapeError(name, f"{np.shape(x)} has no axes {tuple(wanted)}{sizes}", np.shape(x))
    which = "ifftn" if name.startswith("i") else "fftn"
    values: Array = _computed(name, x, lambda xp, a: getattr(xp.fft, which)(a, shape, wanted), 1)
    return values


def _computed(
    name: str,
    x: Any,
    function: Callable[..., Any],
    axes: int,
    square: bool = False,
    *others: Any,
) -> Any:
    """Call `function` with NumPy or CuPy and the array of `x`, which needs at least `axes` axes.

    `others` are further operands, beside a tensor `x`.
    """
    if isinstance(x, Tensor):
        on_host = bool(others) and x._computes_on_host(name, (x, *others))
        array = x._array(on_host=on_host)
    else:
        array = import_cupy().asarray(x) if is_foreign(x) else np.asarray(x)
    shape = tuple(array.shape)
    if len(shape) < axes or (square and shape[-1] != shape[-2]):
        wanted = "square matrices" if square else f"an array of at least {axes} axes"
        raise ShapeError(name, f"it takes {wanted}, not {shape}", shape)
    try:
        with current_device(Device("cuda", array.device.id) if is_foreign(array) else CPU):
            xp = import_cupy() if is_foreign(array) else np
            rest = [
                other._array(on_host=on_host) if isinstance(other, Tensor) else xp.asarray(other)
                for other in others
            ]
            found = function(xp, array, *rest)
    except np.linalg.LinAlgError as error:
        raise DataError(f"{name}: {error}") from None
    except TypeError as error:
        raise DtypeError(f"{name}: {error}") from None
    except ValueError as error:
        shapes = (shape, *map(np.shape, others))
        given = " and ".join(map(str, shapes))
        raise ShapeError(name, f"{given} do not fit: {error}", *shapes) from None
    if not isinstance(x, Tensor):
        return found
    return tuple(map(x._result, found)) if isinstance(found, tuple) else x._result(found)
