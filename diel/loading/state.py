r"""What `ctx.checkpoint` saves, and `ctx.restored` reads: values and arrays without pickle.

::

    states/<module>.<copy>.<rank>.<group>.<iteration>_<version>.zip
        state.json    what was saved; in place of an array or bytes {"\u0000": "0.npy"}
        0.npy         an array
        1.bin         bytes

A version is written beside the previous version, since a run goes on from the version that belongs
to its checkpoint: the tuples and the state are then of about the same moment. The executive removes
versions that no checkpoint needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from diel.errors import PayloadError, RunDirectoryError
from diel.run.directory import version_of_state
from diel.run.files import open_regular, replacing
from diel.tuples.codec import is_array, is_plain_array

if TYPE_CHECKING:
    import zipfile

_STRUCTURE: Final = "state.json"
_PLACE: Final = "\0"
"""The only key of a table that stands for an array, bytes, or a number that JSON lacks."""
_SUFFIX: Final = ".zip"
_SCALARS: Final = (bool, int, float, str, bytes)


class SavedState:
    """Saved states of a rank of a copy in an iteration of its group: new ones, and one to restore.

    The folder is made with the first version. The stem of the file's names is the same whenever the
    run is started. `restored` is the name of the version to restore, if there is one. `saved` is
    called with the name of each version, once it has been written.
    """

    def __init__(
        self, folder: Path, stem: str, restored: str, saved: Callable[[str], object]
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._restored = restored
        self._saved = saved
        self._version = version_of_state(restored)

    def save(self, state: Any) -> None:
        """Write the next version, whole or not at all.

        A PayloadError if the state holds anything but plain values, bytes and arrays. An OSError if
        it cannot be written; the version before is still there.
        """
        name = f"{self._stem}_{self._version + 1}{_SUFFIX}"
        self._folder.mkdir(exist_ok=True)
        with replacing(self._folder / name, sync=True) as file:
            write_state(file, state)
        self._version += 1
        self._saved(name)

    def restored(self) -> Any:
        """Return the state that was saved before the run was resumed; None if there is none.

        A RunDirectoryError if it cannot be read.
        """
        return read_state(self._folder / self._restored) if self._restored else None


def write_state(file: IO[bytes], state: Any) -> None:
    """Write a state to a file.

    A PayloadError if it holds anything else than None, truth values, numbers, text, bytes, arrays,
    and lists and tables of such; it says where.
    """
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        writer = _Writer(archive)
        plain = writer.plain(state, "state")
        archive.writestr(_STRUCTURE, json.dumps(plain))


def read_state(path: Path) -> Any:
    """Return a state that `write_state` wrote; a RunDirectoryError if it is missing or damaged."""
    import zipfile

    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return _restored(json.loads(archive.read(_STRUCTURE)), archive)
    except Exception as error:  # a damaged archive or array may raise nearly anything
        problem = str(error) or type(error).__name__
        raise RunDirectoryError(f"{path}: the saved state cannot be read: {problem}") from error


class _Writer:
    """Converts a state to JSON's own types, and writes arrays and bytes to files of the archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._files = 0

    def plain(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_PLACE: repr(value)}
        if isinstance(value, (list, tuple)):
            return [self.plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str) or key == _PLACE:
                    raise PayloadError(f"{where}: the key {key!r} is no text")
            return {key: self.plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._file("bin", lambda file: file.write(value))
        if is_plain_array(value):
            return self._file("npy", lambda file: _write_array(file, value))
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if is_array(value) and not value.dtype.hasobject:
            raise PayloadError(
                f"{where} is of type {kind} and dtype {value.dtype}, and only its numbers would be "
                "saved: save numpy.asarray(...) of it in a dtype of NumPy, and what else it holds"
            )
        if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
            number = value.item()  # of a scalar; of a time it may be a number of nanoseconds
            if type(number) in _SCALARS and getattr(value.dtype, "kind", "") not in ("m", "M"):
                return self.plain(number, where)
        raise PayloadError(
            f"{where} is of type {kind}: a state holds None, truth values, numbers, text, bytes, "
            "arrays of numbers, and lists and tables of these"
        )

    def _file(self, suffix: str, write: Callable[[IO[bytes]], object]) -> dict[str, str]:
        name = f"{self._files}.{suffix}"
        self._files += 1
        with self._archive.open(name, "w", force_zip64=True) as file:
            write(file)
        return {_PLACE: name}


def _write_array(file: IO[bytes], array: Any) -> None:
    import numpy as np

    np.lib.format.write_array(file, array, allow_pickle=False)


def _restored(value: Any, archive: zipfile.ZipFile) -> Any:
    if isinstance(value, list):
        return [_restored(item, archive) for item in value]
    if not isinstance(value, dict):
        return value
    if _PLACE not in value:
        return {key: _restored(item, archive) for key, item in value.items()}
    name = value[_PLACE]
    if name.endswith(".bin"):
        return archive.read(name)
    if name.endswith(".npy"):
        import numpy as np

        with archive.open(name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    return float(name)
