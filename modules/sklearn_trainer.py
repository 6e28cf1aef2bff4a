"""A function for trials that fits any classifier or regressor of scikit-learn.

::

    [module.options]
    train = "modules.sklearn_trainer:train"
    options = { dataset = "digits", estimator = "sklearn.ensemble.RandomForestClassifier" }

The space names the parameters of the estimator; parts of a pipeline are reached as scikit-learn
does it, ``part__parameter``.
"""

from __future__ import annotations

import inspect
import time
from importlib import import_module
from typing import Any

from .tabular import metrics_of
from .trainer_data import load_split
from .trial import Report

_DEFAULTS = {
    "classification": "sklearn.linear_model.LogisticRegression",
    "regression": "sklearn.linear_model.Ridge",
    "multilabel": "sklearn.neighbors.KNeighborsClassifier",
}


def train(parameters: dict[str, Any], report: Report) -> dict[str, float]:
    """Fit one estimator; return its metrics on the validation rows.

    Parameters
    ----------
    parameters : dict
        Parameters of the estimator; lists become tuples, as ``hidden_layer_sizes`` wants them.
    report : Report
        Its options: ``estimator``, ``package.module.Class``, and those of the data, as for
        `modules.trainer`.

    Returns
    -------
    dict of str to float
        On the validation rows, and ``training_time_s``. Of a classification ``accuracy``, ``mcc``
        and, where the estimator gives probabilities, ``loss``, the mean negative log-likelihood;
        of a regression ``rmse``, ``mae``, ``r2`` and ``median_absolute_error``, in the units of
        the targets; of several labels ``exact_match``, ``hamming``, ``macro_f1``, ``micro_f1``.

    Raises
    ------
    ImportError, AttributeError
        If there is no such estimator.
    """
    training, validation = load_split(report.options, report.folder)
    module, _, name = report.options.get("estimator", _DEFAULTS[training.task]).rpartition(".")
    kind = getattr(import_module(module), name)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()}
    if "random_state" in inspect.signature(kind).parameters:
        given.setdefault("random_state", report.seed)
    estimator = kind(**given)
    started_s = time.perf_counter()
    y = training.y[:, 0] if training.y.shape[1:] == (1,) else training.y
    weights = {} if training.weights is None else {"sample_weight": training.weights}
    estimator.fit(training.x, y, **weights)
    seconds = time.perf_counter() - started_s
    if training.task != "classification":
        found = metrics_of(estimator.predict(validation.x), validation)
        return {**found, "training_time_s": seconds}
    from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

    predicted = estimator.predict(validation.x)
    metrics = {
        "accuracy": float(accuracy_score(validation.y, predicted)),
        "mcc": float(matthews_corrcoef(validation.y, predicted)),
        "training_time_s": seconds,
    }
    if hasattr(estimator, "predict_proba"):
        likelihoods = estimator.predict_proba(validation.x)
        metrics["loss"] = float(log_loss(validation.y, likelihoods, labels=estimator.classes_))
    return metrics
