"""``diel predict``: the best network of a sweep scores the rows of a CSV file, or images."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.cli.output import warn
from diel.errors import LaunchError, RunDirectoryError
from diel.loading.environment import set_thread_environment
from diel.loading.models import average_of_run, load_model, model_of_run
from diel.run.directory import RunDirectory
from diel.run.files import replacing
from diel.run.history import is_run
from diel.text import format_value

if TYPE_CHECKING:
    from diel.loading.models import Prediction, TrainedModel

_MODEL_SUFFIX: Final = ".safetensors"


def predict(options: argparse.Namespace) -> int:
    """Predict the rows of a file, or write the model as ONNX, or show it; return the exit code.

    Raises
    ------
    LaunchError
        If options do not go together, or rows or output are not such as they have to be.
    RunDirectoryError
        If there is no such model.
    MissingPackage
        If what the model needs is not installed.
    """
    target, data, output = options.run_dir, options.data, options.output
    for name, value in (("--output", output), ("--proba", options.proba)):
        if value and data is None:
            raise LaunchError(f"{name} goes with a file of rows: diel predict RUN_DIR NEW.csv")
    if output and data and output.exists() and data.exists() and output.samefile(data):
        raise LaunchError(f"--output {output} is the file of the rows: name another one")
    for name, file in (("--output", output), ("--onnx", options.onnx)):
        if file is not None and file.exists() and not file.is_file():  # such as /dev/stdout
            raise LaunchError(f"{name} {file} is no regular file, which could be replaced")
    set_thread_environment(1)  # as in the trials, so that no bit differs
    if options.average is None:
        model = _model(target, options.sweep, options.trial)
    else:
        model = _average(target, options)
    if data is None and options.onnx is None:
        print(model)
        return 0
    if data is not None:
        try:
            delimiter = "\t" if options.delimiter == r"\t" else options.delimiter
            found = model.predict_file(data, delimiter=delimiter)
        except ValueError as error:
            raise LaunchError(str(error)) from error
        _write(model, found, options)
    if options.onnx is not None:
        try:
            model.export_onnx(options.onnx)
        except (ValueError, ImportError) as error:
            raise LaunchError(str(error)) from error
        print(f"{options.onnx}: takes raw rows, the preparation is inside", file=sys.stderr)
    return 0


def _model(target: Path, sweep: str, trial: int | None) -> Any:
    if is_run(target):
        return model_of_run(RunDirectory(target), sweep, trial)
    if sweep or trial is not None:
        raise LaunchError(f"{target} is no run's directory, which --sweep and --trial go with")
    if target.is_dir() or (target.suffix != _MODEL_SUFFIX and not target.is_file()):
        raise RunDirectoryError(
            f"{target} is neither a run's directory nor a {_MODEL_SUFFIX} file of a model: "
            "diel runs DIR lists the runs of a folder"
        )
    return load_model(target)


def _average(target: Path, options: argparse.Namespace) -> Any:
    if options.trial is not None:
        raise LaunchError("--average and --trial do not go together: leave one out")
    if options.onnx is not None:
        raise LaunchError(
            "--average and --onnx do not go together: an ONNX file has one network; leave out "
            "--average, or take --trial N in its place"
        )
    if not is_run(target):
        raise LaunchError(f"{target} is no run's directory, which --average goes with")
    model = average_of_run(RunDirectory(target), options.sweep, options.average)
    print("\n".join(model.provenance["said"]), file=sys.stderr)
    return model


def _write(model: TrainedModel, found: Prediction, options: argparse.Namespace) -> None:
    """Write the predictions as a table, to a file or to the terminal, and say how good they are."""
    for note in found.rows.notes:
        warn(note)
    count, output = len(found.values), options.output
    if output is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(_rows(model, found, options))
    else:
        try:
            with replacing(output, text=True) as file:
                csv.writer(file, lineterminator="\n").writerows(_rows(model, found, options))
        except OSError as error:
            raise LaunchError(f"--output {output} cannot be written: {error}") from error
    said = [] if output is None else [f"{count} rows: {output}"]
    if found.metrics:
        names = sorted(found.metrics, key=lambda name: name == "loss")
        values = ", ".join(f"{name} {format_value(found.metrics[name])}" for name in names)
        what = "label" if model.classes else "target"
        rows = f"these {count} rows, whose {what}s are"
        if count == 1:
            rows = f"this row, whose {what} is"
        elif found.scored < count:
            rows = f"the {found.scored} of {count} rows whose {what}s are"
        said.append(f"{values} on {rows} in the file")
    print("\n".join(said), end="\n" if said else "", file=sys.stderr if output is None else None)


def _rows(
    model: TrainedModel, found: Prediction, options: argparse.Namespace
) -> Iterator[list[Any]]:
    """Yield the heading and the rows of the table of predictions."""
    rows, values, odds = found.rows, found.values, found.probabilities
    kept = options.keep_columns or rows.are_files
    width = len(rows.cells[0])
    names = list(rows.names) or [str(number) for number in range(1, width + 1)]
    if model.classes:
        head = ["predicted", "probability"]
        if options.proba:
            head += [f"probability of {name}" for name in model.classes]
    else:
        head = _headings("predicted", model.outputs)
        if found.residuals is not None:
            head += _headings("residual", model.targets)
        if odds is not None and options.proba:
            head += [f"probability of {name}" for name in model.targets]
    yield [*(names if kept else ["row"]), *head]
    for number, cells in enumerate(rows.cells):
        of_row = list(cells) if kept else [number + 1]
        every: list[Any] = []
        if odds is not None and options.proba:
            every = [f"{share:.6g}" for share in odds[number].tolist()]
        if model.classes:
            best = max(odds[number].tolist())
            yield [*of_row, values[number], f"{best:.6g}", *every]
            continue
        shown = [f"{value:.8g}" for value in values[number].tolist()]
        if found.residuals is not None:
            left = found.residuals[number].tolist()
            every = ["" if value != value else f"{value:.8g}" for value in left]
        yield [*of_row, *shown, *every]


def _headings(what: str, targets: Sequence[str]) -> list[str]:
    return [what] if len(targets) == 1 else [f"{what}_{name}" for name in targets]
