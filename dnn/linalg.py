"""Linear algebra and Fourier transforms of tensors: by NumPy on the host, by CuPy on a GPU.

Functions of a tensor return a tensor in memory of the same kind; complex numbers, which tensors do
not hold, are returned as an array of NumPy or CuPy. Functions of an array return an array.
Where a function says nothing else, the parameter is

x : Tensor, shape (..., n, m), or (..., n, n) where matrices are square
    Of float32 or float64; of a Fourier transform a tensor or an array of any shape.

and it raises

ShapeError
    If `x` is no matrix, or not square, or shapes or axes do not fit.
DtypeError
    If `x` is of a type that the library does not take.
DataError
    If a matrix is singular or not positive definite, where on a GPU the result has NaN or infinity;
    or if something does not converge, such as for NaN.
DeviceError
    If one of two operands is on the host alone and the other on a GPU.

`dnn.graph` has some of them for nodes, with gradients.
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
from dnn.graph.arguments import integers_of
from dnn.graph.operations.systems import solved
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

    `u` and `vh` are square with `full_matrices`; else their inner length is ``min(n, m)``. The
    singular values `s`, of shape (..., min(n, m)), are in descending order.
    """
    u, s, vh = _computed("svd", x, lambda xp, a: xp.linalg.svd(a, full_matrices), 2)
    return u, s, vh


def solve(a: Tensor, b: Tensor | npt.ArrayLike) -> Tensor:
    """Return x with ``a x = b``, of square matrices, in the shape of `b`.

    `b` is of shape (n,) or (..., n, m), and leading axes broadcast.
    """
    if np.ndim(b) == 0 or (np.ndim(b) == 1 and np.shape(b) != a.shape[-1:]):
        raise ShapeError("solve", f"{a.shape} and {np.shape(b)} do not fit", a.shape, np.shape(b))

    def compute(xp: Any, a: Any, b: Any) -> Any:
        return solved(xp, a, b[:, None])[..., 0] if b.ndim == 1 else solved(xp, a, b)

    x: Tensor = _computed("solve", a, compute, 2, True, b)
    return x


def inv(x: Tensor) -> Tensor:
    """Return the inverses of square matrices; for a system, `solve` is faster and more exact."""
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
    """
    if a.ndim != 2 or np.ndim(b) not in (1, 2) or np.shape(b)[0] != a.shape[0]:
        raise ShapeError("lstsq", f"{a.shape} and {np.shape(b)} do not fit", a.shape, np.shape(b))
    x, residuals, rank, s = _computed(
        "lstsq", a, lambda xp, a, b: tuple(xp.linalg.lstsq(a, b, rcond)), 2, False, b
    )
    return x, residuals, int(rank.item()), s


def qr(x: Tensor, mode: Literal["reduced", "complete"] = "reduced") -> tuple[Tensor, Tensor]:
    """Return the factors ``x = q r``: orthogonal columns, and an upper triangle.

    `q` is of shape (..., n, min(n, m)), with the mode ``"complete"`` square; of another mode it is
    a `ConfigurationError`.
    """
    if mode not in ("reduced", "complete"):
        raise ConfigurationError(f'qr: mode is "reduced" or "complete", not {mode!r}')
    q, r = _computed("qr", x, lambda xp, a: tuple(xp.linalg.qr(a, mode)), 2)
    return q, r


def cholesky(x: Tensor) -> Tensor:
    """Return l with ``x = l l^T``, a lower triangle, of symmetric positive definite matrices.

    The lower triangle of `x` is read.
    """
    lower: Tensor = _computed("cholesky", x, lambda xp, a: xp.linalg.cholesky(a), 2, square=True)
    return lower


def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of symmetric matrices; the lower triangle is read.

    Values, of shape (..., n), are in ascending order, and each has its vector in a column of the
    second result.
    """
    values, vectors = _computed("eigh", x, lambda xp, a: xp.linalg.eigh(a), 2, square=True)
    return values, vectors


def eigvalsh(x: Tensor) -> Tensor:
    """Return the eigenvalues of symmetric matrices in ascending order, from the lower triangle."""
    values: Tensor = _computed("eigvalsh", x, lambda xp, a: xp.linalg.eigvalsh(a), 2, square=True)
    return values


def eigvals(x: Tensor) -> Tensor | Array:
    """Return the eigenvalues of any square matrices, in no particular order.

    A tensor if the library says that all are real, else an array of complex numbers. On a GPU it is
    a `DeviceError` if CuPy has no such function.
    """

    def compute(xp: Any, a: Any) -> Any:
        if not hasattr(xp.linalg, "eigvals"):
            message = "eigvals: this CuPy has none: take x.to('cpu'), or eigvalsh of a symmetric x"
            raise DeviceError(message)
        return xp.linalg.eigvals(a)

    values: Tensor | Array = _computed("eigvals", x, compute, 2, square=True)
    return values


def fft(x: Tensor | npt.ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Return the discrete Fourier transform along an axis, an array of complex numbers.

    `n` is the length along the axis, for which `x` is cut or filled up with zeros.
    """
    values: Array = _computed("fft", x, lambda xp, a: xp.fft.fft(a, n, axis), 1)
    return values


def ifft(x: Tensor | npt.ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Return the inverse of `fft`, with the same parameters; ``.real`` are its real parts."""
    values: Array = _computed("ifft", x, lambda xp, a: xp.fft.ifft(a, n, axis), 1)
    return values


def fftn(
    x: Tensor | npt.ArrayLike,
    shape: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Array:
    """Return the discrete Fourier transform along several axes, an array of complex numbers.

    All `axes` if they are left out; `shape` has the length along each of them, or along the last
    ones, for which `x` is cut or filled up with zeros.
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
    lengths = None if shape is None else integers_of(name, shape, "a shape")
    count = ndim if lengths is None else len(lengths)
    wanted = integers_of(name, range(-count, 0) if axes is None else axes, "a list of axes")
    is_wrong = any(not -ndim <= axis < ndim for axis in wanted)
    is_wrong = is_wrong or len({axis % ndim for axis in wanted}) < len(wanted)
    if is_wrong or (lengths is not None and (count != len(wanted) or min(lengths, default=1) < 1)):
        sizes = "" if lengths is None else f" of lengths {lengths}"
        raise ShapeError(name, f"{np.shape(x)} has no axes {wanted}{sizes}", np.shape(x))
    which = "ifftn" if name.startswith("i") else "fftn"
    values: Array = _computed(name, x, lambda xp, a: getattr(xp.fft, which)(a, lengths, wanted), 1)
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
    except (ValueError, IndexError) as error:
        shapes = (shape, *map(np.shape, others))
        given = " and ".join(map(str, shapes))
        raise ShapeError(name, f"{given} do not fit: {error}", *shapes) from None
    if not isinstance(x, Tensor):
        return found
    return tuple(map(x._result, found)) if isinstance(found, tuple) else x._result(found)
