"""Trains one network, and scores it: reports after its epochs, checkpoints, the end by time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from .best_network import BestNetwork, EpochsInTime, settle
from .checkpoints import Checkpoints
from .compute import Compute
from .epochs import best_epoch, estimated_time_s, shown_epochs
from .evaluation import SplitData, class_factors, errors_of_groups
from .hyperparameters import Hyperparameters, batch_size_of, loss_of, optimizer_of
from .metrics import ERRORS, known_metrics, marked
from .networks import layers_of
from .pretrained import Pretrained
from .trial import Report, Reports
from .trial_plan import BEST_EPOCH, TrialPlan
from .trial_states import TrialStates

if TYPE_CHECKING:
    from dnn import Callback, EarlyStopping, Epoch, History, NeuralNetwork, RoutineTable


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


PLAIN: Final = Setting()
"""That of a trainer whose options are all left out."""


def train(
    parameters: Mapping[str, Any],
    seed: int,
    data: SplitData,
    report: Report | None = None,
    setting: Setting = PLAIN,
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
    rule, states = plan.rule(), states or TrialStates()
    before = states.begin(model, None if report is None else report.parent_checkpoint, wanted)
    most = before + (epochs or wanted.epochs)
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
