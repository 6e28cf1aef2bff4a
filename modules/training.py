"""Trains the networks of trials, alone or many at once, and scores them."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from diel import __version__

from .best_network import BestNetwork, EpochsInTime, settle
from .checkpoints import Checkpoints, seed_of_point
from .compute import Compute
from .evaluation import PreparedSplits, SplitData, class_factors, errors_of_groups, means
from .fused import FusedTrainings, best_epoch, estimated_time_s, shown_epochs
from .hyperparameters import Hyperparameters, batch_size_of, loss_of, optimizer_of
from .layer_list import LayerTables, with_layers
from .networks import layers_of
from .parallel import Parallel
from .predictions import place_of_predictions, write_predictions
from .pretrained import Pretrained
from .sweep.ledger import plain
from .trial import DIVERGED, ERRORS, SPLITS, Report, Reports, known_metrics, marked
from .trial_plan import BEST_EPOCH, TrialPlan
from .trial_states import NO_CHECKPOINTS, ONE_TRAINING, TrialStates, go_on

if TYPE_CHECKING:
    from dnn import Callback, EarlyStopping, Epoch, History, NeuralNetwork, RoutineTable

_log = logging.getLogger(__name__)


class Setting(NamedTuple):
    """What the trainings of a trainer have in common, beside their rows and points.

    `plan` says for how long and with how many seeds a point is trained; networks go on from
    `checkpoints`, if there are any, and begin as `start` says.
    """

    table: RoutineTable | None = None
    compute: Compute = Compute()
    plan: TrialPlan = TrialPlan()
    checkpoints: Checkpoints | None = None
    start: Pretrained = Pretrained()

    def network(
        self, wanted: Hyperparameters, seed: int, data: SplitData, scheme: Any = None
    ) -> NeuralNetwork:
        """Return a network that is to be trained; `scheme` is for several ranks."""
        from dnn import NeuralNetwork

        of_data = (data.features, data.outputs, data.shape, data.embeds)
        model = NeuralNetwork(
            layers_of(wanted, *of_data, in_rows=data.in_rows),
            loss_of(wanted, data.takes),
            optimizer=optimizer_of(wanted, data.count),
            seed=seed,
            routines=self.table,
            parallel=scheme,
            **self.compute.networks,
        )
        self.start.begin(model)
        return model

    def fit(
        self,
        model: NeuralNetwork,
        wanted: Hyperparameters,
        data: SplitData,
        epochs: int,
        rule: EarlyStopping | None = None,
        callbacks: Sequence[Callback] = (),
        interrupt: Callable[[], bool] | None = None,
    ) -> History:
        """Train a network, with metrics for a rule of patience, which stands before callbacks."""
        with self.compute.without_warnings():
            return model.fit(
                data.training,
                validation=None if rule is None else data.validation,
                validation_metrics=self.plan.metrics,
                epochs=epochs,
                batch_size=batch_size_of(wanted),
                class_weight=class_factors(wanted.class_weight, data.prepared),
                callbacks=[*([] if rule is None else [rule]), *callbacks],
                progress=False,
                interrupt=interrupt,
            )


_PLAIN: Final = Setting()


class NetworkTrainer:
    """Trains multilayer perceptrons, one trial or several at once.

    `facts` are those of the device. There is a `save_model` only if safetensors can write one.
    `layers`, if given, define the network, see `modules.layer_list`.
    Where a copy has several ranks, `parallel` says how they train each network together; all of
    them call the same methods.
    """

    def __init__(
        self,
        rounds: PreparedSplits,
        setting: Setting = _PLAIN,
        parallel: Parallel | None = None,
        layers: LayerTables | None = None,
    ) -> None:
        self._layers = layers
        self._setting, self._plan = setting, setting.plan
        self._parallel = parallel
        # By the number of ranks, of which this rank is in one group each.
        self._schemes: dict[int, tuple[Any, Any]] = {}
        self._rounds = rounds
        self._best = BestNetwork()
        self._states = TrialStates()
        self._together = FusedTrainings(rounds, *setting, self._best, self._states)
        self._of_counts: FusedTrainings | None = None
        self.facts = setting.compute.facts()
        if importlib.util.find_spec("safetensors") is not None:
            self.save_model = self._save_model

    @property
    def at_once(self) -> int:
        """How many trials it runs together: on a GPU what its memory holds, once that is known."""
        return self._together.at_once

    @property
    def rounds(self) -> PreparedSplits:
        """The rows of each training of a trial."""
        return self._rounds

    @property
    def kept_trial(self) -> int | None:
        """The best trial so far, whose network is kept; None if there is none."""
        return self._best.trial

    def __call__(self, parameters: dict[str, Any], report: Report) -> dict[str, Any]:
        """Train once for each split, and report after each that takes part in the choice.

        With a single split, report after each epoch, or after some if no report can end the trial.
        Several seeds are trained at once if that is possible and no report can end the trial; else
        the reports of epochs are those of the first, and if it is stopped there are no others.
        """
        self._check_goes_on(report)
        rounds, jobs = self._rounds, self._rounds.jobs
        given = parameters
        parameters = with_layers(parameters, self._layers)
        wanted = Hyperparameters.model_validate(parameters)
        rounds, together = self._data_of(wanted)
        scheme = self._scheme_of(report)
        is_fused = scheme is None and not together.trains_alone(wanted)
        if self._plan.seeds > 1 and is_fused and not report.may_be_stopped:
            (found,) = self.train_together([(given, report)])
            if found is not None:
                return found
        report.total = None if len(rounds) == 1 else len(rounds)
        seeds = self._seeds(wanted, report)
        of_seeds: list[list[dict[str, Any]]] = [[] for _ in seeds]

        def train_split(number: int, repeat: int) -> dict[str, Any]:
            # As if it were trained with others: whether it is depends on the trials of its lease.
            is_alone = scheme is not None or (report.may_be_stopped and not self._is_one_training)
            epoch_s = None if is_alone else together.epoch_s(wanted, number)
            job, done = jobs[number], of_seeds[repeat]
            return train(
                parameters,
                seeds[repeat][number],
                rounds[number],
                report if len(rounds) == 1 and repeat == 0 else None,
                self._setting._replace(plan=self._plan.of(job)),
                epoch_s,
                scheme,
                self._plan.epochs_to_test(jobs, done, job.outer) if job.is_test else None,
                report,
                self._best if scheme is None and self._plan.seeds == 1 else None,
                self._states,
            )

        so_far: dict[str, Any] = {}
        for number in range(len(rounds)):
            for repeat, results in enumerate(of_seeds):
                # A rank of several cannot try again by itself.
                once = partial(train_split, number, repeat)
                results.append(once() if scheme is not None else self._with_all_memory(once))
                if len(rounds) == 1 and report.is_stopped:
                    first = of_seeds[0]
                    if report.is_out_of_time and first[0]:
                        return self._evaluated([first])
                    return {name: each for name, each in first[0].items() if name != ERRORS}
                if report.is_out_of_time:
                    return so_far
            if len(rounds) > 1 and not jobs[number].is_test:
                so_far = self._means(of_seeds)
                if not report(number + 1, **so_far):
                    if number + 1 < len(rounds) or not report.is_out_of_time:
                        return so_far
                    report.complete()
        return self._evaluated(of_seeds)

    @property
    def _is_one_training(self) -> bool:
        return len(self._rounds) * self._plan.seeds == 1

    def _check_goes_on(self, report: Report) -> None:
        """Raise a ValueError for a trial from which others go on that is no single training."""
        if report.checkpoint is None:
            return
        if not self._is_one_training or self._plan.patience is not None:
            raise ValueError(ONE_TRAINING)
        if self._setting.checkpoints is not None:
            raise ValueError(NO_CHECKPOINTS)

    def _data_of(self, wanted: Hyperparameters) -> tuple[PreparedSplits, FusedTrainings]:
        """Return the rows of each training, as the loss takes their targets, and who fuses them."""
        if not wanted.are_counts or self._rounds[0].takes != "values":
            return self._rounds, self._together
        rounds = self._rounds.of_counts
        self._of_counts = self._of_counts or FusedTrainings(
            rounds, *self._setting, self._best, self._states
        )
        return rounds, self._of_counts

    def _scheme_of(self, report: Report) -> Any:
        """Return the scheme by which the ranks of a group train; None for a single rank.

        It stays the same until a trial has failed: the scheme has communicators of its own.
        """
        if self._parallel is None or report.communicator is None:
            return None
        size = report.communicator.size
        known, scheme = self._schemes.get(size, (None, None))
        if known is not report.communicator:
            scheme = self._parallel.scheme(report.communicator)
            self._schemes[size] = (report.communicator, scheme)
        return scheme

    def _with_all_memory(self, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Train; if GPU memory runs out, free what is kept for other networks and train again."""
        from dnn import OutOfDeviceMemory

        with contextlib.suppress(OutOfDeviceMemory):
            return train()
        for each in (self._together, self._of_counts):
            if each is not None:
                each.make_room()
        return train()

    def train_together(
        self, trials: Sequence[tuple[dict[str, Any], Report]]
    ) -> list[dict[str, Any] | None]:
        """Train several trials at once, each with its parameters and its report.

        Returns, for each trial, what a call alone returns; None where it is better trained alone.
        """
        for _, report in trials:
            self._check_goes_on(report)
        wanted = [
            Hyperparameters.model_validate(with_layers(parameters, self._layers))
            for parameters, _ in trials
        ]
        fused = [
            place
            for place, parameters in enumerate(wanted)
            if not self._data_of(parameters)[1].trains_alone(parameters)
        ]
        if len(fused) * len(self._rounds) * self._plan.seeds < 2:
            return [None] * len(trials)
        if trials[0][1].judge is not None and not self._is_one_training:
            return [None] * len(trials)  # whose reports are of one split after the other
        found: list[dict[str, Any] | None] = [None] * len(trials)
        for are_counts in sorted({wanted[place].are_counts for place in fused}):
            places = [place for place in fused if wanted[place].are_counts is are_counts]
            together = self._data_of(wanted[places[0]])[1]
            given = []
            for place in places:
                report = trials[place][1]
                given.append((wanted[place], self._seeds(wanted[place], report), report))
            for place, of_seeds in zip(places, together(given), strict=True):
                if not all(map(all, of_seeds)):
                    continue  # trained alone, the trial says why
                self._report_splits(of_seeds, trials[place][1])
                found[place] = self._evaluated(of_seeds)
        return found

    def _report_splits(
        self, of_seeds: Sequence[Sequence[Mapping[str, Any]]], report: Report
    ) -> None:
        """Add to a report the means that a trial trained alone reports after each split."""
        jobs = self._rounds.jobs
        if len(jobs) == 1:
            return
        for number, job in enumerate(jobs):
            if not job.is_test:
                report.curve.add(number + 1, self._means([r[: number + 1] for r in of_seeds]))

    def _save_model(self, parameters: dict[str, Any], report: Report, path: Path) -> Path:
        """Write a trial's network: that which is kept, or trained once more, the same to the bit.

        Where a trial trains on several splits, it is a network that is trained on all rows.
        """
        from dnn import resume_training

        wanted = Hyperparameters.model_validate(with_layers(parameters, self._layers))
        is_alone = len(self._rounds) == 1
        rounds, _ = self._data_of(wanted)
        data = rounds[0] if is_alone else rounds.whole()
        scheme, seed = self._scheme_of(report), self._seed(wanted, report)
        model = self._setting.network(wanted, seed, data, scheme)
        about = {**report.provenance, **self._rounds.describe()}
        if not is_alone:  # its step is a split
            about.pop("epochs", None)
        kept = self._best.of(report) if is_alone and scheme is None else None
        epochs = None if is_alone else self._epochs_of_all(wanted, report, scheme)
        if kept is not None:
            resume_training(model, [kept.progress])
            if kept.best_epoch is not None:
                about["epochs"] = kept.best_epoch
        elif report.checkpoint is not None and report.checkpoint.is_file():
            resume_training(model, [self._states.load(report.checkpoint)])
        else:
            before = 0
            if report.parent_checkpoint is not None:
                parent = self._states.load(report.parent_checkpoint)
                go_on(model, [parent], [wanted])
                before = parent.epochs
            rule = self._plan.rule() if is_alone else None
            most = epochs or about.get("epochs", before) - before or wanted.epochs
            history = self._setting.fit(model, wanted, data, most, rule)
            if self._plan.patience is not None:
                about["epochs"] = len(history) if rule is None else best_epoch(rule, history)
        if self._plan.seeds > 1:
            about["seeds"] = f"the first of {self._plan.seeds}"
        if is_alone:
            scores = model.evaluate(data.validation, metrics=self._plan.metrics)
            recorded = about.get("metrics", {}) if self._plan.seeds == 1 else {}
            about["metrics"] = known_metrics(scores, wanted.named_loss)
            _warn_of_difference(report.trial, recorded, about["metrics"])
        about |= {"trial": report.trial, "seed": seed, "parameters": plain(parameters)}
        file = path.with_suffix(".safetensors")
        model.save(file, data=data.prepared, provenance={**about, "diel": __version__})
        if scheme is None:
            parts = self._held_out(wanted, report, model if is_alone else None, epochs)
            try:
                write_predictions(place_of_predictions(file), rounds.data, parts)
            except OSError as error:  # the model is there all the same
                _log.warning("no predictions beside %s: %s", file.name, error)
        return file

    def _held_out(
        self,
        wanted: Hyperparameters,
        report: Report,
        alone: NeuralNetwork | None,
        epochs_to_test: int | None,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the rows that each split of a trial scores, and what its network predicts of them.

        `alone` is the network of the only split. Those of several are trained once more; of nested
        splits those on the outer folds, for `epochs_to_test` where that is known.
        """
        rounds, _ = self._data_of(wanted)
        is_nested = any(job.is_test for job in rounds.jobs)
        for number, seed in enumerate(self._seeds(wanted, report)[0]):
            job, data, model = rounds.jobs[number], rounds[number], alone
            if job.is_test != is_nested:
                continue
            if model is None:
                epochs = epochs_to_test if job.is_test else None
                model = self._fitted(wanted, seed, number, epochs)
            outputs = model(data.validation.x)
            yield job.test, data.in_units(loss_of(wanted, data.takes).point(outputs))

    def _fitted(
        self, wanted: Hyperparameters, seed: int, number: int, epochs: int | None
    ) -> NeuralNetwork:
        """Return a network that is trained as that of a split was; for so many epochs, if given."""
        rounds, _ = self._data_of(wanted)
        data = rounds[number]
        model = self._setting.network(wanted, seed, data)
        rule = None if rounds.jobs[number].is_test else self._plan.rule()
        self._setting.fit(model, wanted, data, epochs or wanted.epochs, rule)
        return model

    def predictions(
        self, parameters: dict[str, Any], report: Report, number: int, epochs: int | None = None
    ) -> Any:
        """Train the network of a split of a trial once more; return what it predicts.

        Of the rows that the split scores: probabilities, or values in the units of the file.
        `epochs` is given where time has ended the trial. Of several seeds it is the first.
        """
        wanted = Hyperparameters.model_validate(with_layers(parameters, self._layers))
        rounds, _ = self._data_of(wanted)
        if (job := rounds.jobs[number]).is_test:
            epochs = self._epochs_of_all(wanted, report, None, job.outer)
        seed = self._seeds(wanted, report)[0][number]
        model, data = self._fitted(wanted, seed, number, epochs), rounds[number]
        if data.takes == "values":
            return data.in_units(loss_of(wanted, data.takes).point(model(data.validation.x)))
        return model.predict_proba(data.validation.x)

    def _epochs_of_all(
        self, wanted: Hyperparameters, report: Report, scheme: Any, outer: int | None = None
    ) -> int | None:
        """Return for how many epochs the network of all rows is trained; None for all of them.

        Or that of the rows of an outer split.

        With patience it is the mean of the best epochs of the trial's trainings on parts of the
        rows, which are done once more.
        """
        if self._plan.patience is None:
            return None
        (seeds, *_), (rounds, _) = self._seeds(wanted, report), self._data_of(wanted)
        parameters = wanted.model_dump(exclude_unset=True)
        setting = self._setting._replace(checkpoints=None)
        results: list[dict[str, Any]] = [
            {}
            if job.is_test or outer not in (None, job.outer)
            else train(parameters, seed, data, None, setting, None, scheme)
            for job, data, seed in zip(rounds.jobs, rounds, seeds, strict=True)
        ]
        return self._plan.epochs_to_test(rounds.jobs, results, outer)

    def _seed(self, wanted: Hyperparameters, report: Report) -> int:
        checkpoints = self._setting.checkpoints
        by_point = checkpoints is not None and checkpoints.options.by_point
        return seed_of_point(wanted) if by_point else report.seed

    def _seeds(self, wanted: Hyperparameters, report: Report) -> list[list[int]]:
        return self._plan.seeds_of(self._seed(wanted, report), len(self._rounds))

    def _means(self, of_seeds: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Return the mean of each metric over the first splits on which the choice is based."""
        jobs = self._rounds.jobs
        chosen = [
            [result for job, result in zip(jobs, results, strict=False) if not job.is_test]
            for results in of_seeds
        ]
        is_diverged = any(DIVERGED in result for results in chosen for result in results)
        so_far = [means([_numbers(result) for result in results]) for results in chosen]
        return marked(self._plan.combined(so_far), is_diverged=is_diverged)

    def _evaluated(self, of_seeds: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        numbers = [[_numbers(result) for result in results] for results in of_seeds]
        metrics, splits = self._plan.evaluated(self._rounds.jobs, numbers)
        is_diverged = any(DIVERGED in result for results in of_seeds for result in results)
        if errors := of_seeds[0][0].get(ERRORS):
            splits = {**splits, "errors": errors}
        return {**marked(metrics, is_diverged=is_diverged), SPLITS: splits}


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
    return {name: value for name, value in metrics.items() if name not in (DIVERGED, ERRORS)}


def train(
    parameters: Mapping[str, Any],
    seed: int,
    data: SplitData,
    report: Report | None = None,
    setting: Setting = _PLAIN,
    epoch_s: float | None = None,
    scheme: Any = None,
    epochs: int | None = None,
    trial: Report | None = None,
    best: BestNetwork | None = None,
    states: TrialStates | None = None,
) -> dict[str, Any]:
    """Train one network with `Hyperparameters`; return its metrics.

    These are those of `METRICS` that the task of the data has or the plan asks for, on the
    validation rows, and what the training takes in seconds, see `estimated_time_s`, which takes
    `epoch_s`; ``diverged`` if it did; in float16 ``skipped_steps`` too. With patience they are of
    the best epoch, which is among them. `epochs`, if given, are trained of those in
    `parameters`.
    The training goes on from a checkpoint that is its beginning, and leaves one there.

    `report` gets the metrics after each epoch, and may end the training; where it cannot, after
    those of `curve_epochs`. If it has a checkpoint, the training's state is left there; with that
    of a parent it goes on from there, for as many epochs: both are among `states`.
    By `scheme`, a `dnn.Scheme`, several ranks train the network together;
    each of them makes the same call. A `NonFiniteError`, which names the layer, if the loss was
    never finite in float16.

    The time of the sweep may end the training, as the report of its `trial` says: then it has the
    parameters of its best epoch, and no metrics if none has ended. `best` is offered the network.
    """
    from dnn import progress_of, resume_training

    wanted = Hyperparameters.model_validate(dict(parameters))
    _, compute, plan, checkpoints, _ = setting
    model = setting.network(wanted, seed, data, scheme)
    most, rule, before = epochs or wanted.epochs, plan.rule(), 0
    states = states or TrialStates()
    if report is not None and report.parent_checkpoint is not None:
        parent = states.load(report.parent_checkpoint)
        go_on(model, [parent], [wanted])
        before = parent.epochs
        most += before
    shown = shown_epochs(report, most, plan.patience, before)
    reported: Reports = []
    callbacks: list[Callback] = []
    kept: EpochsInTime | None = None
    if report is not None:
        callbacks.append(
            _epoch_reports(report, wanted, data, epoch_s, shown, reported, plan, most, rule)
        )
        report.total = most
        if report.may_run_out and rule is None:
            kept = EpochsInTime(report)
            callbacks.append(_epoch_copies(kept, reported))
    if checkpoints is not None:
        ranks = None if scheme is None else scheme.communicator
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        name = checkpoints.name(wanted, seed, data, plan, size)
        resumed = checkpoints.find(name, most, shown, plan.patience, ranks)
        callbacks.append(_saver(checkpoints, name, most, rule, report, reported, rank))
        if resumed is not None:
            stopped_at = _reported_again(report, resumed.reports)
            if stopped_at is not None:  # before the end of what is kept: trained up to there
                most, callbacks = stopped_at, []
            else:
                (of_best,) = resume_training(model, [resumed.progress])
                resumed.apply(rule, of_best)
                reported += resumed.reports
                if kept is not None:
                    kept.note(len(model.history), model.snapshot, _reported_after(model, reported))
    left = most - len(model.history)
    interrupt = None
    if trial is not None and trial.may_run_out and scheme is None:
        interrupt = partial(_is_time_over, trial)
    setting.fit(model, wanted, data, left, rule, callbacks, interrupt)
    history, ended_at = model.history, None

    def scored() -> dict[str, Any]:
        metrics = model.evaluate(data.validation, metrics=plan.metrics)
        metrics["training_time_s"] = estimated_time_s(history, epoch_s, batch_size_of(wanted))
        return known_metrics(metrics, wanted.named_loss)

    if report is not None and len(history) >= most:
        report.complete()
    if trial is not None and trial.is_out_of_time:
        if kept is not None and kept.last is not None:
            settle(
                {0: kept},
                lambda _, arrays: model.restore(arrays),
                lambda: [scored()],
            )
            ended_at = kept.best
        elif report is None or rule is None or not history.loss:
            return {}
    if compute.is_too_narrow(history):
        _raise_overflow(model, history.loss[0])
    metrics = scored()
    if rule is not None:
        ended_at = metrics[BEST_EPOCH] = best_epoch(rule, history)
    elif ended_at is not None:
        metrics[BEST_EPOCH] = ended_at
    elif report is not None:
        report.curve.add(len(history), metrics)
    found = marked({**metrics, **compute.metrics_of(history)}, is_diverged=history.diverged)
    if report is not None and data.takes == "values":
        outputs = model(data.validation.x)
        found[ERRORS] = data.standard_errors(loss_of(wanted, data.takes).point(outputs))
    elif report is not None and (asked := plan.on_request(data.prepared.task)):
        x: Any = data.validation.x
        y: Any = data.validation.y
        (found[ERRORS],) = errors_of_groups(
            asked, len(y), lambda rows: [model.evaluate(x[rows], y[rows], metrics=asked)]
        )
    if best is not None and report is not None:
        best.offer(report, found, lambda: progress_of(model)[0], ended_at)
    if report is not None and report.checkpoint is not None and not history.diverged:
        rank = 0 if scheme is None or scheme.communicator is None else scheme.communicator.rank
        states.save(report.checkpoint, progress_of(model)[0], rank)
    return found


def _is_time_over(trial: Report) -> bool:
    """Whether the time of the sweep is over, between two steps of a trial: then it ends there."""
    has_reported = trial.curve.last is not None
    return trial.is_time_over(has_reported=has_reported) and trial.check_stop()


def _raise_overflow(model: NeuralNetwork, loss: float) -> NoReturn:
    from dnn import NonFiniteError

    layer = model.explain_divergence()
    where = f"{layer} is the first layer with infinity " if layer else ""
    raise NonFiniteError(
        f"float16: the loss is {loss} in the first epoch: {where}(float16 ends at 65504); "
        'standardise the data, take a smaller learning rate, or precision = "bfloat16"',
        layer,
    )


def _epoch_reports(
    report: Report,
    wanted: Hyperparameters,
    data: SplitData,
    epoch_s: float | None,
    shown: Collection[int],
    reported: Reports,
    plan: TrialPlan,
    epochs: int,
    patience: EarlyStopping | None,
) -> Callback:
    """Return a callback that reports the metrics after the epochs `shown`, and adds them there.

    A training that is at its end, after so many `epochs` or by `patience`, has nothing left that it
    could be spared: no verdict is asked for.
    """
    from dnn import Callback

    class EpochReports(Callback):
        def on_epoch_end(self, epoch: Epoch) -> str | None:
            history = epoch.model.history
            done = len(history)
            if done not in shown:
                report.show(done)
                return "stopped by the sweep" if report.is_stopped else None
            metrics: dict[str, Any] = epoch.validation or epoch.model.evaluate(
                data.validation, metrics=plan.metrics
            )
            time_s = estimated_time_s(history, epoch_s, batch_size_of(wanted))
            metrics = known_metrics({**metrics, "training_time_s": time_s}, wanted.named_loss)
            reported.append((done, metrics))
            is_over = patience is not None and patience.waited >= patience.patience
            if report.judged_at is not None and (done == epochs or is_over):
                report.curve.add(done, metrics)
                report.show(done)
                return None
            return None if report(done, **metrics) else "stopped by the sweep"

    return EpochReports()


def _epoch_copies(kept: EpochsInTime, reported: Reports) -> Callback:
    """Return a callback that keeps the last and the best epoch; it stands behind the reports."""
    from dnn import Callback

    class EpochCopies(Callback):
        def on_epoch_end(self, epoch: Epoch) -> str | None:
            model = epoch.model
            kept.note(len(model.history), model.snapshot, _reported_after(model, reported))
            return None

    return EpochCopies()


def _reported_after(model: NeuralNetwork, reported: Reports) -> Mapping[str, Any] | None:
    """Return what was reported after the last epoch of a network; None if nothing was."""
    is_new = bool(reported) and reported[-1][0] == len(model.history)
    return reported[-1][1] if is_new else None


def _saver(
    checkpoints: Checkpoints,
    name: str,
    epochs: int,
    rule: EarlyStopping | None,
    report: Report | None,
    reported: Reports,
    rank: int,
) -> Callback:
    """Return a callback that writes a checkpoint after the last epoch; it stands behind others."""
    from dnn import Callback

    class Saver(Callback):
        def on_epoch_end(self, epoch: Epoch) -> str | None:
            is_stopped = report is not None and report.is_stopped
            is_over = rule is not None and rule.waited >= rule.patience
            if is_stopped or is_over or len(epoch.model.history) == epochs:
                rules = [] if rule is None else [rule]
                checkpoints.save_all(epoch.model, [name], [reported], rules, rank)
            return None

    return Saver()


def _reported_again(report: Report | None, reports: Reports) -> int | None:
    """Report what a training has reported before; return the step where it is stopped, if it is."""
    if report is not None:
        for step, metrics in reports:
            if not report(step, **metrics):
                return step
    return None
