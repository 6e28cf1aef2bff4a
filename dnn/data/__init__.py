"""Data: loading, splitting, preparing, cutting into batches."""

from dnn.data.batches import batches, epoch_order, epoch_orders, prefetch
from dnn.data.dataset import (
    Dataset,
    impute,
    split_rows,
    standardise,
    train_validation_split,
    train_validation_test_split,
)
from dnn.data.labels import class_weights, from_one_hot, to_one_hot
from dnn.data.loading import (
    DATASETS,
    Table,
    load_breast_cancer,
    load_cleveland,
    load_csv,
    load_dataset,
    load_digits,
    load_idx,
    load_mnist,
    read_csv,
)

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
