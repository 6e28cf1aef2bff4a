"""Trained models of sweeps: found in a run's directory, trained again, loaded.

Only the reporter of a sweep can find and load them, and only the code of the trainer can train:
here a model is an object that predicts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final, Protocol

from diel.errors import LaunchError, MissingPackage, RunDirectoryError
from diel.loading.functions import ModulePart, check_options, parts_with_options
from diel.loading.reporter import first_answer
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader
from diel.run.view import RunView
from diel.workflow.load import read_draft

_MOST_AVERAGED: Final = 100


class PredictedRows(Protocol):
    """The rows of a file; `dnn.data.columns.NewRows`."""

    names: Sequence[str]
    cells: Sequence[Sequence[str]]
    labels: Sequence[str] | None
    notes: Sequence[str]
    are_files: bool


class Prediction(Protocol):
    """The predictions of a model for the rows of a file; `dnn.Prediction`."""

    values: Any
    probabilities: Any
    metrics: Mapping[str, float]
    rows: PredictedRows
    residuals: Any
    scored: int


class TrainedModel(Protocol):
    """A trained model that takes raw samples; `dnn.TrainedModel`.

    Attributes
    ----------
    classes : sequence
        Names of the classes; empty if it does not classify.
    targets : sequence of str
        Names of the numbers that it predicts, or of the labels of which a sample may have several;
        empty if it classifies.
    outputs : sequence of str
        Names of its columns of predictions, such as quantiles of each of `targets`.
    provenance : mapping
        Where it comes from: run, trial, score.
    """

    classes: Sequence[Any]
    targets: Sequence[str]
    outputs: Sequence[str]
    provenance: Mapping[str, Any]

    def predict_file(self, path: Any, *, delimiter: str | None = None) -> Prediction:
        """Return predictions for the rows of a CSV file.

        Raises
        ------
        ValueError
            If the rows are not such as the model takes.
        """

    def export_onnx(self, path: Any) -> None:
        """Write it as an ONNX model that takes raw samples.

        Raises
        ------
        ValueError, ImportError
            If that cannot be done.
        """


def load_model(file: Path) -> Any:
    """Load a trained model from a file, ready for raw samples.

    A RunDirectoryError if it cannot be read, or holds something else; a MissingPackage if what
    reads it is not installed.
    """
    try:
        model = first_answer(lambda reporter: reporter.load_model(file))
    except ImportError as error:
        raise MissingPackage(str(error)) from error
    except (OSError, ValueError) as error:
        raise RunDirectoryError(str(error)) from error
    if model is None:
        raise RunDirectoryError("no installed package can load models")
    return model


def model_of_run(directory: RunDirectory, sweep: str = "", trial: int | None = None) -> Any:
    """Load the model of a trial of a run's sweep, by default of the best one.

    The sweep of several is named as ``group.module``. Unless the trial's model was kept, it is
    trained again, in this process, and its model kept. A RunDirectoryError if there is no such
    sweep, trial or model; a MissingPackage if what reads it is not installed.
    """
    try:
        found = first_answer(lambda reporter: reporter.find_model(directory.path, sweep, trial))
        if found is None:
            raise RunDirectoryError("no installed package can find models")
        return load_model(Path(found["file"] or _train_again(directory, found)))
    except RunDirectoryError:
        raise
    except (OSError, ValueError) as error:
        raise RunDirectoryError(str(error)) from error


def average_of_run(directory: RunDirectory, sweep: str, count: int) -> Any:
    """Return the average of so many models of a run's sweep, which are chosen in this process.

    Candidates and chosen trials are trained again, unless their models were kept. Errors are those
    of `model_of_run`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_AVERAGED:
        raise RunDirectoryError(
            f"an average is of 1 to {_MOST_AVERAGED} models, not of {count!r:.40}"
        )
    try:
        asked = first_answer(
            lambda reporter: reporter.find_candidates(directory.path, sweep, count)
        )
        if asked is None:
            raise RunDirectoryError("no installed package can average models")
        _, trainer, folder = trainer_of(directory, asked["sweep"])
        if not hasattr(trainer.code, "choose_average"):
            raise RunDirectoryError(f"module {trainer.module.name!r} cannot choose an average")
        with redirect_stdout(sys.stderr):
            chosen = trainer.code.choose_average(trainer.options, folder, asked)
        models = [model_of_run(directory, asked["sweep"], trial) for trial, _ in chosen["members"]]
        return first_answer(lambda reporter: reporter.average_models(models, chosen))
    except RunDirectoryError:
        raise
    except (OSError, ValueError) as error:
        raise RunDirectoryError(str(error)) from error


def _train_again(directory: RunDirectory, found: Mapping[str, Any]) -> Path:
    trainer, folder = trainer_of(directory, found["sweep"])[1:]
    if not hasattr(trainer.code, "save_model"):
        raise RunDirectoryError(f"module {trainer.module.name!r} cannot train a model again")
    try:
        with redirect_stdout(sys.stderr):  # predictions may be printed
            file: Path = trainer.code.save_model(
                trainer.options,
                folder,
                found["parameters"],
                found["trial"],
                found["seed"],
                Path(found["path"]),
                found["provenance"],
                **({"ancestors": found["ancestors"]} if found.get("ancestors") else {}),
            )
    except RunDirectoryError:
        raise
    except Exception as error:  # a user's code can raise anything
        problem = (
            str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )
        raise RunDirectoryError(f"no model of trial {found['trial']}: {problem}") from error
    if file.suffix != ".safetensors":
        problem = "and diel reads .safetensors alone: load it as it was written"
        raise RunDirectoryError(f"the model of trial {found['trial']} is {file}, {problem}")
    return file


def trainer_of(directory: RunDirectory, sweep: str) -> tuple[ModulePart, ModulePart, Path]:
    """Return the master and the trainer of a run's sweep, and the folder of their workflow file.

    The file is that of the run, as it is now, or else the copy in the run's directory. A
    LaunchError if it does not have them any more, a WorkflowError if it is not valid any more.
    """
    view = RunView()
    for record in JournalReader(directory.journal).new_records():
        view.apply(record)
    there = [Path(view.file)] if view.file else []
    file = next((each for each in there if each.is_file()), directory.workflow)
    draft = read_draft(str(file), given=directory.given())
    group, _, own = sweep.partition(".")  # an iteration's number may follow: master-2
    workflow = check_options(draft)
    names = workflow.names_in(group)
    parts = {
        names[part.module.name]: part
        for part in parts_with_options(draft, workflow)
        if part.module.name in names
    }
    master = parts.get(own) or parts.get(own.rpartition("-")[0])
    trainer = parts.get(getattr(master.options, "trainer", "")) if master is not None else None
    if master is None or trainer is None or not hasattr(trainer.code, "try_point"):
        raise LaunchError(f"{file} does not say who tries the trials of {sweep}")
    return master, trainer, draft.file.parent
