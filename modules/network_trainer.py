"""Runs trials of networks: once for each split and seed, alone or many at once; keeps the best."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel import __version__

from .best_network import BestNetwork
from .checkpoints import seed_of_point
from .epochs import best_epoch
from .evaluation import PreparedSplits, means
from .fused import FusedTrainings
from .hyperparameters import Hyperparameters, loss_of
from .layer_list import LayerTables, with_layers
from .metrics import DIVERGED, ERRORS, SPLITS, known_metrics, marked
from .parallel import Parallel
from .predictions import place_of_predictions, write_predictions
from .sweep.ledger import plain
from .training import PLAIN, Setting, train
from .trial import Report
from .trial_states import NO_CHECKPOINTS, ONE_TRAINING, TrialStates

if TYPE_CHECKING:
    from dnn import NeuralNetwork


_log = logging.getLogger(__name__)


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
        setting: Setting = PLAIN,
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
            before = self._states.begin(model, report.parent_checkpoint, wanted)
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
                model = self._fitted(wanted, seed, number, epochs, report)
            outputs = model(data.validation.x)
            yield job.test, data.in_units(loss_of(wanted, data.takes).point(outputs))

    def _fitted(
        self, wanted: Hyperparameters, seed: int, number: int, epochs: int | None, report: Report
    ) -> NeuralNetwork:
        """Return a network that is trained as that of a split was; for so many epochs, if given."""
        rounds, _ = self._data_of(wanted)
        data = rounds[number]
        model = self._setting.network(wanted, seed, data)
        rule = None if rounds.jobs[number].is_test else self._plan.rule()
        before = self._states.begin(model, report.parent_checkpoint, wanted)
        most = wanted.epochs if epochs is None else epochs - before
        self._setting.fit(model, wanted, data, most, rule)
        return model

    def predictions(
        self, parameters: dict[str, Any], report: Report, number: int, epochs: int | None = None
    ) -> Any:
        """Train the network of a split of a trial once more; return what it predicts.

        Of the rows that the split scores: probabilities, or values in the units of the file.
        `epochs` is given where time has ended the trial, with those of the trial from which it
        goes on. Of several seeds it is the first.
        """
        wanted = Hyperparameters.model_validate(with_layers(parameters, self._layers))
        rounds, _ = self._data_of(wanted)
        if (job := rounds.jobs[number]).is_test:
            epochs = self._epochs_of_all(wanted, report, None, job.outer)
        seed = self._seeds(wanted, report)[0][number]
        model, data = self._fitted(wanted, seed, number, epochs, report), rounds[number]
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
