"""How files of images become arrays: which channels, of which numbers, and what is transparent.

A model that was trained on images keeps its `ImageReading`, so that new images are read in the same
way. Pillow decodes them; a file that is no single image with a meaning ends in a `DataError` that
names it.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.data.columns import Columns
from dnn.errors import (
    ConfigurationError,
    DataError,
    MissingDependencyError,
    check_count,
    unknown_name,
)

__all__ = ["PICTURES", "ImageReading"]

PICTURES: Final = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
"""Suffixes of files that are images."""
_VALUES: Final = ("bytes", "floats")
_ALPHA: Final = ("drop", "channel")
_IN_MEMORY: Final = 1 << 28
"""Total bytes of images above which they are kept in a temporary file."""


@dataclass(frozen=True)
class ImageReading:
    """How images are read: the arguments of `load_image_folder`, and its table.

    Attributes
    ----------
    size : (int, int), optional
        Rows and columns to which images are scaled.
    grey : bool
    values : {"bytes", "floats"}
    alpha : {"drop", "channel"}
    background : str, optional
    table : Columns, optional
        The columns of a table of names of files and labels.
    """

    size: tuple[int, int] | None = None
    grey: bool = False
    values: str = "bytes"
    alpha: str = "drop"
    background: str | None = None
    table: Columns | None = None

    @classmethod
    def of(
        cls, size: object, grey: bool, values: str, alpha: str, background: str | None
    ) -> ImageReading:
        """Return a reading after a check of each argument; a `ConfigurationError` if one is wrong.

        A `MissingDependencyError` if Pillow is not installed.
        """
        for what, given, known in (("values", values, _VALUES), ("alpha", alpha, _ALPHA)):
            if given not in known:
                raise unknown_name(what, given, known)
        _pillow()
        if background is not None:
            if alpha == "channel":
                message = "background: images with a channel of their transparency need none"
                raise ConfigurationError(f"{message}: leave out background, or alpha")
            try:
                _pillow("PIL.ImageColor").getrgb(background)
            except (ValueError, AttributeError, TypeError):
                message = f"background: {background!r} is no colour, such as white or #ff8800"
                raise ConfigurationError(message) from None
        return cls(_sides(size), grey, values, alpha, background)

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return (1 if self.grey else 3) + (self.alpha == "channel")

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        given = asdict(replace(self, table=None))
        return {**given, "table": None if self.table is None else self.table.to_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ImageReading:
        """Return what `to_json` has described; a ValueError, TypeError or KeyError if not."""
        values, alpha, background = given["values"], given["alpha"], given["background"]
        if values not in _VALUES or alpha not in _ALPHA or type(given["grey"]) is not bool:
            raise ValueError(f"images of {values!r:.20}, {alpha!r:.20} and {given['grey']!r:.20}")
        if not isinstance(background, str | None):
            raise TypeError("background is a text")
        table = None if given["table"] is None else Columns.from_json(given["table"])
        return cls(_sides(given["size"]), given["grey"], values, alpha, background, table)

    def read(self, files: Sequence[Path], shape: tuple[int, ...] | None = None) -> Array:
        """Return images as an array, shape (n, channels, rows, columns).

        A large array is mapped from a temporary file, which is removed with the array. Each image
        has to have the `shape`, that of the first by default. A `DataError` names the file that is
        of another one, or cannot be read as an image.
        """
        library = _pillow()
        which, hint = "those of the training are", ""
        with warnings.catch_warnings():  # `_check` says it with the name of the file
            warnings.filterwarnings("ignore", "Image size", library.DecompressionBombWarning)
            if shape is None:
                rows, columns = self.size or self.decoded(library, files[0]).shape[1:]
                shape = (self.channels, rows, columns)
                which, hint = "the others are", " (size = (rows, columns) scales them)"
            x = _room_for((len(files), *shape), np.uint8 if self.values == "bytes" else np.float32)

            def read(place: int) -> None:
                image = self.decoded(library, files[place])
                if image.shape != x.shape[1:]:
                    sizes = [f"{each[-2]} x {each[-1]}" for each in (image.shape, x.shape)]
                    text = f"the image is {sizes[0]}, and {which} {sizes[1]}{hint}"
                    raise DataError(f"{files[place]}: {text}")
                x[place] = image

            with ThreadPoolExecutor() as pool:
                try:
                    for _ in pool.map(read, range(len(files))):
                        pass
                except BaseException:  # an interrupt too: images that wait are not read
                    pool.shutdown(cancel_futures=True)
                    raise
        return x

    def decoded(self, library: Any, path: Path) -> Array:
        """Return an image, shape (channels, rows, columns); `library` is `PIL.Image`."""
        try:
            # Given a name, Pillow maps the file, and exchanges rows and columns of turned TIFFs.
            with path.open("rb") as file, library.open(file) as opened:
                self._check(library, opened, path)
                opened.load()
                if self.values == "floats" and opened.mode.startswith(("I", "F")):
                    return self._of_numbers(library, opened, path)
                pixels = self._of_bytes(library, opened, path)
        except DataError:
            raise
        # Readers of formats in Pillow raise exceptions of many kinds.
        except Exception as error:
            raise DataError(f"{path}: cannot be read as an image: {error}") from error
        image = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if self.values == "floats":
            brightness: Array = np.ascontiguousarray(image, np.float32) / np.float32(255)
            return brightness
        return np.ascontiguousarray(image)

    def _check(self, library: Any, image: Any, path: Path) -> None:
        """Raise `DataError` if an image is several, or its numbers mean nothing here."""
        limit = library.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            pixels = f"{path}: the image has {image.width * image.height:,} pixels"
            message = f"{pixels}, more than the {limit:,} from which on Pillow warns of an attack"
            warnings.warn(message, library.DecompressionBombWarning, stacklevel=2)
        # The second image of a camera's MPO is a small or a stereoscopic one.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            message = f"has {image.n_frames} frames or pages: save the one that is meant"
            raise DataError(f"{path}: {message}")
        if self.values == "floats":
            if len(image.getbands()) > 1 and ";16" in str(getattr(image, "tile", "")):
                message = "has several channels of 16 bits, of which Pillow reads 8"
                raise DataError(f"{path}: {message}: save an .npz file, or read bytes")
            return
        is_16_bits = image.format in ("PNG", "PPM")  # which have nothing larger
        if image.mode == "F" or (image.mode == "I" and not is_16_bits):
            kind = (
                "floats" if image.mode == "F" else "integers of more than 16 bits, or signed ones"
            )
            message = f"its pixels are {kind}, which do not say what is black and what is white"
            raise DataError(
                f"{path}: {message}: convert them to 8 or 16 bits, or save an .npz file, or read "
                'values = "floats"'
            )

    def _of_bytes(self, library: Any, opened: Any, path: Path) -> Array:
        """Return an image as bytes, shape (rows, columns) or (rows, columns, channels)."""
        asks = self.background is not None or self.alpha == "channel"
        if asks and opened.mode.startswith("I") and "transparency" in opened.info:
            message = "a grey value of 16 bits is transparent, which is not read: save 8 bits"
            raise DataError(f"{path}: {message}")
        image = upright(library, _of_8_bits(library, opened), opened)
        if asks:
            image = image.convert("RGBA")
        if self.background is not None:
            behind = library.new("RGBA", image.size, self.background)
            image = library.alpha_composite(behind, image)
        if image.mode == "P":  # else Pillow warns about palettes with transparent colours
            image = image.convert("RGBA")
        kinds = ("LA", "RGBA") if self.alpha == "channel" else ("L", "RGB")
        image = image.convert(kinds[0] if self.grey else kinds[1])
        if self.size is not None:
            image = image.resize(self.size[::-1], library.Resampling.BILINEAR)
        return np.asarray(image)

    def _of_numbers(self, library: Any, opened: Any, path: Path) -> Array:
        """Return an image whose grey values are no bytes: 16 bits as 0 .. 1, others as they are."""
        is_exact = opened.mode.startswith("I;16") or opened.format in ("PNG", "PPM")
        values = np.asarray(opened)
        if is_exact:
            values, most = _counted(opened, values)
            values = values / most
        elif opened.mode == "I":
            values = values.astype(np.float64)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: a pixel is NaN or infinite")
        image = upright(library, library.fromarray(values.astype(np.float32)), opened)
        if self.size is not None:
            image = image.resize(self.size[::-1], library.Resampling.BILINEAR)
        grey = np.asarray(image, np.float32)
        colours = np.repeat(grey[None], 1 if self.grey else 3, axis=0)
        if self.alpha == "channel":
            colours = np.concatenate([colours, np.ones_like(grey)[None]])
        return colours


_TURNS: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""How an image is turned upright, by its EXIF orientation; 1 is upright."""
_ORIENTATION: Final = 0x0112
_BITS: Final = 258
_PHOTOMETRIC: Final = 262
_WHITE_IS_ZERO: Final = 0


def upright(library: Any, image: Any, opened: Any) -> Any:
    """Return an image turned as the EXIF data of its file say."""
    # Some formats have been turned by Pillow, which then removes the note.
    turn = _TURNS.get(_orientation(opened))
    return image if turn is None else image.transpose(library.Transpose[turn])


def _orientation(image: Any) -> int:
    """Return the EXIF orientation of an image; 1 if it has none, or its EXIF data are damaged."""
    with contextlib.suppress(Exception):
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _counted(image: Any, values: Array) -> tuple[Array, int]:
    """Return grey values of 16 bits, or as many as a TIFF says, from black as 0; and white."""
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    most = 2 ** int(tags.get(_BITS, (16,))[0]) - 1
    counted = values.astype(np.int64)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        counted = most - counted
    return counted, most


def _of_8_bits(library: Any, image: Any) -> Any:
    """Return an image of grey values of 16 bits as one of 8 bits, and any other as it is."""
    if not image.mode.startswith("I"):
        return image
    values, most = _counted(image, np.asarray(image))
    # To the nearest, in integers.
    return library.fromarray(((values * 510 + most) // (2 * most)).clip(0, 255).astype(np.uint8))


def _room_for(shape: tuple[int, ...], dtype: Any) -> Array:
    if np.prod(shape, dtype=np.int64) * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype)
    # The file has no name, so that it is removed with the array or the process.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def _sides(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ConfigurationError(f"size must be rows and columns, not {size!r}")
    rows, columns = (check_count("size: rows and columns", side) for side in sides)
    return rows, columns


def _pillow(module: str = "PIL.Image") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            "folders of images are read by Pillow, which is not installed: "
            'pip install "diel[images]"'
        ) from error
