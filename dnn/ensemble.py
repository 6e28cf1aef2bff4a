"""Several networks of the same layers, trained at once.

A step of a small network is mostly the overhead of its many short calls. Here K networks, each
with its own seed, hyperparameters and rows, go through one plan whose arrays have a leading axis
of length K: the same graph and the same functions as for one network, called once for all.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from dnn.backend import Array, RoutineTable, ops_for
from dnn.data.batches import epoch_orders
from dnn.errors import ConfigurationError, explains_arguments
from dnn.layers import Layer
from dnn.losses import Loss, loss_of
from dnn.model import NeuralNetwork
from dnn.optimizers import SGD, Optimizer
from dnn.training.checks import check_count, check_samples
from dnn.training.ensemble_data import EnsembleData, Rows, for_each
from dnn.training.epochs import Trainer
from dnn.training.evaluation import Kind, evaluate_models, outputs_of_models
from dnn.training.grouping import Member, fill, group, members
from dnn.training.history import History
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network

__all__ = ["Ensemble"]

OnEpoch = Callable[[int, Sequence[int], Sequence[History]], Collection[int]]


class Ensemble:
    """K networks of the same layers.

    Parameters
    ----------
    layers : sequence of Layer
        As for `NeuralNetwork`.
    loss : str or Loss
    optimizer : Optimizer, optional
        Each hyperparameter is one number for all, or one for each of the K networks.
    seeds : sequence of K int, not negative
        Each does what the seed of a `NeuralNetwork` does.
    states : mapping of str to (number or sequence of K numbers), optional
        What untrained arrays of layers start from, by name: ``{"dropout_1.rate": [0.1, 0.3]}``.
    dtype : "float32" or "float64"
    device : str
    routines : RoutineTable, optional
        As in `NeuralNetwork`.

    Raises
    ------
    ConfigurationError
        If there are no seeds, a name is unknown, or values are not one or K.
    ShapeError
        If a layer does not take the output of the one before it.

    Notes
    -----
    What comes out equals K calls of `NeuralNetwork` bit for bit, and so depends neither on how
    networks are put together nor on which of them end early, as long as BLAS has one thread and
    all run on one type of machine.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import SGD, Ensemble, mlp
    >>> x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
    >>> networks = Ensemble(
    ...     mlp(2, [8], 2, "tanh"), optimizer=SGD([0.01, 0.5], momentum=0.9), seeds=[1, 1]
    ... )
    >>> slow, fast = networks.fit(x, [0, 1, 1, 0], epochs=[50, 200], batch_size=4)
    >>> networks.predict(x)[1].tolist()
    [0, 1, 1, 0]
    """

    @explains_arguments
    def __init__(
        self,
        layers: Sequence[Layer],
        loss: str | Loss = "softmax_cross_entropy",
        optimizer: Optimizer | None = None,
        *,
        seeds: Sequence[int],
        states: Mapping[str, float | Sequence[float]] | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "cpu",
        routines: RoutineTable | None = None,
    ) -> None:
        if dtype not in ("float32", "float64"):
            raise ConfigurationError(f"dtype must be float32 or float64, not {dtype!r}")
        if not len(seeds):
            raise ConfigurationError("an ensemble needs at least one seed")
        self.seeds = tuple(seeds)
        self.optimizer = optimizer if optimizer is not None else SGD()
        ops = ops_for(device, routines)
        self._network = Network(layers, loss_of(loss), self.seeds, np.dtype(dtype), ops)
        for name, value in (states or {}).items():
            self._set_state(name, value)
        self._update = self.optimizer.bind(ops, self._network.parameters, self._network.gradients)
        self._kept: Trainer | None = None
        self._begin()

    def _begin(self) -> None:
        self._histories = [History() for _ in self.seeds]
        self._ended: dict[int, Member] = {}

    def restart(
        self,
        seeds: Sequence[int],
        optimizer: Optimizer | None = None,
        states: Mapping[str, float | Sequence[float]] | None = None,
    ) -> None:
        """Let these be other networks of the same layers, untrained, in the plans that are there.

        What follows equals that of a new ensemble, without the time it takes to compile one.

        Parameters
        ----------
        seeds : sequence of int, not negative
            If they are as many as before, plans are kept.
        optimizer : Optimizer, optional
            The same as before if left out.
        states : mapping of str to (number or sequence of K numbers), optional
            As when it was made; what is left out starts as the layer says.
        """
        if not len(seeds):
            raise ConfigurationError("an ensemble needs at least one seed")
        network, before = self._network, self.optimizer
        self.seeds = tuple(seeds)
        self.optimizer = before if optimizer is None else optimizer
        same = self.optimizer.steps_like(before)
        if network.models != len(self.seeds):
            network.resize(len(self.seeds))
            same = False
        network.restart(self.seeds)
        for name, value in (states or {}).items():
            self._set_state(name, value)
        update = self.optimizer.bind(network.ops, network.parameters, network.gradients)
        if same:
            self._update.restore(update.snapshot())
        else:
            self._update, self._kept = update, None
        self._begin()

    def __len__(self) -> int:
        return len(self.seeds)

    def _set_state(self, name: str, value: float | Sequence[float]) -> None:
        buffer = self._network.state_buffer
        if name not in buffer:
            known = ", ".join(segment.name for segment in buffer.segments) or "none"
            raise ConfigurationError(f"no layer has a state {name!r} (known: {known})")
        array = buffer[name]
        values = np.asarray(value, array.dtype)
        owner, _, short = name.rpartition(".")
        for layer in self._network.layers:
            if layer.name == owner:
                layer.check_state(short, values)
        if values.ndim:
            values = for_each(name, values, len(self)).reshape(-1, *(1,) * (array.ndim - 1))
        self._network.ops.load(values, array)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Every parameter by name, of shape (K, ...), as a view."""
        buffer = self._network.parameters
        return {segment.name: buffer[segment.name] for segment in buffer.segments}

    @property
    def states(self) -> Mapping[str, Array]:
        """Running statistics and the like by name, of shape (K, ...), as a view."""
        buffer = self._network.state_buffer
        return {segment.name: buffer[segment.name] for segment in buffer.segments}

    @property
    def histories(self) -> Sequence[History]:
        """What happened to each network in all calls of `fit`."""
        return self._histories

    @explains_arguments
    def fit(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        rows: Sequence[npt.ArrayLike] | None = None,
        versions: Sequence[int] | None = None,
        epochs: int | Sequence[int] = 1,
        batch_size: int = 32,
        validation_rows: Sequence[npt.ArrayLike] | None = None,
        validation_epochs: Collection[int] | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> list[History]:
        """Train all networks, each on rows of its own in an order of its own.

        Parameters
        ----------
        x : array_like, shape (n, ...) or (V, n, ...)
            Samples; or V versions of them, such as those standardised with each fold's own mean.
        y : array_like, shape (n,) or (n, outputs)
        rows : sequence of K arrays of int, all of one length, optional
            Which samples each network is trained on; all if left out.
        versions : sequence of K int, optional
            Which version of `x` each network is given.
        epochs : int or sequence of K int, at least 1
        batch_size : int, at least 1
        validation_rows : sequence of K arrays of int, all of one length, optional
            Samples to evaluate each network on after each epoch.
        validation_epochs : collection of int, optional
            After which epochs of this call, counted from 1, to do that; after all if left out.
        on_epoch : function (epoch, networks, histories) -> collection of int, optional
            Called after each epoch with its number from 0, the indices of the networks that were
            trained in it, and their histories in this call. The networks that it returns end.

        Returns
        -------
        list of K History
            ``stopped`` is set where `on_epoch` ended the training. The time of an epoch is divided
            by the number of networks trained in it.

        Raises
        ------
        ShapeError, LabelError, DataError
            If the data do not fit the networks, contain NaN or infinity, or there is no such row.
        ConfigurationError
            If an option is out of its range, or the networks have been trained for different
            numbers of epochs before.

        Notes
        -----
        A network that reaches its number of epochs, diverges or is ended leaves the plan, and the
        others go on in a smaller one.
        """
        data = EnsembleData.of(self._network, len(self), x, y, versions)
        trained = data.rows("rows", rows)
        held_out = None
        if validation_rows is not None:
            held_out = data.rows("validation_rows", validation_rows)
        each = for_each("epochs", epochs, len(self)).tolist()
        wanted = [check_count("epochs", n) for n in each]
        batch_size = check_count("batch_size", batch_size)
        if len({len(history) for history in self._histories}) > 1:
            message = "the networks have been trained for different numbers of epochs"
            raise ConfigurationError(f"{message}: none of them can be trained further")

        of_class = self._class_counts(data, trained)
        histories = [History() for _ in self.seeds]
        ended = self._ended = {}
        active = list(range(len(self)))
        while active:
            trainer = self._trainer(data, trained.shape[1], batch_size)
            orders = self._orders(trained[active], active, max(wanted[k] for k in active))
            staying = active
            while len(staying) == len(active):
                self._epoch(trainer, active, next(orders), histories, of_class)
                if held_out is not None and (
                    validation_epochs is None or len(histories[active[0]]) in validation_epochs
                ):
                    self._validate(data, held_out, active, histories)
                self._call(on_epoch, active, histories)
                staying = [k for k in active if _goes_on(histories[k], wanted[k])]
            if len(staying) < len(self) and (staying or ended):
                ended |= dict(zip(active, members(self._network, self._update), strict=True))
                if staying:
                    self._group([ended[k] for k in staying], staying)
            active = staying
        if ended:
            self._group([ended[k] for k in range(len(self))], range(len(self)))
        return histories

    def _epoch(
        self,
        trainer: Trainer,
        active: Sequence[int],
        order: Rows,
        histories: Sequence[History],
        of_class: Sequence[list[int]],
    ) -> None:
        began = time.perf_counter()
        # A diverging network is reported in its history and not by warnings.
        with np.errstate(all="ignore"):
            losses = trainer.epoch_of_models(order)
        took_s = (time.perf_counter() - began) / len(active)
        tallies = trainer.tallies()
        for place, (k, loss) in enumerate(zip(active, losses, strict=True)):
            tally = None if tallies is None else [of_class[k], tallies[place]]
            for history in (histories[k], self._histories[k]):
                history.add(loss, took_s, trainer.steps, tally)

    def _class_counts(self, data: EnsembleData, rows: Rows) -> list[list[int]]:
        """Return how many samples of each class each network is trained on, if it is counted."""
        classes = self._network.classes_to_tally
        if classes is None:
            return []
        labels = self._network.ops.to_host(data.targets)[rows]
        shifted = labels + classes * np.arange(len(rows))[:, None]
        counts = np.bincount(shifted.ravel(), minlength=classes * len(rows))
        by_network: list[list[int]] = counts.reshape(-1, classes).tolist()
        return by_network

    def _orders(self, rows: Rows, active: Sequence[int], epochs: int) -> Iterator[Rows]:
        """Yield which rows each network visits in the epochs to come, in order."""
        done = len(self._histories[active[0]])
        seeds = [self.seeds[k] for k in active]
        flat, first = rows.reshape(-1), rows.shape[1] * np.arange(len(rows))[:, None]
        for orders in epoch_orders(rows.shape[1], seeds, done, done + epochs):
            yield flat.take(orders + first)

    def _validate(
        self,
        data: EnsembleData,
        rows: Rows,
        active: Sequence[int],
        histories: Sequence[History],
    ) -> None:
        results = evaluate_models(self._network, data.samples, data.targets, rows[list(active)])
        for k, result in zip(active, results, strict=True):
            histories[k].validation.append(result)
            self._histories[k].validation.append(result)

    def _call(
        self, on_epoch: OnEpoch | None, active: Sequence[int], histories: Sequence[History]
    ) -> None:
        if on_epoch is None:
            return
        epoch = len(histories[active[0]]) - 1
        for k in on_epoch(epoch, tuple(active), [histories[k] for k in active]):
            if k in active:
                histories[k].stopped = self._histories[k].stopped = "on_epoch"

    def _trainer(self, data: EnsembleData, rows: int, batch_size: int) -> Trainer:
        network = self._network
        kept = self._kept
        if (
            kept is not None
            and kept.suits(self._update, data.samples, data.targets)
            and (kept.rows, kept.batch_size) == (rows, min(batch_size, rows))
        ):
            return kept
        self._kept = Trainer(
            network.training_plan,
            self._update,
            network.ops,
            data.samples,
            data.targets,
            None,
            batch_size,
            rows,
            network.classes_to_tally,
        )
        return self._kept

    def _group(self, chosen: Sequence[Member], indices: Sequence[int]) -> None:
        self._update, self._kept = group(self._network, self.optimizer, chosen, indices), None

    def copy_to(self, k: int, model: NeuralNetwork) -> None:
        """Let a model be network `k`: to save it, or to train it further by itself.

        Parameters
        ----------
        k : int
        model : NeuralNetwork
            Of the same layers, loss and kind of optimizer; it takes over parameters, running
            statistics, seed, history and what the optimizer remembers.

        Raises
        ------
        ConfigurationError
            If its layers are others.
        ShapeError
            If its optimizer is another.
        """
        network, other = self._network, model._network
        if isinstance(model._update, LossScaling) or other.dtype != network.dtype:
            raise ConfigurationError("copy_to: the model has another dtype than the ensemble")
        if other.parameters.segments != network.parameters.segments:
            raise ConfigurationError("copy_to: the model has other layers than the ensemble")
        member = self._ended.get(k) or members(network, self._update)[k]
        fill(other, model._update, member)
        model.resume(self.seeds[k], model._update.steps_done, copy.deepcopy(self._histories[k]))

    def evaluate(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        rows: Sequence[npt.ArrayLike] | None = None,
        versions: Sequence[int] | None = None,
    ) -> list[dict[str, float]]:
        """Measure each network on its rows.

        Parameters
        ----------
        x, y : array_like, length n
        rows : sequence of K array_like, optional
        versions : sequence of K int, optional
            All as for `fit`.

        Returns
        -------
        list of K dict
            Each as `NeuralNetwork.evaluate` returns it.

        Raises
        ------
        ShapeError, LabelError, DataError, ConfigurationError
            As for `fit`.
        """
        data = EnsembleData.of(self._network, len(self), x, y, versions)
        at = data.rows("rows", rows)
        return evaluate_models(self._network, data.samples, data.targets, at)

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return what the last layer of each network puts out for the same samples.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of float, shape (K, n, outputs)
        """
        return self._outputs(x, "evaluation")

    def predict(self, x: npt.ArrayLike) -> Array:
        """Return what each network predicts for the same samples.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of intp, shape (K, n), or array of float, shape (K, n, outputs)
        """
        return self._network.loss.predicted(self(x))

    def predict_proba(self, x: npt.ArrayLike) -> Array:
        """Return the probability of each class by each network.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of float, shape (K, n, classes)

        Raises
        ------
        ConfigurationError
            If the loss is no classification's.
        """
        return self._outputs(x, "probability")

    def _outputs(self, x: npt.ArrayLike, kind: Kind) -> Array:
        network = self._network
        name = network.layers[0].name
        samples = check_samples("x", x, name, network.input_shape, network.dtype)
        at = np.broadcast_to(np.arange(len(samples)), (len(self), len(samples)))
        return outputs_of_models(network, network.ops.asarray(samples), at, kind)


def _goes_on(history: History, epochs: int) -> bool:
    return len(history) < epochs and not history.diverged and history.stopped is None
