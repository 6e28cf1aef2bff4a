"""Callbacks: what `fit` does round epochs."""

from dnn.callbacks.best_checkpoint import BestCheckpoint
from dnn.callbacks.callback import Callback, Epoch
from dnn.callbacks.progress import ProgressBar
from dnn.callbacks.stopping import EarlyStopping, Pruning

__all__ = ["BestCheckpoint", "Callback", "EarlyStopping", "Epoch", "ProgressBar", "Pruning"]
