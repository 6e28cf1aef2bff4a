"""Functions that load data sets from files or scikit-learn, and `load_dataset`, by name.

IDX, the format of MNIST::

    bytes 0, 1     zero
    byte  2        type of elements
    byte  3        number of axes
    4 bytes each   length of each axis, big-endian
    the rest       elements, the last axis fastest, big-endian
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import inspect
import math
import struct
import zlib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from dnn.arrays import narrowed
from dnn.backend import Array
from dnn.data.columns import Columns
from dnn.data.dataset import Dataset
from dnn.data.images import load_cifar_training
from dnn.data.known_sets import DATASETS
from dnn.data.preparation import Brightness
from dnn.errors import (
    ConfigurationError,
    DataError,
    MissingDependencyError,
    explains_arguments,
    unknown_name,
)
from dnn.table import read_csv

__all__ = [
    "DATASETS",
    "load_breast_cancer",
    "load_cleveland",
    "load_dataset",
    "load_diabetes",
    "load_digits",
    "load_fashion_mnist",
    "load_idx",
    "load_mnist",
    "reading_options",
]


def load_digits() -> Dataset:
    """Return 1,797 handwritten digits of 8 x 8 pixels, brightness in 0 .. 1; 10 classes.

    Returns
    -------
    Dataset
        `x` of shape (1797, 64), `y` of 0 .. 9.

    Raises
    ------
    MissingDependencyError
        If scikit-learn is not installed.
    """
    x, y = _bundled("digits", "digits.csv.gz")
    return Dataset(x / 16.0, y, 10, "digits", image_shape=(1, 8, 8))


def load_breast_cancer() -> Dataset:
    """Return 569 tumours with 30 attributes; class 0 is malignant, 1 benign.

    Returns
    -------
    Dataset
        `x` of shape (569, 30), in the units of each attribute, `y` of 0 and 1.

    Raises
    ------
    MissingDependencyError
        If scikit-learn is not installed.
    """
    x, y = _bundled("breast_cancer", "breast_cancer.csv", heading=1)
    return Dataset(x, y, 2, "breast_cancer")


_OF_DIABETES = "age sex bmi bp s1 s2 s3 s4 s5 s6"


def load_diabetes() -> Dataset:
    """Return 442 patients with 10 attributes, and how their diabetes progressed: a regression.

    Returns
    -------
    Dataset
        `x` of shape (442, 10), in the units of each attribute; `y` of shape (442, 1), 25 .. 346.

    Raises
    ------
    MissingDependencyError
        If scikit-learn is not installed.

    References
    ----------
    .. [1] Efron, Hastie, Johnstone, Tibshirani, Least Angle Regression, Annals of Statistics 32,
       2004.
    """
    files = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
    parts = [_file_of_scikit_learn(file) for file in files]
    if all(part is not None for part in parts):
        x, y = (np.loadtxt(part) for part in parts if part is not None)
    else:
        bunch = _from_scikit_learn("diabetes", scaled=False)
        x, y = bunch.data, bunch.target
    names, target = tuple(_OF_DIABETES.split()), ("progression",)
    columns = Columns(names, targets=target, targets_at=(10,))
    return Dataset(x, y, 0, "diabetes", columns=columns, task="regression", targets=target)


def _bundled(name: str, file: str, heading: int = 0) -> tuple[Array, Array]:
    """Return attributes and classes of a set that scikit-learn bundles."""
    path = _file_of_scikit_learn(file)
    if path is not None:
        table = np.loadtxt(path, delimiter=",", skiprows=heading)
        return table[:, :-1], table[:, -1].astype(int)
    bunch = _from_scikit_learn(name)
    return bunch.data, bunch.target


def _file_of_scikit_learn(file: str) -> Path | None:
    """Return the place of a file that scikit-learn bundles; None if it is not the usual one.

    Importing scikit-learn, in place of reading the file, takes more than a second on each rank.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "datasets" / "data" / file
    return path if path.is_file() else None


def _from_scikit_learn(name: str, **options: Any) -> Any:
    try:
        return getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")(**options)
    except ImportError as error:
        raise MissingDependencyError(
            f"the data set {name!r} comes with scikit-learn, which is not installed: "
            'pip install "diel[data]"'
        ) from error


ATTRIBUTES = 13
_CLEVELAND = """
    age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal
"""


@explains_arguments
def load_cleveland(path: str | PathLike[str]) -> Dataset:
    """Read the Cleveland heart disease data, ``processed.cleveland.data``.

    Parameters
    ----------
    path : path
        The file: a row for each patient, with 13 attributes and a diagnosis 0 .. 4, ``?`` where a
        cell is missing.

    Returns
    -------
    Dataset
        x (303, 13) with NaN for a missing cell; class 1 where the diagnosis is 1 .. 4, as the
        data are commonly scored.

    Raises
    ------
    DataError
        If the file is missing, or a row is malformed; it names the line.

    References
    ----------
    .. [1] Detrano et al., International application of a new probability algorithm for the
       diagnosis of coronary artery disease, American Journal of Cardiology 64, 1989.
    """
    table = read_csv(path, header=False, missing=["?"])
    if len(table.columns) != ATTRIBUTES + 1:
        cells = f"{len(table.columns)} cells, not {ATTRIBUTES + 1}"
        raise DataError(f"{path}, line {table.lines[0]}: {cells}")
    diagnosis = table.values[:, ATTRIBUTES]
    for row in np.flatnonzero(~np.isin(diagnosis, range(5))).tolist():
        found = "?" if np.isnan(diagnosis[row]) else f"{diagnosis[row]:g}"
        message = f"the diagnosis {found!r} is not 0 .. 4"
        raise DataError(f"{table.place(row, ATTRIBUTES)}: {message}")
    return Dataset(
        narrowed(table.values[:, :ATTRIBUTES], np.float32, table.place),
        (diagnosis > 0).astype(np.intp),
        2,
        "cleveland",
        columns=Columns(
            tuple(_CLEVELAND.split()),
            "num",
            ATTRIBUTES,
            missing=("?",),
            labels={str(number): int(number > 0) for number in range(5)},
        ),
    )


TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PART_BYTES: Final = 1 << 20


@explains_arguments
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
    is_compressed = False
    try:
        with open(path, "rb") as raw:
            is_compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            return _idx(path, gzip.GzipFile(fileobj=raw) if is_compressed else raw)
    except (EOFError, OSError, zlib.error) as error:
        problem = "truncated or damaged gzip" if is_compressed else "cannot be read"
        raise DataError(f"{path}: {problem}: {error}") from error


def _idx(path: str | PathLike[str], file: IO[bytes] | gzip.GzipFile) -> Array:
    """Read an array, but no more than its header states: gzip may unpack to any size."""
    begin = file.read(4)
    if len(begin) < 4 or begin[:2] != b"\0\0" or begin[2] not in TYPES:
        raise DataError(f"{path}: no IDX file: it begins with {begin!r}")
    dtype, axes = np.dtype(TYPES[begin[2]]), begin[3]
    lengths = file.read(4 * axes)
    header = 4 + 4 * axes
    if len(lengths) < 4 * axes:
        raise DataError(f"{path}: truncated in its header, {4 + len(lengths)} of {header} bytes")
    shape = struct.unpack(f">{axes}I", lengths)
    expected = math.prod(shape) * dtype.itemsize
    elements = bytearray()
    # In parts: a single call would allocate the stated size, even of a shorter file.
    while part := file.read(min(_PART_BYTES, expected - len(elements))):
        elements += part
    stated = f"bytes where {header + expected} are stated"
    if len(elements) < expected:
        raise DataError(f"{path}: truncated, {header + len(elements)} {stated}")
    if file.read(1):
        raise DataError(f"{path}: too long, more {stated}")
    try:
        array = np.frombuffer(elements, dtype).reshape(shape)
    except ValueError as error:  # too many axes
        raise DataError(f"{path}: {axes} axes: {error}") from error
    return array.astype(dtype.newbyteorder("="))


@explains_arguments
def load_mnist(folder: str | PathLike[str]) -> tuple[Dataset, Dataset]:
    """Read training and test samples of MNIST from its four files.

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


_FASHION = [
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
]


@explains_arguments
def load_fashion_mnist(folder: str | PathLike[str]) -> tuple[Dataset, Dataset]:
    """Read training and test samples of Fashion-MNIST, whose files have the names of MNIST's.

    Parameters
    ----------
    folder : path
        As in `load_mnist`.

    Returns
    -------
    (Dataset, Dataset)
        Training and test samples, x (n, 784) with brightness in 0 .. 1.

    Raises
    ------
    DataError
        As in `load_mnist`.

    References
    ----------
    .. [1] Xiao, Rasul, Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017.
    """
    train, test = (_mnist_part(Path(folder), part, "fashion_mnist") for part in ("train", "t10k"))
    return train, test


def _mnist_part(folder: Path, part: str, name: str = "mnist") -> Dataset:
    images = load_idx(_find(folder, f"{part}-images-idx3-ubyte"))
    labels = load_idx(_find(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(f"{folder}: {part} images {images.shape}, labels {labels.shape}")
    x = images.reshape(len(images), -1).astype(np.float32)
    x /= 255.0
    return Dataset(
        x,
        labels,
        10,
        name,
        # Pixels at the border hardly vary: by columns they would be scaled to 250 deviations.
        standardise_by="one scale",
        image_shape=(1, images.shape[1], images.shape[2]),
        class_names=tuple(_FASHION) if name == "fashion_mnist" else (),
        preparation=(Brightness(),),
    )


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    raise DataError(f"{folder}: neither {name} nor {name}.gz is there")


def _mnist(path: str | PathLike[str]) -> Dataset:
    return _mnist_part(Path(path), "train")


def _fashion_mnist(path: str | PathLike[str]) -> Dataset:
    return _mnist_part(Path(path), "train", "fashion_mnist")


def _cifar10(path: str | PathLike[str]) -> Dataset:
    return load_cifar_training(path, 10)


def _cifar100(path: str | PathLike[str], labels: str = "fine") -> Dataset:
    return load_cifar_training(path, 100, labels)


@explains_arguments
def load_dataset(name: str, path: str | PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        A key of ``dnn.catalogue("data set")``, such as ``"digits"`` or ``"csv"``. Of MNIST and
        CIFAR the training samples are loaded.
    path : path, optional
        The file or folder, of a set that scikit-learn does not bundle.
    **options
        Options of the function that reads the file, see `reading_options`.

    Returns
    -------
    Dataset

    Raises
    ------
    ConfigurationError
        If the name is unknown, a path is missing or not taken, or there is no such option.
    DataError
        If the file is missing or damaged.
    MissingDependencyError
        If scikit-learn or Pillow is needed and not installed.
    """
    known = reading_options(name)
    for option in options:
        if option not in known:
            there = f"it takes {', '.join(known)}" if known else "it takes none"
            message = f"the data set {name!r} takes no option {option!r}: {there}"
            raise ConfigurationError(message)
    is_bundled = DATASETS[name].is_bundled
    if is_bundled and path is not None:
        raise ConfigurationError(f"the data set {name!r} takes no path")
    if not is_bundled and path is None:
        raise ConfigurationError(f"the data set {name!r} needs the path of its data")
    return _loader(name)(*([] if is_bundled else [path]), **options)


@explains_arguments
def reading_options(name: str) -> list[str]:
    """Return the names of options that `load_dataset` takes for a data set, besides its path.

    Parameters
    ----------
    name : str

    Returns
    -------
    list of str
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return [*inspect.signature(_loader(name)).parameters][1:]


def _loader(name: str) -> Callable[..., Dataset]:
    module, _, function = DATASETS[name].loader.partition(":")
    found: Callable[..., Dataset] = getattr(importlib.import_module(f"dnn.data.{module}"), function)
    return found
