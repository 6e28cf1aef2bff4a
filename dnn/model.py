"""Neural networks: fit, predict, evaluate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dnn import metrics
from dnn.backend import Array, ops_for
from dnn.data.batches import batches
from dnn.errors import ConfigurationError, DataError, ShapeError
from dnn.layers import Layer
from dnn.losses import Loss, loss_of
from dnn.network import BatchPlan, Network
from dnn.optimizers import SGD, Optimizer

__all__ = ["History", "NeuralNetwork"]

# Rows that a prediction takes at a time.
EVALUATION_ROWS = 1024


@dataclass
class History:
    """What happened in a call of `fit`; one entry an epoch.

    Attributes
    ----------
    loss : list of float
        Mean training loss over the epoch, each batch before its step.
    validation : list of dict of str to float
        `NeuralNetwork.evaluate` on the validation set after the epoch; empty without one.
    training_time_s : float, seconds
        Spent in training steps, validation and compilation not counted.
    steps : int
    diverged : bool
        The loss became NaN or infinite, and training stopped after that epoch.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)
    training_time_s: float = 0.0
    steps: int = 0
    diverged: bool = False


class NeuralNetwork:
    """Layers with a loss and an optimizer.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`; `dnn.nets` makes such lists.
    loss : str or Loss
        ``"softmax_cross_entropy"`` or ``"mean_squared_error"``.
    optimizer : Optimizer, optional
        ``SGD()`` if left out.
    seed : int, not negative
        Of the first parameters and of the order of samples. On one machine type and number of
        threads, the same seed gives the same bits.
    dtype : "float32" or "float64"
    device : str
        ``"cpu"``.

    Raises
    ------
    ConfigurationError
        If a name is unknown, or the layers do not begin with an `Input`.
    ShapeError
        If a layer does not take the output of the one before it.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import SGD, NeuralNetwork, mlp
    >>> model = NeuralNetwork(mlp(2, [8], 2, "tanh"), optimizer=SGD(0.5, momentum=0.9), seed=1)
    >>> x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
    >>> history = model.fit(x, [0, 1, 1, 0], epochs=200, batch_size=4)
    >>> model.predict(x).tolist()
    [0, 1, 1, 0]
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: str | Loss = "softmax_cross_entropy",
        optimizer: Optimizer | None = None,
        *,
        seed: int = 0,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "cpu",
    ) -> None:
        if dtype not in ("float32", "float64"):
            raise ConfigurationError(f"dtype must be float32 or float64, not {dtype!r}")
        self.seed = seed
        self.optimizer = optimizer if optimizer is not None else SGD()
        ops = ops_for(device)
        self._network = Network(layers, loss_of(loss), seed, np.dtype(dtype), ops)
        self._update = self.optimizer.bind(ops, self._network.parameters, self._network.gradients)
        self._epochs_done = 0

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Every parameter by name, as a view: writing into it changes the network."""
        buffer = self._network.parameters
        return {segment.name: buffer[segment.name] for segment in buffer.segments}

    def fit(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        validation: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        epochs: int = 1,
        batch_size: int = 32,
    ) -> History:
        """Train from the present parameters on.

        Parameters
        ----------
        x : array_like, shape (n, ...)
            Samples, of the shape that the `Input` states.
        y : array_like, shape (n,) or (n, outputs)
            Labels as integers from 0, or values.
        validation : (array_like, array_like), optional
            Samples and targets to evaluate on after each epoch.
        epochs : int, at least 1
        batch_size : int, at least 1
            The last batch of an epoch holds what remains.

        Returns
        -------
        History

        Raises
        ------
        ShapeError, LabelError, DataError
            If the data do not fit the network, or contain NaN or infinity.
        ConfigurationError
            If `epochs` or `batch_size` is less than 1.

        Notes
        -----
        Each epoch visits the samples in an order of its own, which depends only on the seed and
        on how many epochs came before, so two calls of 5 epochs equal one of 10.
        """
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigurationError(f"{name} must be an integer of at least 1, not {value!r}")
        samples, targets = self._check("x", x, y)
        held_out = self._check("validation x", *validation) if validation is not None else None
        size = min(int(batch_size), len(samples))
        self._network.training_plan(size)
        if len(samples) % size:
            self._network.training_plan(len(samples) % size)

        history = History()
        # A diverging network is reported in the history and not by warnings.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for _ in range(epochs):
                began = time.perf_counter()
                loss = self._train_epoch(samples, targets, size)
                history.training_time_s += time.perf_counter() - began
                history.steps += -(-len(samples) // size)
                history.loss.append(loss)
                if held_out is not None:
                    history.validation.append(self._evaluate(*held_out))
                if not math.isfinite(loss):
                    history.diverged = True
                    break
        return history

    def _train_epoch(self, samples: Array, targets: Array, size: int) -> float:
        total = 0.0
        update = self._update.run
        for rows in batches(len(samples), size, self.seed, self._epochs_done):
            step = self._network.training_plan(len(rows))
            step.load(samples, targets, rows)
            step.plan.run()
            update()
            total += float(step.loss) * len(rows)
        self._epochs_done += 1
        return total / len(samples)

    def predict(self, x: npt.ArrayLike) -> Array:
        """Return the class of each sample, or the outputs where the loss is no classification's.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of intp, shape (n,), or array of float, shape (n, outputs)

        Raises
        ------
        ShapeError, DataError
            If the samples do not fit the network, or contain NaN or infinity.
        """
        outputs = self._outputs(self._check_samples("x", x), "evaluation")
        return outputs.argmax(axis=-1) if self._network.loss.classifies else outputs

    def predict_proba(self, x: npt.ArrayLike) -> Array:
        """Return the probability of each class; parameters and errors as in `predict`.

        Returns
        -------
        array of float, shape (n, classes)

        Raises
        ------
        ConfigurationError
            If the loss is no classification's.
        """
        return self._outputs(self._check_samples("x", x), "probability")

    def evaluate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> dict[str, float]:
        """Measure the network on samples.

        Parameters
        ----------
        x : array_like, shape (n, ...)
        y : array_like, shape (n,) or (n, outputs)

        Returns
        -------
        dict
            ``"loss"``, and for a classification ``"accuracy"`` and ``"mcc"``, the Matthews
            correlation coefficient.

        Raises
        ------
        ShapeError, LabelError, DataError
            If the data do not fit the network, or contain NaN or infinity.
        """
        return self._evaluate(*self._check("x", x, y))

    def _evaluate(self, samples: Array, targets: Array) -> dict[str, float]:
        outputs = np.empty((len(samples), *self._network.output_shape), self._network.dtype)
        total = 0.0
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for rows, step in self._slices("evaluation", len(samples)):
                step.x[...] = samples[rows]
                step.target[...] = targets[rows]
                step.plan.run()
                outputs[rows] = step.outputs
                total += float(step.loss) * len(step.x)
        result = {"loss": total / len(samples)}
        if self._network.loss.classifies:
            predicted = outputs.argmax(axis=-1)
            result["accuracy"] = metrics.accuracy(targets, predicted)
            result["mcc"] = metrics.matthews_correlation(targets, predicted)
        return result

    def _outputs(self, samples: Array, kind: Literal["evaluation", "probability"]) -> Array:
        outputs = np.empty((len(samples), *self._network.output_shape), self._network.dtype)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for rows, step in self._slices(kind, len(samples)):
                step.x[...] = samples[rows]
                step.target[...] = 0
                step.plan.run()
                outputs[rows] = step.outputs
        return outputs

    def _slices(
        self, kind: Literal["evaluation", "probability"], samples: int
    ) -> Iterator[tuple[slice, BatchPlan]]:
        """Cut samples into pieces, each with the plan of its size."""
        network = self._network
        compiled = network.evaluation_plan if kind == "evaluation" else network.probability_plan
        for start in range(0, samples, EVALUATION_ROWS):
            stop = min(start + EVALUATION_ROWS, samples)
            yield slice(start, stop), compiled(stop - start)

    def _check(self, name: str, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
        samples = self._check_samples(name, x)
        network = self._network
        targets = network.loss.check(y, len(samples), network.output_shape, network.dtype)
        return samples, targets

    def _check_samples(self, name: str, x: npt.ArrayLike) -> Array:
        samples = np.asarray(x)
        expected = self._network.input_shape
        if samples.dtype.kind not in "fiub":
            raise DataError(f"{name} must be numbers, not {samples.dtype}")
        if samples.shape[1:] != expected or not samples.ndim:
            message = f"{name} has shape {samples.shape}, but the layer takes (n, "
            message += f"{', '.join(map(str, expected))})"
            raise ShapeError(self._network.layers[0].name, message, samples.shape, expected)
        if not len(samples):
            raise DataError(f"{name} has no rows")
        samples = np.ascontiguousarray(samples, self._network.dtype)
        if not np.isfinite(samples).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(samples))[0])
            column = ", ".join(map(str, at[1:]))
            raise DataError(f"{name} contains {samples[at]} in row {at[0]}, column {column}")
        return samples

    def summary(self) -> str:
        """Return a table of layers, their output shapes and their numbers of parameters."""
        lines = [f"{'layer':24s}{'output':16s}{'parameters':>12s}"]
        for row in self._network.summaries:
            lines.append(f"{row.name:24s}{row.shape!s:16s}{row.parameters:12,d}")
        total = sum(row.parameters for row in self._network.summaries)
        lines.append(f"{'total':40s}{total:12,d}")
        return "\n".join(lines)
