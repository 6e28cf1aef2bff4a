"""Data: loading, splitting, preparing, cutting into batches."""

from dnn.data.batches import batches
from dnn.data.bundled import load_breast_cancer, load_digits
from dnn.data.catalogue import DATASETS, load_dataset
from dnn.data.cleveland import load_cleveland
from dnn.data.dataset import Dataset
from dnn.data.idx import load_idx, load_mnist
from dnn.data.preparation import impute, standardise
from dnn.data.split import train_validation_split

__all__ = [
    "DATASETS",
    "Dataset",
    "batches",
    "impute",
    "load_breast_cancer",
    "load_cleveland",
    "load_dataset",
    "load_digits",
    "load_idx",
    "load_mnist",
    "standardise",
    "train_validation_split",
]
