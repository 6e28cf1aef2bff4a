"""The data sets that `dnn.load_dataset` knows by name, and what is known before they are read.

Nothing is imported here: a workflow file that names one is checked without NumPy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DATASETS", "KnownSet"]


class KnownSet(NamedTuple):
    """A data set, or a kind of file, by its name.

    Attributes
    ----------
    loader : str
        The function of `dnn.data` that reads it, as ``module:function``.
    features, classes : int
        How many a sample, and the set, has; 0 if that is not known before it is read.
    shape : tuple of int, optional
        Channels, height and width of a sample that is an image.
    is_bundled : bool
        It comes with scikit-learn; all others need a path.
    is_own : bool
        It is data of a user's own, about which nothing is known.
    is_table : bool
        It is no images.
    """

    loader: str
    features: int = 0
    classes: int = 0
    shape: tuple[int, int, int] | None = None
    is_bundled: bool = False
    is_own: bool = False
    is_table: bool = False


DATASETS: Final[dict[str, KnownSet]] = {
    "digits": KnownSet("loading:load_digits", 64, 10, (1, 8, 8), is_bundled=True),
    "breast_cancer": KnownSet("loading:load_breast_cancer", 30, 2, is_bundled=True, is_table=True),
    "cifar10": KnownSet("loading:_cifar10", 3072, 10, (3, 32, 32)),
    "cifar100": KnownSet("loading:_cifar100"),
    "cleveland": KnownSet("loading:load_cleveland", is_table=True),
    "csv": KnownSet("loading:load_csv", is_own=True, is_table=True),
    "fashion_mnist": KnownSet("loading:_fashion_mnist", 784, 10, (1, 28, 28)),
    "image_folder": KnownSet("images:load_image_folder", is_own=True),
    "mnist": KnownSet("loading:_mnist", 784, 10, (1, 28, 28)),
    "npz": KnownSet("images:load_npz", is_own=True),
}
