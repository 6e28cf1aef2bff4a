"""A trainer: takes trials from the master of a sweep, tries each, reports the metrics.

By itself it trains a multilayer perceptron on a data set. With ``train = "./file.py:function"`` it
calls that function, which may use any framework: ``train(parameters, report) -> metrics``, see
`modules.sweep.trying.Report`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from .evaluation import Evaluation, Job, Rounds, collect, jobs_of, means
from .fused import Together, curve_epochs, is_wide, trials_at_once, undisturbed_s
from .hyperparameters import Hyperparameters, layers_of, optimizer_of
from .option_problems import at
from .sweep.limits import Limits, parse_memory
from .sweep.routines import routines_of_run
from .sweep.tabular import place_of_data
from .sweep.task import TRAINERS, Task, comm_of, serve_group
from .sweep.trying import SPLITS, Report
from .trial import DIVERGED, marked, trial_seed

if TYPE_CHECKING:
    from diel import Context
    from dnn import Callback, Dataset, Epoch, NeuralNetwork, RoutineTable

METRICS = ("accuracy", "loss", "mcc", "training_time_s")

_PREPARE = "modules.trainer:prepare"
_TABLE = "table"
_OF_DATASET = ("path", "validation_fraction", "split_seed", "evaluation", "standardise")
_NEEDS_PATH = frozenset({"cleveland", "mnist"})


class Options(BaseModel):
    """What the workflow file says of a trainer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dataset: Literal["digits", "breast_cancer", "cleveland", "mnist"] | None = Field(
        None, description="digits and breast_cancer come with scikit-learn, the others need a path"
    )
    path: str | None = Field(
        None,
        description="the data's file or folder, relative to the workflow file; $NAME stands for "
        "an environment variable, ~ for the home folder",
    )
    validation_fraction: float = Field(0.2, gt=0, lt=1)
    split_seed: int = Field(0, ge=0, description="of the split into training and validation rows")
    evaluation: Evaluation | None = Field(
        None, description="in place of these two: holdout, k_fold or nested, with their options"
    )
    standardise: Literal["columns", "one scale", "none"] | None = Field(
        None,
        description="each column to mean 0 and deviation 1, or all values by one mean and one "
        "deviation, as fits images, or not at all; left out, what fits the data set",
    )
    train: str | None = Field(
        None,
        description="in place of dataset: a function of your own, package.module:function or "
        "./file.py:function, or the name of one that an installed package offers; called with the "
        "parameters and a report",
    )
    options: dict[str, Any] = Field({}, description="what that function finds in report.options")
    isolated: bool = Field(
        False, description="try in a process beside the rank, which may die without harm"
    )
    time_limit: float | None = Field(
        None, gt=0, description="seconds that a trial may take; it is isolated then"
    )
    memory_limit: str | int | None = Field(
        None, description='memory that a trial may take, such as "4 GiB"; it is isolated then'
    )
    routines: Literal["fixed", "measured"] = Field(
        "fixed",
        description="which of several routines sums and multiplies: always the same one, or, of "
        "each size, what was fastest at the start of the run; they differ in rounding",
    )

    @model_validator(mode="after")
    def _find_data(self, info: ValidationInfo) -> Options:
        if self.evaluation and {"validation_fraction", "split_seed"} & self.model_fields_set:
            raise ValueError(
                "evaluation says which rows: leave out validation_fraction, split_seed"
            )
        if (self.dataset is None) == (self.train is None):
            raise ValueError("what to train: either dataset or train")
        if self.train is not None:
            self._find_function(self.train, info)
            return self
        if self.options:
            raise ValueError("options are for a function of your own: they go with train")
        if self.dataset not in _NEEDS_PATH:
            if importlib.util.find_spec("sklearn") is None:
                raise ValueError(
                    f"dataset {self.dataset!r} comes with scikit-learn, which is not installed: "
                    'pip install "diel[data]"'
                )
            if self.path is not None:
                raise ValueError(
                    f"dataset {self.dataset!r} comes with scikit-learn: leave out path"
                )
            return self
        if self.path is None:
            raise ValueError(f"dataset {self.dataset!r} needs path, the place of its data")
        try:
            place = self.resolve((info.context or {}).get("folder", Path()))
        except ValueError as error:
            raise self._bad_path(str(error), getattr(error, "remedy", "")) from None
        if not place.exists():
            raise self._bad_path(f"no data at {place} (path = {self.path!r})")
        return self

    def _bad_path(self, text: str, remedy: str = "") -> ValidationError:
        problem = at(("path",), self.path, text, remedy)
        return ValidationError.from_exception_data("path", [problem])

    def _find_function(self, train: str, info: ValidationInfo) -> None:
        from diel import locate_function

        given = [name for name in _OF_DATASET if name in self.model_fields_set]
        if given:
            raise ValueError(f"{', '.join(given)}: of a dataset; a function has its own options")
        try:
            folder = (info.context or {}).get("folder", Path())
            locate_function(train, folder, ("parameters", "report"), TRAINERS)
        except LookupError as error:
            raise ValueError(f"train = {train!r}: {error}") from None

    @model_validator(mode="after")
    def _check_limits(self) -> Options:
        parse_memory(self.memory_limit)
        return self

    @property
    def limits(self) -> Limits:
        """What a trial may take."""
        return Limits(self.isolated, self.time_limit, parse_memory(self.memory_limit))

    def task(self, folder: Path, table: RoutineTable | None = None) -> Task:
        """Return what is to be done for each trial; `table` is for networks of ours."""
        if self.train is not None:
            return Task(self.train, self.options, folder)
        names = {"dataset", *_OF_DATASET} & self.model_fields_set
        given = {name: getattr(self, name) for name in names}
        if table is not None:
            given[_TABLE] = table.to_json()
        return Task(_PREPARE, given, folder, prepares=True)

    def resolve(self, folder: Path) -> Path:
        """Return the data's place; `folder` is that of the workflow file.

        Raises
        ------
        ValueError
            If the path names an environment variable that is not set.
        """
        return place_of_data(self.path or "", folder)


def run(ctx: Context) -> int:
    """Try what the master gives out until there is no more; return how many trials it was."""
    options: Options = ctx.options
    if options.train is None:
        from dnn import ops_for

        ctx.log.info("networks are computed by %s", ops_for("cpu").description)
        if options.routines == "measured":
            comm = comm_of(ctx)
            place = (0, 1) if comm is None else (comm.rank, comm.size)
            with routines_of_run(ctx, *place) as table:
                return serve_group(ctx, options.task(ctx.folder, table), options.limits)
    return serve_group(ctx, options.task(ctx.folder), options.limits)


def try_one(
    options: Options, folder: Path, parameters: dict[str, Any], seed: int
) -> tuple[str, float, dict[str, Any]]:
    """Try one point here, for `diel sweep --dry-run`: why it failed, its seconds, its metrics."""
    from .sweep.preview import place_of, try_one

    tried, seconds = try_one(options.task(folder), parameters, seed)
    reason = tried.reason and tried.reason + place_of(tried.detail, folder)
    return reason, seconds, tried.metrics


def prepare(options: Mapping[str, Any], folder: Path) -> OurTrain:
    """Load the data; return what trains networks on it.

    Parameters
    ----------
    options : mapping
        ``dataset``, ``path``, which rows and by what to standardise them, as in `Options`, and
        ``table``, the text of a `RoutineTable`, if there is one.
    folder : Path
        Of the workflow file.
    """
    from dnn import RoutineTable

    rest = dict(options)
    text = rest.pop(_TABLE, None)
    table = None if text is None else RoutineTable.from_json(text)
    given = Options.model_validate(rest, context={"folder": folder})
    rounds = _rounds(given, folder)
    # What has to be imported and compiled is no part of the first trial's time.
    train({"hidden": [1], "epochs": 1}, 0, *next(iter(rounds)), table=table)
    return OurTrain(rounds, table)


class OurTrain:
    """Trains our networks, one trial or several at once.

    Parameters
    ----------
    rounds : Rounds
    table : RoutineTable, optional
        Of the run.

    Attributes
    ----------
    at_once : int
        How many trials it likes to be given at once.
    keep : function
        Only there if a trial has one network, and safetensors can write it.
    """

    def __init__(self, rounds: Rounds, table: RoutineTable | None = None) -> None:
        self._rounds = rounds
        self._table = table
        self._together = Together(rounds, table)
        self.at_once = trials_at_once(len(rounds))
        if len(rounds) == 1 and importlib.util.find_spec("safetensors") is not None:
            self.keep = self._keep

    def __call__(self, parameters: dict[str, Any], report: Report) -> dict[str, Any]:
        """Train once for each split, and report after each that takes part in the choice.

        Of a single split, report after each epoch, or some if none of them can end the trial.
        """
        rounds = self._rounds
        report.total = None if len(rounds) == 1 else len(rounds)
        heard = report if len(rounds) == 1 else None
        results: list[dict[str, Any]] = []
        wanted = Hyperparameters.model_validate(dict(parameters))
        seeds = self._seeds(report.seed)
        for number, (training, scored) in enumerate(rounds):
            # As if it were trained with others, which is up to who else is there.
            epoch_s = None if report.is_heard else self._together.epoch_s(wanted, number)
            results.append(
                train(parameters, seeds[number], training, scored, heard, self._table, epoch_s)
            )
            if len(rounds) > 1 and not rounds.jobs[number].is_test:
                chosen = zip(rounds.jobs, results, strict=False)
                so_far = _means([result for job, result in chosen if not job.is_test])
                if not report(number + 1, **so_far):
                    return so_far
        return self._evaluated(results)

    def together(
        self, trials: Sequence[tuple[dict[str, Any], Report]]
    ) -> list[dict[str, Any] | None]:
        """Train several trials at once.

        Parameters
        ----------
        trials : sequence of (dict, Report)
            The parameters and the report of each.

        Returns
        -------
        list of dict or None
            Of each trial what a call alone returns; None where it is better trained alone.
        """
        wanted = [Hyperparameters.model_validate(dict(parameters)) for parameters, _ in trials]
        narrow = [place for place, one in enumerate(wanted) if not is_wide(one)]
        if len(narrow) * len(self._rounds) < 2:
            return [None] * len(trials)
        given = []
        for place in narrow:
            report = trials[place][1]
            given.append((wanted[place], self._seeds(report.seed), report))
        found: list[dict[str, Any] | None] = [None] * len(trials)
        for place, results in zip(narrow, self._together(given), strict=True):
            self._report_splits(results, trials[place][1])
            found[place] = self._evaluated(results)
        return found

    def _report_splits(self, results: Sequence[Mapping[str, Any]], report: Report) -> None:
        """Give a report what a trial on several splits would have said after each."""
        jobs = self._rounds.jobs
        if len(jobs) == 1:
            return
        for number, job in enumerate(jobs):
            if not job.is_test:
                chosen = zip(jobs[: number + 1], results, strict=False)
                so_far = _means([result for job, result in chosen if not job.is_test])
                report.curve.add(number + 1, so_far)

    def _keep(self, parameters: dict[str, Any], report: Report, path: Path) -> Path:
        """Train a trial's network once more, the same to the last bit, and write it."""
        from dnn import save_checkpoint

        wanted = Hyperparameters.model_validate(dict(parameters))
        ((training, _),) = self._rounds
        model = _model(wanted, report.seed, training, self._table)
        model.fit(
            training.x,
            training.y,
            epochs=wanted.epochs,
            batch_size=wanted.batch_size,
            progress=False,
        )
        file = path.with_suffix(".safetensors")
        save_checkpoint(model, file)
        return file

    def _seeds(self, seed: int) -> list[int]:
        if len(self._rounds) == 1:
            return [seed]
        return [trial_seed(seed, number) for number in range(len(self._rounds))]

    def _evaluated(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        evaluated = collect(self._rounds.jobs, [_numbers(one) for one in results])
        metrics = marked(evaluated.metrics, is_diverged=any(DIVERGED in one for one in results))
        return {**metrics, SPLITS: evaluated.splits()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != DIVERGED}


def _means(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each metric, and that one of the trainings diverged if it did."""
    is_diverged = any(DIVERGED in one for one in results)
    return marked(means([_numbers(one) for one in results]), is_diverged=is_diverged)


def train(
    parameters: Mapping[str, Any],
    seed: int,
    training: Dataset,
    validation: Dataset,
    report: Report | None = None,
    table: RoutineTable | None = None,
    epoch_s: float | None = None,
) -> dict[str, Any]:
    """Train one network.

    Parameters
    ----------
    parameters : mapping
        `Hyperparameters`; what is left out has its default.
    seed : int
    training, validation : Dataset
        Prepared rows.
    report : Report, optional
        Gets the metrics after each epoch, and may end the training; where it cannot, after those
        of `curve_epochs`.
    table : RoutineTable, optional
        Of the run.
    epoch_s : float, seconds, optional
        As in `undisturbed_s`.

    Returns
    -------
    dict of str to float or bool
        `METRICS`: accuracy, loss and Matthews correlation coefficient on the validation rows,
        and what the training takes in seconds, see `undisturbed_s`; and ``diverged`` if it did.
    """
    wanted = Hyperparameters.model_validate(dict(parameters))
    model = _model(wanted, seed, training, table)
    history = model.fit(
        training.x,
        training.y,
        epochs=wanted.epochs,
        batch_size=wanted.batch_size,
        callbacks=[]
        if report is None
        else [_epoch_reports(report, wanted.epochs, validation, epoch_s)],
        progress=False,
    )
    metrics: dict[str, Any] = model.evaluate(validation.x, validation.y)
    metrics["training_time_s"] = undisturbed_s(history, epoch_s)
    metrics = {name: metrics[name] for name in METRICS}
    if report is not None:
        report.curve.add(len(history), metrics)
    return marked(metrics, is_diverged=history.diverged)


def _model(
    wanted: Hyperparameters, seed: int, training: Dataset, table: RoutineTable | None
) -> NeuralNetwork:
    from dnn import NeuralNetwork

    return NeuralNetwork(
        layers_of(wanted, training.x.shape[1], training.classes),
        optimizer=optimizer_of(wanted, len(training)),
        seed=seed,
        routines=table,
    )


def _epoch_reports(
    report: Report, epochs: int, validation: Dataset, epoch_s: float | None
) -> Callback:
    """Return what tells `report` how a training stands after each epoch, or some of them."""
    from dnn import Callback

    report.total = epochs
    chosen = range(1, epochs + 1) if report.is_heard else curve_epochs(epochs)

    class EpochReports(Callback):
        def on_epoch_end(self, epoch: Epoch) -> str | None:
            done = len(epoch.history)
            if done not in chosen:
                report.show(done)
                return None
            metrics: dict[str, Any] = epoch.model.evaluate(validation.x, validation.y)
            metrics["training_time_s"] = undisturbed_s(epoch.history, epoch_s)
            goes_on = report(done, **{name: metrics[name] for name in METRICS})
            return None if goes_on else "stopped by the sweep"

    return EpochReports()


def _rounds(options: Options, folder: Path) -> Rounds:
    from dnn import load_dataset

    assert options.dataset is not None
    path = options.resolve(folder) if options.path is not None else None
    data = load_dataset(options.dataset, path)
    if options.evaluation is not None:
        jobs = jobs_of(options.evaluation.split(data.y))
    else:
        jobs = [_own_split(data, options)]
    rows = f"{len(jobs[0].train)} rows to train on, {len(jobs[0].test)} to validate"
    print(f"{data.name}: {len(jobs)} trainings a trial, the first with {rows}")
    return Rounds(data, jobs, options.standardise)


def _own_split(data: Dataset, options: Options) -> Job:
    """Return the rows of `dnn.train_validation_split`, in its order."""
    import numpy as np

    from dnn import Dataset, train_validation_split

    # The rows' numbers stand in place of the rows; float32 counts 16 million of them.
    numbers = Dataset(np.arange(len(data))[:, None], data.y, data.classes, data.name)
    training, validation = train_validation_split(
        numbers, options.validation_fraction, options.split_seed
    )
    return Job(training.x[:, 0].astype(np.intp), validation.x[:, 0].astype(np.intp), 0)
