"""Estimators for scikit-learn: multilayer perceptrons in its pipelines, searches and scores.

::

    from dnn.sklearn import DNNClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    cross_val_score(make_pipeline(StandardScaler(), DNNClassifier([32])), x, y)

This module needs scikit-learn, and nothing else in dnn imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.callbacks import Callback, EarlyStopping
from dnn.data.targets import TargetScale
from dnn.errors import (
    ConfigurationError,
    MissingDependencyError,
    explains_arguments,
    is_integer,
)
from dnn.layers import Activation, Layer
from dnn.losses import LOSSES, Loss, loss_of
from dnn.model import NeuralNetwork
from dnn.nets import mlp
from dnn.optimizers import Optimizer, optimizer_of
from dnn.training.history import History

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as error:
    raise MissingDependencyError(
        'dnn.sklearn needs scikit-learn of version 1.6 or later: pip install "diel[data]"'
    ) from error

__all__ = ["DNNClassifier", "DNNRegressor"]


@dataclass(eq=False, repr=False)
class _DNN(BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators; scikit-learn reads the parameters from ``__init__``."""

    hidden: Sequence[int] = (64,)
    _: KW_ONLY
    activation: str = "relu"
    loss: str | Mapping[str, Any] | Loss = ""
    layers: Callable[[int, int], Sequence[Layer]] | None = None
    optimizer: str | Optimizer = "adam"
    learning_rate: float = 0.005
    weight_decay: float = 0.0
    batch_size: int = 32
    epochs: int = 100
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    random_state: Any = None
    progress: bool | None = False

    _takes: ClassVar[tuple[str, ...]] = ()

    def _loss(self) -> Loss:
        loss = loss_of(self.loss)
        if loss.takes not in self._takes:
            known = [name for name, kind in LOSSES.items() if kind.takes in self._takes]
            raise self._wrong("loss", f"one of {', '.join(known)}")
        return loss

    def _train(self, x: Array, y: Array, targets: int, loss: Loss, **options: Any) -> NeuralNetwork:
        if not isinstance(self.early_stopping, bool | np.bool_):
            raise self._wrong("early_stopping", "true or false")
        layers = self._layers(x.shape[1], loss.output_count(targets), loss)
        model = NeuralNetwork(layers, loss, self._optimizer(), seed=self._seed())
        callbacks: list[Callback] = []
        if self.early_stopping:
            callbacks.append(EarlyStopping(patience=self.patience))
            options["validation"] = self.validation_fraction
        self.history_: History = model.fit(
            x,
            y,
            epochs=self.epochs,
            batch_size=self.batch_size,
            callbacks=callbacks,
            progress=self.progress,
            **options,
        )
        self.n_iter_ = len(self.history_)
        self.model_ = model
        return model

    def _layers(self, inputs: int, outputs: int, loss: Loss) -> Sequence[Layer]:
        if self.layers is None:
            layers = mlp(inputs, self.hidden, outputs, self.activation)
            return [*layers, *map(Activation, loss.needs)]
        what = "a function of the numbers of inputs and outputs that returns layers"
        try:
            inspect.signature(self.layers).bind(inputs, outputs)
        except TypeError:
            raise self._wrong("layers", what) from None
        made: object = self.layers(inputs, outputs)
        if not isinstance(made, Iterable):
            raise ConfigurationError(f"layers must be {what}, and it returned {made!r:.100}")
        return list(made)

    def _seed(self) -> int:
        """Return the network's seed: the integer that is given, or one that is drawn."""
        given = self.random_state
        if is_integer(given):
            return int(given)
        try:
            return int(check_random_state(given).randint(np.iinfo(np.int32).max))
        except ValueError:
            raise self._wrong("random_state", "an integer, a RandomState or None") from None

    def _wrong(self, name: str, what: str) -> ConfigurationError:
        given = getattr(self, name)
        return ConfigurationError(
            f"{type(self).__name__}: {name} must be {what}, not {given!r:.100}"
        )

    def _optimizer(self) -> Optimizer:
        settings = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return optimizer_of(self.optimizer, **settings)

    def _samples(self, x: npt.ArrayLike) -> Array:
        check_is_fitted(self, "model_")
        checked: Array = validate_data(self, x, dtype=np.float32, reset=False)
        return checked


@dataclass(eq=False, repr=False)
class DNNClassifier(ClassifierMixin, _DNN):  # type: ignore[misc]
    """A classifier: a network that ends in softmax and cross entropy, or another loss of classes.

    Parameters
    ----------
    hidden : sequence of int
        Units of each hidden layer.
    activation : str
        Name of the activation after each hidden layer.
    loss : str, mapping or Loss
        A name of `dnn.losses.LOSSES`, such as ``"focal"``, or a table of it and its options,
        ``{"name": "focal", "gamma": 3.0}``.
    layers : callable (inputs: int, outputs: int) -> sequence of Layer, optional
        Makes another network; then `hidden` and `activation` are ignored.
    optimizer : str or Optimizer
        A name of `dnn.optimizers.OPTIMIZERS`, such as ``"adam"``, with `learning_rate` and
        `weight_decay`; an `Optimizer` has its own.
    learning_rate, weight_decay : float
    batch_size, epochs : int
    early_stopping : bool
        Hold `validation_fraction` of the samples out, and stop when their loss has not become
        better for `patience` epochs; the best epoch is kept.
    validation_fraction : float
    patience : int
    random_state : int, RandomState or None
        Seed of the first parameters and of the order of samples.
    progress : bool, optional
        Show a progress bar; None: at a terminal only.
    class_weight : mapping of label to float, or "balanced", optional
        Factor of the losses of samples of each class.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.
    model_ : NeuralNetwork
    history_ : History
    n_iter_ : int, epochs
    n_features_in_ : int
    """

    loss: str | Mapping[str, Any] | Loss = "softmax_cross_entropy"
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    _takes = ("classes",)

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> DNNClassifier:
        """Train a new network.

        Parameters
        ----------
        X : array_like, shape (n, d)
        y : array_like, shape (n,)
            Labels of any kind.
        """
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = self._weights_by_number(weights)
        self._train(x, numbers, len(self.classes_), self._loss(), class_weight=weights)
        return self

    def _weights_by_number(self, weights: Mapping[Any, float]) -> dict[int, float]:
        number_of = {label: number for number, label in enumerate(self.classes_.tolist())}
        unknown = [label for label in weights if label not in number_of]
        if unknown:
            raise ConfigurationError(f"class_weight names {unknown[0]!r}, which is no class of y")
        return {number_of[label]: weight for label, weight in weights.items()}

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return the label of each sample, shape (n,)."""
        x = self._samples(X)
        labels: Array = self.classes_[self.model_.predict_class(x)]
        return labels

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return the probability of each class, shape (n, classes), in the order of `classes_`."""
        x = self._samples(X)
        return self.model_.predict_proba(x)


@dataclass(eq=False, repr=False)
class DNNRegressor(RegressorMixin, _DNN):  # type: ignore[misc]
    """A regressor: a network trained on the mean squared error, or another loss, of its targets.

    Targets are standardised for training, so that `learning_rate` does not depend on their scale;
    counts, of the loss ``"poisson"``, are divided by their mean. Its parameters are those of
    `DNNClassifier`, without `class_weight`. Of several quantiles that are trained, those nearest to
    the medians are predicted.

    Attributes
    ----------
    model_ : NeuralNetwork
        Its outputs are those of scaled targets.
    history_ : History
    n_iter_ : int, epochs
    n_features_in_ : int
    """

    loss: str | Mapping[str, Any] | Loss = "mean_squared_error"
    _takes = ("values", "counts")

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> DNNRegressor:
        """Train a new network.

        Parameters
        ----------
        X : array_like, shape (n, d)
        y : array_like, shape (n,) or (n, outputs)
        """
        x, values = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        values = np.asarray(values, np.float64)
        columns = values.reshape(len(values), -1)
        loss, targets = self._loss(), columns.shape[1]
        if are_counts := loss.takes == "counts":
            loss.check(columns, len(columns), (targets,), columns.dtype)  # before they are scaled
        self._scale = (TargetScale.of_counts if are_counts else TargetScale.learned)(columns)
        self._shape, self._point = values.shape[1:], loss.point
        self._train(x, self._scale.apply(columns), targets, loss)
        return self

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return the values for each sample, shape (n,) or (n, outputs) as in `fit`."""
        x = self._samples(X)
        values = self._scale.in_units(self._point(self.model_(x)))
        result: Array = values.reshape(len(values), *self._shape)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


for _estimator in (DNNClassifier, DNNRegressor):
    # Values are checked by `fit`, as scikit-learn wants it.
    checked = explains_arguments(_estimator.__init__, kinds=False)
    _estimator.__init__ = checked  # type: ignore[method-assign]
