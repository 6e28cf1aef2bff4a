"""What a network says about samples, and how good it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from dnn import metrics
from dnn.backend import Array
from dnn.network import BatchPlan, Network

__all__ = ["evaluate", "outputs_of"]

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
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for rows, step in _slices(network, "evaluation", len(samples)):
            step.ops.load(samples[rows], step.x)
            step.ops.load(targets[rows], step.target)
            step.plan.run()
            outputs[rows] = step.ops.to_host(step.outputs)
            total += float(step.loss) * len(step.x)
    result = {"loss": total / len(samples)}
    if network.loss.classifies:
        predicted = outputs.argmax(axis=-1)
        result["accuracy"] = metrics.accuracy(targets, predicted)
        result["mcc"] = metrics.matthews_correlation(targets, predicted)
    return result


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
    outputs = np.empty((len(samples), *network.output_shape), network.dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for rows, step in _slices(network, kind, len(samples)):
            step.ops.load(samples[rows], step.x)
            step.target[...] = 0
            step.plan.run()
            outputs[rows] = step.ops.to_host(step.outputs)
    return outputs


def _slices(network: Network, kind: Kind, samples: int) -> Iterator[tuple[slice, BatchPlan]]:
    """Cut samples into pieces, each with the plan of its size."""
    compiled = network.evaluation_plan if kind == "evaluation" else network.probability_plan
    for start in range(0, samples, ROWS):
        stop = min(start + ROWS, samples)
        yield slice(start, stop), compiled(stop - start)
