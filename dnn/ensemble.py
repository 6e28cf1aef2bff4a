"""Several networks of the same layers, trained at once.

A step of a small network is mostly the overhead of its many short calls. Here K networks, each
with its own seed, hyperparameters and rows, go through one plan whose arrays have a leading axis
of length K: the same graph and the same functions as for one network, called once for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from dnn.backend import RoutineTable, ops_for
from dnn.errors import ConfigurationError, ShapeError, check_count, explains_arguments
from dnn.layers import Layer
from dnn.losses import Loss
from dnn.model import NeuralNetwork
from dnn.optimizers import SGD, Optimizer
from dnn.precision import Dtype, precision_of
from dnn.state_dicts import LoadsWeights
from dnn.training.data import DeviceData, Versions, for_each
from dnn.training.history import History
from dnn.training.networks import BatchSizes, Fit, checked_batch_size
from dnn.training.state import Snapshot, load_states, states_of, weights_of_each

if TYPE_CHECKING:
    from dnn.callbacks import EarlyStopping
    from dnn.tensor import Tensor
    from dnn.training.parallel import Scheme

__all__ = ["Ensemble"]

OnEpoch = Callable[[int, Sequence[int], Sequence[History]], Collection[int]]


class Ensemble(LoadsWeights):
    """K networks of the same layers, trained at once in one plan.

    Parameters
    ----------
    layers : sequence of Layer
        As for `NeuralNetwork`.
    loss : str, mapping or Loss
    optimizer : Optimizer, optional
        Each hyperparameter is one number for all, or one for each of the K networks.
    seeds : sequence of K int, not negative
        The seed of each network, as that of a `NeuralNetwork`.
    states : mapping of str to (number or sequence of K numbers), optional
        First values of untrained arrays of layers, by name: ``{"dropout_1.rate": [0.1, 0.3]}``.
    dtype, device : str
    routines : RoutineTable, optional
    parallel : Scheme, optional
        As in `NeuralNetwork`.

    Raises
    ------
    ConfigurationError
        If there are no seeds, a name is unknown, or values are not one or K.
    ShapeError
        If a layer does not take the output of the one before it.

    Notes
    -----
    Results equal those of K single `NeuralNetwork` bit for bit, and so depend neither on how
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
        loss: str | Mapping[str, Any] | Loss = "softmax_cross_entropy",
        optimizer: Optimizer | None = None,
        *,
        seeds: Sequence[int],
        states: Mapping[str, float | Sequence[float]] | None = None,
        dtype: Dtype = "float32",
        device: str = "cpu",
        routines: RoutineTable | None = None,
        parallel: Scheme | None = None,
    ) -> None:
        if not len(seeds):
            raise ConfigurationError("an ensemble needs at least one seed")
        optimizer = optimizer if optimizer is not None else SGD()
        ops = ops_for(device, routines)
        precision = precision_of(dtype)
        super().__init__(layers, loss, optimizer, tuple(seeds), precision, ops, parallel=parallel)
        for name, value in (states or {}).items():
            self._set_state(name, value)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each network."""
        return tuple(self._seeds)

    def restart(
        self,
        seeds: Sequence[int],
        optimizer: Optimizer | None = None,
        states: Mapping[str, float | Sequence[float]] | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Start again with untrained networks of the same layers, reusing compiled plans.

        Results equal those of a new ensemble, without the time that it takes to compile plans.

        Parameters
        ----------
        seeds : sequence of int, not negative
            If there are as many as before, plans are kept.
        optimizer : Optimizer, optional
            The same as before if left out.
        states : mapping of str to (number or sequence of K numbers), optional
            As for the class; arrays left out start as their layer says.
        loss : Loss, optional
            The same as before if left out; else it differs in values of hyperparameters only.

        Raises
        ------
        ConfigurationError
            If there are no seeds, a name is unknown, values are not one or K, or the loss differs
            in more than values of hyperparameters.
        """
        if not len(seeds):
            raise ConfigurationError("an ensemble needs at least one seed")
        network, before = self._network, self.optimizer
        loss = network.loss if loss is None else loss
        if not loss.is_like(network.loss):
            raise ConfigurationError("restart: it takes other values of the loss, no other loss")
        self._seeds = [*seeds]
        self.optimizer = before if optimizer is None else optimizer
        same = self.optimizer.compiles_like(before)
        if network.models != len(self):
            network.resize(len(self))
            same = False
        network.restart(seeds)
        network.load_loss(loss)
        for name, value in (states or {}).items():
            self._set_state(name, value)
        present, update = self._update, self._scheme.bind(network, self.optimizer)
        if same:
            present.restore(update.snapshot())
        else:
            self._use(update)
        self._histories = [History() for _ in seeds]
        self._ended = {}
        self._active = tuple(range(len(self)))

    def __len__(self) -> int:
        return len(self._seeds)

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
    def states(self) -> Mapping[str, Tensor]:
        """Running statistics and other untrained arrays by name, each of shape (K, ...)."""
        buffer = self._network.state_buffer
        return {segment.name: buffer.tensor(segment.name) for segment in buffer.segments}

    @property
    def histories(self) -> Sequence[History]:
        """The history of each network over all calls of `fit`."""
        return self._histories

    @explains_arguments
    def fit(
        self,
        x: npt.ArrayLike | DeviceData,
        y: npt.ArrayLike | None = None,
        *,
        rows: Sequence[npt.ArrayLike] | None = None,
        versions: Sequence[int] | None = None,
        epochs: int | Sequence[int] = 1,
        batch_size: int | BatchSizes = 32,
        validation_rows: Sequence[npt.ArrayLike] | None = None,
        validation_epochs: Collection[int] | None = None,
        on_epoch: OnEpoch | None = None,
        early_stopping: Sequence[EarlyStopping] | None = None,
        before_restoring: Callable[[], object] | None = None,
        resident: bool | None = None,
        accumulate: int = 1,
        sample_weight: npt.ArrayLike | None = None,
        validation_metrics: Sequence[str] = (),
        interrupt: Callable[[], bool] | None = None,
    ) -> list[History]:
        """Train all networks, each on rows of its own in an order of its own.

        Parameters
        ----------
        x : array_like, shape (n, ...) or (V, n, ...)
            Samples; or V versions of them, such as those standardised with each fold's own mean;
            or a `DeviceData` of either, without `y`.
        y : array_like, shape (n,) or (n, outputs)
        rows : sequence of K arrays of int, all of one length, optional
            Which samples each network is trained on; all if left out.
        versions : sequence of K int, optional
            Which version of `x` each network is given.
        epochs : int or sequence of K int, at least 1
        batch_size : int, at least 1, or a function of the number of epochs done
        validation_rows : sequence of K arrays of int, all of one length, optional
            Samples to evaluate each network on after each epoch.
        validation_epochs : collection of int, optional
            After which epochs of this call, counted from 1, to do that; after all if left out.
        on_epoch : function (epoch, networks, histories) -> collection of int, optional
            Called after each epoch with its number from 0, the indices of the networks that were
            trained in it, and their histories in this call. The networks that it returns end.
        early_stopping : sequence of K EarlyStopping, optional
            One for each network, asked after each epoch and before `on_epoch`: it ends that network
            alone, which gets back the parameters of its best epoch.
        before_restoring : function, optional
            Called when all networks have ended, before they get back any parameters.
        resident : bool, optional
        accumulate : int, at least 1
            Both as for `NeuralNetwork.fit`.
        sample_weight : array_like, shape (n,) or (V, n), optional
            Factor of the loss of each sample, of each version its own or of all alike; where a loss
            takes labels there may be one more axis, with a factor for each label.
        validation_metrics : sequence of str
            As for `NeuralNetwork.fit`.
        interrupt : function () -> bool, optional
            Called after each step; once it returns true the training ends there, within an epoch
            that is not in the history.

        Returns
        -------
        list of K History
            ``stopped`` is set where `early_stopping` or `on_epoch` ended the training. The time of
            an epoch is divided by the number of networks trained in it.

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
        with self._scheme.preparing():
            data = Versions.of(self._network, len(self), x, y, versions, resident)
            if sample_weight is None and isinstance(x, DeviceData):
                sample_weight = x.weights
            training = data.weighted(self._network, sample_weight).given("rows", rows)
            held_out = None
            if validation_rows is not None:
                held_out = data.given("validation_rows", validation_rows)
            each = for_each("epochs", epochs, len(self)).tolist()
            wanted = [check_count("epochs", n) for n in each]
            batch_size = checked_batch_size(batch_size)
            rules = () if early_stopping is None else early_stopping
            if early_stopping is not None and len(rules) != len(self):
                message = f"early_stopping: {len(rules)} for {len(self)} networks"
                raise ConfigurationError(f"{message}: it takes one for each")
            if len({len(history) for history in self._histories}) > 1:
                message = "the networks have been trained for different numbers of epochs"
                raise ConfigurationError(f"{message}: none of them can be trained further")
        with self._scheme.training():
            fit = Fit(
                self,
                training,
                wanted,
                batch_size,
                held_out,
                validation_epochs,
                accumulate=accumulate,
                validation_metrics=validation_metrics,
                interrupt=interrupt,
            )
            for active in fit:
                for k in active if rules else ():
                    if reason := self._observe(rules[k], k, fit.histories[k]):
                        fit.stop(k, reason)
                if on_epoch is not None:
                    histories = [fit.histories[k] for k in active]
                    for k in on_epoch(len(histories[0]) - 1, active, histories):
                        if k in active:
                            fit.stop(k, "on_epoch")
            if before_restoring is not None:
                before_restoring()
            for k, rule in enumerate(rules):
                if (snapshot := rule.take_snapshot()) is not None:
                    self.restore(k, snapshot)
        return fit.histories

    def _observe(self, rule: EarlyStopping, k: int, history: History) -> str | None:
        """Tell a rule the last epoch of a network; return its reason to end it."""
        from dnn.callbacks import Epoch

        validation = history.validation[-1] if history.validation else {}
        index = len(self._histories[k]) - 1
        epoch = Epoch(cast("NeuralNetwork", self), index, history.loss[-1], validation, history)
        value = epoch.value(rule.monitor)
        return rule.observe(index, value, partial(self.snapshot, k))

    def snapshot(self, k: int, into: Snapshot | None = None) -> Snapshot:
        """Copy parameters and running statistics of a network, while it is trained or afterwards.

        Parameters
        ----------
        k : int
            While networks are trained, one of those that have not ended.
        into : dict of str to array, optional
            An earlier snapshot of it, whose arrays are overwritten.

        Returns
        -------
        dict of str to array
            As `NeuralNetwork.snapshot`, without a leading axis, and without the step of noise.
        """
        place = self._active.index(k)
        arrays = weights_of_each(self._network, self._update)
        if into is None:
            return {name: array[place, ...].copy() for name, array in arrays.items()}
        for name, array in arrays.items():
            into[name][...] = array[place, ...]
        return into

    def restore(self, k: int, snapshot: Snapshot) -> None:
        """Set parameters and running statistics of a network to those of a snapshot.

        Parameters
        ----------
        k : int
            A network, while none is trained.
        snapshot : dict of str to array
            Of this network, as `snapshot` returns it.
        """
        for name, array in weights_of_each(self._network, self._update).items():
            array[k, ...] = snapshot[name]
            if k in self._ended:
                self._ended[k].arrays[name][...] = self._network.ops.to_host(snapshot[name])

    def copy_to(self, k: int, model: NeuralNetwork) -> None:
        """Copy network `k` into a model, to save it or to train it further by itself.

        Parameters
        ----------
        k : int
        model : NeuralNetwork
            Of the same layers, loss and kind of optimizer, with averages of the parameters if
            the ensemble has them; it takes over parameters, running statistics, seed, history
            and the optimizer's state.

        Raises
        ------
        ConfigurationError
            If the model has other layers, or another dtype.
        ShapeError
            If the model has another kind of optimizer, or only one of the two keeps averages. To
            go on without averages, load the `state_dict` of a model that has them.
        """
        network, other = self._network, model._network
        if other.precision != network.precision:
            raise ConfigurationError("copy_to: the model has another dtype than the ensemble")
        if other.parameters.segments != network.parameters.segments:
            raise ConfigurationError("copy_to: the model has other layers than the ensemble")
        state = self._ended.get(k) or states_of(network, self._update)[k]
        (present,) = states_of(other, model._update)
        different = sorted(state.arrays.keys() ^ present.arrays.keys())
        if different:
            message = f"another one's state was given: {', '.join(different)} differ"
            raise ShapeError("optimizer", message)
        load_states(other, model._update, [state])
        model.resume(self._seeds[k], state.steps, copy.deepcopy(self._histories[k]))

    def evaluate(
        self,
        x: npt.ArrayLike | DeviceData,
        y: npt.ArrayLike | None = None,
        *,
        rows: Sequence[npt.ArrayLike] | None = None,
        versions: Sequence[int] | None = None,
        metrics: Sequence[str] = (),
    ) -> list[dict[str, float]]:
        """Return the loss and the metrics of each network on its rows.

        Parameters
        ----------
        x, y : array_like, length n
        rows : sequence of K array_like, optional
        versions : sequence of K int, optional
            All as for `fit`.
        metrics : sequence of str
            As for `NeuralNetwork.evaluate`.

        Returns
        -------
        list of K dict
            Each as `NeuralNetwork.evaluate` returns it.

        Raises
        ------
        ShapeError, LabelError, DataError, ConfigurationError
            As for `fit`.
        """
        data = Versions.of(self._network, len(self), x, y, versions)
        return self._scheme.evaluate(self._network, data.given("rows", rows), metrics)
