"""What a network says about samples, and how good it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from dnn import metrics
from dnn.backend import Array
from dnn.training.network import BatchPlan, Network

__all__ = ["Kind", "evaluate", "evaluate_models", "outputs_of", "outputs_of_models"]

# Rows that a prediction takes at a time.
ROWS = 1024

Kind = Literal["evaluation", "probability"]


def evaluate(network: Network, samples: Array, targets: Array) -> dict[str, float]:
    """Return ``"loss"``, and for a classification ``"accuracy"`` and ``"mcc"``.

    Parameters
    ----------
    network : Network
    samples, targets : array, length n
        Checked.
    """
    outputs = np.empty((len(samples), *network.output_shape), network.dtype)
    total = 0.0
    with np.errstate(all="ignore"):
        for rows, step in _slices(network, "evaluation", len(samples)):
            step.ops.load(samples[rows], step.x)
            step.ops.load(targets[rows], step.target)
            step.plan.run()
            assert step.outputs is not None
            outputs[rows] = step.ops.to_host(step.outputs)
            total += float(step.loss) * len(step.x)
    result = {"loss": total / len(samples)}
    if network.loss.classifies:
        predicted = network.loss.predicted(outputs)
        classes = 1 + int(max(np.max(targets, initial=0), np.max(predicted, initial=0)))
        result |= metrics.of_counts(metrics.confusion_matrix(targets, predicted, classes))
    return result


def evaluate_models(
    network: Network, samples: Array, targets: Array, rows: Array
) -> list[dict[str, float]]:
    """Return for each of K networks what `evaluate` returns, each on rows of its own.

    Parameters
    ----------
    network : Network
        Of K models.
    samples, targets : array, length n
        On the network's device.
    rows : array of intp, shape (K, m)
    """
    models, count = rows.shape
    outputs = np.empty((models, count, *network.output_shape), network.dtype)
    totals = np.zeros(models)
    with np.errstate(all="ignore"):
        for part, step in _slices(network, "evaluation", count):
            step.load(samples, targets, None, step.ops.asarray(rows[:, part]))
            step.plan.run()
            assert step.outputs is not None
            outputs[:, part] = step.ops.to_host(step.outputs)
            totals += step.ops.to_host(step.loss).astype(np.float64) * (part.stop - part.start)
    results = [{"loss": total / count} for total in totals.tolist()]
    if network.loss.classifies:
        truth = network.ops.to_host(targets)[rows].astype(np.int64)
        predicted = network.loss.predicted(outputs)
        classes = 1 + int(max(truth.max(initial=0), predicted.max(initial=0)))
        # Of all at once: a model's pairs of classes are counted in a range of their own.
        shifted = np.arange(models)[:, None] * classes**2
        pairs = (truth * classes + predicted + shifted).ravel()
        counts = np.bincount(pairs, minlength=models * classes**2)
        scores = metrics.of_many_counts(counts.reshape(models, classes, classes))
        for result, score in zip(results, scores, strict=True):
            result |= score
    return results


def outputs_of_models(network: Network, samples: Array, rows: Array, kind: Kind) -> Array:
    """Return the outputs of K networks for their rows, of shape (K, m, ...); see `outputs_of`."""
    models, count = rows.shape
    outputs = np.empty((models, count, *network.output_shape), network.dtype)
    with np.errstate(all="ignore"):
        for part, step in _slices(network, kind, count):
            network.ops.take_rows(samples, network.ops.asarray(rows[:, part]), step.x)
            step.target[...] = 0
            step.plan.run()
            assert step.outputs is not None
            outputs[:, part] = step.ops.to_host(step.outputs)
    return outputs


def outputs_of(network: Network, samples: Array, kind: Kind) -> Array:
    """Return the outputs for samples, or their probabilities.

    Parameters
    ----------
    network : Network
    samples : array, shape (n, ...)
        Checked.
    kind : "evaluation" or "probability"

    Returns
    -------
    array, shape (n, ...)
    """
    parts: list[Array] = []
    with np.errstate(all="ignore"):
        for rows, step in _slices(network, kind, len(samples)):
            step.ops.load(samples[rows], step.x)
            step.target[...] = 0
            step.plan.run()
            assert step.outputs is not None
            parts.append(step.ops.to_host(step.outputs).copy())
    return np.concatenate(parts)


def _slices(network: Network, kind: Kind, samples: int) -> Iterator[tuple[slice, BatchPlan]]:
    """Cut samples into pieces, each with the plan of its size."""
    compiled = network.evaluation_plan if kind == "evaluation" else network.probability_plan
    for start in range(0, samples, ROWS):
        stop = min(start + ROWS, samples)
        yield slice(start, stop), compiled(stop - start)
