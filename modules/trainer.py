"""The trainer of a sweep: takes trials from the master, runs each, returns the metrics.

By itself it trains a multilayer perceptron on a data set. With ``train = "./file.py:function"`` it
calls that function, which may use any framework: ``train(parameters, report) -> metrics``, see
`modules.trial.Report`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from diel import OneOf, describe_error, locate_function
from dnn import catalogue

from .attributes import OF_TRAINERS, assigned_attributes, meant_by
from .compute import Compute, missing_gpu, routines_of_run
from .evaluation import EvaluationOptions, PreparedSplits, TrainingJob, jobs_of, oddities
from .hyperparameters import Hyperparameters, layers_of
from .layer_list import (
    LayerTables,
    built,
    layer_models,
    layer_problems,
    references,
    remedy_for_shapes,
    rows_of,
    with_layers,
)
from .parallel import TrainingOptions
from .problems import at, problem
from .sweep.runners import TRAINERS, InProcessRunner, Limits, Task, parse_memory
from .sweep.worker_loop import comm_of, run_trainer
from .tabular import (
    SETS,
    DatasetName,
    ReadingOptions,
    augmentations_of,
    is_own,
    is_table,
    known_shape,
    place_of_data,
    shape_of,
)
from .training import NetworkTrainer, train
from .trial import Trial, run_trial, trial_seed

if TYPE_CHECKING:
    from diel import Context
    from dnn import Dataset, RoutineTable

_TABLE = "table"
_COMPUTE = "compute"
_TRAINING = "training"
_OF_DATASET = (
    *("path", "reading", "validation_fraction"),
    *("split_seed", "evaluation", "standardise", "augment"),
)
_OF_SPLIT = ("dataset", "path", "reading", "validation_fraction", "split_seed")
_OF_TABULAR = ("modules.sklearn_trainer:train", "modules.torch_trainer:train")
"""Functions that come with diel, whose options are those of `modules.tabular.load_split`."""
_LAYERS = "layers"
_OF_NETWORKS = ("device", "precision", "training", _LAYERS)


def _named(kind: str) -> str:
    """Return the data sets of a kind, in words."""
    *others, last = (name for name, known in SETS.items() if getattr(known, kind))
    return f"{', '.join(others)} and {last}"


def _precisions() -> list[str]:
    return [name for name, precision in catalogue("precision").items() if precision.name == name]


class Options(BaseModel):
    """What the workflow file says of a trainer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dataset: DatasetName | None = Field(
        None,
        json_schema_extra={"is_first": True},
        description=f"{_named('is_bundled')} come with scikit-learn, the others need a path; "
        f"{_named('is_own')} are data of your own",
    )
    path: str | None = Field(
        None,
        description="the data's file or folder, relative to the workflow file; $NAME stands for "
        "an environment variable, ~ for the home folder",
    )
    reading: ReadingOptions = Field(
        ReadingOptions(), description="how the file is read, such as the column of the labels"
    )
    validation_fraction: float = Field(0.2, gt=0, lt=1)
    split_seed: int = Field(0, ge=0, description="of the split into training and validation rows")
    evaluation: EvaluationOptions | None = Field(
        None, description="in place of these two: holdout, k_fold or nested, with their options"
    )
    standardise: Literal["columns", "one scale", "none"] | None = Field(
        None,
        description="each column to mean 0 and deviation 1, or all values by one mean and one "
        "deviation, as fits images, or not at all; left out, what fits the data set",
    )
    augment: list[str | dict[str, Any]] = Field(
        [],
        json_schema_extra=lambda extra: extra.update(suggestions=[*catalogue("augmentation")]),
        description="how images are changed at random in each epoch, in this order: the name of "
        "a change, or a table of a name and its options",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="what trains; auto: the GPU that the copy was given (gpus), if any"
    )
    precision: Annotated[str, OneOf(_precisions)] = Field(
        "float32",
        description="float16 and bfloat16 multiply narrow numbers and add in float32; tf32 rounds "
        "what is multiplied, on tensor cores; parameters stay in float32",
    )
    training: TrainingOptions = Field(
        TrainingOptions(parallel=None),
        description="how one network is trained, such as by the ranks of a copy together",
    )
    layers: list[dict[str, Any]] | None = Field(
        None,
        description="the network, a table for each layer: its type and its arguments; a text such "
        'as "$units" stands for the parameter units of the space',
    )
    train: str | None = Field(
        None,
        json_schema_extra={"is_first": True},
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

    @field_validator("augment")
    @classmethod
    def _check_augment(
        cls, augment: list[str | dict[str, Any]], info: ValidationInfo
    ) -> list[str | dict[str, Any]]:
        augmentations_of(augment)
        dataset, reading = info.data.get("dataset"), info.data.get("reading")
        is_sequence = reading is not None and reading.lengths is not None
        if augment and (is_table(dataset) or is_sequence):
            kind = "sequences" if is_sequence else "a table"
            raise problem(f"these changes are of images, and {dataset} is {kind}", "leave it out")
        return augment

    @model_validator(mode="after")
    def _find_data(self, info: ValidationInfo) -> Options:
        if self.evaluation and {"validation_fraction", "split_seed"} & self.model_fields_set:
            raise ValueError(
                "evaluation says which rows: leave out validation_fraction, split_seed"
            )
        if self.dataset is None and self.train is None:
            raise self._problem_of(
                "dataset",
                "what to train: either dataset or train, and neither is given",
                'choose a data set, dataset = "digits", or say train = "./file.py:function"',
            )
        if self.dataset is not None and self.train is not None:
            raise ValueError("what to train: either dataset or train, not both")
        if self.train is not None:
            self._find_function(self.train, info)
            return self
        if self.options:
            raise ValueError("options are for a function of your own: they go with train")
        if self.layers is not None:
            self._check_layers(self.layers)
        assert self.dataset is not None
        self._check_place(self.dataset, info)
        return self

    def _problem_of(self, name: str, text: str, remedy: str = "") -> ValidationError:
        error = at((name,), getattr(self, name), text, remedy)
        return ValidationError.from_exception_data(name, [error])

    def _check_place(self, dataset: str, info: ValidationInfo) -> None:
        """Check how a data set is read, and that it is where the options say."""
        if self.reading.given and (text := self.reading.problem_with(dataset)):
            raise ValueError(text)
        if SETS[dataset].is_bundled:
            if importlib.util.find_spec("sklearn") is None:
                raise ValueError(
                    f"dataset {dataset!r} comes with scikit-learn, which is not installed: "
                    'pip install "diel[data]"'
                )
            if self.path is not None:
                raise ValueError(f"dataset {dataset!r} comes with scikit-learn: leave out path")
            return
        if self.path is None:
            raise ValueError(f"dataset {dataset!r} needs path, the place of its data")
        try:
            place = self.resolve((info.context or {}).get("folder", Path()))
        except ValueError as error:
            remedy = getattr(error, "remedy", "")
            raise self._problem_of("path", str(error), remedy) from None
        if not place.exists():
            text = f"no data at {place} (path = {self.path!r})"
            remedy = ""
            if dataset in catalogue("download"):
                call = f"import dnn; dnn.download({dataset!r}, {str(place)!r})"
                remedy = f'get them: python -c "{call}"'
            raise self._problem_of("path", text, remedy)

    def _check_layers(self, layers: LayerTables) -> None:
        problems = list(layer_problems(layers))
        shape = known_shape(self.dataset)
        if not problems and shape is not None and not references(layers):
            wanted = Hyperparameters.model_validate({_LAYERS: layers})
            last = rows_of(layers_of(wanted, *shape))[-1]
            if text := last.get("problem"):
                problems.append(at((_LAYERS,), layers, text, remedy_for_shapes(text)))
        if problems:
            raise ValidationError.from_exception_data(_LAYERS, problems)

    def _find_function(self, train: str, info: ValidationInfo) -> None:
        of_dataset = (*_OF_DATASET, *_OF_NETWORKS)
        given = [name for name in of_dataset if name in self.model_fields_set]
        if given:
            raise ValueError(f"{', '.join(given)}: of a dataset; a function has its own options")
        try:
            folder = (info.context or {}).get("folder", Path())
            found = locate_function(train, folder, ("parameters", "report"), TRAINERS)
        except LookupError as error:
            message, remedy = getattr(error, "message", str(error)), getattr(error, "remedy", "")
            raise self._problem_of("train", message, remedy) from None
        for name in assigned_attributes(found.file, found.function) if found.file else ():
            if name not in OF_TRAINERS and (ours := meant_by(name, OF_TRAINERS)):
                text = f"{found.function} has an attribute {name!r}, which diel does not read"
                raise self._problem_of("train", text, f'did you mean "{ours}"?')

    @model_validator(mode="after")
    def _check_device(self, info: ValidationInfo) -> Options:
        context = info.context or {}
        module = context.get("module")
        if module is None:  # while a trainer runs
            return self
        if self.device == "cpu" and module.gpus:
            count = f"{module.gpus:g} GPU{'s' if module.gpus > 1 else ''}"
            raise self._problem_of(
                "device",
                f'module {module.name!r} asks for {count} and says device = "cpu": nothing would '
                "use it",
                'remove gpus, or say device = "auto"',
            )
        if self.train is None and module.gpus > 1:
            raise self._problem_of(
                "device",
                f"module {module.name!r} asks for {module.gpus:g} GPUs for each copy, and a copy "
                "trains on one: nothing would use the others",
                "say gpus = 1, and raise copies",
            )
        # Where no module asks for GPUs, each rank sees all that there are.
        any_asks = any(other.gpus for other in context.get("modules", {}).values())
        if self.device == "cuda" and not module.gpus and any_asks:
            raise self._problem_of(
                "device",
                f'device = "cuda", and module {module.name!r} asks for no GPU: as soon as any '
                "module does, this one sees none",
                "add gpus = 1",
            )
        return self

    @model_validator(mode="after")
    def _check_limits(self, info: ValidationInfo) -> Options:
        parse_memory(self.memory_limit)
        module = (info.context or {}).get("module")
        if module is None or module.processes == 1:
            return self
        ranks = f"module {module.name!r} has {module.processes} processes"
        if self.train is None and self.training.parallel is None:
            raise self._problem_of(
                "training",
                f"{ranks}, and nothing says how they train one network together",
                'add training.parallel = "data", or remove processes and raise copies',
            )
        chosen = self.training.chosen
        if chosen is not None and (text := chosen.problem_with_precision(self.precision)):
            raise self._problem_of("precision", text, "take bfloat16 or float32")
        for name in ("isolated", "time_limit", "memory_limit"):
            if getattr(self, name):
                raise self._problem_of(
                    name,
                    f"{ranks}: a trial of several ranks cannot run in a process beside them",
                    f"remove {name}, or processes",
                )
        return self

    @property
    def limits(self) -> Limits:
        """The limits of a trial: its time, its memory, and whether it has a process of its own."""
        return Limits(self.isolated, self.time_limit, parse_memory(self.memory_limit))

    def compute(self, gpus: Sequence[int] = (), share: float = 1.0) -> Compute:
        """Return the device and the precision of networks on a rank with these GPUs."""
        return Compute.of(self.device, self.precision, gpus, share)

    def task(
        self, folder: Path, table: RoutineTable | None = None, compute: Compute | None = None
    ) -> Task:
        """Return the function that is called for each trial, with its options.

        `table` and `compute` are for networks of dnn; without `compute`, they are trained as on a
        rank without GPUs.
        """
        if self.train is not None:
            return Task(self.train, self.options, folder)
        names = {"dataset", *_OF_DATASET} & self.model_fields_set
        given = {name: getattr(self, name) for name in names}
        given[_COMPUTE] = (compute or self.compute()).to_options()
        given[_TRAINING] = self.training.model_dump()
        if self.layers is not None:
            given[_LAYERS] = self.layers
        if table is not None:
            given[_TABLE] = table.to_json()
        return Task(prepare, given, folder)

    def resolve(self, folder: Path) -> Path:
        """Return the path of the data; `folder` is that of the workflow file.

        A ValueError if the path names an environment variable that is not set.
        """
        return place_of_data(self.path or "", folder)


def missing_here(options: Options, module: Any) -> tuple[str, str] | None:
    """Return what this machine lacks to train networks on a GPU, and what to do; None if nothing.

    `module` is that of the workflow file. `diel check` reports it, and `diel run` starts no rank.
    """
    asks = range(math.ceil(module.gpus))
    if options.train is not None or not options.compute(asks).is_gpu:
        return None
    problem = missing_gpu()
    if not problem:
        return None
    lack, _, install = problem.partition(" (pip install")
    if install:
        return lack, f"pip install{install.removesuffix(')')}"
    return lack, 'run it where there is a GPU, or say device = "cpu", without gpus'


def look_at_data(
    options: Options, folder: Path, largest_bytes: int | None = None
) -> tuple[str, list[str]]:
    """Look at the samples and labels that trials would train on.

    Parameters
    ----------
    options : Options
    folder : Path
        Of the workflow file.
    largest_bytes : int, optional
        A larger file, and a folder, is not read.

    Returns
    -------
    (str, list of str)
        Why no trial could train on them, empty if trials can; and what is odd about them.
    """
    if options.train in _OF_TABULAR:
        given = {name: options.options[name] for name in _OF_SPLIT if name in options.options}
        try:
            reading = ReadingOptions.model_validate(given.pop("reading", {}))
        except ValidationError:
            return "", []  # said by its first trial
        options = Options.model_construct(**given, reading=reading)
    if options.dataset is None or options.path is None:
        return "", []
    try:
        place = options.resolve(folder)
        size_bytes = place.stat().st_size
        if largest_bytes is not None and (place.is_dir() or size_bytes > largest_bytes):
            looks = "diel sweep FILE --dry-run looks at it"
            size = "a folder" if place.is_dir() else f"{size_bytes / 2**20:,.0f} MiB"
            return "", [f"{place} was not read ({size}): {looks}"] * is_own(options.dataset)
        data = _data(options, folder)
        jobs = _jobs(data, options)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}", []
    if not is_own(options.dataset):
        return "", []
    return "", list(oddities(data, [(job.train, job.test) for job in jobs]))


def run(ctx: Context) -> int:
    """Run the trials that the master gives out until there are no more; return how many."""
    options: Options = ctx.options
    comm = comm_of(ctx)
    if ctx.copy_index == 0 and (comm is None or comm.rank == 0) and not any(ctx.iteration):
        for odd in look_at_data(options, ctx.folder)[1]:
            ctx.log.warning("%s", odd)
        if options.limits.needs_process or options.train is not None:
            _loaded.cache_clear()  # this rank trains on nothing
    with _logged(ctx):
        return _run(ctx, options, options.compute(ctx.gpus, ctx.gpu_share))


def _run(ctx: Context, options: Options, compute: Compute) -> int:
    if options.train is None:
        ctx.log.info("networks are computed by %s", compute.description)
        comm = comm_of(ctx)
        rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
        measured = options.routines == "measured"
        with routines_of_run(ctx, rank, ranks, compute, measured=measured) as table:
            return run_trainer(ctx, options.task(ctx.folder, table, compute), options.limits)
    return run_trainer(ctx, options.task(ctx.folder, compute=compute), options.limits)


@contextmanager
def _logged(ctx: Context) -> Iterator[None]:
    """Send what dnn and this package log in this thread to the log of the rank.

    What keeps the rank waiting while kernels are compiled is shown as its progress too.
    """
    from dnn import watched_compilation

    thread = threading.get_ident()

    class ToRank(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                ctx.log.log(record.levelno, "%s", record.getMessage())

    handler = ToRank()
    loggers = [logging.getLogger(name) for name in ("dnn", __package__)]
    for logger in loggers:
        logger.addHandler(handler)

    is_logged = False

    def show(text: str) -> None:
        nonlocal is_logged
        if threading.get_ident() != thread:
            return
        if not is_logged:
            ctx.log.info("%s", text)
        is_logged = True
        ctx.progress(0, None, text)

    try:
        with watched_compilation(show):
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def try_point(
    options: Options,
    folder: Path,
    parameters: dict[str, Any],
    seed: int,
    trial: int = 0,
    own_seed: int | None = None,
) -> tuple[str, float, dict[str, Any]]:
    """Try one point in this process; return why it failed, its seconds and its metrics.

    `seed` is that of the sweep, `trial` the number of the trial; `own_seed` is the trial's, if left
    out the one that follows from these.
    """
    own_seed = trial_seed(seed, trial) if own_seed is None else own_seed
    task = options.task(folder)
    try:
        function = task.load()
    except Exception as error:
        return describe_error(error) + _own_line(traceback.format_exc(), folder), 0.0, {}
    report = task.report(Trial(trial, parameters, own_seed))
    started_s = time.perf_counter()
    result = run_trial(function, parameters, report)
    seconds = time.perf_counter() - started_s
    return (
        result.reason and result.reason + _own_line(result.detail, folder),
        seconds,
        result.metrics,
    )


def save_model(
    options: Options,
    folder: Path,
    parameters: dict[str, Any],
    trial: int,
    seed: int,
    path: Path,
    provenance: Mapping[str, Any],
) -> Path:
    """Train the model of a trial in this process, and write it; return its file.

    `seed` is the trial's, `path` the place of the file without its suffix. A ValueError if the
    function for trials writes no models.
    """
    runner = InProcessRunner(options.task(folder))
    if not runner.saves_models:
        raise ValueError(why_no_model(options))
    return runner.save_model(Trial(trial, parameters, seed), path, provenance)


def why_no_model(options: Options) -> str:
    """Return why the trainer writes no models, and what to do."""
    if options.train is None:
        lack = "models are safetensors files, and safetensors is not installed"
        return f'{lack}: pip install "diel[checkpoint]"'
    if options.train in _OF_TABULAR:
        return (
            f"{options.train} writes no models: networks of dnn are kept, which dataset trains in "
            "place of train, and what a function of your own with an attribute save_model writes"
        )
    return (
        f"{options.train} writes no models: give the function an attribute save_model"
        "(parameters, report, path), which trains once more and returns its file"
    )


def _own_line(detail: str, folder: Path) -> str:
    """Return the last line of a user's own code that a traceback names, as `` (file.py:4)``."""
    own = [
        (path, line)
        for path, line in re.findall(r'File "(.+?)", line (\d+)', detail)
        if Path(path).is_relative_to(folder.absolute())
    ]
    return f" ({Path(own[-1][0]).name}:{own[-1][1]})" if own else ""


def prepare(options: Mapping[str, Any], folder: Path) -> NetworkTrainer:
    """Load the data; return a trainer of networks on it.

    The options are ``dataset``, ``path``, which rows, by what to standardise them and ``training``,
    as in `Options`; ``compute``, the fields of a `Compute`; and ``table``, the text of a
    `RoutineTable`, if there is one.
    """
    from dnn import OutOfDeviceMemory, RoutineTable

    rest = dict(options)
    text = rest.pop(_TABLE, None)
    table = None if text is None else RoutineTable.from_json(text)
    compute = Compute(**rest.pop(_COMPUTE, {}))
    compute.begin()
    given = Options.model_validate(rest, context={"folder": folder})
    rounds = _rounds(given, folder)
    # Imports and compilation are no part of the first trial's time. Where a GPU has no room even
    # for this, each trial reports that, and how much it needs.
    with suppress(OutOfDeviceMemory):
        smallest = {"hidden": [1], "epochs": 1}
        if rounds[0].is_sequence:
            smallest["recurrent"] = [1]
        train(smallest, 0, rounds[0], table=table, compute=compute)
    return NetworkTrainer(rounds, table, compute, given.training.chosen, given.layers)


def describe_network(
    options: Options, folder: Path, point: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers of the network of a point, each with its name, shape and parameters.

    Parameters
    ----------
    options : Options
    folder : Path
        Of the workflow file.
    point : mapping
        Parameters of a trial, those that the layers refer to among them.

    Returns
    -------
    list of dict
        The rows of `modules.layer_list.rows_of`, up to the first layer that does not fit. Layers
        that `options` lists also have ``layer``, their index in the list. Empty for a user's
        function.

    Raises
    ------
    ValueError
        If the point is not valid for this trainer, or the data cannot be read.
    """
    if options.train is not None:
        return []
    wanted = Hyperparameters.model_validate(with_layers(point, options.layers))
    data = options.model_dump(include={"dataset", "path", "standardise"})
    shape = shape_of({**data, "reading": options.reading.given}, folder)
    layers = layers_of(wanted, *shape)
    rows = rows_of(layers)
    # Listed layers stand behind the layers that read samples, and before that of the classes.
    listed = [n for n, table in enumerate(wanted.layers or ()) for _ in built([table])]
    for row, number in zip(rows[len(layers) - 1 - len(listed) :], listed, strict=False):
        row["layer"] = number
    return rows


def option_variants() -> dict[str, tuple[str, dict[str, type[BaseModel]]]]:
    """Return, for options that are lists of tables, the key of their kind and a model by kind."""
    return {"layers": ("type", layer_models())}


def _rounds(options: Options, folder: Path) -> PreparedSplits:
    data = _data(options, folder)
    _loaded.cache_clear()  # the splits keep it
    jobs = _jobs(data, options)
    rows = f"{len(jobs[0].train)} rows to train on, {len(jobs[0].test)} to validate"
    print(f"{data.name}: {len(jobs)} trainings a trial, the first with {rows}")
    split = {name: getattr(options, name) for name in ("validation_fraction", "split_seed")}
    if options.evaluation is not None:
        split = options.evaluation.model_dump(mode="json", exclude_none=True)
    changes = augmentations_of(options.augment)
    return PreparedSplits(data, jobs, options.standardise, changes, split)


def _data(options: Options, folder: Path) -> Dataset:
    path = options.resolve(folder) if options.path is not None else None
    written = None
    if path is not None and path.exists():
        status = path.stat()
        written = status.st_mtime_ns, status.st_size
    reading = options.reading.model_dump_json(exclude_unset=True)
    return _loaded(options.dataset, path, reading, written)


@lru_cache(maxsize=1)
def _loaded(
    dataset: str, path: Path | None, reading: str, written: tuple[int, int] | None
) -> Dataset:
    """Load a data set, again if its file was written meanwhile."""
    from dnn import load_dataset

    given = ReadingOptions.model_validate_json(reading).given
    return load_dataset(dataset, path, **given)


def _jobs(data: Dataset, options: Options) -> list[TrainingJob]:
    if options.evaluation is not None:
        return jobs_of(options.evaluation.split(data.y))
    return [_own_split(data, options)]


def _own_split(data: Dataset, options: Options) -> TrainingJob:
    """Return the rows of `dnn.train_validation_split`, in its order."""
    import numpy as np

    from dnn import Dataset, train_validation_split

    # The rows' numbers stand in place of the rows; float32 counts 16 million of them.
    numbers = Dataset(np.arange(len(data))[:, None], data.y, data.classes, data.name)
    training, validation = train_validation_split(
        numbers, options.validation_fraction, options.split_seed
    )
    return TrainingJob(training.x[:, 0].astype(np.intp), validation.x[:, 0].astype(np.intp), 0)
