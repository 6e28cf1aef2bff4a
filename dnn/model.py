"""`NeuralNetwork`: a network with fit, predict, evaluate, save and load."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from dnn.backend import Array, RoutineTable, ops_for
from dnn.errors import (
    ConfigurationError,
    MixedPrecisionWarning,
    check_count,
    explains_arguments,
)
from dnn.graph.passes import checking_passes, precision_passes
from dnn.layers import Layer
from dnn.losses import Loss
from dnn.names import suggestion
from dnn.optimizers import Optimizer
from dnn.precision import Dtype, precision_of
from dnn.state_dicts import StateDicts
from dnn.summaries import table_of
from dnn.training.data import DeviceData, checked_pair, fit_data
from dnn.training.epoch_parts import EpochProgress
from dnn.training.history import History
from dnn.training.network import BatchPlan
from dnn.training.networks import BatchSizes, Fit, checked_batch_size
from dnn.training.state import Snapshot, State, load_states, states_of, trained_arrays
from dnn.training.training_parameters import TrainingParameters

if TYPE_CHECKING:
    from dnn.callbacks import Callback
    from dnn.data.dataset import Dataset
    from dnn.training.parallel import Scheme

__all__ = ["History", "NeuralNetwork", "TrainingParameters"]


class NeuralNetwork(StateDicts):
    """A network: layers with a loss and an optimizer, to be trained and to predict.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`; `dnn.nets` makes such lists.
    loss : str, mapping or Loss
        A name in ``catalogue("loss")``, such as ``"mean_squared_error"``; or a table of a name and
        its options, such as ``{"name": "huber", "delta": 0.5}``.
    optimizer : str or Optimizer
        A name, such as ``"adam"``, stands for its default settings.
    seed : int, not negative
        Seed of the first parameters and of the order of samples. On one machine type and number of
        threads, the same seed gives the same bits.
    dtype : "float32", "float64", "tf32", "float16" or "bfloat16"
        With the last three, matrix products round their operands and sum up in float32, and
        parameters and all else are of float32; with float16 the loss is scaled. On a CPU that is
        for trying out what a GPU would do, and slower. ``"mixed_float16"`` means float16.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. On a GPU `fit` keeps the training set there.
    check_finite : bool
        Look at every value of every training step, and raise `NonFiniteError`, which names the
        first node that was NaN or infinite. Slow: for finding out why a network diverges.
    recompute : bool
        Compute results of elementwise operations again for the backward half of a training step,
        where that is possible, instead of keeping them: less memory for a little more time, and
        the same bits.
    routines : RoutineTable, optional
        Which of several routines computes each operation, as measured on this machine; routines
        differ in rounding.
    params : TrainingParameters, optional
        Learning rate and decay of an optimizer that is given by name, and what `fit` takes for
        `epochs` and `batch_size`.
    parallel : Scheme, optional
        How several ranks train this network together, such as a `DataParallel`: each rank makes the
        same network, and calls the same methods with the same arguments. A copy is of one process.

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

    @explains_arguments
    def __init__(
        self,
        layers: Sequence[Layer],
        loss: str | Mapping[str, Any] | Loss = "softmax_cross_entropy",
        optimizer: str | Optimizer = "sgd",
        *,
        seed: int = 0,
        dtype: Dtype = "float32",
        device: str = "cpu",
        check_finite: bool = False,
        recompute: bool = False,
        routines: RoutineTable | None = None,
        params: TrainingParameters | None = None,
        parallel: Scheme | None = None,
    ) -> None:
        self._params = params = params or TrainingParameters()
        optimizer = params.optimizer(optimizer)
        precision = precision_of(dtype)
        if check_finite and precision.scales_loss:
            raise ConfigurationError("check_finite: loss scaling meets infinity on purpose")
        ops = ops_for(device, routines)
        passes = precision_passes(precision, ops, recompute)
        if check_finite:  # every value is kept
            passes = (*checking_passes(), *(precision.passes or ()))
        self._options = {"dtype": dtype, "device": device, "check_finite": check_finite}
        if recompute:
            self._options["recompute"] = True
        super().__init__(layers, loss, optimizer, seed, precision, ops, passes, parallel)

    @property
    def seed(self) -> int:
        """Seed of the first parameters and of the order of samples."""
        return self._seeds[0]

    @property
    def history(self) -> History:
        """History of all calls of `fit` so far."""
        return self._histories[0]

    @explains_arguments
    def fit(
        self,
        x: npt.ArrayLike | DeviceData,
        y: npt.ArrayLike | None = None,
        *,
        validation: tuple[npt.ArrayLike, npt.ArrayLike] | DeviceData | float | None = None,
        epochs: int | None = None,
        batch_size: int | BatchSizes | None = None,
        callbacks: Sequence[Callback] = (),
        class_weight: Mapping[int, float] | Literal["balanced"] | None = None,
        sample_weight: npt.ArrayLike | None = None,
        progress: bool | None = None,
        resident: bool | None = None,
        metrics: dict[str, float] | None = None,
        accumulate: int = 1,
        validation_metrics: Sequence[str] = (),
        interrupt: Callable[[], bool] | None = None,
    ) -> History:
        """Train the network further, from its present parameters on.

        Parameters
        ----------
        x : array_like, shape (n, ...)
            Samples, of the shape that the `Input` states; or a `DeviceData`, without `y`.
        y : array_like, shape (n,) or (n, outputs)
            Labels as integers from 0, or values.
        validation : (array_like, array_like) or float, optional
            Samples and targets to evaluate on after each epoch; or the share of `x` and `y`, above
            0 and below 1, that is taken out of training for it: the same rows in every call, and
            of each class its share.
        epochs, batch_size : int, at least 1, optional
            If left out, those of `params`, or else 1 and 32. The last batch of an epoch holds the
            remaining samples. The size may be a function of the number of epochs done so far, such
            as a `GrowingBatch`.
        callbacks : sequence of Callback
            Called after each epoch in this order; any of them may end the training.
        class_weight : mapping of class to float, or "balanced", optional
            Factor of the losses of samples of each class; see `dnn.class_weights`.
        sample_weight : array_like, shape (n,), optional
            Factor of the loss of each sample, or (n, labels) of each of several labels. Batches are
            averaged over their number of samples, not over the sum of weights.
        progress : bool, optional
            Show a progress bar; by default at a terminal only.
        resident : bool, optional
            Keep all samples on the GPU, or send them batch by batch, the next one while this one
            is computed; by default the first, unless they take more than half of its free memory.
            The results are the same. On a CPU it has no effect.
        metrics : dict, optional
            Gets ``"loss"`` and, of a classification, ``"accuracy"`` of the training in the last
            epoch, and ``"training_time_s"`` of all.
        accumulate : int, at least 1
            Compute each batch in so many pieces, and add their gradients up before the parameters
            move: memory for one piece, and to rounding the step of the whole batch. Only what
            looks at a batch as a whole differs: batch norm normalises each piece by itself, and
            dropout draws other numbers.
        validation_metrics : sequence of str
            Further metrics that the validation measures, by their names in
            ``catalogue("metric")``; callbacks watch them as ``"validation_rmse"``, say.
        interrupt : function () -> bool, optional
            Called after each step; once it returns true the training ends there, within an epoch
            that is not in the history. Not where several ranks train a network.

        Returns
        -------
        History
            Of this call; `history` has all of them.

        Raises
        ------
        ShapeError, LabelError, DataError
            If the data do not fit the network, or contain NaN or infinity.
        ConfigurationError
            If an option is out of its range, or a callback watches a value that does not exist.

        Notes
        -----
        Each epoch visits the samples in an order of its own, which depends only on the seed and
        on how many epochs came before, so two calls of 5 epochs equal one of 10.
        """
        params = self._params
        network = self._network
        with self._scheme.preparing():
            epochs = check_count("epochs", params.epochs if epochs is None else epochs)
            batch_size = params.batch_size if batch_size is None else batch_size
            batch_size = checked_batch_size(batch_size)
            given: object = metrics
            if not isinstance(given, dict | None):
                message = "fit fills it with loss, accuracy and training_time_s"
                raise ConfigurationError(f"metrics must be a dict, not {metrics!r}: {message}")
            training, held_out = fit_data(
                network, self.seed, x, y, validation, class_weight, sample_weight, resident
            )
        inspect = BatchPlan.check_finite if self._options["check_finite"] else None
        with ExitStack() as stack:
            stack.enter_context(self._scheme.training())
            pauses = None
            # Imported here: most networks of a sweep are trained without callbacks.
            if callbacks:
                from dnn.callbacks import pauses_of

                pauses = pauses_of(self, callbacks)
            fit = Fit(
                self,
                training,
                [epochs],
                batch_size,
                held_out,
                inspect=inspect,
                accumulate=accumulate,
                pauses=pauses,
                validation_metrics=validation_metrics,
                interrupt=interrupt,
            )
            (history,) = fit.histories
            stack.callback(setattr, self, "_last", None)  # it would keep the data in memory
            watch = None
            if callbacks or progress is not False:
                from dnn.callbacks import watching

                watch = stack.enter_context(watching(self, history, epochs, callbacks, progress))
            for _ in fit:
                if watch is not None and (reason := watch()):
                    fit.stop(0, reason)
        if metrics is not None and len(history):
            metrics |= history.last()
        precision = network.precision
        if history.diverged and precision.largest is not None:
            layer = self.explain_divergence()
            where = f"{layer} is the first layer with infinity: " if layer else ""
            message = (
                f"the loss is {history.loss[-1]} in epoch {len(self.history)}: {where}"
                f"products take {precision.name}, which ends at {precision.largest:g}; "
                "standardise samples and targets, take a smaller learning rate, or dtype='float32'"
            )
            warnings.warn(message, MixedPrecisionWarning, stacklevel=3)
        return history

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        """Copy parameters and running statistics.

        Parameters
        ----------
        into : dict of str to array, optional
            An earlier snapshot of this network, whose arrays are overwritten.

        Returns
        -------
        dict of str to array
            ``parameter/NAME``, ``state/NAME``, and ``optimizer/average/NAME`` where there are
            averages; on the device of the network.
        """
        arrays = self._weights
        if into is None:
            return {name: array.copy() for name, array in arrays.items()}
        for name, array in arrays.items():
            into[name][...] = array
        return into

    def restore(self, snapshot: Snapshot) -> None:
        """Set parameters and running statistics to those of a snapshot.

        Parameters
        ----------
        snapshot : dict of str to array
            Of this network.
        """
        arrays = self._weights
        for name, array in snapshot.items():
            arrays[name][...] = array

    @cached_property
    def _weights(self) -> dict[str, Array]:
        arrays = self.trained_arrays()
        kept = ("parameter/", "state/", "optimizer/average/")
        return {name: x for name, x in arrays.items() if name.startswith(kept)}

    def trained_arrays(self) -> dict[str, Array]:
        """Return every array that training changes, by name.

        Returns
        -------
        dict of str to array
            ``parameter/NAME``, ``state/NAME``, and ``optimizer/BUFFER/NAME`` for the optimizer's
            state of a parameter. They are the network's own arrays, on its device.
        """
        return trained_arrays(self._network, self._update)

    def gathered(self) -> NeuralNetwork:
        """Return a copy of the whole network that belongs to one process.

        Returns
        -------
        NeuralNetwork
            Where ranks have parts of this network, all of them call this, and each gets a copy of
            the whole.
        """
        arrays = self._scheme.gathered(self._network, self._update)
        (state,) = states_of(self._network, self._update)
        kept = {name: x for name, x in state.arrays.items() if name.startswith("hyperparameter/")}
        whole = NeuralNetwork.__new__(NeuralNetwork)
        layers = self._network.whole_layers
        whole.__setstate__(self._copied_state(layers, State(kept | arrays, state.steps)))
        return whole

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made from, without plans, which a copy compiles anew."""
        self._check_whole("copy")
        if self._scheme.cuts_state:
            message = "copy: this rank has a part of the optimizer's state alone"
            raise ConfigurationError(
                f"{message}: call gathered() on all ranks, which returns the whole"
            )
        (state,) = states_of(self._network, self._update)
        return self._copied_state(self._network.layers, state)

    def _copied_state(self, layers: Sequence[Layer], state: State) -> dict[str, Any]:
        params = replace(self._params, learning_rate=None, decay=0.0)  # the optimizer has them
        return {
            "layers": layers,
            "loss": self._network.loss,
            "optimizer": self.optimizer,
            "options": {"seed": self.seed, "params": params, **self._options},
            "state": state,
            "history": self.history,
            "progress": self._progress,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = copy.deepcopy(state["layers"])  # these may belong to a network already
        NeuralNetwork.__init__(self, layers, state["loss"], state["optimizer"], **state["options"])
        load_states(self._network, self._update, [state["state"]])
        self._histories = [copy.deepcopy(state["history"])]
        self._progress = copy.deepcopy(state["progress"])

    def resume(
        self, seed: int, steps: int, history: History, progress: EpochProgress | None = None
    ) -> None:
        """Take over seed, number of steps and history of a checkpoint.

        Parameters
        ----------
        seed : int
        steps : int
            Number of steps done so far.
        history : History
        progress : EpochProgress, optional
            Of the epoch that has begun, if the checkpoint was written within an epoch.
        """
        self._seeds = [seed]
        self._update.steps_done = steps
        self._histories = [history]
        self._progress = progress

    def save(
        self,
        path: str | PathLike[str],
        *,
        data: Dataset | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint, as `dnn.save_checkpoint` does.

        Parameters
        ----------
        path : path
        data : Dataset, optional
            The prepared training samples: with their preparation in the file, `dnn.load` returns a
            model for raw samples.
        provenance : mapping, optional
            Where the model comes from, as values of JSON.
        """
        from dnn.training.checkpoint import save_checkpoint

        save_checkpoint(self, path, data=data, provenance=provenance)

    def load(self, path: str | PathLike[str]) -> None:
        """Read a checkpoint to go on from, as `dnn.load_checkpoint` does.

        Parameters
        ----------
        path : path
            Of a file that `save` wrote for a network of the same layers, dtype and optimizer.
        """
        from dnn.training.checkpoint import load_checkpoint

        load_checkpoint(self, path)

    def export_onnx(self, path: str | PathLike[str]) -> None:
        """Write the prediction as an ONNX model.

        Parameters
        ----------
        path : path
            The model takes ``x``, samples of any number, and gives ``y``, what the last layer puts
            out.

        Raises
        ------
        ConfigurationError
            If a layer has no equal in ONNX; it names the layer.
        CheckpointError
            If the file cannot be written.
        MissingDependencyError
            If onnx is not installed.
        """
        self._check_whole("export_onnx")
        from dnn.io.onnx_export import export_onnx

        export_onnx(self, path)

    @classmethod
    def from_onnx(
        cls,
        path: str | PathLike[str],
        loss: str | Mapping[str, Any] | Loss = "softmax_cross_entropy",
        optimizer: str | Optimizer = "sgd",
        **options: Any,
    ) -> NeuralNetwork:
        """Make a network from an ONNX model of one input and one output, to predict or to train on.

        A graph that layers cannot express is one layer; `OnnxModel` runs any graph as it is.

        Parameters
        ----------
        path : path
        loss, optimizer, **options
            As for a network of layers; an ONNX model does not have them.

        Returns
        -------
        NeuralNetwork

        Raises
        ------
        CheckpointError
            If a file cannot be read, or an operator is not supported; it names operator and node.
        ShapeError
            If its shapes do not fit each other, or its output has not a row for each sample.
        MissingDependencyError
            If onnx is not installed.
        """
        from dnn.io.onnx_import import import_onnx

        imported = import_onnx(path)
        model = cls(imported.layers, loss, optimizer, **options)
        imported.load_into(model)
        return model

    if not TYPE_CHECKING:  # type checkers are to report unknown attributes

        def __getattr__(self, name: str) -> Any:
            hint = suggestion("attribute of a model", name)
            message = f"a NeuralNetwork has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        network = self._network
        shapes = [row.shape for row in network.summaries if row.parameters]
        sizes = " -> ".join("x".join(map(str, each)) for each in (network.input_shape, *shapes))
        total = sum(row.parameters for row in network.summaries)
        loss, optimizer = type(network.loss).__name__, type(self.optimizer).__name__
        return f"NeuralNetwork({sizes}, {loss}, {optimizer}, {total:,d} parameters)"

    def __str__(self) -> str:
        return self.summary()

    def predict_class(self, x: npt.ArrayLike) -> Array:
        """Return the class of each sample.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of intp, shape (n,)

        Raises
        ------
        ConfigurationError
            If the loss does not classify.
        ShapeError, DataError
            As for `predict`.
        """
        if not self._network.loss.classifies:
            raise ConfigurationError(f"{type(self._network.loss).__name__} gives no classes")
        return self.predict(x)

    def evaluate(
        self,
        x: npt.ArrayLike | DeviceData,
        y: npt.ArrayLike | None = None,
        metrics: Sequence[str] = (),
    ) -> dict[str, float]:
        """Return the loss and the metrics of the network on samples.

        Parameters
        ----------
        x : array_like, shape (n, ...)
        y : array_like, shape (n,) or (n, outputs)
        metrics : sequence of str
            Further metrics, by their names in ``catalogue("metric")``.

        Returns
        -------
        dict
            ``"loss"``, and for a classification ``"accuracy"`` and ``"mcc"``, the Matthews
            correlation coefficient.

        Raises
        ------
        ConfigurationError
            If there is no such metric, or it is of other targets.
        ShapeError, LabelError, DataError
            If the data do not fit the network, or contain NaN or infinity.
        """
        samples = checked_pair(self._network, "x", x, y)
        (result,) = self._scheme.evaluate(self._network, samples, metrics)
        return result

    @explains_arguments
    def explain(self, batch_size: int = 32, training: bool = True) -> str:
        """Return the graph of a batch as text, in both of its forms, each with its statistics.

        Parameters
        ----------
        batch_size : int
        training : bool
            With the loss and the gradients; else of a prediction.

        Returns
        -------
        str
            The graph as it is written, and as it is computed: after fusion, and rounded where the
            precision asks for it. Behind each a table of its layers: nodes, parameters, bytes of
            results, multiply-adds and floating-point operations; then the memory of its plan.
        """
        batch = check_count("batch_size", batch_size)
        return self._network.explain("training" if training else "evaluation", batch)

    def summary(self) -> str:
        """Return a table of layers: output shapes, parameters and multiply-adds.

        `dnn.summary` returns the same table for layers without a network.

        Returns
        -------
        str
            A line for each layer, between a heading and the total: the shape of a sample that it
            puts out, its parameters, and the multiply-adds of its prediction of one sample, each of
            which is two floating-point operations.
        """
        return table_of(self._network.summaries)
