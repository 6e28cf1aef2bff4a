"""Convolution as a product of spectra, in tiles, so that large images need no large transforms.

A tile of T x T pixels gives (T - r + 1) x (T - r + 1) results of a window of r x r; tiles overlap
by r - 1 (overlap-save). A circular correlation is a product of transforms, and where the sum over
channels is done before going back, that is a matrix product for each frequency::

    Y[k] = X[k] conj(W[k])          k: frequency; X: tiles x channels, W: channels x filters
    dX[k] = dY[k] conj(W'[k])       W': the window flipped, filters x channels
    dW[k] = conj(dY[k])' X[k]       summed over tiles; dY in tiles of T - r + 1, the rest 0

T is the size that asks for the least arithmetic. Transforms are NumPy's, which computes those of
float32 in float32.

References
----------
.. [1] Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through FFTs, 2014.
.. [2] Zlateski, Jia, Li, Durand, FFT Convolutions are Faster than Winograd on Modern CPUs, Here is
   Why, 2018, arXiv:1809.07851.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dnn.backend.convolution import Convolution, Routine, image_view
from dnn.backend.cpu.im2col import bias_and_relu, by_model
from dnn.backend.ops import Array, Step

__all__ = ["routine"]

TILES = (8, 12, 16, 24, 32, 48)
CHUNK_ELEMENTS = 1 << 21
"""Elements of float32 in the tiles that are done at once."""

LARGEST_BYTES = 128 << 20
"""Largest workspace; a convolution that would need more does not get this routine."""


class _Tiles:
    """The tiles into which images are cut, and the memory for their spectra.

    The result of "forward" and "data" is cut into tiles, and the result of "weights" is a sum over
    tiles of dy. `source` and `target` are the sizes of the images that are read in tiles, with
    `inputs` channels, and of y or dx, with `outputs`; in "weights" they are x and dy. The first
    tile of the source begins `padding` pixels before its first pixel.
    """

    def __init__(self, problem: Convolution) -> None:
        self.problem = problem
        self.groups = problem.groups
        of_x, of_y = (n // problem.groups for n in (problem.channels, problem.filters))
        self.reach = [
            (taps - 1) * dilation
            for taps, dilation in zip(problem.window, problem.dilation, strict=True)
        ]
        leading = [pad[0] for pad in problem.padding]
        if problem.kind == "data":
            self.inputs, self.outputs = of_y, of_x
            self.source, self.target = problem.out_size, problem.size
            self.padding = [n - pad for n, pad in zip(self.reach, leading, strict=True)]
        else:
            self.inputs, self.outputs = of_x, of_y
            self.source, self.target = problem.size, problem.out_size
            self.padding = leading
        self.size = min(
            (size for size in TILES if size > max(self.reach)), key=self._work, default=0
        )
        if not self.size:
            return
        self.steps = [self.size - n for n in self.reach]
        self.counts = [-(-n // step) for n, step in zip(self.target, self.steps, strict=True)]
        self.half = self.size // 2 + 1
        tiles = math.prod(self.counts)
        widest = self.groups * max(self.inputs, self.outputs)
        each = tiles * widest * self.size**2
        self.images = max(1, min(problem.images, CHUNK_ELEMENTS // each))
        # Filters of a group whose windows are transformed at once.
        each = self.groups * self.inputs * self.size**2
        self.filters = max(1, min(self.outputs, CHUNK_ELEMENTS // each))
        rows, pairs = self.images * tiles, self.inputs * self.outputs
        planes = max(rows * widest, self.groups * self.inputs * self.filters)
        frequencies = self.size * self.half
        self.floats = [
            planes * self.size**2,
            2 * planes * self.size * self.half,
            2 * frequencies * self.groups * rows * self.inputs,
            2 * frequencies * self.groups * rows * self.outputs,
            2 * frequencies * self.groups * pairs * (2 if problem.kind == "weights" else 1),
        ]

    def _work(self, size: int) -> float:
        """Estimate the number of operations with a tile size."""
        problem = self.problem
        steps = [size - n for n in self.reach]
        counts = [-(-n // step) for n, step in zip(self.target, steps, strict=True)]
        tiles = problem.images * math.prod(counts)
        pairs = self.inputs * self.outputs
        transform = 5 * size**2 * math.log2(size)
        planes = tiles * (self.inputs + self.outputs) + pairs
        return self.groups * (planes * transform + 8 * tiles * pairs * size * (size // 2 + 1))

    @property
    def workspace_bytes(self) -> int:
        return 4 * sum(-(-length // 16) * 16 for length in self.floats)

    def spaces(self, workspace: Array) -> list[Array]:
        """Return memory: tiles, half spectra, spectra of source and target, and of weights."""
        space, found = workspace.view("f4"), []
        for length in self.floats:
            found.append(space[:length])
            space = space[-(-length // 16) * 16 :]
        return found

    def parts(self) -> Iterator[slice]:
        for begin in range(0, self.problem.images, self.images):
            yield slice(begin, min(begin + self.images, self.problem.images))


def routine(problem: Convolution) -> Routine | None:
    """Return the routine; None for strides, types but float32, too large windows or workspace."""
    if problem.stride != (1, 1) or problem.dtype != "f4" or problem.is_empty:
        return None
    tiles = _Tiles(problem)
    if not tiles.size or tiles.workspace_bytes > LARGEST_BYTES:
        return None
    run = _weights if problem.kind == "weights" else _images

    def steps(inputs: Sequence[Array], out: Array, workspace: Array | None) -> list[Step]:
        assert workspace is not None
        found: list[Step] = []
        for first, second, result in by_model(problem, inputs, out):
            found += run(tiles, first, second, result, tiles.spaces(workspace))
        return found + bias_and_relu(problem, inputs, out)

    return Routine("fft", tiles.workspace_bytes, steps)


def _complex(space: Array, *shape: int) -> Array:
    return space[: 2 * math.prod(shape)].view("c8").reshape(shape)


def _overlap(begin: int, length: int, limit: int) -> tuple[slice, slice]:
    """Return the overlap of a piece with 0 .. limit, as a slice of the piece and of the whole."""
    first, last = max(begin, 0), min(begin + length, limit)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    return slice(first - begin, last - begin), slice(first, last)


def _copy_tiles(
    tiles: _Tiles, images: Array, planes: Array, step: bool, starts: Sequence[int]
) -> Iterator[tuple[Array, Array]]:
    """Yield pairs of views: the pixels of each tile in images (N, C, H, W), and in planes.

    Planes are (N, down, across, C, T, T). A tile begins every ``tiles.steps`` pixels, from `starts`
    before the first pixel; with `step` it is ``tiles.steps`` long, otherwise T.
    """
    lengths = tiles.steps if step else [tiles.size] * 2
    for i in range(tiles.counts[0]):
        for j in range(tiles.counts[1]):
            begins = [
                at * n - start for at, n, start in zip((i, j), tiles.steps, starts, strict=True)
            ]
            (a, b), (c, d) = (
                _overlap(begin, length, limit)
                for begin, length, limit in zip(begins, lengths, images.shape[2:], strict=True)
            )
            yield images[:, :, b, d], planes[:, i, j, :, a, c]


def _spectra(tiles: _Tiles, planes: Array, half: Array, out: Array) -> list[Step]:
    """Return the calls of transforms of planes (rows, C, T, T) to `out` (T, half, rows, C)."""
    spectrum = _complex(half, *planes.shape[:-1], tiles.half)
    return [
        (_rfft, (planes, spectrum)),
        (_fft, (spectrum, out.transpose(2, 3, 0, 1))),
    ]


def _rfft(x: Array, out: Array) -> None:
    np.fft.rfft(x, axis=-1, out=out)


def _fft(x: Array, out: Array) -> None:
    np.fft.fft(x, axis=-2, out=out)


def _planes_of(tiles: _Tiles, spectra: Array, half: Array, planes: Array) -> list[Step]:
    """Return the calls that transform spectra (T, half, rows, C) back to planes (rows, C, T, T)."""
    spectrum = _complex(half, *planes.shape[:-1], tiles.half)
    return [
        (_ifft, (spectra.transpose(2, 3, 0, 1), spectrum)),
        (_irfft, (spectrum, planes)),
    ]


def _ifft(x: Array, out: Array) -> None:
    np.fft.ifft(x, axis=-2, out=out)


def _irfft(x: Array, out: Array) -> None:
    np.fft.irfft(x, out.shape[-1], axis=-1, out=out)


def _clear(x: Array) -> Step:
    return np.copyto, (x, np.float32(0))


def _source_spectra(
    tiles: _Tiles, images: Array, spaces: Sequence[Array], out: Array, of_target: bool
) -> list[Step]:
    """Return the calls that transform tiles of images (N, C, H, W) to (T, half, rows, C).

    Tiles of the target do not overlap, and are filled up with zeros.
    """
    number, channels = images.shape[:2]
    shape = number, *tiles.counts, channels, tiles.size, tiles.size
    planes = spaces[0][: math.prod(shape)].reshape(shape)
    starts = [0, 0] if of_target else tiles.padding
    pairs = _copy_tiles(tiles, images, planes, of_target, starts)
    steps: list[Step] = [_clear(planes)]
    steps += [(np.copyto, (place, part)) for part, place in pairs]
    return steps + _spectra(tiles, planes.reshape(-1, *shape[3:]), spaces[1], out)


def _conjugate(x: Array) -> Step:
    return np.conjugate, (x, x)


def _images(
    tiles: _Tiles, source: Array, w: Array, out: Array, spaces: Sequence[Array]
) -> list[Step]:
    """Return the calls of "forward", or of "data", which is the same with flipped windows."""
    problem, groups = tiles.problem, tiles.groups
    steps = list[Step]()
    windows = w.reshape(groups, -1, *w.shape[1:])
    # To (groups, inputs, outputs, rows, columns).
    turned = problem.kind == "data"
    windows = windows[..., ::-1, ::-1] if turned else windows.swapaxes(1, 2)
    weights = _complex(spaces[4], tiles.size, tiles.half, groups, tiles.inputs, tiles.outputs)
    down, across = problem.dilation
    for begin in range(0, tiles.outputs, tiles.filters):
        part = slice(begin, min(begin + tiles.filters, tiles.outputs))
        shape = groups * tiles.inputs, part.stop - begin, tiles.size, tiles.size
        planes = spaces[0][: math.prod(shape)].reshape(shape)
        place = planes.reshape(groups, tiles.inputs, *shape[1:])
        place = place[..., : tiles.reach[0] + 1 : down, : tiles.reach[1] + 1 : across]
        steps += [_clear(planes), (np.copyto, (place, windows[:, :, part]))]
        flat = weights.reshape(tiles.size, tiles.half, -1, tiles.outputs)
        steps += _spectra(tiles, planes, spaces[1], flat[..., part])
    steps.append(_conjugate(weights))
    images, results = (image_view(x, problem.layout) for x in (source, out))
    for batch in tiles.parts():
        number = batch.stop - batch.start
        rows = number * math.prod(tiles.counts)
        spectra, products = (
            _complex(space, tiles.size, tiles.half, groups, rows, channels)
            for space, channels in zip(spaces[2:4], (tiles.inputs, tiles.outputs), strict=True)
        )
        for group in range(groups):
            own = slice(group * tiles.inputs, (group + 1) * tiles.inputs)
            own_images = images[batch, own]
            steps += _source_spectra(tiles, own_images, spaces, spectra[:, :, group], False)
        steps.append((np.matmul, (spectra, weights, products)))
        shape = number, *tiles.counts, tiles.outputs, tiles.size, tiles.size
        result = spaces[0][: math.prod(shape)].reshape(rows, *shape[3:])
        for group in range(groups):
            steps += _planes_of(tiles, products[:, :, group], spaces[1], result)
            own = slice(group * tiles.outputs, (group + 1) * tiles.outputs)
            tiled = result.reshape(shape)
            pairs = _copy_tiles(tiles, results[batch, own], tiled, True, [0, 0])
            steps += [(np.copyto, pair) for pair in pairs]
    return steps


def _weights(tiles: _Tiles, x: Array, dy: Array, dw: Array, spaces: Sequence[Array]) -> list[Step]:
    """Return the calls of the gradient of the weights."""
    problem, groups = tiles.problem, tiles.groups
    steps = list[Step]()
    total, term = _complex(
        spaces[4], 2, tiles.size, tiles.half, groups, tiles.outputs, tiles.inputs
    )
    images, gradients = (image_view(array, problem.layout) for array in (x, dy))
    for batch in tiles.parts():
        rows = (batch.stop - batch.start) * math.prod(tiles.counts)
        of_x, of_dy = (
            _complex(space, tiles.size, tiles.half, groups, rows, channels)
            for space, channels in zip(spaces[2:4], (tiles.inputs, tiles.outputs), strict=True)
        )
        for group in range(groups):
            for array, spectra, channels in (
                (images, of_x, tiles.inputs),
                (gradients, of_dy, tiles.outputs),
            ):
                own = array[batch, group * channels : (group + 1) * channels]
                steps += _source_spectra(
                    tiles, own, spaces, spectra[:, :, group], array is gradients
                )
        steps.append(_conjugate(of_dy))
        target = term if batch.start else total
        steps.append((np.matmul, (of_dy.swapaxes(-1, -2), of_x, target)))
        if batch.start:
            steps.append((np.add, (total, term, total)))
    by_filter = dw.reshape(groups, tiles.outputs, *dw.shape[1:])
    down, across = problem.dilation
    for begin in range(0, tiles.outputs, tiles.filters):
        part = slice(begin, min(begin + tiles.filters, tiles.outputs))
        for group in range(groups):
            shape = part.stop - begin, tiles.inputs, tiles.size, tiles.size
            planes = spaces[0][: math.prod(shape)].reshape(shape)
            steps += _planes_of(tiles, total[:, :, group, part], spaces[1], planes)
            taps = planes[..., : tiles.reach[0] + 1 : down, : tiles.reach[1] + 1 : across]
            steps.append((np.copyto, (by_filter[group, part], taps)))
    return steps
