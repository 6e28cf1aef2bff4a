"""Data sets of images: CIFAR in binary form, a folder for each class, and ``.npz`` files.

CIFAR's binary form is a sequence of records of the same length::

    CIFAR-10     1 byte label, 3072 bytes image
    CIFAR-100    1 byte coarse label, 1 byte fine label, 3072 bytes image

An image is its red, green and blue plane, each of 32 rows of 32 columns. No pickle is read, which
could run code, and no archive is unpacked to files: members are read from the archive.
"""

from __future__ import annotations

import contextlib
import importlib
import lzma
import math
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from dnn.arrays import narrowed
from dnn.backend import Array
from dnn.data.dataset import Dataset
from dnn.data.labels import classes_of
from dnn.data.sequences import pad_sequences
from dnn.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    MissingDependencyError,
    ShapeError,
    check_count,
    explains_arguments,
    unknown_name,
)

__all__ = ["load_cifar10", "load_cifar100", "load_image_folder", "load_npz"]

_SHAPE: Final = (3, 32, 32)
_CIFAR10: Final = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_TRAINING: Final = {10: [f"data_batch_{number}.bin" for number in range(1, 6)], 100: ["train.bin"]}
_TEST: Final = {10: ["test_batch.bin"], 100: ["test.bin"]}
_RECORDS: Final = {10: 10_000, 100: 50_000}
"""Largest number of records in one file."""
_ARCHIVES: Final = {10: "cifar-10-binary.tar.gz", 100: "cifar-100-binary.tar.gz"}
_FOLDERS: Final = {10: "cifar-10-batches-bin", 100: "cifar-100-binary"}


@explains_arguments
def load_cifar10(path: str | PathLike[str]) -> tuple[Dataset, Dataset]:
    """Read CIFAR-10: colour images of 32 x 32 pixels, 10 classes.

    Parameters
    ----------
    path : path
        A folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``, a folder
        above it as archives have it, or the archive ``cifar-10-binary.tar.gz`` or its folder.

    Returns
    -------
    (Dataset, Dataset)
        50,000 training and 10,000 test samples; x (n, 3072) of uint8.

    Raises
    ------
    DataError
        If a file is missing or truncated.
    LabelError
        If a label is out of range.

    References
    ----------
    .. [1] Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    return _cifar(path, 10, _TRAINING[10]), _cifar(path, 10, _TEST[10])


@explains_arguments
def load_cifar100(
    path: str | PathLike[str], labels: Literal["fine", "coarse"] = "fine"
) -> tuple[Dataset, Dataset]:
    """Read CIFAR-100: colour images of 32 x 32 pixels, 100 classes in 20 coarse ones.

    Parameters
    ----------
    path : path
        A folder with ``train.bin`` and ``test.bin``, a folder above it as archives have it, or the
        archive ``cifar-100-binary.tar.gz`` or its folder.
    labels : {"fine", "coarse"}
        100 classes, or 20.

    Returns
    -------
    (Dataset, Dataset)
        50,000 training and 10,000 test samples; x (n, 3072) of uint8, mapped from the file where
        it is no archive.

    Raises
    ------
    ConfigurationError
        If `labels` is neither.
    DataError, LabelError
        As in `load_cifar10`.
    """
    return _cifar(path, 100, _TRAINING[100], labels), _cifar(path, 100, _TEST[100], labels)


def load_cifar_training(
    path: str | PathLike[str], classes: Literal[10, 100], labels: str = "fine"
) -> Dataset:
    """Read only the training samples of CIFAR-10 or CIFAR-100."""
    return _cifar(path, classes, _TRAINING[classes], labels)


def _cifar(
    path: str | PathLike[str],
    kind: Literal[10, 100],
    names: Sequence[str],
    labels: str = "fine",
) -> Dataset:
    if labels not in ("fine", "coarse"):
        raise unknown_name("labels", labels, ("fine", "coarse"))
    label_bytes = 1 if kind == 10 else 2
    width = _record_bytes(kind)
    parts = []
    for name, raw in zip(names, _members(Path(path), kind, names), strict=True):
        if not len(raw) or len(raw) % width:
            raise _truncated(path, name, len(raw), width)
        parts.append(raw.reshape(-1, width))
    records = parts[0] if len(parts) == 1 else np.concatenate(parts)
    coarse = kind == 100 and labels == "coarse"
    y = records[:, label_bytes - 1 - coarse].astype(np.intp)
    return Dataset(
        records[:, label_bytes:],
        y,
        20 if coarse else kind,
        f"cifar{kind}",
        standardise_by="one scale",
        image_shape=_SHAPE,
        class_names=_CIFAR10 if kind == 10 else (),
    )


def _record_bytes(kind: Literal[10, 100]) -> int:
    return 3073 if kind == 10 else 3074


def _truncated(path: str | PathLike[str], name: str, size: int, record: int) -> DataError:
    return DataError(f"{path}: {name} is truncated: {size} bytes, records have {record}")


def _members(path: Path, kind: Literal[10, 100], names: Sequence[str]) -> list[Array]:
    """Return the bytes of files of CIFAR, from a folder or from an archive."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_file():
        return _from_archive(path, kind, names)
    for folder in (path, path / _FOLDERS[kind]):
        if (folder / names[0]).exists():
            return [_mapped(folder / name) for name in names]
    if (path / _ARCHIVES[kind]).exists():
        return _from_archive(path / _ARCHIVES[kind], kind, names)
    raise DataError(
        f"{path}: neither {names[0]} nor {_ARCHIVES[kind]} is there "
        f'(dnn.download("cifar{kind}", folder) gets it)'
    )


def _mapped(path: Path) -> Array:
    try:
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # of an empty file
        raise DataError(f"{path}: cannot be read: {error}") from error


def _from_archive(path: Path, kind: Literal[10, 100], names: Sequence[str]) -> list[Array]:
    found: dict[str, Array] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name in names and name not in found and member.isfile():
                    # The stated size may be any number, also larger than the archive.
                    if member.issparse() or member.size > _RECORDS[kind] * _record_bytes(kind):
                        form = "sparse" if member.issparse() else f"of {member.size} bytes"
                        raise DataError(f"{path}: {name} is {form}, and no file of the set is")
                    if member.size % _record_bytes(kind):
                        raise _truncated(path, name, member.size, _record_bytes(kind))
                    file = archive.extractfile(member)
                    assert file is not None
                    raw = file.read()
                    if len(raw) != member.size:
                        raise EOFError(f"{name} has {len(raw)} of {member.size} bytes")
                    found[name] = np.frombuffer(raw, np.uint8)
            assert archive.fileobj is not None
            while archive.fileobj.read(1 << 20):  # up to the checksum, which is verified then
                pass
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: truncated or damaged archive: {error}") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{path}: {missing[0]} is not in the archive")
    return [found[name] for name in names]


_IN_MEMORY: Final = 1 << 28
"""Total bytes of images above which they are kept in a temporary file."""
_SUFFIXES: Final = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)


@explains_arguments
def load_image_folder(
    folder: str | PathLike[str],
    size: int | tuple[int, int] | None = None,
    *,
    grey: bool = False,
) -> Dataset:
    """Read images from a folder that has a folder for each class.

    Parameters
    ----------
    folder : path
        With ``cat/1.jpg``, ``cat/2.png``, ``dog/...``; classes are numbered in the order of their
        names. Images are turned as their EXIF data say. Grey values of 16 bits are scaled to 8,
        white to white. Transparency is left out: a pixel keeps its colour.
    size : int or (int, int), optional
        Rows and columns to which images are scaled. By default all are of one size.
    grey : bool
        One channel of brightness instead of red, green and blue.

    Returns
    -------
    Dataset
        x (n, channels * rows * columns) of uint8; a large array is mapped from a temporary file,
        which is removed with the array.

    Raises
    ------
    ConfigurationError
        If `size` is not above 0.
    DataError
        If there is no image, one cannot be read, lies outside of the folder (a link), is of
        another size, has several frames or pages, or is of floats or 32-bit integers, which do
        not say what is black and what is white; the message names it.
    MissingDependencyError
        If Pillow is not installed.
    """
    try:
        library = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingDependencyError(
            "folders of images are read by Pillow, which is not installed: "
            'pip install "diel[images]"'
        ) from error
    sides = _sides(size)
    files = _image_files(Path(folder))
    rows, columns = sides or _decoded(library, files[0][0], None, grey).shape[1:]
    shape = (1 if grey else 3, rows, columns)

    def read(place: int) -> None:
        path = files[place][0]
        image = _decoded(library, path, sides, grey)
        if image.shape != shape:
            text = f"{image.shape[1]} x {image.shape[2]}, and the others are {rows} x {columns}"
            raise DataError(f"{path}: the image is {text} (size = (rows, columns) scales them)")
        x[place] = image

    x = _room_for((len(files), *shape))
    with ThreadPoolExecutor() as pool:
        try:
            for _ in pool.map(read, range(len(files))):
                pass
        except BaseException:  # an interrupt too: images that wait are not read
            pool.shutdown(cancel_futures=True)
            raise
    names = tuple(dict.fromkeys(path.parent.name for path, _ in files))
    return Dataset(
        x.reshape(len(files), -1),
        np.array([label for _, label in files]),
        len(names),
        Path(folder).name,
        standardise_by="one scale",
        image_shape=shape,
        class_names=names,
    )


def _sides(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ConfigurationError(f"size must be rows and columns, not {size!r}")
    rows, columns = (check_count("size: rows and columns", side) for side in sides)
    return rows, columns


def _image_files(folder: Path) -> list[tuple[Path, int]]:
    """Return the path of every image in a folder of classes, with the number of its class."""
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    try:
        classes = sorted(each for each in folder.iterdir() if each.is_dir())
        if not classes:
            raise DataError(f"{folder}: there is no folder of a class in it")
        top = folder.resolve()
        return [(file, n) for n, each in enumerate(classes) for file in _files_of(each, top)]
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error


def _files_of(folder: Path, top: Path) -> list[Path]:
    """Return the images of a class, or raise `DataError` if one lies outside of `top`."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise DataError(f"{folder}: no images of this class")
    for file in files:
        if not file.resolve().is_relative_to(top):
            raise DataError(f"{file}: a link to {file.resolve()}, outside of {top}")
        # Opening anything but a file, such as a pipe, may wait for ever.
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: is no file")
    return files


def _decoded(library: Any, path: Path, size: tuple[int, int] | None, grey: bool) -> Array:
    """Return an image as uint8, shape (channels, rows, columns)."""
    try:
        # Given a name, Pillow maps the file, and exchanges rows and columns of turned TIFF images.
        with path.open("rb") as file, library.open(file) as opened:
            _check_pixels(opened, path)
            opened.load()
            image = _of_8_bits(library, opened)
            # Some formats have been turned by Pillow, which then removes the note.
            if (turn := _TURNS.get(_orientation(opened))) is not None:
                image = image.transpose(library.Transpose[turn])
            if image.mode == "P":  # else Pillow warns about palettes with transparent colours
                image = image.convert("RGBA")
            image = image.convert("L" if grey else "RGB")
            if size is not None:
                image = image.resize((size[1], size[0]), library.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except DataError:
        raise
    # Readers of formats in Pillow raise exceptions of many kinds.
    except Exception as error:
        raise DataError(f"{path}: cannot be read as an image: {error}") from error
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


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


def _orientation(image: Any) -> int:
    """Return the EXIF orientation of an image; 1 if it has none, or its EXIF data are damaged."""
    with contextlib.suppress(Exception):
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _check_pixels(image: Any, path: Path) -> None:
    """Raise `DataError` if an image is several, or does not say what is black and what is white."""
    # The second image of a camera's MPO is a small or a stereoscopic one.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise DataError(f"{path}: has {image.n_frames} frames or pages: save the one that is meant")
    is_16_bits = image.format in ("PNG", "PPM")  # which have nothing larger, whatever Pillow says
    if image.mode == "F" or (image.mode == "I" and not is_16_bits):
        kind = "floats" if image.mode == "F" else "integers of more than 16 bits, or signed ones"
        message = f"its pixels are {kind}, which do not say what is black and what is white"
        raise DataError(f"{path}: {message}: convert them to 8 or 16 bits, or save an .npz file")


def _of_8_bits(library: Any, image: Any) -> Any:
    """Return an image of grey values of 16 bits as one of 8 bits, and any other as it is."""
    if not image.mode.startswith("I"):
        return image
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    bits = tags.get(_BITS, (16,))[0]
    most = 2 ** int(bits) - 1
    values = np.asarray(image).astype(np.int64)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        values = most - values
    # To the nearest, in integers.
    return library.fromarray(((values * 510 + most) // (2 * most)).clip(0, 255).astype(np.uint8))


def _room_for(shape: tuple[int, ...]) -> Array:
    if np.prod(shape, dtype=np.int64) <= _IN_MEMORY:
        return np.empty(shape, np.uint8)
    # The file has no name, so that it is removed with the array or the process.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


@explains_arguments
def load_npz(
    path: str | PathLike[str], x: str = "x", y: str = "y", lengths: str | None = None
) -> Dataset:
    """Read samples and labels from an ``.npz`` file.

    Parameters
    ----------
    path : path
    x, y : str
        Names of its arrays; where ``x`` and ``y`` are not there, ``x_train`` and ``y_train``.
        Samples are rows of numbers (n, d), or images (n, rows, columns), (n, channels, rows,
        columns) or (n, rows, columns, channels) with 1, 3 or 4 channels. Labels are integers, of
        shape (n,) or (n, 1).
    lengths : str, optional
        Name of the array of lengths (n,), where samples are sequences (n, steps, features), padded
        after their lengths.

    Returns
    -------
    Dataset
        Images of uint8 stay so.

    Raises
    ------
    DataError
        If the file cannot be read, lacks an array, or holds Python objects, which are never
        loaded.
    LabelError, ShapeError
        If labels or shapes do not fit.
    """
    try:
        with open(path, "rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: no .npz file, but a single array")
            samples = _array_of(file, path, x, "biuf", "numbers")
            labels = _array_of(file, path, y, "iu", "integers")
            ends = lengths and _array_of(file, path, lengths, "iu", "integers")
    except _DAMAGED as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error
    if labels.size != len(labels):
        raise LabelError(f"{path}: {y} must be integers (n,), not {labels.dtype} {labels.shape}")
    if not labels.size or len(labels) != len(samples):
        message = f"{x} {samples.shape} and {y} {labels.shape} do not fit"
        raise ShapeError(str(path), message, samples.shape, labels.shape)
    labels = labels.reshape(-1)
    sequence_shape = None
    if samples.dtype.kind == "f" or lengths is not None:
        samples = narrowed(samples, np.float32, lambda *at: f"{path}: {x}[{_index(at)}]")
    if lengths is None:
        samples, shape = _with_channels(samples, f"{path}: {x}")
    else:
        if samples.ndim != 3:
            message = f"{samples.shape} are no sequences (n, steps, features)"
            raise ShapeError(f"{path}: {x}", message, samples.shape)
        shape, sequence_shape = None, (samples.shape[1], samples.shape[2])
        samples = pad_sequences(samples, samples.shape[1], ends)
    if samples.dtype.kind == "f" and np.isinf(samples).any():
        at = np.argwhere(np.isinf(samples))[0]
        raise DataError(f"{path}: {x}[{_index(at)}] is {samples[tuple(at)]}")
    by = "none" if sequence_shape else "columns" if shape is None else "one scale"
    return Dataset(
        samples.reshape(len(samples), -1),
        labels,
        classes_of(labels, f"{path}: {y}: "),
        Path(path).stem,
        standardise_by=by,
        image_shape=shape,
        sequence_shape=sequence_shape,
    )


def _index(at: Iterable[int]) -> str:
    return ", ".join(str(int(i)) for i in at)


_DAMAGED: Final = (
    *(OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    RuntimeError,  # an encrypted member, or a compression that is not known
)
_MOST_PACKED: Final = 1100
"""Largest ratio of a member's size to its compressed size that is accepted."""


def _array_of(file: Any, path: str | PathLike[str], name: str, kinds: str, expected: str) -> Array:
    """Read one array by its name, or its name with ``_train``, after checking its header."""
    for known in (name, f"{name}_train"):
        if f"{known}.npy" in file.zip.namelist():
            return _checked_array(file.zip, f"{known}.npy", f"{path}: {known}", kinds, expected)
    there = [each[:-4] for each in file.zip.namelist() if each.endswith(".npy")]
    raise DataError(f"{path}: there is no array {name!r} (there are: {', '.join(there)})")


def _checked_array(
    archive: zipfile.ZipFile, member: str, where: str, kinds: str, expected: str
) -> Array:
    info = archive.getinfo(member)
    form = np.lib.format
    with archive.open(info) as stream:
        # Version 3.0 differs in names of fields alone, and there are none here.
        version = form.read_magic(stream)
        read_header = (
            form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        )
        shape, _, dtype = read_header(stream)
        there = info.file_size - stream.tell()
    if dtype.hasobject:
        message = "holds Python objects, which are never loaded (allow_pickle is False)"
        raise DataError(f"{where}: {message}")
    if dtype.kind not in kinds:
        kind = LabelError if kinds == "iu" else DataError
        raise kind(f"{where} must be {expected}, not {dtype}")
    if not shape:
        raise DataError(f"{where} is a single number, not one for each sample")
    stated = math.prod(shape) * dtype.itemsize
    if min(shape) < 0 or stated != there or stated > _MOST_PACKED * info.compress_size + 1000:
        message = f"truncated or damaged: {shape} of {dtype} are {stated} bytes, not {there}"
        raise DataError(f"{where}: {message}")
    with archive.open(info) as stream:
        array: Array = form.read_array(stream, allow_pickle=False)
    return array


def _with_channels(samples: Array, where: str) -> tuple[Array, tuple[int, int, int] | None]:
    """Return images as (n, channels, rows, columns) with their shape; tables as they are."""
    if samples.ndim == 2:
        return samples, None
    if samples.ndim == 3:
        samples = samples[:, None]
    if samples.ndim == 4 and samples.shape[1] not in (1, 3, 4) and samples.shape[3] in (1, 3, 4):
        samples = np.ascontiguousarray(samples.transpose(0, 3, 1, 2))
    if samples.ndim != 4 or samples.shape[1] not in (1, 3, 4):
        message = f"{samples.shape} are neither rows nor images of 1, 3 or 4 channels"
        raise ShapeError(where, message, samples.shape)
    channels, rows, columns = samples.shape[1:]
    return samples, (channels, rows, columns)
