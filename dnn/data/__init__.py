"""Data: loading, splitting, preparing, cutting into batches."""

from dnn.data.batches import batches, epoch_order, epoch_orders
from dnn.data.bundled import load_breast_cancer, load_digits
from dnn.data.catalogue import DATASETS, load_dataset
from dnn.data.cleveland import load_cleveland
from dnn.data.csv import Table, load_csv, read_csv
from dnn.data.dataset import Dataset
from dnn.data.idx import load_idx, load_mnist
from dnn.data.labels import from_one_hot, to_one_hot
from dnn.data.prefetch import prefetch
from dnn.data.preparation import impute, standardise
from dnn.data.split import split_rows, train_validation_split, train_validation_test_split
from dnn.data.weights import class_weights

__all__ = [
    "DATASETS",
    "Dataset",
    "Table",
    "batches",
    "class_weights",
    "epoch_order",
    "epoch_orders",
    "from_one_hot",
    "impute",
    "load_breast_cancer",
    "load_cleveland",
    "load_csv",
    "load_dataset",
    "load_digits",
    "load_idx",
    "load_mnist",
    "prefetch",
    "read_csv",
    "split_rows",
    "standardise",
    "to_one_hot",
    "train_validation_split",
    "train_validation_test_split",
]
