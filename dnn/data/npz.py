"""Arrays of an ``.npz`` file, each checked before it takes memory; no pickle is read."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Final

import numpy as np

from dnn.backend import Array
from dnn.errors import DataError

__all__ = ["NpzArrays", "opened_npz"]

_DAMAGED: Final = (
    *(OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    RuntimeError,  # an encrypted member, or a compression that is not known
)
_MOST_PACKED: Final = 1100
"""Largest ratio of a member's size to its compressed size that is accepted."""


class NpzArrays:
    """The arrays of an open file; `names` are theirs."""

    def __init__(self, where: str, archive: zipfile.ZipFile) -> None:
        self._where, self._archive = where, archive
        self.names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]

    def read(self, name: str) -> Array:
        """Return an array; a `DataError` if it is one of Python objects, or not as it states."""
        where, form = f"{self._where}: {name}", np.lib.format
        info = self._archive.getinfo(f"{name}.npy")
        with self._archive.open(info) as stream:
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
        stated = math.prod(shape) * dtype.itemsize
        is_small = stated <= _MOST_PACKED * info.compress_size + 1000
        if min(shape, default=0) < 0 or stated != there or not is_small:
            message = f"truncated or damaged: {shape} of {dtype} are {stated} bytes, not {there}"
            raise DataError(f"{where}: {message}")
        with self._archive.open(info) as stream:
            array: Array = form.read_array(stream, allow_pickle=False)
        return array


@contextmanager
def opened_npz(path: str | PathLike[str]) -> Iterator[NpzArrays]:
    """Open a file for the duration of a ``with``; a `DataError` if it is damaged, or none."""
    try:
        with open(path, "rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: no .npz file, but a single array")
            assert file.zip is not None
            yield NpzArrays(str(path), file.zip)
    except _DAMAGED as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error
