"""The data sets that `dnn.load_dataset` knows by name, and downloads of them, with checksums.

NumPy is not imported here: a workflow file that names a data set is checked without it.

A download that was interrupted is resumed::

    folder/.NAME.part    bytes received so far, which the next call continues (HTTP Range)
    folder/NAME          renamed from .NAME.part once its SHA-256 is right

Nothing is downloaded unless `download` is called. Sources of the checksums:

| set | checksums as published by |
|---|---|
| MNIST | torchvision (MD5), TensorFlow Datasets (SHA-256) |
| Fashion-MNIST | Zalando Research and torchvision (MD5), TensorFlow Datasets (SHA-256) |
| CIFAR-10, CIFAR-100, binary | A. Krizhevsky's page (MD5), TensorFlow Datasets (SHA-256) |
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from dnn.errors import ConfigurationError, DataError, explains_arguments, unknown_name

__all__ = ["DATASETS", "KnownSet", "download"]


class KnownSet(NamedTuple):
    """A data set, or a kind of file, by its name.

    Attributes
    ----------
    loader : str
        The function of `dnn.data` that reads it, as ``module:function``.
    features, classes : int
        How many a sample, and the set, has; 0 if that is not known before it is read.
    targets : int
        How many numbers are to be predicted of a sample, in the place of a class.
    shape : tuple of int, optional
        Channels, height and width of a sample that is an image.
    is_bundled : bool
        It comes with scikit-learn; all others need a path.
    is_own : bool
        It is data of a user's own, about which nothing is known.
    is_table : bool
        It is no images.
    task : str
        What it is for, as `Dataset.task`; of a user's own data, unless reading says otherwise.
    """

    loader: str
    features: int = 0
    classes: int = 0
    shape: tuple[int, int, int] | None = None
    is_bundled: bool = False
    is_own: bool = False
    is_table: bool = False
    targets: int = 0
    task: str = "classification"

    @property
    def outputs(self) -> int:
        """How many numbers a network puts out; 0 if that is not known before the set is read."""
        return self.targets or self.classes


DATASETS: Final[dict[str, KnownSet]] = {
    "digits": KnownSet("loading:load_digits", 64, 10, (1, 8, 8), is_bundled=True),
    "breast_cancer": KnownSet("loading:load_breast_cancer", 30, 2, is_bundled=True, is_table=True),
    "diabetes": KnownSet(
        "loading:load_diabetes", 10, is_bundled=True, is_table=True, targets=1, task="regression"
    ),
    "cifar10": KnownSet("loading:_cifar10", 3072, 10, (3, 32, 32)),
    "cifar100": KnownSet("loading:_cifar100"),
    "cleveland": KnownSet("loading:load_cleveland", is_table=True),
    "csv": KnownSet("tables:load_table", is_own=True, is_table=True),
    "fashion_mnist": KnownSet("loading:_fashion_mnist", 784, 10, (1, 28, 28)),
    "image_folder": KnownSet("image_folder:load_image_folder", is_own=True),
    "mnist": KnownSet("loading:_mnist", 784, 10, (1, 28, 28)),
    "npz": KnownSet("images:load_npz", is_own=True),
    "table": KnownSet("tables:load_table", is_own=True, is_table=True),
}


@dataclass(frozen=True)
class _File:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class _Source:
    url: str
    """URL of the folder in which the files are."""
    files: tuple[_File, ...]


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"

_MNIST = {
    _TRAIN_IMAGES: (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    _TRAIN_LABELS: (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    _TEST_IMAGES: (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    _TEST_LABELS: (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
_FASHION_MNIST = {
    _TRAIN_IMAGES: (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    _TRAIN_LABELS: (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    _TEST_IMAGES: (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    _TEST_LABELS: (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
}
_CIFAR10 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_CIFAR100 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"


def _source(url: str, files: Mapping[str, tuple[int, str]]) -> _Source:
    return _Source(url, tuple(_File(name, *about) for name, about in files.items()))


_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
SOURCES: Final = {
    "mnist": _source("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST),
    "fashion_mnist": _source(_ZALANDO, _FASHION_MNIST),
    "cifar10": _source(_TORONTO, {"cifar-10-binary.tar.gz": (170052171, _CIFAR10)}),
    "cifar100": _source(_TORONTO, {"cifar-100-binary.tar.gz": (168513733, _CIFAR100)}),
}

_CHUNK_BYTES: Final = 1 << 16
_OVER: Final = "time_limit_s is over"


@explains_arguments
def download(
    name: str,
    folder: str | PathLike[str],
    *,
    mirror: str | None = None,
    timeout_s: float = 30.0,
    time_limit_s: float = 3600.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Download the files of a data set from where they are published.

    Parameters
    ----------
    name : str
        ``"mnist"``, ``"fashion_mnist"``, ``"cifar10"`` or ``"cifar100"``.
    folder : path
        Made if it does not exist. Files in it with the right checksum are kept; interrupted
        downloads are resumed.
    mirror : str, optional
        URL of another folder with the same files.
    timeout_s : float, seconds
        Longest time without a byte from the server.
    time_limit_s : float, seconds
        Time limit of the whole call.
    progress : callable, optional
        Called with the name of a file, the bytes received so far and the size of the whole file.

    Returns
    -------
    Path
        The folder, which `load_dataset` and the function of each set take.

    Raises
    ------
    ConfigurationError
        If there is no such data set, or a time or the mirror is not valid.
    DataError
        If a file cannot be received in time or written, is used by another process, or has a wrong
        checksum; a file with a wrong checksum is removed.
    """
    if name not in SOURCES:
        raise unknown_name("data set to download", name, SOURCES)
    for option, seconds in (("timeout_s", timeout_s), ("time_limit_s", time_limit_s)):
        if not seconds > 0:
            raise ConfigurationError(f"{option} must be above 0, not {seconds!r}")
    base = SOURCES[name].url if mirror is None else f"{mirror.rstrip('/')}/"
    if not base.startswith(("http://", "https://")):
        raise ConfigurationError(f"mirror must be the URL of a folder, http or https, not {base!r}")
    place = Path(folder)
    deadline_s = time.monotonic() + time_limit_s
    for file in SOURCES[name].files:
        target = place / file.name
        try:
            if _is_whole(target, file):
                continue
            place.mkdir(parents=True, exist_ok=True)
            _get(base + file.name, file, target, timeout_s, deadline_s, progress)
        except OSError as error:  # network errors too
            hint = "the next call goes on where this one stopped"
            text = f"{base}{file.name}: {error or type(error).__name__}"
            raise DataError(f"{text} ({hint})") from error
    return place


def _get(
    url: str,
    file: _File,
    target: Path,
    timeout_s: float,
    deadline_s: float,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    """Download one file, or the missing rest of it, and check it."""
    part = target.with_name(f".{file.name}.part")
    with part.open("ab") as out:
        _lock(out, part)
        if _is_whole(target, file):  # another process has finished it meanwhile
            part.unlink(missing_ok=True)
            return
        if out.tell() > file.size_bytes:
            out.seek(0)
            out.truncate()
        if out.tell() < file.size_bytes:
            try:
                _receive(url, file, out, timeout_s, deadline_s, progress)
            finally:
                if not out.tell():
                    part.unlink()
        out.flush()
        os.fsync(out.fileno())
        found = _sha256(part)
        if found != file.sha256:
            part.unlink()
            raise DataError(
                f"{url}: its SHA-256 is {found}, not {file.sha256}: damaged on the way, or another "
                "file; nothing was kept"
            )
        part.replace(target)


def _lock(out: IO[bytes], part: Path) -> None:
    """Lock the partial file, or raise if another process has it; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"{part}: another process is downloading this file") from None


def _receive(
    url: str,
    file: _File,
    out: IO[bytes],
    timeout_s: float,
    deadline_s: float,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    """Append the missing bytes to an open file."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    there = out.tell()
    headers = {"User-Agent": "dnn", "Accept-Encoding": "identity"}
    if there:
        headers["Range"] = f"bytes={there}-"
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(_OVER)
    try:
        request = Request(url, headers=headers)
        with urlopen(request, timeout=min(timeout_s, left_s)) as response:
            if there and not _goes_on(response, there):  # the server sends the whole file
                out.seek(0)
                out.truncate()
                there = 0
            # `read1` returns the bytes that have come, without waiting for a whole chunk.
            while chunk := response.read1(min(_CHUNK_BYTES, file.size_bytes + 1 - there)):
                out.write(chunk)
                there += len(chunk)
                if progress is not None:
                    progress(file.name, there, file.size_bytes)
                if there > file.size_bytes:
                    break  # another file: its checksum will say so
                if time.monotonic() > deadline_s:
                    raise TimeoutError(_OVER)
    except HTTPError as error:
        error.close()
        raise OSError(f"the server answers {error.code} {error.reason}") from None
    except HTTPException as error:  # a connection that ends in the middle of a chunk
        raise OSError(f"the connection was lost: {type(error).__name__}") from error
    except OSError as error:
        if time.monotonic() >= deadline_s:  # the time limit had cut the timeout short
            raise TimeoutError(_OVER) from error
        raise
    if there < file.size_bytes:
        out.flush()
        raise OSError(f"the connection was lost after {there} of {file.size_bytes} bytes")


def _goes_on(response: Any, there: int) -> bool:
    """Whether the server continues where the file ends, instead of sending all of it."""
    given = response.headers.get("Content-Range", "")
    return bool(response.status == 206 and given.startswith(f"bytes {there}-"))


def _is_whole(path: Path, file: _File) -> bool:
    return path.exists() and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
