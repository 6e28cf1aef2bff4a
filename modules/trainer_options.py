"""Options of a trainer in a workflow file: all their problems are found before it runs."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from diel import OneOf, locate_function
from diel.errors import PluginError
from diel.expressions import ExpressionError
from dnn import catalogue

from .attributes import OF_TRAINERS, assigned_attributes, meant_by
from .checkpoints import CheckpointOptions
from .evaluation import SPLIT_COLUMNS, EvaluationOptions
from .hyperparameters import Hyperparameters
from .layer_list import LayerTables, layer_problems, references, remedy_for_shapes, rows_of
from .metrics import metrics_of_task
from .networks import layers_of
from .objective import Constraint, ObjectiveError, compile_expression
from .parallel import TrainingOptions
from .pretrained import place_of_weights, problem_with_weights, written_by_run
from .problems import at, problem
from .sweep.runners import TRAINERS, parse_memory
from .tabular import (
    OF_ARRAYS,
    OF_IMAGES,
    SETS,
    DatasetName,
    ReadingOptions,
    augmentations_of,
    is_table,
    known_shape,
    known_task,
    place_of_data,
    problem_with_augmentations,
)
from .trial_plan import DEVIATION, WATCHED, TrialPlan
from .trial_ranks import TrialRanks

_OF_ROWS = ("validation_fraction", "split_seed", *SPLIT_COLUMNS)
"""Options that say which rows are trained on, where ``evaluation`` does not."""
OF_DATASET = (
    *("path", "reading", *_OF_ROWS, "evaluation"),
    *("impute", "encode", "standardise", "augment", "class_weight"),
)
"""Options that go with ``dataset``."""
LAYERS = "layers"
OF_TRIALS = ("metrics", "patience", "min_delta", "watch", "seeds", "seeds_score", "checkpoints")
"""Options of how the networks of a trial are trained."""
OF_START = ("weights", "head", "freeze")
"""Options of what networks start from."""
OPTION_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Columns and cells of a table": ("reading",),
    "Image folders": tuple(f"reading.{name}" for name in OF_IMAGES),
    "Arrays of an npz file": tuple(f"reading.{name}" for name in OF_ARRAYS),
    "Which rows train and which score": (*_OF_ROWS, "evaluation"),
    "Preparation": ("impute", "encode", "standardise", "augment", "class_weight"),
    "Patience, seeds, checkpoints": OF_TRIALS,
    "Weights to start from": OF_START,
    "Device, precision, several ranks": ("device", "precision", "training", "ranks", "routines"),
    "A function of your own, limits": ("options", "isolated", "time_limit", "memory_limit"),
}
"""Options that a form shows together; the name of a table stands for all of its keys."""
_OF_NETWORKS = ("device", "precision", "training", LAYERS, *OF_TRIALS, *OF_START)


def _named(kind: str) -> str:
    """Return the data sets of a kind, in words."""
    *others, last = (name for name, known in SETS.items() if getattr(known, kind))
    return f"{', '.join(others)} and {last}"


def _precisions() -> list[str]:
    return [name for name, precision in catalogue("precision").items() if precision.name == name]


def _metrics_in_sweeps(given: Mapping[str, Any], options_of: Mapping[str, Any]) -> Iterator[str]:
    """Yield the metrics that sweeps name whose trainer has these options, but for functions."""
    for table in options_of.values():
        trainer = table.get("trainer", "trainer")
        if "space" not in table or not isinstance(trainer, str) or options_of.get(trainer) != given:
            continue
        for option, names_in in (
            ("objective", lambda text: compile_expression(text)[1]),
            ("constraints", lambda text: Constraint.parse(text).names),
        ):
            texts = table.get(option)
            for text in texts if isinstance(texts, list) else [texts]:
                if isinstance(text, str) and ":" not in text:
                    with contextlib.suppress(ExpressionError, ObjectiveError):  # it is said there
                        yield from names_in(text)


ImputeBy = Literal["median", "mean", "most_frequent", "indicator"] | float
EncodeBy = Literal["one_hot", "embedding"]


class TrainerOptions(BaseModel):
    """What a trainer trains on, with what, and within which limits."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dataset: DatasetName | None = Field(
        None,
        json_schema_extra={"is_first": True},
        description=f"{_named('is_bundled')} come with scikit-learn, the others need a path; "
        f"{_named('is_own')} are data of your own",
    )
    path: str | None = Field(
        None,
        json_schema_extra={"is_first": True},
        description="the data's file or folder, relative to the workflow file; $NAME stands for "
        "an environment variable, ~ for the home folder",
    )
    reading: ReadingOptions = Field(
        ReadingOptions(), description="how the file is read, such as the column of the labels"
    )
    validation_fraction: float = Field(
        0.2, gt=0, lt=1, description="of the rows: they score trials, and are not trained on"
    )
    split_seed: int = Field(0, ge=0, description="of the split into training and validation rows")
    groups: str | None = Field(None, description=SPLIT_COLUMNS["groups"])
    time: str | None = Field(None, description=SPLIT_COLUMNS["time"])
    split: str | None = Field(None, description=SPLIT_COLUMNS["split"])
    evaluation: EvaluationOptions | None = Field(
        None, description="in place of these: holdout, k_fold or nested, with their options"
    )
    impute: ImputeBy | dict[str, ImputeBy] | None = Field(
        None,
        description="how missing cells are filled: median, mean, most_frequent, a number, or "
        "indicator, a further column that says where; a table says it by column; left out, the "
        "median of numbers, and the most frequent category",
    )
    encode: EncodeBy | dict[str, EncodeBy] | None = Field(
        None,
        description="what columns of categories become: one_hot (left out, this one), a column of "
        "0 and 1 for each category, or embedding, trained numbers; a table says it by column",
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
    class_weight: Literal["balanced"] | dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        description="factors of the losses of classes, by name or number; balanced: each class "
        "weighs the same, by the rows that are trained on",
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
    ranks: str | None = Field(
        None,
        description="how many ranks of a copy (processes) a trial has: an expression of its "
        "parameters, as in 4 if hidden >= 1024 else 1, or a function of yours; left out, all",
    )
    layers: list[dict[str, Any]] | None = Field(
        None,
        description="the network, a table for each layer: its type and its arguments; a text such "
        'as "$units" stands for the parameter units of the space',
    )
    metrics: list[Annotated[str, OneOf(lambda: WATCHED)]] = Field(
        [],
        description="what is measured beside the usual metrics; what the objective of a sweep "
        "names is measured without being listed here",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="a training ends when watch has not become better for so many epochs, and its "
        "best epoch is the result",
    )
    min_delta: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="how much better is better, for patience"
    )
    watch: Annotated[str, OneOf(lambda: WATCHED)] = Field(
        "loss", description="the metric of patience, of the rows that score a training"
    )
    seeds: int = Field(
        1, ge=1, le=1000, description="how often each point is trained, each time from another seed"
    )
    seeds_score: float | Literal["mean"] = Field(
        "mean",
        description="what a point with several seeds is ranked by: the mean of each metric, or a "
        "quantile at its worse end, such as 0.25; 0 is its worst seed",
    )
    checkpoints: CheckpointOptions | None = Field(
        None,
        description="keeps the networks of trials as they are at the end, from which trials with "
        "more epochs go on: a table, which may be empty",
    )
    weights: str | None = Field(
        None,
        description="a file of weights that networks start from: safetensors, .npz, or a model of "
        "another sweep; relative to the workflow file, or $DIEL_RUN_DIR/NAME, which an "
        "earlier module of the run writes",
    )
    head: Literal["loaded", "new"] = Field(
        "loaded",
        description="whether the last layer is in the weights too, or begins anew, as for other "
        "classes",
    )
    freeze: list[str] = Field(
        [],
        description="parameters that training leaves as they are, by patterns of their names, such "
        'as "conv2d_*"; "*" is all, one that begins with ! is none of them, and a new head never '
        "is",
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

    @model_validator(mode="before")
    @classmethod
    def _ask_for_objectives(cls, given: Any, info: ValidationInfo) -> Any:
        """Add the metrics that objectives and constraints of sweeps with this trainer name."""
        if not isinstance(given, dict) or given.get("dataset") is None:
            return given
        names, known, wanted = given.get("metrics", []), known_task(given) or "", []
        for name in _metrics_in_sweeps(given, (info.context or {}).get("options_of", {})):
            wanted.append(name.removesuffix(DEVIATION))
        fitting = {*metrics_of_task(known, on_request=True)} & {*WATCHED}
        more = [name for name in dict.fromkeys(wanted) if name in fitting - {*names}]
        return {**given, "metrics": [*names, *more]} if more and isinstance(names, list) else given

    @field_validator("augment")
    @classmethod
    def _check_augment(
        cls, augment: list[str | dict[str, Any]], info: ValidationInfo
    ) -> list[str | dict[str, Any]]:
        changes = augmentations_of(augment)
        dataset, reading = info.data.get("dataset"), info.data.get("reading")
        is_sequence = reading is not None and reading.lengths is not None
        if augment and (is_table(dataset) or is_sequence):
            kind = "sequences" if is_sequence else "a table"
            raise problem(f"these changes are of images, and {dataset} is {kind}", "leave it out")
        known = known_shape(dataset)
        if known is not None and (text := problem_with_augmentations(changes, known.shape)):
            raise problem(text)
        return augment

    @field_validator("seeds_score")
    @classmethod
    def _check_seeds_score(cls, score: float | Literal["mean"]) -> float | Literal["mean"]:
        if score != "mean" and not 0 <= score <= 0.5:
            raise problem(f"{score} is no quantile at the worse end", "take one from 0 to 0.5")
        return score

    @model_validator(mode="after")
    def _check_trials(self) -> TrainerOptions:
        for name, needed, is_there in (
            ("min_delta", "patience = 5", self.patience is not None),
            ("watch", "patience = 5", self.patience is not None),
            ("seeds_score", "seeds = 3", self.seeds > 1),
        ):
            if name in self.model_fields_set and not is_there:
                of = needed.partition(" ")[0]
                text = f"goes with {of}, which is not given" if of == "patience" else "of one seed"
                raise self._problem_of(name, text, f"add {needed}, or leave it out")
        reading = self.reading.given if self.dataset is not None else {}
        task = known_task({"dataset": self.dataset, "reading": reading})
        asked = {"metrics": self.metrics, "watch": [self.watch] if self.patience else []}
        of_task = metrics_of_task(task or "", on_request=True)
        known = [name for name in of_task if name in WATCHED]
        for option, names in asked.items():
            for name in names:
                if task is not None and name not in known:
                    text = f"{name} is no metric of a {task}"
                    raise self._problem_of(option, text, f"there are {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _check_checkpoints(self, info: ValidationInfo) -> TrainerOptions:
        if self.checkpoints is None:
            return self
        context = info.context or {}
        module = context.get("module")
        chosen = self.training.chosen
        if (
            module is not None
            and module.processes > 1
            and (chosen is None or chosen.name != "data")
        ):
            how = "several processes" if chosen is None else f'scheme "{chosen.name}"'
            text = f"go on to the last bit, which trainings by {how} do not"
            raise self._problem_of(
                "checkpoints", text, 'say training.parallel = "data", or remove checkpoints'
            )
        if importlib.util.find_spec("safetensors") is None:
            text = "are safetensors files, and safetensors is not installed"
            raise self._problem_of("checkpoints", text, 'pip install "diel[checkpoint]"')
        if text := self.checkpoints.problem_with_earlier(context.get("folder", Path())):
            remedy = "name the directory of a run whose trainer has checkpoints"
            error = at(("checkpoints", "earlier"), self.checkpoints.earlier, text, remedy)
            raise ValidationError.from_exception_data("checkpoints", [error])
        return self

    @model_validator(mode="after")
    def _find_data(self, info: ValidationInfo) -> TrainerOptions:
        if self.evaluation and (twice := {*_OF_ROWS} & self.model_fields_set):
            ours = [name for name in _OF_ROWS if name in twice]
            if not {*ours} & {*SPLIT_COLUMNS}:
                ours = ["validation_fraction", "split_seed"]
            text = f"evaluation says which rows: leave out {', '.join(ours)}"
            raise self._problem_of(next(name for name in _OF_ROWS if name in twice), text)
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
        self._check_start(info)
        assert self.dataset is not None
        task = known_task({"dataset": self.dataset, "reading": self.reading.given})
        if self.class_weight is not None and task not in ("classification", None):
            text = f"weights are of classes, and {self.dataset} is for {task}"
            remedy = 'labels are weighted by class_weight = "balanced" in the space'
            raise self._problem_of(
                "class_weight", text, remedy if task == "multilabel" else "leave it out"
            )
        self._check_columns(self.dataset)
        self._check_place(self.dataset, info)
        return self

    @property
    def rows(self) -> EvaluationOptions | None:
        """Which rows are trained on; None for a random split by the options that say so here."""
        by_column = {name: column for name in SPLIT_COLUMNS if (column := getattr(self, name))}
        if self.evaluation is not None or not by_column:
            return self.evaluation
        given: dict[str, Any] = dict(by_column)
        # What does not go with the column is refused where it is given, and else left out.
        if "validation_fraction" in self.model_fields_set or "split" not in given:
            given["fraction"] = self.validation_fraction
        if "split_seed" in self.model_fields_set or "groups" in given:
            given["seed"] = self.split_seed
        return EvaluationOptions(**given)

    def _check_columns(self, dataset: str) -> None:
        """Check that rows are split by one column, of a data set that has columns."""
        from dnn import reading_options  # imports NumPy

        try:
            rows = self.rows
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from None
        for option, column in (rows.columns if rows is not None else {}).items():
            if "beside" not in reading_options(dataset):
                remedy = f"leave out {option}"
                text = f"{option}: dataset {dataset!r} has no columns beside its samples"
                raise self._problem_of("evaluation" if self.evaluation else option, text, remedy)
            if column == self.reading.label or column == self.reading.target:
                raise ValueError(f"{option} = {column!r}: that column is to be predicted")

    def _problem_of(self, name: str, text: str, remedy: str = "") -> ValidationError:
        error = at((name,), getattr(self, name), text, remedy)
        return ValidationError.from_exception_data(name, [error])

    def _check_place(self, dataset: str, info: ValidationInfo) -> None:
        """Check how a data set is read, and that it is where the options say."""
        if self.reading.given and (found := self.reading.problem_with(dataset)):
            name, text = found
            error = at(("reading", name), self.reading.given[name], text, f"leave out {name}")
            raise ValidationError.from_exception_data("reading", [error])
        if SETS[dataset].is_bundled:
            if importlib.util.find_spec("sklearn") is None:
                raise ValueError(
                    f"dataset {dataset!r} comes with scikit-learn, which is not installed: "
                    'pip install "diel[data]"'
                )
            if self.path is not None:
                text = f"dataset {dataset!r} comes with scikit-learn: leave out path"
                raise self._problem_of("path", text)
            return
        if self.path is None:
            text = f"dataset {dataset!r} needs path, the place of its data"
            raise self._problem_of("path", text, 'add path = "FILE"')
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

    def _check_start(self, info: ValidationInfo) -> None:
        """Check what networks start from."""
        chosen = self.training.chosen
        if self.weights is not None and chosen is not None and chosen.name == "mesh":
            text = "no rank of a mesh has the whole network, which weights are loaded into"
            raise self._problem_of("weights", text, "take another scheme, or one process")
        if self.weights is None:
            if self.head == "new":
                text = "head is about weights of a file, and there is none"
                raise self._problem_of("head", text, "add weights, or remove head")
            return
        if written_by_run(self.weights):
            return  # perhaps it is not there yet
        try:
            folder = (info.context or {}).get("folder", Path())
            text, remedy = problem_with_weights(place_of_weights(self.weights, folder))
        except ValueError as error:
            text, remedy = str(error), getattr(error, "remedy", "")
        if text:
            raise self._problem_of("weights", text, remedy)

    def _check_layers(self, layers: LayerTables) -> None:
        problems = list(layer_problems(layers))
        shape = known_shape(self.dataset)
        if not problems and shape is not None and not references(layers):
            wanted = Hyperparameters.model_validate({LAYERS: layers})
            last = rows_of(layers_of(wanted, *shape))[-1]
            if text := last.get("problem"):
                problems.append(at((LAYERS,), layers, text, remedy_for_shapes(text)))
        if problems:
            raise ValidationError.from_exception_data(LAYERS, problems)

    def _find_function(self, train: str, info: ValidationInfo) -> None:
        of_dataset = (*OF_DATASET, *_OF_NETWORKS)
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
    def _check_device(self, info: ValidationInfo) -> TrainerOptions:
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
    def _check_limits(self, info: ValidationInfo) -> TrainerOptions:
        parse_memory(self.memory_limit)
        module = (info.context or {}).get("module")
        if self.ranks is not None and module is not None:
            self._check_ranks(self.ranks, module, (info.context or {}).get("folder", Path()))
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
        for count in range(2, module.processes) if self.ranks else ():
            if chosen is not None and (text := chosen.problem_with(count)):
                remedy = 'say training.parallel = "data", which takes any number'
                raise self._problem_of("ranks", f"a trial of {count} ranks: {text}", remedy)
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

    def _check_ranks(self, ranks: str, module: Any, folder: Path) -> None:
        if module.processes == 1:
            text = f"module {module.name!r} has one process, and so has each trial"
            raise self._problem_of("ranks", text, "add processes = 4 to the module")
        try:
            TrialRanks.parse(ranks, module.processes, folder)
        except (ExpressionError, PluginError) as error:
            raise self._problem_of("ranks", str(error), getattr(error, "remedy", "")) from None

    @property
    def plan(self) -> TrialPlan:
        """How a trial trains its point."""
        asked = (*self.metrics, *([self.watch] if self.patience else []))
        metrics = tuple(dict.fromkeys(asked))
        return TrialPlan(
            self.patience, self.min_delta, self.watch, self.seeds, self.seeds_score, metrics
        )

    def resolve(self, folder: Path) -> Path:
        """Return the path of the data; `folder` is that of the workflow file.

        A ValueError if the path names an environment variable that is not set.
        """
        return place_of_data(self.path or "", folder)
