"""Callbacks: what `fit` does round epochs."""

from dnn.callbacks.callback import Callback, Epoch
from dnn.callbacks.monitors import BestCheckpoint, EarlyStopping, Pruning
from dnn.callbacks.progress import ProgressBar

__all__ = ["BestCheckpoint", "Callback", "EarlyStopping", "Epoch", "ProgressBar", "Pruning"]
