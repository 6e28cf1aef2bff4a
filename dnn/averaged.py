"""The average of several trained networks, which predicts as one of them does.

::

    model = dnn.AveragedModel([dnn.load("trial-3.safetensors"), dnn.load("trial-7.safetensors")])
    model.predict_class("new.csv")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from dnn.backend import Array
from dnn.data.targets import checked_labels, checked_values
from dnn.errors import ConfigurationError, DataError, explains_arguments
from dnn.metrics import Predictions, metrics_of_predictions, metrics_of_targets, scores
from dnn.trained import Prediction, TrainedModel

__all__ = ["AveragedModel"]


class AveragedModel:
    """The mean of the predictions of several trained networks, of the same classes or targets.

    Of a classification it is the mean of the probabilities, and so where samples have several
    labels; of a regression the mean of the values, in their units. Each network prepares raw
    samples as its own training did.

    Parameters
    ----------
    models : sequence of TrainedModel, at least one
    weights : sequence of float, optional
        How much each counts; all the same if left out.
    provenance : mapping, optional
        Where it comes from.

    Attributes
    ----------
    models, weights, provenance
        As they were given, the weights with the sum 1.
    classes, targets, outputs
        As those of each model.

    Raises
    ------
    ConfigurationError
        If there are no models, or their classes or outputs differ, or weights are no weights.
    """

    @explains_arguments
    def __init__(
        self,
        models: Sequence[TrainedModel],
        weights: Sequence[float] | None = None,
        *,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = tuple(models)
        if not self.models:
            raise ConfigurationError("an average of no models: give at least one")
        first = self.models[0]
        for other in self.models[1:]:
            if _predicted(other) != _predicted(first):
                raise ConfigurationError(
                    f"models of different predictions have no average: {_described(first)} and "
                    f"{_described(other)}"
                )
        given = np.ones(len(self.models)) if weights is None else np.asarray(weights, np.float64)
        if given.shape != (len(self.models),) or not ((given > 0) & (given < np.inf)).all():
            raise ConfigurationError(
                f"weights are {len(self.models)} numbers above 0, not {weights}"
            )
        self.weights: tuple[float, ...] = tuple((given / given.sum()).tolist())
        self.classes, self.targets, self.outputs = first.classes, first.targets, first.outputs
        self.provenance = dict(provenance or {})

    def _mean(self, each: Sequence[Array]) -> Array:
        mean: Array = np.tensordot(np.array(self.weights), np.array(each, np.float64), 1)
        return mean

    def predict_proba(self, rows: Any) -> Array:
        """Return the mean probability of each class, or label, as `TrainedModel.predict_proba`."""
        return self._mean([model.predict_proba(rows) for model in self.models])

    def predict(self, rows: Any) -> Array:
        """Return the number of each sample's class, or the mean of the values, in their units.

        Of a network whose samples have several labels, 0 or 1 for each label.
        """
        if self.classes:
            found: Array = self.predict_proba(rows).argmax(axis=1)
            return found
        if _has_labels(self.models[0]):
            return (self.predict_proba(rows) > 0.5).astype(np.int64)
        return self._mean([model.predict(rows) for model in self.models])

    def predict_class(self, rows: Any) -> Array:
        """Return the name of each sample's class, of `classes`.

        It raises `ConfigurationError` if the networks do not classify.
        """
        if not self.classes:
            raise ConfigurationError("the networks predict no classes: take predict")
        return np.array(self.classes)[self.predict(rows)]

    def predict_file(
        self, path: str | PathLike[str], *, delimiter: str | None = None
    ) -> Prediction:
        """Return predictions for the rows of a CSV file, or images; metrics, if they have labels.

        As `TrainedModel.predict_file`, with the logarithmic loss ``log_loss`` in place of ``loss``.
        """
        each = [model.predict_file(path, delimiter=delimiter) for model in self.models]
        first, rows = self.models[0], each[0].rows
        metrics: dict[str, float] = {}
        probabilities = residuals = None
        if self.classes or _has_labels(self.models[0]):
            probabilities = self._mean([found.probabilities for found in each])  # type: ignore[misc]
        scored, known = first._with_answers(rows)
        notes = list(rows.notes)
        try:  # each model has said what is wrong with the answers, if something is
            if self.classes:
                assert probabilities is not None
                numbers = probabilities.argmax(axis=1)
                values = np.array(self.classes)[numbers]
                if known.labels is not None and each[0].metrics:
                    truth = first._targets(known.labels, known).astype(np.int64)[None]
                    given = Predictions(
                        *("classification", truth, numbers[scored][None]),
                        *(probabilities[scored][None], len(self.classes)),
                    )
                    (metrics,) = metrics_of_predictions(given.truth, given.predicted)
                    metrics |= scores(("log_loss",), given)[0]
            elif probabilities is not None:
                values = (probabilities > 0.5).astype(np.int64)
                if known.targets is not None and each[0].metrics:
                    truth = checked_labels(str(path), known.targets, self.targets)
                    metrics = metrics_of_targets("multilabel", truth, values[scored])
            else:
                values = self._mean([found.values for found in each])
                if each[0].residuals is not None and len(self.outputs) == len(self.targets):
                    assert rows.targets is not None
                    residuals = rows.targets - values
                    assert known.targets is not None
                    truth = checked_values(str(path), known.targets, self.targets)
                    metrics = metrics_of_targets("regression", truth, values[scored])
        except DataError as error:
            notes.append(f"no metrics: {error}")
        shown = replace(rows, notes=notes)
        return Prediction(values, probabilities, metrics, shown, residuals, len(scored))

    def export_onnx(self, path: str | PathLike[str]) -> NoReturn:
        """Raise a `ConfigurationError`: an ONNX file has one network."""
        raise ConfigurationError(
            f"an average of {len(self.models)} networks is not written as ONNX: write one of its "
            "models"
        )

    def summary(self) -> str:
        """Return what is averaged, and with which weights."""
        lines = []
        for model, weight in zip(self.models, self.weights, strict=True):
            trial = model.provenance.get("trial")
            which = "a network" if trial is None else f"trial {trial}"
            points = model.provenance.get("parameters", {})
            said = ", ".join(f"{name} {value}" for name, value in points.items())
            lines.append(f"{weight:.0%} {which}{f': {said}' if said else ''}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"AveragedModel({len(self.models)} models)"


def _has_labels(model: TrainedModel) -> bool:
    return model.network._network.loss.takes == "labels"


def _predicted(model: TrainedModel) -> tuple[Any, ...]:
    return _has_labels(model), tuple(model.classes), tuple(model.outputs)


def _described(model: TrainedModel) -> str:
    kind = "labels" if _has_labels(model) else "classes" if model.classes else "values"
    return f"{kind} {', '.join(map(str, model.classes or model.outputs))}"
