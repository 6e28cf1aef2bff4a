"""Trains the networks of trials, alone or many at once, and scores them."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from diel import __version__

from .compute import Compute
from .evaluation import PreparedSplits, SplitData, collect, means
from .fused import FusedTrainings, curve_epochs, estimated_time_s
from .hyperparameters import Hyperparameters, batch_size_of, layers_of, loss_of, optimizer_of
from .layer_list import LayerTables, with_layers
from .parallel import Parallel
from .pretrained import Pretrained
from .sweep.ledger import plain
from .trial import DIVERGED, METRICS, SPLITS, Report, marked, trial_seed

if TYPE_CHECKING:
    from dnn import Callback, Epoch, NeuralNetwork, RoutineTable

_ON_CPU: Final = Compute()
_UNTRAINED: Final = Pretrained()
_log = logging.getLogger(__name__)


class NetworkTrainer:
    """Trains multilayer perceptrons, one trial or several at once.

    `facts` are those of the device. There is a `save_model` only if safetensors can write one.
    `layers`, if given, define the network, see `modules.layer_list`; `start` is what it goes on
    from. Where a copy has several ranks, `parallel` says how they train each network together; all
    of them call the same methods.
    """

    def __init__(
        self,
        rounds: PreparedSplits,
        table: RoutineTable | None = None,
        compute: Compute = _ON_CPU,
        parallel: Parallel | None = None,
        layers: LayerTables | None = None,
        start: Pretrained = _UNTRAINED,
    ) -> None:
        self._layers = layers
        self._start = start
        self._parallel = parallel
        self._scheme: tuple[Any, Any] = (None, None)
        self._rounds = rounds
        self._table = table
        self._compute = compute
        self._together = FusedTrainings(rounds, table, compute, start)
        self.facts = compute.facts()
        if importlib.util.find_spec("safetensors") is not None:
            self.save_model = self._save_model

    @property
    def at_once(self) -> int:
        """How many trials it runs together: on a GPU what its memory holds, once that is known."""
        return self._together.at_once

    def __call__(self, parameters: dict[str, Any], report: Report) -> dict[str, Any]:
        """Train once for each split, and report after each that takes part in the choice.

        With a single split, report after each epoch, or after some if no report can end the trial.
        """
        rounds = self._rounds
        report.total = None if len(rounds) == 1 else len(rounds)
        reporting = report if len(rounds) == 1 else None
        results: list[dict[str, Any]] = []
        parameters = with_layers(parameters, self._layers)
        wanted = Hyperparameters.model_validate(parameters)
        seeds = self._seeds(report.seed)
        scheme = self._scheme_of(report)

        def train_split(number: int) -> dict[str, Any]:
            # As if it were trained with others: whether it is depends on the trials of its lease.
            is_alone = report.may_be_stopped or scheme is not None
            epoch_s = None if is_alone else self._together.epoch_s(wanted, number)
            return train(
                parameters,
                seeds[number],
                rounds[number],
                reporting,
                self._table,
                epoch_s,
                self._compute,
                scheme,
                self._start,
            )

        for number in range(len(rounds)):
            # A rank of several cannot try again by itself.
            once = partial(train_split, number)
            results.append(once() if scheme is not None else self._with_all_memory(once))
            if len(rounds) > 1 and not rounds.jobs[number].is_test:
                so_far = self._means(results)
                if not report(number + 1, **so_far):
                    return so_far
        return self._evaluated(results)

    def _scheme_of(self, report: Report) -> Any:
        """Return the scheme by which the ranks of the copy train; None for a single rank.

        It stays the same until a trial has failed: the scheme has communicators of its own.
        """
        if self._parallel is None or report.communicator is None:
            return None
        if self._scheme[0] is not report.communicator:
            self._scheme = (report.communicator, self._parallel.scheme(report.communicator))
        return self._scheme[1]

    def _with_all_memory(self, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Train; if GPU memory runs out, free what is kept for other networks and train again."""
        from dnn import OutOfDeviceMemory

        with contextlib.suppress(OutOfDeviceMemory):
            return train()
        self._together.make_room()
        return train()

    def train_together(
        self, trials: Sequence[tuple[dict[str, Any], Report]]
    ) -> list[dict[str, Any] | None]:
        """Train several trials at once, each with its parameters and its report.

        Returns, for each trial, what a call alone returns; None where it is better trained alone.
        """
        wanted = [
            Hyperparameters.model_validate(with_layers(parameters, self._layers))
            for parameters, _ in trials
        ]
        fused = [
            place
            for place, parameters in enumerate(wanted)
            if not self._together.trains_alone(parameters)
        ]
        if len(fused) * len(self._rounds) < 2:
            return [None] * len(trials)
        given = []
        for place in fused:
            report = trials[place][1]
            given.append((wanted[place], self._seeds(report.seed), report))
        found: list[dict[str, Any] | None] = [None] * len(trials)
        for place, results in zip(fused, self._together(given), strict=True):
            if not all(results):
                continue  # trained alone, the trial says why
            self._report_splits(results, trials[place][1])
            found[place] = self._evaluated(results)
        return found

    def _report_splits(self, results: Sequence[Mapping[str, Any]], report: Report) -> None:
        """Add to a report the means that a trial trained alone reports after each split."""
        jobs = self._rounds.jobs
        if len(jobs) == 1:
            return
        for number, job in enumerate(jobs):
            if not job.is_test:
                report.curve.add(number + 1, self._means(results[: number + 1]))

    def _save_model(self, parameters: dict[str, Any], report: Report, path: Path) -> Path:
        """Train a trial's network once more, the same to the last bit, and write it.

        Where a trial trains on several splits, it is a network that is trained on all rows.
        """
        wanted = Hyperparameters.model_validate(with_layers(parameters, self._layers))
        is_alone = len(self._rounds) == 1
        data = self._rounds[0] if is_alone else self._rounds.whole()
        scheme = self._scheme_of(report)
        model = _model(wanted, report.seed, data, self._table, self._compute, scheme, self._start)
        with self._compute.without_warnings():
            model.fit(
                data.training,
                epochs=wanted.epochs,
                batch_size=batch_size_of(wanted),
                progress=False,
            )
        about = {**report.provenance, **self._rounds.describe()}
        if is_alone:
            scores = model.evaluate(data.validation)
            recorded = about.get("metrics", {})
            about["metrics"] = {name: scores[name] for name in METRICS if name in scores}
            _warn_of_difference(report.trial, recorded, about["metrics"])
        about |= {"trial": report.trial, "seed": report.seed, "parameters": plain(parameters)}
        file = path.with_suffix(".safetensors")
        model.save(file, data=data.prepared, provenance={**about, "diel": __version__})
        return file

    def _seeds(self, seed: int) -> list[int]:
        if len(self._rounds) == 1:
            return [seed]
        return [trial_seed(seed, number) for number in range(len(self._rounds))]

    def _means(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the mean of each metric over the first splits on which the choice is based."""
        pairs = zip(self._rounds.jobs, results, strict=False)
        chosen = [result for job, result in pairs if not job.is_test]
        is_diverged = any(DIVERGED in result for result in chosen)
        return marked(means([_numbers(result) for result in chosen]), is_diverged=is_diverged)

    def _evaluated(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        evaluated = collect(self._rounds.jobs, [_numbers(result) for result in results])
        metrics = marked(
            evaluated.metrics, is_diverged=any(DIVERGED in result for result in results)
        )
        return {**metrics, SPLITS: evaluated.splits()}


def _warn_of_difference(trial: int, recorded: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Log that a network which was trained again is not the same to the last bit."""
    for name, score in scores.items():
        if isinstance(there := recorded.get(name), float) and there != score:
            text = (
                "trial %d, trained again, has a %s of %s, and had %s: by another machine, number "
            )
            _log.warning(f"{text}of threads or version", trial, name, score, there)
            return


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != DIVERGED}


def train(
    parameters: Mapping[str, Any],
    seed: int,
    data: SplitData,
    report: Report | None = None,
    table: RoutineTable | None = None,
    epoch_s: float | None = None,
    compute: Compute = _ON_CPU,
    scheme: Any = None,
    start: Pretrained = _UNTRAINED,
) -> dict[str, Any]:
    """Train one network with `Hyperparameters`; return its metrics.

    These are `METRICS`: accuracy, loss and Matthews correlation coefficient on the validation rows,
    and what the training takes in seconds, see `estimated_time_s`, which takes `epoch_s`;
    ``diverged`` if it did; in float16 ``skipped_steps`` too.

    `report` gets the metrics after each epoch, and may end the training; where it cannot, after
    those of `curve_epochs`. By `scheme`, a `dnn.Scheme`, several ranks train the network together;
    each of them makes the same call. `start` is what the network goes on from. A `NonFiniteError`,
    which names the layer, if the loss was never finite in float16.
    """
    wanted = Hyperparameters.model_validate(dict(parameters))
    model = _model(wanted, seed, data, table, compute, scheme, start)
    callbacks = []
    if report is not None:
        callbacks.append(_epoch_reports(report, wanted, data, epoch_s))
    with compute.without_warnings():
        history = model.fit(
            data.training,
            epochs=wanted.epochs,
            batch_size=batch_size_of(wanted),
            callbacks=callbacks,
            progress=False,
        )
    if compute.is_too_narrow(history):
        _raise_overflow(model, history.loss[0])
    metrics: dict[str, Any] = model.evaluate(data.validation)
    metrics["training_time_s"] = estimated_time_s(history, epoch_s, batch_size_of(wanted))
    metrics = {name: metrics[name] for name in METRICS}
    if report is not None:
        report.curve.add(len(history), metrics)
    return marked({**metrics, **compute.metrics_of(history)}, is_diverged=history.diverged)


def _raise_overflow(model: NeuralNetwork, loss: float) -> NoReturn:
    from dnn import NonFiniteError

    layer = model.explain_divergence()
    where = f"{layer} is the first layer with infinity " if layer else ""
    raise NonFiniteError(
        f"float16: the loss is {loss} in the first epoch: {where}(float16 ends at 65504); "
        'standardise the data, take a smaller learning rate, or precision = "bfloat16"',
        layer,
    )


def _model(
    wanted: Hyperparameters,
    seed: int,
    data: SplitData,
    table: RoutineTable | None,
    compute: Compute,
    scheme: Any,
    start: Pretrained,
) -> NeuralNetwork:
    from dnn import NeuralNetwork

    model = NeuralNetwork(
        layers_of(wanted, data.features, data.classes, data.shape, in_rows=data.in_rows),
        loss_of(wanted),
        optimizer=optimizer_of(wanted, data.count),
        seed=seed,
        routines=table,
        parallel=scheme,
        **compute.networks,
    )
    start.begin(model)
    return model


def _epoch_reports(
    report: Report, wanted: Hyperparameters, data: SplitData, epoch_s: float | None
) -> Callback:
    """Return a callback that reports the metrics after each epoch, or after some epochs."""
    from dnn import Callback

    report.total = epochs = wanted.epochs
    chosen = range(1, epochs + 1) if report.may_be_stopped else curve_epochs(epochs)

    class EpochReports(Callback):
        def on_epoch_end(self, epoch: Epoch) -> str | None:
            done = len(epoch.history)
            if done not in chosen:
                report.show(done)
                return "stopped by the sweep" if report.is_stopped else None
            metrics: dict[str, Any] = epoch.model.evaluate(data.validation)
            metrics["training_time_s"] = estimated_time_s(
                epoch.history, epoch_s, batch_size_of(wanted)
            )
            goes_on = report(done, **{name: metrics[name] for name in METRICS})
            return None if goes_on else "stopped by the sweep"

    return EpochReports()
