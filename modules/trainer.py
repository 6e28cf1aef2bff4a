"""The trainer of a sweep: takes trials from the master, runs each, returns the metrics.

By itself it trains a multilayer perceptron on a data set. With ``train = "./file.py:function"`` it
calls that function, which may use any framework: ``train(parameters, report) -> metrics``, see
`modules.trial.Report`.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from diel import describe_error
from diel.errors import ModuleFailed

from .checkpoints import FOLDER, Checkpoints
from .compute import Compute, missing_gpu, routines_of_run
from .evaluation import EvaluationError
from .hyperparameters import Hyperparameters
from .layer_list import built, layer_models, rows_of, with_layers
from .network_trainer import NetworkTrainer
from .networks import layers_of
from .pretrained import Pretrained, place_of_weights
from .sweep.lineage import checkpoint_of
from .sweep.runners import InProcessRunner, Limits, Task, parse_memory
from .sweep.trainer_ranks import comm_of, run_trainer
from .tabular import comes_with_diel
from .trainer_data import forget, look_at_data, shape_of, splits_of
from .trainer_options import LAYERS, OF_DATASET, OF_START, OF_TRIALS, OPTION_GROUPS, TrainerOptions
from .training import Setting, train
from .trial import Trial, run_trial, trial_seed

if TYPE_CHECKING:
    from diel import Context
    from dnn import RoutineTable

_TABLE = "table"
_COMPUTE = "compute"
_KEPT = "kept in"
_TRAINING = "training"
_NO_ANCESTOR = "trial {}, from which it went on, failed: {}"


class Options(TrainerOptions):
    """What the workflow file says of a trainer."""

    @property
    def limits(self) -> Limits:
        """The limits of a trial: its time, its memory, and whether it has a process of its own."""
        return Limits(self.isolated, self.time_limit, parse_memory(self.memory_limit))

    def compute(self, gpus: Sequence[int] = (), share: float = 1.0) -> Compute:
        """Return the device and the precision of networks on a rank with these GPUs."""
        return Compute.of(self.device, self.precision, gpus, share)

    def task(
        self,
        folder: Path,
        table: RoutineTable | None = None,
        compute: Compute | None = None,
        run_dir: Path | None = None,
        kept_in: Path | None = None,
    ) -> Task:
        """Return the function that is called for each trial, with its options.

        `table` and `compute` are for networks of dnn; without `compute`, they are trained as on a
        rank without GPUs. `run_dir` is that of the run, where there is one; `kept_in` is the folder
        for checkpoints.
        """
        if self.train is not None:
            return Task(self.train, self.options, folder)
        names = {"dataset", *OF_DATASET, *OF_TRIALS} & self.model_fields_set
        given = {name: getattr(self, name) for name in names}
        given[_COMPUTE] = (compute or self.compute()).to_options()
        given[_TRAINING] = self.training.model_dump()
        if self.layers is not None:
            given[LAYERS] = self.layers
        if "checkpoints" in given:
            given["checkpoints"] = self.checkpoints and self.checkpoints.model_dump()
            given[_KEPT] = kept_in and str(kept_in)
        given |= {name: getattr(self, name) for name in {*OF_START} & self.model_fields_set}
        if self.weights is not None:
            given["weights"] = str(place_of_weights(self.weights, folder, run_dir))
        if table is not None:
            given[_TABLE] = table.to_json()
        return Task(prepare, given, folder)


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


def run(ctx: Context) -> int:
    """Run the trials that the master gives out until there are no more; return how many."""
    options: Options = ctx.options
    comm = comm_of(ctx)
    if ctx.copy_index == 0 and (comm is None or comm.rank == 0) and not any(ctx.iteration):
        for odd in look_at_data(options, ctx.folder)[1]:
            ctx.log.warning("%s", odd)
        if options.limits.needs_process or options.train is not None:
            forget()  # this rank trains on nothing
    from dnn import DataError

    try:
        with _logged(ctx):
            return _run(ctx, options, options.compute(ctx.gpus, ctx.gpu_share))
    except (DataError, EvaluationError) as error:
        if options.train is not None and not comes_with_diel(options.train):
            raise  # from a function of the user's own
        raise ModuleFailed(str(error)) from error


def _run(ctx: Context, options: Options, compute: Compute) -> int:
    if options.train is None:
        ctx.log.info("networks are computed by %s", compute.description)
        comm = comm_of(ctx)
        rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
        measured = options.routines == "measured"
        kept_in = ctx.run_dir / FOLDER / f"{ctx.group}.{ctx.module}"
        with routines_of_run(ctx, rank, ranks, compute, measured=measured) as table:
            task = options.task(ctx.folder, table, compute, ctx.run_dir, kept_in)
            return run_trainer(ctx, task, options.limits, in_groups=options.ranks is not None)
    task = options.task(ctx.folder, compute=compute)
    return run_trainer(ctx, task, options.limits, in_groups=options.ranks is not None)


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
    ancestors: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, float, dict[str, Any]]:
    """Try one point in this process; return why it failed, its seconds and its metrics.

    `seed` is that of the sweep, `trial` the number of the trial; `own_seed` is the trial's, if left
    out the one that follows from these. `ancestors` are the trials that it comes from, the first
    one first, which are tried before: the ``trial``, ``parameters`` and ``seed`` of each.
    """
    own_seed = trial_seed(seed, trial) if own_seed is None else own_seed
    try:
        task = options.task(folder)
        function = task.load()
    except Exception as error:
        return describe_error(error) + _own_line(traceback.format_exc(), folder), 0.0, {}
    with _with_ancestors(Trial(trial, parameters, own_seed), ancestors) as trials:
        for each in trials:
            report = task.report(each)
            started_s = time.perf_counter()
            result = run_trial(function, each.parameters, report)
            seconds = time.perf_counter() - started_s
            if result.reason:
                break
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
    ancestors: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Train the model of a trial in this process, and write it; return its file.

    `seed` is the trial's, `path` the place of the file without its suffix, `ancestors` are as for
    `try_point`. A ValueError if the function for trials writes no models.
    """
    runner = InProcessRunner(options.task(folder))
    if not runner.saves_models:
        raise ValueError(why_no_model(options))
    with _with_ancestors(Trial(trial, parameters, seed), ancestors) as trials:
        for each in trials[:-1]:
            if reason := runner(each, None).reason:
                raise ValueError(_NO_ANCESTOR.format(each.number, reason))
        return runner.save_model(trials[-1], path, provenance)


@contextmanager
def _with_ancestors(
    trial: Trial, ancestors: Sequence[Mapping[str, Any]]
) -> Iterator[Sequence[Trial]]:
    """Return a context with a trial behind those that it comes from, and their checkpoints."""
    with TemporaryDirectory() as folder:
        yield _lineage(trial, ancestors, Path(folder))


def _lineage(trial: Trial, ancestors: Sequence[Mapping[str, Any]], folder: Path) -> Sequence[Trial]:
    """Return a trial behind those that it comes from, with their checkpoints in a folder."""
    if not ancestors:
        return [trial]
    found, before = [], None
    own = [Trial(each["trial"], dict(each["parameters"]), each["seed"]) for each in ancestors]
    for each in (*own, trial):
        here = checkpoint_of(folder, each.number)
        found.append(each._replace(checkpoint=here, parent_checkpoint=before))
        before = here
    return found


def choose_average(options: Options, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Choose trials whose networks are averaged, and score the choice; see `modules.averaging`.

    `asked` is what `modules.sweep.models.choose_candidates` returns. A ValueError if the trainer
    trains no networks of its own.
    """
    from .averaging import Candidate, choose, kept_choice

    if options.train is not None:
        raise ValueError(
            f"{options.train} trains, and only networks of dnn are averaged: those that dataset "
            "trains in place of train"
        )
    path, trials = Path(asked["path"]), asked["trials"]
    if (kept := kept_choice(path, trials)) is not None:
        return kept
    task = options.task(folder)
    candidates = [Candidate(**each) for each in asked["candidates"]]
    train: Any = task.load()
    with TemporaryDirectory() as states:

        def predict(candidate: Candidate, number: int) -> Any:
            trial = Trial(candidate.trial, candidate.parameters, candidate.seed)
            *before, trial = _lineage(trial, candidate.ancestors, Path(states))
            for each in before:
                if each.checkpoint is None or each.checkpoint.exists():
                    continue  # a candidate before this one has the same
                if reason := run_trial(train, each.parameters, task.report(each)).reason:
                    raise ValueError(_NO_ANCESTOR.format(each.number, reason))
            report = task.report(trial)
            return train.predictions(candidate.parameters, report, number, candidate.epochs)

        return choose(
            *(train.rounds, predict, candidates, asked["count"], path),
            is_blind=asked["is_blind"],
            trials=trials,
        )


def why_no_model(options: Options) -> str:
    """Return why the trainer writes no models, and what to do."""
    if options.train is None:
        lack = "models are safetensors files, and safetensors is not installed"
        return f'{lack}: pip install "diel[checkpoint]"'
    if comes_with_diel(options.train):
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
    kept_in = rest.pop(_KEPT, None)
    compute.begin()
    given = Options.model_validate(rest, context={"folder": folder})
    rounds = splits_of(given, folder)
    # Imports and compilation are no part of the first trial's time. Where a GPU has no room even
    # for this, each trial reports that, and how much it needs.
    with suppress(OutOfDeviceMemory):
        smallest = {"hidden": [1], "epochs": 1}
        if rounds[0].is_sequence:
            smallest["recurrent"] = [1]
        train(smallest, 0, rounds[0], setting=Setting(table, compute))
    weights = None if given.weights is None else place_of_weights(given.weights, folder)
    start = Pretrained(weights, given.head == "new", tuple(given.freeze))
    parallel = given.training.chosen
    checkpoints = None
    if given.checkpoints is not None:
        changes = [[type(change).__name__, vars(change)] for change in rounds.augment]
        routines = None if table is None else table.choices
        facts: dict[str, Any] = {
            **compute.facts(),
            "routines": routines,
            "augment": changes,
            "start": start.facts(),
        }
        if parallel is not None:
            facts["parallel"] = [parallel.name, parallel.options]
        if asked := given.plan.on_request(rounds.data.task):
            facts["metrics"] = sorted(asked)
        place = None if kept_in is None else Path(kept_in)
        checkpoints = Checkpoints(place, given.checkpoints, folder, facts)
    setting = Setting(table, compute, given.plan, checkpoints, start)
    return NetworkTrainer(rounds, setting, parallel, given.layers)


def describe_network(
    options: Options, folder: Path, point: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers of the network of a point, as rows of `modules.layer_list.rows_of`.

    They end with the first layer that does not fit. Layers that `options` lists also have
    ``layer``, their index in the list. Empty for a user's function. A ValueError if the point is
    not valid for this trainer, or the data cannot be read.
    """
    if options.train is not None:
        return []
    wanted = Hyperparameters.model_validate(with_layers(point, options.layers))
    layers = layers_of(wanted, *shape_of(options, folder))
    rows = rows_of(layers)
    # Listed layers stand behind the layers that read samples, and before that of the classes.
    listed = [n for n, table in enumerate(wanted.layers or ()) for _ in built([table])]
    for row, number in zip(rows[len(layers) - 1 - len(listed) :], listed, strict=False):
        row["layer"] = number
    return rows


def option_variants() -> dict[str, tuple[str, dict[str, type[BaseModel]]]]:
    """Return, for options that are lists of tables, the key of their kind and a model by kind."""
    return {"layers": ("type", layer_models())}


def option_groups() -> Mapping[str, Sequence[str]]:
    """Return the groups of a form's options, each with the options in it."""
    return OPTION_GROUPS
