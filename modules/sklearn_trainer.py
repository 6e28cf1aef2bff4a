"""A function for trials that fits any classifier of scikit-learn.

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

from .tabular import load_split
from .trial import Report

_DEFAULT = "sklearn.linear_model.LogisticRegression"


def train(parameters: dict[str, Any], report: Report) -> dict[str, float]:
    """Fit one classifier; return its metrics on the validation rows.

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
        ``accuracy`` and ``mcc`` on the validation rows, ``training_time_s``, and ``loss``, the
        mean negative log-likelihood, where the estimator gives probabilities.

    Raises
    ------
    ImportError, AttributeError
        If there is no such estimator.
    """
    from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

    training, validation = load_split(report.options, report.folder)
    module, _, name = report.options.get("estimator", _DEFAULT).rpartition(".")
    kind = getattr(import_module(module), name)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()}
    if "random_state" in inspect.signature(kind).parameters:
        given.setdefault("random_state", report.seed)
    estimator = kind(**given)
    started_s = time.perf_counter()
    estimator.fit(training.x, training.y)
    seconds = time.perf_counter() - started_s
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
