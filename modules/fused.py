"""Train the networks of several trials at once: one plan with a leading axis of networks.

A step of a small network is mostly the overhead of many short calls. So trainings, of different
trials and of different folds, go through `dnn.Ensemble` together where layers, batch size, kind of
optimizer, schedule and numbers of rows agree; what else differs between them is an input. Each
result is that of the network trained alone, bit for bit, however trials are grouped. Only the time
depends on the grouping, so the training time that is reported is what the network would take
alone: an epoch of one such network is timed once, by itself. Networks whose batches grow have
epochs of different lengths, and train alone.
"""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from .best_network import BestNetwork, EpochsInTime, settle
from .checkpoints import Checkpoints, Resumed
from .compute import MOST_NETWORKS, Compute
from .epochs import best_epoch, shown_epochs
from .evaluation import PreparedSplits, TrainingJob, class_factors, errors_of_groups
from .hyperparameters import Hyperparameters, batch_size_of, loss_of, optimizer_of
from .metrics import ERRORS, known_metrics, marked
from .networks import dropout_rates, layers_of
from .pretrained import Pretrained
from .trial import Report, Reports
from .trial_plan import BEST_EPOCH, TrialPlan
from .trial_states import TrialStates, go_on

if TYPE_CHECKING:
    from dnn import EarlyStopping, Ensemble, History, Progress, RoutineTable

MOST_KEPT: Final = 4
"""Most ensembles that stay compiled for later networks of the same kind."""
_TIMED_EPOCHS: Final = 5
_LONG_S: Final = 0.1
"""An epoch that takes longer is timed once, not `_TIMED_EPOCHS` times."""


@dataclass(frozen=True)
class _Training:
    """One network to train."""

    trial: int
    """Index of its trial among those that are trained together."""
    repeat: int
    """Index of its seed among those of the trial."""
    number: int
    """Index of the split."""
    wanted: Hyperparameters
    seed: int
    report: Report
    """Report of the trial."""
    epochs: int
    """For how long to train; schedules go by the epochs of `wanted`."""
    is_shown: bool = False
    """Whether the learning curve of the trial is that of this network."""
    name: str = ""
    """Of its checkpoints, if there are any."""
    resumed: Resumed | None = None
    """From where it goes on."""
    parent: Progress | None = None
    """The end of another trial, from which it goes on."""

    @property
    def before(self) -> int:
        """Epochs of the trial from which it goes on."""
        return 0 if self.parent is None else self.parent.epochs

    @property
    def done(self) -> int:
        """Epochs that are done before."""
        return self.before if self.resumed is None else self.resumed.progress.epochs

    @property
    def start(self) -> tuple[int, int]:
        """Epochs and steps that are done before, in which trainings of one plan agree.

        Time may have ended the trial from which one goes on within an epoch.
        """
        return self.done, 0 if self.parent is None else self.parent.state.steps

    def key(self, job: TrainingJob) -> tuple[Any, ...]:
        """Return the values in which trainings of one plan have to agree."""
        return (*self.wanted.plan_key(), len(job.train), len(job.test))


_ON_CPU: Final = Compute()
_ONCE: Final = TrialPlan()
_UNTRAINED: Final = Pretrained()
_log: Final = logging.getLogger(__name__)


class FusedTrainings:
    """Trains the networks of several trials at once; compiled plans stay for later trials."""

    def __init__(
        self,
        rounds: PreparedSplits,
        table: RoutineTable | None = None,
        compute: Compute = _ON_CPU,
        plan: TrialPlan = _ONCE,
        checkpoints: Checkpoints | None = None,
        start: Pretrained = _UNTRAINED,
        best: BestNetwork | None = None,
        states: TrialStates | None = None,
    ) -> None:
        self._plan = plan
        self._states = states or TrialStates()
        self._best = best if len(rounds) == 1 and plan.seeds == 1 else None
        self._watched: Report | None = None
        self._has_reported = self._is_interrupted = False
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._start = start
        self._table = table
        self._compute = compute
        self._networks_at_once = MOST_NETWORKS
        self._most: dict[tuple[Any, ...], int] = {}
        self._kept: OrderedDict[tuple[Any, ...], Ensemble] = OrderedDict()
        self._epoch_alone_s: dict[tuple[Any, ...], float] = {}

    def __call__(
        self,
        trials: Sequence[tuple[Hyperparameters, Sequence[Sequence[int]], Report]],
    ) -> list[list[list[dict[str, Any]]]]:
        """Train the networks of trials; return, for each trial and seed, the metrics of each split.

        A trial comes with its seeds, for each of them the seed of each split. Metrics are empty if
        float16 was too narrow, or the time of the sweep is over. If there is a single split, the
        trial's report gets the learning curve of the first seed.
        """
        jobs, plan = self._rounds.jobs, self._plan
        self._has_reported = False
        results: list[list[list[dict[str, Any]]]] = [
            [[{}] * len(self._rounds) for _ in seeds] for _, seeds, _ in trials
        ]
        # Where rows test the choice they choose no epoch, so the others are trained before.
        waits = plan.patience is not None and any(job.is_test for job in jobs)
        for are_tests in (False, True) if waits else (None,):
            groups: dict[tuple[Any, ...], list[_Training]] = {}
            for trial, (wanted, repeats, report) in enumerate(trials):
                for repeat, seeds in enumerate(repeats):
                    done = results[trial][repeat]
                    for number, seed in enumerate(seeds):
                        job, epochs = jobs[number], wanted.epochs
                        if are_tests not in (None, job.is_test):
                            continue
                        if job.is_test:
                            epochs = plan.epochs_to_test(jobs, done, job.outer) or epochs
                        training = _Training(
                            trial, repeat, number, wanted, seed, report, epochs, repeat == 0
                        )
                        if report.parent_checkpoint is not None:
                            parent = self._states.load(report.parent_checkpoint)
                            epochs += parent.epochs
                            training = replace(training, parent=parent, epochs=epochs)
                        elif self._checkpoints is not None:
                            training = self._resumed(training, self._checkpoints)
                        key = (*training.key(job), training.start)
                        groups.setdefault(key, []).append(training)
            for key, group in groups.items():
                for training, found in self._train_in_parts(key[:-1], group):
                    results[training.trial][training.repeat][training.number] = found
        return results

    def _resumed(self, training: _Training, checkpoints: Checkpoints) -> _Training:
        """Return a training that goes on from a checkpoint, if there is one."""
        wanted, epochs = training.wanted, training.epochs
        plan = self._plan.of(self._rounds.jobs[training.number])
        name = checkpoints.name(wanted, training.seed, self._rounds[training.number], plan)
        if training.report.judge is not None:
            return replace(training, name=name)  # others of its cohort begin: it is judged as they
        report = training.report if len(self._rounds) == 1 else None
        shown = shown_epochs(report, epochs, plan.patience)
        resumed = checkpoints.find(name, epochs, shown, plan.patience)
        return replace(training, name=name, resumed=resumed)

    def _train_in_parts(
        self, key: tuple[Any, ...], trainings: Sequence[_Training]
    ) -> Iterator[tuple[_Training, dict[str, Any]]]:
        """Train as many networks at once as fit; yield each training with its metrics."""
        left = trainings
        while left and not left[0].report.is_time_over(has_reported=self._has_reported):
            # Parts of about one size: a small last part would gain little from one plan.
            parts = -(-len(left) // self._most_networks(left[0].wanted))
            part = left[::parts]
            found = self._train_if_they_fit(key, part)
            if found is not None:
                yield from zip(part, found, strict=True)
                left = [training for place, training in enumerate(left) if place % parts]

    def _train_if_they_fit(
        self, key: tuple[Any, ...], trainings: Sequence[_Training]
    ) -> list[dict[str, Any]] | None:
        """Train all networks at once; None if GPU memory ran out, and another try may succeed.

        If plans of other networks are kept they are dropped; if not, half as many networks are
        trained at once from now on. A single network that does not fit, with no other on the GPU,
        raises `OutOfDeviceMemory`.
        """
        from dnn import OutOfDeviceMemory

        networks = len(trainings)
        try:
            return self._train(key, trainings)
        except OutOfDeviceMemory as error:
            is_alone = self._kept.keys() <= {(*key, networks)}
            if is_alone and networks == 1:
                raise
            device = error.device
        # Not in the handler of the error, whose traceback holds arrays.
        self.make_room()
        if is_alone:
            half = networks // 2
            self._most[trainings[0].wanted.plan_key()] = half
            _log.warning(
                "%d networks at once do not fit on %s: %d from now on", networks, device, half
            )
        return None

    def make_room(self) -> None:
        """Free the GPU memory of plans that are kept for later networks."""
        from dnn import free_memory

        self._kept.clear()
        gc.collect()
        free_memory(self._compute.device)

    def _train(self, key: tuple[Any, ...], trainings: Sequence[_Training]) -> list[dict[str, Any]]:
        from dnn import progress_of

        data = self._versions
        wanted = [training.wanted for training in trainings]
        alone_s = self._epoch_s(key, trainings[0], data)
        jobs = [data.jobs[training.number] for training in trainings]
        offsets = [training.number * data.count for training in trainings]
        networks = self._networks((*key, len(trainings)), trainings, data, len(jobs[0].train))
        held_out = [job.test + offset for job, offset in zip(jobs, offsets, strict=True)]
        most = max(training.epochs for training in trainings)
        # In a plan either all rows make the choice, or none do.
        plan = self._plan.of(jobs[0])
        rules = [rule for _ in trainings if (rule := plan.rule()) is not None]
        first = trainings[0].report
        is_alone = len(self._rounds) == 1
        shown = [
            shown_epochs(
                *(training.report if is_alone else None, training.epochs, plan.patience),
                training.before,
            )
            for training in trainings
        ]
        points = frozenset[int]().union(*shown)
        curves: list[Reports] = [[] for _ in trainings]
        before = trainings[0].done
        parents = [training.parent for training in trainings if training.parent is not None]
        if parents:
            go_on(networks, parents, wanted)
        elif before:
            self._resume(networks, trainings, rules, curves)
        kept: list[EpochsInTime] = []
        if trainings[0].report.may_run_out and not rules and len(self._rounds) == 1:
            kept = [EpochsInTime(training.report) for training in trainings]

        def on_epoch(
            epoch: int, active: Sequence[int], histories: Sequence[History]
        ) -> Collection[int]:
            done = before + epoch + 1
            many = f"{len(active)} networks" if len(active) > 1 else "a network"
            text = f"{many}, epoch {done} of {most}"
            first.progress(done, most, text)
            reported = {}
            for k, history in zip(active, histories, strict=True):
                if done in shown[k]:
                    metrics = _metrics(history.validation[-1], done * alone_s, wanted[k])
                    curves[k].append((done, metrics))
                    reported[trainings[k].report.trial] = metrics
                    self._has_reported = True
            if first.judge is not None and reported:
                losers = first.judge(done, reported)
                for k, history in zip(active, histories, strict=True):
                    # At its end a training has nothing left that it could be spared.
                    goes_on = done < trainings[k].epochs and history.stopped is None
                    if goes_on and trainings[k].report.trial in losers:
                        trainings[k].report.stop()
            for k in active if kept else ():
                scored = curves[k][-1][1] if done in shown[k] else None
                kept[k].note(done, partial(networks.snapshot, k), scored)
            return [
                k
                for k in active
                if done < trainings[k].epochs
                and trainings[k].report.check_stop(has_reported=bool(curves[k]))
            ]

        def keep() -> None:
            if self._checkpoints is not None and not self._is_interrupted:
                names = [training.name for training in trainings]
                self._checkpoints.save_all(networks, names, curves, rules)

        self._watched, self._is_interrupted = trainings[0].report, False
        networks.fit(
            data.rows,
            rows=[job.train + offset for job, offset in zip(jobs, offsets, strict=True)],
            epochs=[training.epochs - before for training in trainings],
            batch_size=batch_size_of(wanted[0]),
            validation_rows=held_out if points or rules else None,
            validation_metrics=plan.metrics,
            validation_epochs=None if rules else [point - before for point in points],
            on_epoch=on_epoch,
            early_stopping=rules or None,
            before_restoring=keep,
            sample_weight=data.weights(class_factors(wanted[0].class_weight, self._rounds.data)),
            interrupt=self._interrupts if trainings[0].report.may_run_out else None,
        )
        histories = networks.histories

        def evaluate() -> list[dict[str, float]]:
            return networks.evaluate(data.rows, rows=held_out, metrics=plan.metrics)

        for training, history in zip(trainings, histories, strict=True):
            if history.is_interrupted:
                training.report.check_stop(has_reported=True)
        late = {k for k, each in enumerate(trainings) if each.report.is_out_of_time}
        settle(
            {k: kept[k] for k in late if kept and kept[k].last is not None},
            networks.restore,
            lambda: [
                _metrics(score, len(history) * alone_s, own)
                for score, history, own in zip(evaluate(), histories, wanted, strict=True)
            ],
        )
        scores = evaluate()
        progress = cache(partial(progress_of, networks))
        found: list[dict[str, Any]] = []
        for k, (training, score, history, curve) in enumerate(
            zip(trainings, scores, histories, curves, strict=True)
        ):
            is_scored = kept[k].last is not None if kept else rules and bool(history.loss)
            if (k in late and not is_scored) or self._compute.is_too_narrow(history):
                found.append({})
                continue
            metrics = _metrics(score, len(history) * alone_s, training.wanted)
            if rules:
                metrics[BEST_EPOCH] = best_epoch(rules[k], history)
            elif k in late:
                metrics[BEST_EPOCH] = kept[k].best
            if points and training.is_shown:
                # With patience the curve has each epoch, and the metrics are of the best of them.
                is_of_last = not rules and k not in late
                for step, reported in (*curve, *(((len(history), metrics),) if is_of_last else ())):
                    training.report.curve.add(step, reported)
            metrics |= self._compute.metrics_of(history)
            found.append(marked(metrics, is_diverged=history.diverged))
            self._offer(partial(_nth, progress, k), training.report, found[-1])
            if training.report.checkpoint is not None and not history.diverged:
                self._states.save(training.report.checkpoint, progress()[k])
        if len(self._rounds) == 1 and data.takes == "values":
            alone = self._rounds[0]
            guesses = loss_of(wanted[0], data.takes).point(networks(alone.validation.x))
            for metrics, guess in zip(found, guesses, strict=True):
                if metrics:
                    metrics[ERRORS] = alone.standard_errors(guess)
        elif len(self._rounds) == 1 and (asked := plan.on_request(self._rounds[0].prepared.task)):

            def over(part: Any) -> list[dict[str, float]]:
                return networks.evaluate(
                    data.rows, rows=[rows[part] for rows in held_out], metrics=asked
                )

            each = errors_of_groups(asked, len(held_out[0]), over)
            for metrics, errors in zip(found, each, strict=True):
                if metrics:
                    metrics[ERRORS] = errors
        return found

    def _interrupts(self) -> bool:
        """Whether the time of the sweep is over, between two steps of a plan: it ends there."""
        assert self._watched is not None
        self._is_interrupted = self._watched.is_time_over(has_reported=self._has_reported)
        return self._is_interrupted

    def _offer(
        self, progress: Callable[[], Progress], report: Report, metrics: Mapping[str, Any]
    ) -> None:
        """Offer a network that has been trained, to be kept if it is the best so far."""
        if self._best is not None:
            self._best.offer(report, metrics, progress, metrics.get(BEST_EPOCH))

    @staticmethod
    def _resume(
        networks: Ensemble,
        trainings: Sequence[_Training],
        rules: Sequence[EarlyStopping],
        curves: Sequence[Reports],
    ) -> None:
        from dnn import resume_training

        resumed = [training.resumed for training in trainings if training.resumed is not None]
        kept = resume_training(networks, [each.progress for each in resumed])
        for k, (each, curve) in enumerate(zip(resumed, curves, strict=True)):
            curve += each.reports
            each.apply(rules[k] if rules else None, kept[k])

    @property
    def at_once(self) -> int:
        """How many trials to take at once; each is trained on all splits, with all seeds."""
        return max(1, 2 * self._networks_at_once // (len(self._rounds) * self._plan.seeds))

    def trains_alone(self, wanted: Hyperparameters) -> bool:
        """Whether networks with such hyperparameters are better trained one by one."""
        return self._most_networks(wanted) == 1

    def _most_networks(self, wanted: Hyperparameters) -> int:
        """Return how many networks with such hyperparameters to train in one plan, at least 1."""
        if wanted.class_weight != "none" and self._rounds[0].takes == "labels":
            return 1  # each label of a row has a weight of its own
        if wanted.batch_growth > 1:
            return 1  # its epochs differ in length, and only one epoch is timed of a plan
        if self._rounds.augment or self._rounds[0].is_sequence:
            return 1  # such rows do not fit the one array of `_Versions`
        if not self._compute.is_gpu:
            return self._compute.most_networks(wanted, self._rounds[0].features)
        key = wanted.plan_key()
        if key not in self._most:
            self._most[key] = self._most_on_gpu(wanted)
        self._networks_at_once = max(self._most.values())
        return self._most[key]

    def _most_on_gpu(self, wanted: Hyperparameters) -> int:
        data, compute, table = self._versions, self._compute, self._table
        is_dense = not wanted.is_convolutional and not wanted.is_recurrent and not wanted.layers
        if table is None or is_dense or not compute.measures_networks(table):
            return compute.most_networks(
                wanted, data.features, data.outputs, self._free_bytes, table
            )
        with compute.without_warnings():
            return compute.fastest_count(
                wanted, data.features, data.outputs, data.shape, table, data.takes
            )

    @cached_property
    def _versions(self) -> _Versions:
        return _Versions(self._rounds, self._compute)

    @cached_property
    def _free_bytes(self) -> int:
        """Free bytes of the GPU, before there is a network on it."""
        from dnn import free_bytes

        free, _ = free_bytes(self._compute.device)
        return free

    def epoch_s(self, wanted: Hyperparameters, number: int) -> float | None:
        """Return the seconds of an epoch of a network alone; None for networks never fused."""
        if self.trains_alone(wanted):
            return None
        report = Report(0, 0, options={}, folder=Path())
        training = _Training(0, 0, number, wanted, 0, report, wanted.epochs)
        return self._epoch_s(training.key(self._rounds.jobs[number]), training, self._versions)

    def _epoch_s(self, key: tuple[Any, ...], training: _Training, data: _Versions) -> float:
        """Return the seconds of an epoch of a network trained alone; timed on the first call."""
        if key not in self._epoch_alone_s:
            from dnn import NeuralNetwork

            alone = self._rounds[training.number]
            # With the default rate: the time of a network that diverges says nothing.
            wanted = training.wanted.model_copy(update={"learning_rate": None})
            model = NeuralNetwork(
                layers_of(wanted, data.features, data.outputs, data.shape, data.embeds),
                loss_of(wanted, data.takes),
                optimizer=optimizer_of(wanted, alone.count),
                routines=self._table,
                **self._compute.networks,
            )
            self._start.begin(model)
            fit = partial(
                model.fit, alone.training, batch_size=batch_size_of(wanted), progress=False
            )
            with self._compute.without_warnings():
                times_s = fit().epoch_times_s
                if times_s[0] < _LONG_S:
                    times_s = fit(epochs=_TIMED_EPOCHS).epoch_times_s
            # The shortest epoch, as in `estimated_time_s`.
            self._epoch_alone_s[key] = min(times_s)
        return self._epoch_alone_s[key]

    def _networks(
        self, key: tuple[Any, ...], trainings: Sequence[_Training], data: _Versions, rows: int
    ) -> Ensemble:
        from dnn import Ensemble

        wanted = [training.wanted for training in trainings]
        seeds = [training.seed for training in trainings]
        optimizer, rates = optimizer_of(wanted, rows), dropout_rates(wanted)
        loss = loss_of(wanted, data.takes)
        networks = self._kept.pop(key, None)
        if networks is None:
            layers = layers_of(wanted[0], data.features, data.outputs, data.shape, data.embeds)
            networks = Ensemble(
                layers,
                loss,
                optimizer,
                seeds=seeds,
                states=rates,
                routines=self._table,
                **self._compute.networks,
            )
        else:
            networks.restart(seeds, optimizer, rates, loss)
        self._start.begin(networks)
        self._kept[key] = networks
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return networks


def _nth(progress: Callable[[], Sequence[Progress]], k: int) -> Progress:
    return progress()[k]


def _metrics(
    score: Mapping[str, float], training_time_s: float, wanted: Hyperparameters
) -> dict[str, Any]:
    return known_metrics({**score, "training_time_s": training_time_s}, wanted.named_loss)


class _Versions:
    """All rows, once for each split, as its training rows have them standardised.

    The versions lie in one array, one behind the other, so that plans read them in place.
    """

    def __init__(self, rounds: PreparedSplits, compute: Compute) -> None:
        import numpy as np

        from dnn import DeviceData

        self.jobs = rounds.jobs
        self.outputs, self.features = rounds[0].outputs, rounds[0].features
        self.takes = rounds[0].takes
        self.shape, self.embeds = rounds[0].shape, rounds[0].embeds
        rows = 1 + max(int(rows_of.max()) for job in self.jobs for rows_of in (job.train, job.test))
        self.count = rows
        dtype = np.float64 if compute.precision == "float64" else np.float32
        x = np.zeros((len(rounds) * rows, self.features), dtype)
        first: Any = rounds[0].training
        y = np.zeros((len(x), *first.y.shape[1:]), first.y.dtype)
        deviation = None if first.deviation is None else np.ones(y.shape)
        self._row_weights = None if first.weights is None else np.zeros(len(x))
        for number, (job, split) in enumerate(zip(self.jobs, rounds, strict=True)):
            for at, part in ((job.train, split.training), (job.test, split.validation)):
                x[number * rows + at] = part.x
                y[number * rows + at] = part.y
                if deviation is not None:
                    deviation[number * rows + at] = part.deviation
            if self._row_weights is not None:
                self._row_weights[number * rows + job.train] = split.training.weights
        self.rows = DeviceData(x, y, deviation=deviation)

    def weights(self, given: Mapping[int, float] | Literal["balanced"] | None) -> Any:
        """Return the weight of each row and of its class, of each split by its training rows."""
        if given is None:
            return self._row_weights
        import numpy as np

        from dnn import class_weights

        y: Any = self.rows.y
        found = np.zeros(len(y))
        for number, job in enumerate(self.jobs):
            at = number * self.count + job.train
            found[at] = class_weights(y[at], self.outputs, given)[y[at]]
        return found if self._row_weights is None else self._row_weights * found
