"""Evaluation of networks: outputs for samples, the loss, and the metrics of the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from dnn.backend import Array, Ops
from dnn.data.augmentation import Images
from dnn.losses import QuantileLoss
from dnn.metrics import (
    Predictions,
    check_metrics,
    mean_pinball,
    metrics_of_counts,
    metrics_of_labels,
    metrics_of_predictions,
    metrics_of_sums,
    metrics_of_values,
    needs_probabilities,
    scores,
    sums_of_values,
)
from dnn.training.data import Rows, Samples, is_on_host
from dnn.training.network import Network, PlanKind

__all__ = [
    "OF_SUMS",
    "Replay",
    "evaluate",
    "load_part",
    "outputs_of",
    "results_of",
    "sums_of",
    "task_of",
]

Replay = Callable[..., Iterator[tuple[Array, Array]]]
"""``(network, kind, x, y=None, rows=None)`` -> iterator of outputs and mean loss of each piece."""

# Rows of a piece: samples are evaluated piece by piece.
ROWS = 1024


def evaluate(
    network: Network,
    samples: Samples,
    replay: Replay | None = None,
    metrics: Sequence[str] = (),
) -> list[dict[str, float]]:
    """Return the loss and the metrics of the task of each of K networks.

    By the names of `dnn.metrics.METRICS`; `metrics` are others to measure too, see `check_metrics`.
    `replay` computes the outputs in place of `_replayed`, on a mesh of ranks for instance.
    """
    replay = replay or _replayed
    task = task_of(network, samples)
    check_metrics(metrics, task)
    chances = None
    if needs_probabilities(metrics):
        chances = _measured(network, samples, replay, "probability")[1]
        chances = chances.reshape(network.models or 1, *chances.shape[len(network.leading) :])
    total, outputs = _measured(network, samples, replay)
    found = more = given = None
    if task == "classification":
        classes = network.loss.class_count(network.output_shape)
        given = Predictions(task, *_classes(network, samples, outputs), chances, classes)
        found = metrics_of_predictions(given.truth, given.predicted)
    elif task:
        truth, predicted, deviation = _values(network, samples, outputs)
        with np.errstate(all="ignore"):  # of a network that has diverged
            if task == "multilabel":
                given = Predictions(task, truth, predicted, chances)
                found = metrics_of_labels(truth, predicted)
            else:
                found = metrics_of_values(truth, predicted, deviation)
                if isinstance(network.loss, QuantileLoss):
                    every = outputs.reshape(*predicted.shape, -1)
                    quantiles = np.array(network.loss.quantiles)
                    more = mean_pinball(truth, every, quantiles, deviation)
    if metrics and given is not None:
        more = scores(metrics, given)
    if found is not None and more is not None:
        found = [{**usual, **extra} for usual, extra in zip(found, more, strict=True)]
    return _results((total / samples.count).reshape(-1), found)


_TASKS = {"classes": "classification", "values": "regression", "counts": "regression",
          "labels": "multilabel"}  # fmt: skip
"""The task of networks whose loss takes such targets."""


def task_of(network: Network, samples: Samples) -> str:
    """Return the task whose metrics a network has; empty if it has none, as of images put out."""
    task = _TASKS.get(network.loss.takes, "")
    if task in ("", "classification"):
        return task
    outputs, targets = network.output_shape, samples.y.shape[1:]
    return task if len(outputs) == 1 == len(targets) and not outputs[0] % targets[0] else ""


def _values(network: Network, samples: Samples, outputs: Array) -> tuple[Array, Array, Array]:
    """Return targets and predictions of K networks, (K, n, outputs), and deviations of targets."""
    rows, targets = samples.rows, samples.targets(network)
    predicted = network.loss.point(outputs)
    predicted = predicted.reshape(network.models or 1, *predicted.shape[-2:])
    truth = targets[None] if rows is None else targets[rows]
    deviation = np.ones(1) if samples.deviation is None else samples.deviation
    if deviation.ndim == 2:
        deviation = deviation[None] if rows is None else deviation[rows]
    return np.broadcast_to(truth, predicted.shape), predicted, deviation


def _results(losses: Array, found: list[dict[str, float]] | None) -> list[dict[str, float]]:
    given = found or [{}] * len(losses)
    return [{"loss": loss, **score} for loss, score in zip(losses.tolist(), given, strict=True)]


def sums_of(network: Network, samples: Samples) -> Array:
    """Return sums of losses and of what metrics need, which add up over parts of the samples.

    Returns
    -------
    array of float64, shape (K, 2 + ...)
        The sum of the losses and the number of samples. For a classification then the number of
        right predictions, the samples of each class, and the predictions of each; for a regression
        what `dnn.metrics.sums_of_values` returns.
    """
    loss, models = network.loss, network.models or 1
    classes = loss.class_count(network.output_shape) if loss.classifies else 0
    task = task_of(network, samples)
    more = 5 * samples.y.shape[1] if task == "regression" else 0
    sums = np.zeros((models, 3 + 2 * classes if classes else 2 + more))
    if samples.count:
        total, outputs = _measured(network, samples, _replayed)
        sums[:, 0], sums[:, 1] = total, samples.count
        if classes:
            pairs = zip(*_classes(network, samples, outputs), strict=True)
            for row, (truth, predicted) in zip(sums, pairs, strict=True):
                row[2] = np.count_nonzero(truth == predicted)
                row[3 : 3 + classes] = np.bincount(truth, minlength=classes)
                row[3 + classes :] = np.bincount(predicted, minlength=classes)
        elif task == "regression":
            with np.errstate(all="ignore"):
                found = sums_of_values(*_values(network, samples, outputs))
            sums[:, 2:] = found.reshape(models, -1)
    return sums


OF_SUMS: Final = frozenset(["loss", "accuracy", "mcc", "rmse", "mae", "r2"])
"""The metrics that `results_of` returns."""


def results_of(network: Network, sums: Array) -> list[dict[str, float]]:
    """Return what `evaluate` does, from the sums that `sums_of` has returned for all parts.

    The median of absolute errors, and metrics of several labels a sample, cannot be had from sums,
    and are left out.
    """
    found = None
    if network.loss.classifies:
        counts = sums[:, 2:].astype(np.int64)
        found = metrics_of_counts(counts[:, 0], *np.split(counts[:, 1:], 2, axis=1))
    elif sums.shape[1] > 2:
        with np.errstate(all="ignore"):
            found = metrics_of_sums(sums[:, 2:].reshape(len(sums), 5, -1))
    return _results(sums[:, 0] / sums[:, 1], found)


def _measured(
    network: Network, samples: Samples, replay: Replay, kind: PlanKind = "evaluation"
) -> tuple[Array, Array]:
    """Return the sum of the losses over all samples, of shape () or (K,), and the outputs."""
    parts, total = [], np.zeros(network.leading)
    with np.errstate(all="ignore"):
        for part, loss in replay(network, kind, samples.x, samples.y, samples.rows):
            parts.append(part)
            total += np.multiply(loss, part.shape[len(network.leading)], dtype=np.float64)
    return total, _joined(network, parts)


def _classes(network: Network, samples: Samples, outputs: Array) -> tuple[Array, Array]:
    """Return the true and the predicted classes of all samples, each of shape (K, n)."""
    rows, labels = samples.rows, samples.targets(network)
    truth = labels[None] if rows is None else labels[rows]
    predicted = network.loss.predicted(outputs).reshape(network.models or 1, -1)
    return np.broadcast_to(truth.astype(np.int64, copy=False), predicted.shape), predicted


def outputs_of(
    network: Network, samples: Array | Images, kind: PlanKind, replay: Replay | None = None
) -> Array:
    """Return outputs or probabilities, as `kind` says, for checked samples.

    Of K networks the shape is (K, n, ...).
    """
    with np.errstate(all="ignore"):
        parts = [outputs for outputs, _ in (replay or _replayed)(network, kind, samples)]
    return _joined(network, parts)


def _joined(network: Network, parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=len(network.leading))


def load_part(ops: Ops, values: Array, place: Array) -> None:
    """Copy samples or targets, from the host or the device, into an input of a plan."""
    send = ops.load if is_on_host(values) else ops.copy
    send(values, place)


def _replayed(
    network: Network,
    kind: PlanKind,
    x: Array | Images,
    y: Array | None = None,
    rows: Rows | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Cut samples into pieces; yield the outputs and the mean loss of each, on the host."""
    count = len(x) if rows is None else rows.shape[1]
    for start in range(0, count, ROWS):
        part = slice(start, min(start + ROWS, count))
        step = network.plan(kind, part.stop - start)
        if rows is None:
            targets = np.zeros(()) if y is None else y[part]
            for values, place in ((x[part], step.x), (targets, step.target)):
                load_part(step.ops, values, place)
        else:
            assert y is not None
            step.load(x, y, rows[:, part])
        step.plan.run()
        assert step.outputs is not None
        yield step.ops.to_host(step.outputs).copy(), step.ops.to_host(step.loss)
