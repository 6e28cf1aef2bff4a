"""`ROUTINES`, convolutions on the CPU by preference; two of them, batched GEMM and FFT, in NumPy.

Compiled ones are in modules of their own, as functions that return None for a problem that they do
not support. Two more are here, in NumPy, as the literature describes them: `batched_gemm`, one
product for each tap of the window [1]_, and `fft`, a product of spectra [2]_. Both are slower than
the compiled ones, so they are not timed, and are taken only where a table of routines names them.

References
----------
.. [1] Nichols et al., MagmaDNN: Towards High-Performance Data Analytics and Machine Learning for
   Data-Driven Scientific Computing, 2019: convolution by batched products.
.. [2] Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through FFTs, 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnn.backend.convolution import Convolution, Routine, image_view
from dnn.backend.cpu import depthwise, direct_rows, im2col, indirect, winograd
from dnn.backend.cpu.convolution_work import by_model
from dnn.backend.cpu.im2col import bias_and_relu
from dnn.backend.ops import Array, Step

__all__ = ["ROUTINES", "batched_gemm", "fft"]


def batched_gemm(problem: Convolution) -> Routine | None:
    """Return the routine of a product for each tap of the window; None unless in float32."""
    return _in_numpy("batched_gemm", problem, _by_taps)


def fft(problem: Convolution) -> Routine | None:
    """Return the routine of a product of spectra; None unless in float32, without strides."""
    return _in_numpy("fft", problem, _by_spectra) if problem.stride == (1, 1) else None


def _in_numpy(
    name: str, problem: Convolution, compute: Callable[[Convolution, Array, Array, Array], None]
) -> Routine | None:
    """Return the routine of a function of x with its padding, w and y, all by groups of channels.

    It writes the one that is the result, which begins as zeros.
    """
    if problem.dtype != "f4" or problem.is_empty:
        return None
    padded = [length + sum(pad) for length, pad in zip(problem.size, problem.padding, strict=True)]
    (top, _), (left, _) = problem.padding

    def run(*arrays: Array) -> None:
        x = np.zeros((problem.images, problem.channels, *padded), problem.dtype)
        y = np.zeros((problem.images, problem.filters, *problem.out_size), problem.dtype)
        w = np.zeros(problem.w_shape, problem.dtype)
        inside = x[..., top : top + problem.size[0], left : left + problem.size[1]]
        mine = {"forward": (inside, w, y), "data": (y, w, inside), "weights": (inside, y, w)}
        pairs = [
            (own, given if own is w else image_view(given, problem.layout))
            for own, given in zip(mine[problem.kind], arrays, strict=True)
        ]
        for own, given in pairs[:2]:
            own[...] = given
        of_images = [z.reshape(len(z), problem.groups, -1, *z.shape[2:]) for z in (x, y)]
        of_taps = w.reshape(problem.groups, -1, *w.shape[1:])
        compute(problem, of_images[0], of_taps, of_images[1])
        own, out = pairs[2]
        out[...] = own

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        found: list[Step] = [(run, arrays) for arrays in by_model(problem, inputs, out)]
        return found + bias_and_relu(problem, inputs, out)

    return Routine(name, 0, steps, is_timed=False)


def _by_taps(problem: Convolution, x: Array, w: Array, y: Array) -> None:
    """Add up the products of the taps, or write each: (filters x channels) (channels x pixels)."""

    def matrices(images: Array) -> Array:
        return images.reshape(*images.shape[:3], -1)

    (height, width), (down, across) = problem.out_size, problem.stride
    for r, s in np.ndindex(*problem.window):
        top, left = r * problem.dilation[0], s * problem.dilation[1]
        met = x[..., top : top + height * down : down, left : left + width * across : across]
        tap = w[..., r, s]
        if problem.kind == "forward":
            y += (tap @ matrices(met)).reshape(y.shape)
        elif problem.kind == "data":
            met += (tap.swapaxes(-1, -2) @ matrices(y)).reshape(met.shape)
        else:
            tap[...] = (matrices(y) @ matrices(met).swapaxes(-1, -2)).sum(axis=0)


def _by_spectra(problem: Convolution, x: Array, w: Array, y: Array) -> None:
    """Multiply spectra of the size of x: no result wraps round, since x has its padding.

    A correlation is a product with the conjugate spectrum of what is shifted.
    """
    (height, width), (down, across) = problem.out_size, problem.dilation
    rows, columns = (
        taps * step for taps, step in zip(problem.window, problem.dilation, strict=True)
    )
    size = x.shape[-2:]
    spread = np.zeros((*w.shape[:3], rows, columns), w.dtype)
    spread[..., ::down, ::across] = w
    if problem.kind == "forward":
        of_x, of_w = np.fft.rfft2(x), np.fft.rfft2(spread, size)
        product = np.einsum("ngchw,gfchw->ngfhw", of_x, of_w.conj())
        y[...] = np.fft.irfft2(product, size)[..., :height, :width]
    elif problem.kind == "data":
        of_y, of_w = np.fft.rfft2(y, size), np.fft.rfft2(spread, size)
        x[...] = np.fft.irfft2(np.einsum("ngfhw,gfchw->ngchw", of_y, of_w), size)
    else:
        of_x, of_y = np.fft.rfft2(x), np.fft.rfft2(y, size)
        product = np.einsum("ngchw,ngfhw->gfchw", of_x, of_y.conj())
        w[...] = np.fft.irfft2(product, size)[..., :rows:down, :columns:across]


ROUTINES: tuple[Callable[[Convolution], Routine | None], ...] = (
    depthwise.routine,
    winograd.winograd4,
    indirect.routine,
    direct_rows.routine,
    im2col.routine,
    winograd.winograd2,
    batched_gemm,
    fft,
)
