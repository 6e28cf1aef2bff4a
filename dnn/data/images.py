"""Data sets of images in files of many: CIFAR in binary form, and ``.npz`` files.

CIFAR's binary form is a sequence of records of the same length::

    CIFAR-10     1 byte label, 3072 bytes image
    CIFAR-100    1 byte coarse label, 1 byte fine label, 3072 bytes image

An image is its red, green and blue plane, each of 32 rows of 32 columns. No pickle is read, which
could run code, and no archive is unpacked to files: members are read from the archive.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Final, Literal

import numpy as np

from dnn.arrays import narrowed
from dnn.backend import Array
from dnn.data.dataset import Dataset
from dnn.data.labels import classes_of
from dnn.data.npz import NpzArrays, opened_npz
from dnn.data.sequences import pad_sequences
from dnn.errors import (
    DataError,
    LabelError,
    ShapeError,
    explains_arguments,
    unknown_name,
)

__all__ = ["load_cifar10", "load_cifar100", "load_npz"]

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
    with opened_npz(path) as arrays:
        samples = _array_of(arrays, path, x, "biuf", "numbers")
        labels = _array_of(arrays, path, y, "iu", "integers")
        ends = lengths and _array_of(arrays, path, lengths, "iu", "integers")
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


def _array_of(
    arrays: NpzArrays, path: str | PathLike[str], name: str, kinds: str, expected: str
) -> Array:
    """Read one array by its name, or its name with ``_train``."""
    known = name if name in arrays.names else f"{name}_train"
    if known not in arrays.names:
        there = ", ".join(arrays.names)
        raise DataError(f"{path}: there is no array {name!r} (there are: {there})")
    array = arrays.read(known)
    if array.dtype.kind not in kinds:
        kind = LabelError if kinds == "iu" else DataError
        raise kind(f"{path}: {known} must be {expected}, not {array.dtype}")
    if not array.ndim:
        raise DataError(f"{path}: {known} is a single number, not one for each sample")
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
