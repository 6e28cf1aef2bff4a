"""IDX files, the format of MNIST.

::

    bytes 0, 1     zero
    byte  2        type of elements
    byte  3        number of axes
    4 bytes each   length of each axis, big-endian
    the rest       elements, the last axis fastest, big-endian
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from dnn.backend import Array
from dnn.data.dataset import Dataset
from dnn.errors import DataError

__all__ = ["load_idx", "load_mnist"]

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def load_idx(path: str | PathLike[str]) -> Array:
    """Read an IDX file, plain or compressed by gzip.

    Parameters
    ----------
    path : path

    Returns
    -------
    array
        In the shape and type that the file states, in the machine's byte order.

    Raises
    ------
    DataError
        If the file is missing, is no IDX file, or is too short or too long.

    References
    ----------
    .. [1] LeCun, Cortes, Burges, The MNIST database of handwritten digits, "the IDX file format".
    """
    raw = _read(Path(path))
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES:
        raise DataError(f"{path}: no IDX file: it begins with {raw[:4]!r}")
    dtype, axes = np.dtype(TYPES[raw[2]]), raw[3]
    header = 4 + 4 * axes
    if len(raw) < header:
        raise DataError(f"{path}: truncated in its header, {len(raw)} of {header} bytes")
    shape = struct.unpack(f">{axes}I", raw[4:header])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        what = "truncated" if len(raw) < expected else "too long"
        raise DataError(f"{path}: {what}, {len(raw)} bytes where {expected} are stated")
    return np.frombuffer(raw, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip: {error}") from error


def load_mnist(folder: str | PathLike[str]) -> tuple[Dataset, Dataset]:
    """Read the four files of MNIST.

    Parameters
    ----------
    folder : path
        With ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...``, each plain or
        with ``.gz``.

    Returns
    -------
    (Dataset, Dataset)
        Training and test samples, x (n, 784) with brightness in 0 .. 1.

    Raises
    ------
    DataError
        If a file is missing or damaged, or images and labels differ in number.
    """
    return _mnist_part(Path(folder), "train"), _mnist_part(Path(folder), "t10k")


def _mnist_part(folder: Path, part: str) -> Dataset:
    images = load_idx(_find(folder, f"{part}-images-idx3-ubyte"))
    labels = load_idx(_find(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(f"{folder}: {part} images {images.shape}, labels {labels.shape}")
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= 255.0
    # Pixels at the border hardly vary: by columns they would be scaled to 250 deviations.
    return Dataset(x, labels, 10, "mnist", standardise_by="one scale")


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    raise DataError(f"{folder}: neither {name} nor {name}.gz is there")
