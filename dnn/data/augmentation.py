"""Images that are changed at random while a network is trained: shifted, flipped, cut, blanked.

The change of an image depends only on seed, epoch and number of the image: it is the same on any
rank, with any number of threads. Random words are of Philox-4x32, four for each augmentation::

    counter   number of the image | epoch | place of the augmentation in the list | 0
    key       64 bits from the seed

Pixels are not copied from one augmentation to the next. Each one changes from which row and which
column of the image a pixel is read, and all pixels are read once, in the end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from dnn.arrays import narrowed
from dnn.backend import Array, ops_for
from dnn.backend.philox import rounds
from dnn.data.preparation import Pixels
from dnn.errors import (
    ConfigurationError,
    DataError,
    ShapeError,
    check_count,
    explains_arguments,
    unknown_name,
)
from dnn.seeds import stream

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Augmentation", "Crop", "Cutout", "Flip", "Images", "Normalise", "PixelMap", "Shift"]


@dataclass
class PixelMap:
    """Source row and column of each pixel of n images, and boxes to blank.

    Attributes
    ----------
    rows, columns : array of int64, shape (n, height), (n, width)
        In the original image; negative where a pixel has no source and becomes 0.
    boxes : list of array of int64, shape (n, 4)
        For each image first row, end row, first column, end column of a box that becomes 0 after
        the normalisation; ends are outside of it.
    """

    rows: Array
    columns: Array
    boxes: list[Array]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images after the augmentations so far."""
        return self.rows.shape[1], self.columns.shape[1]


class Augmentation:
    """Base of changes of images; a subclass overrides `place`."""

    def place(self, pixels: PixelMap, random: Array | None) -> None:
        """Change, in place, from where pixels are read.

        Parameters
        ----------
        pixels : PixelMap
        random : array of float64, shape (4, n)
            Four numbers in [0, 1) for each image; None where images are not to be changed at
            random, as for evaluation.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


class Flip(Augmentation):
    """Flips images left to right, each with probability 1/2."""

    def place(self, pixels: PixelMap, random: Array | None) -> None:
        """Reverse the columns of half of the images at random."""
        if random is not None:
            flips = (random[0] < 0.5)[:, None]
            pixels.columns = np.where(flips, pixels.columns[:, ::-1], pixels.columns)


_BORDERS: Final = ("zero", "reflect")


class Crop(Augmentation):
    """Cuts a part out of each image and a border around it, at a random place.

    For evaluation the part is in the middle.

    Parameters
    ----------
    size : int or (int, int), optional
        Rows and columns of the part; by default those of the image.
    padding : int
        Pixels of border on each side.
    border : {"zero", "reflect"}
        The border is 0, or the image mirrored at its edge, whose own pixels are not repeated.
    """

    @explains_arguments
    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        padding: int = 0,
        border: Literal["zero", "reflect"] = "zero",
    ) -> None:
        if border not in _BORDERS:
            raise unknown_name("border", border, _BORDERS)
        if not isinstance(padding, int) or padding < 0:
            raise ConfigurationError(f"Crop: padding must be 0 or more pixels, not {padding!r}")
        sides = (size, size) if isinstance(size, int) else size
        self.size = sides and tuple(check_count("Crop: size", side) for side in sides)
        self.padding = padding
        self.border = border

    def place(self, pixels: PixelMap, random: Array | None) -> None:
        """Choose the rows and columns of the part."""
        sides = self.size or pixels.size
        which = (None, None) if random is None else random[:2]
        pixels.rows = self._part(pixels.rows, sides[0], which[0])
        pixels.columns = self._part(pixels.columns, sides[1], which[1])

    def _part(self, lines: Array, wanted: int, random: Array | None) -> Array:
        count, there = lines.shape
        free = there + 2 * self.padding - wanted
        if free < 0:
            message = f"{wanted} pixels are more than the {there + 2 * self.padding} that there are"
            raise ShapeError("Crop", message, (there,), (wanted,))
        if self.border == "reflect" and self.padding >= there:
            message = f"{there} pixels have no {self.padding} to be mirrored"
            raise ShapeError("Crop", message, (there,), (self.padding,))
        if random is None:
            first = np.full(count, free // 2)
        else:
            first = (random * (free + 1)).astype(np.int64)
        index = first[:, None] + np.arange(wanted) - self.padding
        if self.border == "reflect":
            index = (there - 1) - np.abs((there - 1) - np.abs(index))
        outside = (index < 0) | (index >= there)
        taken = np.take_along_axis(lines, np.where(outside, 0, index), axis=1)
        return np.where(outside, -1, taken)


class Shift(Crop):
    """Shifts each image at random by up to some pixels, vertically and horizontally.

    Parameters
    ----------
    pixels : int, at least 1
    border : {"zero", "reflect"}
        Content that comes into the image from outside, as in `Crop`.
    """

    @explains_arguments
    def __init__(self, pixels: int, border: Literal["zero", "reflect"] = "zero") -> None:
        super().__init__(None, check_count("Shift: pixels", pixels), border)


class Cutout(Augmentation):
    """Blanks a random square of each image: 0 after the normalisation, if any, which is the mean.

    Its centre may be anywhere in the image, so that a part of the square may lie outside. It is
    done last, at any place in the list of augmentations.

    Parameters
    ----------
    side : int, at least 1

    References
    ----------
    .. [1] DeVries, Taylor, Improved Regularization of Convolutional Neural Networks with Cutout,
       arXiv:1708.04552, 2017.
    """

    @explains_arguments
    def __init__(self, side: int) -> None:
        self.side = check_count("Cutout: side", side)

    def place(self, pixels: PixelMap, random: Array | None) -> None:
        """Choose a box of each image to blank."""
        if random is None:
            return
        edges = []
        for line, length in zip(random[:2], pixels.size, strict=True):
            first = (line * length).astype(np.int64) - self.side // 2
            edges += [np.maximum(first, 0), np.minimum(first + self.side, length)]
        pixels.boxes.append(np.stack(edges, axis=1))


class Normalise(Augmentation):
    """Computes ``(x - mean) / deviation`` of each channel, with brightness x in 0 .. 1.

    Parameters
    ----------
    mean, deviation : float or sequence of float
        One for all channels, or one for each; deviations are above 0.
    """

    @explains_arguments
    def __init__(self, mean: float | Sequence[float], deviation: float | Sequence[float]) -> None:
        self.mean = np.atleast_1d(np.asarray(mean, np.float64))
        self.deviation = np.atleast_1d(np.asarray(deviation, np.float64))
        numbers = np.concatenate([self.mean.ravel(), self.deviation.ravel()])
        if not np.isfinite(numbers).all() or not (self.deviation > 0).all():
            message = (
                f"mean {mean!r} and deviation {deviation!r} must be finite, the latter above 0"
            )
            raise ConfigurationError(f"Normalise: {message}")

    @classmethod
    def of(cls, images: npt.ArrayLike) -> Normalise:
        """Return the normalisation that gives images mean 0 and deviation 1 in each channel.

        Parameters
        ----------
        images : array_like, shape (n, channels, height, width)
            Training images: bytes, or brightness in 0 .. 1. A constant channel is only shifted.

        Returns
        -------
        Normalise
        """
        pixels = _checked(images)
        sums = np.zeros((2, pixels.shape[1]))
        for start in range(0, len(pixels), _ROWS):
            part = pixels[start : start + _ROWS].astype(np.float64)
            if pixels.dtype == np.uint8:
                part /= 255.0
            sums += part.sum(axis=(0, 2, 3)), np.square(part).sum(axis=(0, 2, 3))
        mean, squares = sums / (len(pixels) * math.prod(pixels.shape[2:]))
        deviation = np.sqrt(np.maximum(squares - mean**2, 0))
        deviation[deviation <= 1e-7] = 1.0
        return cls(mean.tolist(), deviation.tolist())

    def place(self, pixels: PixelMap, random: Array | None) -> None:
        """Change no places of pixels."""


_ROWS: Final = 1024
"""Number of images that are checked or converted at a time."""
_AHEAD: Final = 2
"""Number of batches for each worker that are ready or being prepared."""


AUGMENTATIONS: Final[dict[str, type[Augmentation]]] = {
    "crop": Crop,
    "cutout": Cutout,
    "flip": Flip,
    "shift": Shift,
}
"""Changes of images at random, by name. How images are scaled is no such change."""


class Images:
    """Images that become numbers when they are needed, each batch in threads during the training.

    It takes the place of an array of float32 wherever a network takes samples. In training images
    change at random in every epoch; for evaluation and prediction nothing is random.

    Parameters
    ----------
    pixels : array_like, shape (n, channels, height, width)
        Bytes, which become brightness in 0 .. 1, or numbers, which are taken unchanged. Bytes that
        are mapped from a file are not copied.
    augment : sequence of Augmentation
        Changes of the images, in this order, each with random numbers of its own.
    workers : int, at least 1
        Threads that prepare batches; results do not depend on them.

    Attributes
    ----------
    shape : tuple of int
        Shape of the images as an array, (n, channels, height, width).

    Raises
    ------
    ShapeError, DataError
        If `pixels` are no images, or contain NaN or infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import Flip, Images, NeuralNetwork, Normalise, Shift, mlp
    >>> pixels = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    >>> images = Images(pixels, [Shift(1), Flip(), Normalise.of(pixels)])
    >>> images.shape, images[:5].dtype
    ((20, 1, 8, 8), dtype('float32'))
    """

    dtype = np.dtype(np.float32)
    ndim = 4

    @explains_arguments
    def __init__(
        self,
        pixels: npt.ArrayLike,
        augment: Sequence[Augmentation] = (),
        *,
        workers: int = 2,
    ) -> None:
        self._pixels = _checked(pixels)
        self.augment = tuple(augment)
        for each in self.augment:
            if not isinstance(each, Augmentation):
                raise ConfigurationError(f"augment: {each!r} is no Augmentation")
        self.workers = check_count("workers", workers)
        channels = self._pixels.shape[1]
        scale, offset = np.ones(channels), np.zeros(channels)
        if self._pixels.dtype == np.uint8:
            scale /= 255.0
        for each in self.augment:
            if isinstance(each, Normalise):
                if each.mean.shape not in ((1,), (channels,)):
                    message = f"{len(each.mean)} means for {channels} channels"
                    raise ShapeError("Normalise", message, each.mean.shape, self._pixels.shape)
                scale, offset = scale / each.deviation, (offset - each.mean) / each.deviation
        self._scale, self._offset = scale.astype(np.float32), offset.astype(np.float32)
        self._take: Any = ops_for("cpu").take_images
        self._size: tuple[int, int] | None = None
        self._size = self._placed(1, None).size
        self.shape = (len(self._pixels), channels, *self._size)

    def __len__(self) -> int:
        return len(self._pixels)

    def __repr__(self) -> str:
        return f"Images({self.shape}, {list(self.augment)!r})"

    def __getitem__(self, rows: Any) -> Array:
        """Return some images as numbers, without random changes."""
        numbers = np.arange(len(self))[rows]
        out = np.empty((*numbers.shape, *self.shape[1:]), np.float32)
        flat, result = numbers.reshape(-1), out.reshape(-1, *self.shape[1:])
        for start in range(0, len(flat), _ROWS):
            part = flat[start : start + _ROWS]
            self._gather(part, self._placed(len(part), None), result[start : start + _ROWS])
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all images as an array of numbers, without random changes."""
        if copy is False:
            raise ValueError("images become numbers in a new array")
        return self[:].astype(dtype or np.float32, copy=False)

    def still(self) -> tuple[Pixels, ...]:
        """Return what is done to an image's pixels where nothing is random, as steps.

        Bytes and `Normalise` are other steps.

        Returns
        -------
        tuple of Pixels
            Of one step, or none.
        """
        placed = self._placed(1, None)
        rows, columns = placed.rows[0].tolist(), placed.columns[0].tolist()
        channels, height, width = self._pixels.shape[1:]
        if rows == [*range(height)] and columns == [*range(width)]:
            return ()
        return (Pixels((channels, height, width), rows, columns),)

    def take(self, rows: Array, axis: int = 0) -> Images:
        """Return some of the images, which are numbered anew.

        Parameters
        ----------
        rows : array of int, or slice
        axis : int
            Must be 0, the axis of the images.

        Returns
        -------
        Images
        """
        assert axis == 0
        return Images(self._pixels[rows], self.augment, workers=self.workers)

    def batches(
        self, order: Array, batch_size: int, seeds: Sequence[int], epoch: int
    ) -> Iterator[Array]:
        """Yield the batches of an epoch, prepared by threads some batches ahead.

        Parameters
        ----------
        order : array of int, shape (count,) or (K, count)
            Numbers of the images in order, for each of K networks.
        batch_size : int
        seeds : sequence of int
            Seed of each network.
        epoch : int, from 0

        Yields
        ------
        array of float32, shape (batch, channels, height, width)
            With an axis of K networks in front, if the order has one. Each batch is a new array.
        """
        from concurrent.futures import ThreadPoolExecutor

        keys = np.array([_key(seed) for seed in seeds], np.uint64)
        starts = iter(range(0, order.shape[-1], batch_size))
        ready: deque[Future[Array]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="dnn-images") as pool:

            def begin() -> None:
                for start in starts:
                    rows = order[..., start : start + batch_size]
                    ready.append(pool.submit(self._batch, rows, keys, epoch))
                    break

            try:
                for _ in range(_AHEAD * self.workers):
                    begin()
                while ready:
                    batch = ready.popleft().result()
                    begin()
                    yield batch
            finally:
                for waiting in ready:
                    waiting.cancel()

    def _batch(self, rows: Array, keys: Array, epoch: int) -> Array:
        flat = rows.reshape(-1)
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self)):
            raise DataError(
                f"there are images 0 .. {len(self) - 1}, not {flat.min()}, {flat.max()}"
            )
        random = _random(np.repeat(keys, rows.shape[-1]), epoch, flat, len(self.augment))
        out = np.empty((len(flat), *self.shape[1:]), np.float32)
        self._gather(flat, self._placed(len(flat), random), out)
        return out.reshape(*rows.shape, *self.shape[1:])

    def _placed(self, count: int, random: Array | None) -> PixelMap:
        """Return the source of the pixels of `count` images, after all augmentations."""
        height, width = self._pixels.shape[2:]
        pixels = PixelMap(
            np.broadcast_to(np.arange(height), (count, height)),
            np.broadcast_to(np.arange(width), (count, width)),
            [],
        )
        places = enumerate(self.augment)
        for place, each in sorted(places, key=lambda pair: isinstance(pair[1], Cutout)):
            each.place(pixels, None if random is None else random[place])
            if type(each).place not in _INSIDE:
                _check_map(each, pixels, count, (height, width))
        if self._size not in (None, pixels.size):
            message = f"images become {pixels.size} at random, and {self._size} otherwise"
            raise ShapeError("Images", message, pixels.size)
        return pixels

    def _gather(self, numbers: Array, pixels: PixelMap, out: Array) -> None:
        boxes = np.stack(pixels.boxes, axis=1) if pixels.boxes else np.empty((len(out), 0, 4))
        lines = (numbers, pixels.rows, pixels.columns, boxes)
        places = (np.ascontiguousarray(line, np.int64) for line in lines)
        self._take(self._pixels, *places, self._scale, self._offset, out)


_INSIDE: Final = (Crop.place, Cutout.place, Flip.place, Normalise.place)
"""Methods whose sources always lie inside of the image, so that they need no check."""


def _check_map(
    augmentation: Augmentation, pixels: PixelMap, count: int, image_size: tuple[int, int]
) -> None:
    """Check the result of an augmentation, since compiled code reads and writes unchecked."""
    for name, lines, length in zip(
        ("rows", "columns"), (pixels.rows, pixels.columns), image_size, strict=True
    ):
        shape = np.shape(lines)
        if len(shape) != 2 or shape[0] != count or not shape[1]:
            message = f"{name} of {count} images have the shape {shape}, not ({count}, size)"
            raise ShapeError(repr(augmentation), message, shape)
        _check_integers(augmentation, name, lines)
        if np.max(lines) >= length:
            message = f"{name} are 0 .. {length - 1}, or negative, not {np.max(lines)}"
            raise DataError(f"{augmentation!r}: {message}")
    height, width = pixels.size
    for box in pixels.boxes:
        if np.shape(box) != (count, 4):
            message = f"boxes of {count} images have the shape {np.shape(box)}, not ({count}, 4)"
            raise ShapeError(repr(augmentation), message, np.shape(box))
        _check_integers(augmentation, "boxes", box)
        if np.min(box) < 0 or np.max(box[:, :2]) > height or np.max(box[:, 2:]) > width:
            message = f"boxes must lie inside of the image, {height} x {width}"
            raise DataError(f"{augmentation!r}: {message}")


def _check_integers(augmentation: Augmentation, name: str, numbers: Array) -> None:
    if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "iu":
        found = getattr(numbers, "dtype", type(numbers).__name__)
        raise DataError(f"{augmentation!r}: {name} must be an array of integers, not {found}")


def _checked(pixels: npt.ArrayLike) -> Array:
    """Return images as an array of uint8 or of finite float32."""
    array = pixels if isinstance(pixels, np.ndarray) else np.asarray(pixels)
    if array.ndim != 4 or not array.size:
        message = f"images are (n, channels, height, width), not {array.shape}"
        raise ShapeError("Images", message, array.shape)
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "fiu":
        raise DataError(f"images must be bytes or numbers, not {array.dtype}")
    array = narrowed(array, np.float32, lambda image, *at: f"image {image}, at {at}")
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(f"images contain {array[at]} in image {at[0]}, at {at[1:]}")
    return array


@lru_cache(maxsize=4096)
def _key(seed: int) -> int:
    return int(stream(seed, "augment").integers(2**64, dtype=np.uint64))


def _random(keys: Array, epoch: int, numbers: Array, streams: int) -> Array:
    """Return random numbers in [0, 1), each image with its own key, of shape (streams, 4, n)."""
    words = np.zeros((6, streams, len(numbers)), np.uint64)
    words[0] = numbers
    words[1] = epoch
    words[2] = np.arange(streams)[:, None]
    low = np.uint64(0xFFFFFFFF)
    rounds(words, np.stack([keys & low, keys >> np.uint64(32)])[:, None])
    random: Array = words[:4].transpose(1, 0, 2) * 2.0**-32
    return random
