"""Evaluation of networks: outputs for samples, loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dnn.backend import Array, Ops
from dnn.data.augmentation import Images
from dnn.metrics import (
    METRICS,
    Predictions,
    check_metrics,
    metrics_of_counts,
    metrics_of_predictions,
    scores,
)
from dnn.training.data import Rows, Samples, is_on_host
from dnn.training.network import Network, PlanKind

__all__ = [
    "Replay",
    "check_metrics_of",
    "evaluate",
    "load_part",
    "outputs_of",
    "results_of",
    "sums_of",
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
    """Return loss and, for a classification, accuracy and MCC of each of K networks.

    By the names ``"loss"``, ``"accuracy"`` and ``"mcc"``, and further metrics by theirs. `replay`
    computes the outputs in place of `_replayed`, on a mesh of ranks for instance. A metric that
    there is not, or that is of other targets, is a `ConfigurationError`.
    """
    replay = replay or _replayed
    check_metrics_of(network, metrics)
    chances = None
    if any(METRICS[name].is_of_probabilities for name in metrics):
        chances = _measured(network, samples, replay, "probability")[1]
    total, outputs = _measured(network, samples, replay)
    found = None
    if network.loss.classifies:
        found = metrics_of_predictions(*_classes(network, samples, outputs))
    results = _results((total / samples.count).reshape(-1), found)
    if metrics:
        given = _predictions(network, samples, outputs, chances)
        for result, more in zip(results, scores(metrics, given), strict=True):
            result.update(more)
    return results


def check_metrics_of(network: Network, metrics: Sequence[str]) -> None:
    """Raise `ConfigurationError` if a metric is unknown, or not of what a network predicts."""
    check_metrics(metrics, _kind_of(network), getattr(network.loss, "quantiles", ()))


def _kind_of(network: Network) -> str:
    # Distributions are judged by the most probable class.
    takes = network.loss.takes
    return "classes" if takes == "distributions" else takes


def _predictions(
    network: Network, samples: Samples, outputs: Array, chances: Array | None
) -> Predictions:
    """Return what is true of all samples beside what is predicted, as metrics take it."""
    loss, models = network.loss, network.models or 1
    if chances is not None:
        chances = chances.reshape(models, *chances.shape[len(network.leading) :])
    if loss.classifies:
        return Predictions(loss.takes, *_classes(network, samples, outputs), chances)
    predicted: Array = loss.predicted(outputs).reshape(models, samples.count, -1)
    targets, rows = samples.targets(network), samples.rows
    truth = targets[None] if rows is None else targets[rows]
    truth = truth.reshape(*truth.shape[:2], -1)
    if loss.takes == "distributions":
        return Predictions("classes", *_alike(truth.argmax(-1), predicted.argmax(-1)), chances)
    quantiles: tuple[float, ...] = getattr(loss, "quantiles", ())
    if quantiles:
        predicted = predicted.reshape(models, samples.count, -1, len(quantiles))
    truth = np.broadcast_to(truth, (models, *truth.shape[1:]))
    return Predictions(loss.takes, truth, predicted, chances, quantiles)


def _alike(truth: Array, predicted: Array) -> tuple[Array, Array]:
    return np.broadcast_to(truth.astype(np.int64, copy=False), predicted.shape), predicted


def _results(losses: Array, found: list[dict[str, float]] | None) -> list[dict[str, float]]:
    given = found or [{}] * len(losses)
    return [{"loss": loss, **score} for loss, score in zip(losses.tolist(), given, strict=True)]


def sums_of(network: Network, samples: Samples) -> Array:
    """Return sums of losses and counts of predictions, which add up over parts of the samples.

    Returns
    -------
    array of float64, shape (K, 2) or (K, 3 + 2 classes)
        The sum of the losses and the number of samples; for a classification the number of right
        predictions, then the samples of each class, then the predictions of each.
    """
    loss, models = network.loss, network.models or 1
    classes = loss.class_count(network.output_shape) if loss.classifies else 0
    sums = np.zeros((models, 3 + 2 * classes if classes else 2))
    if samples.count:
        total, outputs = _measured(network, samples, _replayed)
        sums[:, 0], sums[:, 1] = total, samples.count
        if classes:
            pairs = zip(*_classes(network, samples, outputs), strict=True)
            for row, (truth, predicted) in zip(sums, pairs, strict=True):
                row[2] = np.count_nonzero(truth == predicted)
                row[3 : 3 + classes] = np.bincount(truth, minlength=classes)
                row[3 + classes :] = np.bincount(predicted, minlength=classes)
    return sums


def results_of(sums: Array) -> list[dict[str, float]]:
    """Return what `evaluate` does, from the sums that `sums_of` has returned for all parts."""
    counts = sums[:, 2:].astype(np.int64)
    found = None
    if counts.size:
        found = metrics_of_counts(counts[:, 0], *np.split(counts[:, 1:], 2, axis=1))
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
    return _alike(truth, predicted)


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
