"""Data sets by name, as a workflow file names them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from dnn.data.bundled import load_breast_cancer, load_digits
from dnn.data.cleveland import load_cleveland
from dnn.data.dataset import Dataset
from dnn.data.idx import load_mnist
from dnn.errors import ConfigurationError, unknown_name

__all__ = ["DATASETS", "load_dataset"]

BUNDLED: dict[str, Callable[[], Dataset]] = {
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
FROM_PATH: dict[str, Callable[[str | PathLike[str]], Dataset]] = {
    "cleveland": load_cleveland,
    "mnist": lambda folder: load_mnist(folder)[0],
}
DATASETS = tuple(sorted([*BUNDLED, *FROM_PATH]))


def load_dataset(name: str, path: str | PathLike[str] | None = None) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        ``"breast_cancer"`` or ``"digits"``, which scikit-learn carries, ``"cleveland"`` or
        ``"mnist"`` (its training samples), which need a path.
    path : path, optional
        The file or folder.

    Returns
    -------
    Dataset

    Raises
    ------
    ConfigurationError
        If the name is unknown, or a path is missing or given in vain.
    DataError
        If the file is missing or damaged.
    MissingDependencyError
        If scikit-learn is needed and not installed.
    """
    if name in BUNDLED:
        if path is not None:
            raise ConfigurationError(f"the data set {name!r} takes no path")
        return BUNDLED[name]()
    if name not in FROM_PATH:
        raise unknown_name("data set", name, DATASETS)
    if path is None:
        raise ConfigurationError(f"the data set {name!r} needs the path of its data")
    return FROM_PATH[name](path)
