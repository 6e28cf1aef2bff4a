"""``diel sweep``: run a sweep, or look at it before or after.

Sweeps are defined by the code of the workflow file's modules, not by diel. In a module's file that
defines ``Options`` these functions are looked up, and called if they exist; what they return::

    preview_sweep(options, folder)               strategy, size, points, trainer, what_is_wrong,
                                                 what_is_broken
    export_sweep(run_dir, formats, folder)       files
    check_export(formats)                        nothing, or raises ValueError
    try_point(options, folder, point, seed, trial, own_seed)
                                                 why it failed, seconds, metrics; of the
                                                 trainer's file
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.cli.conclusion import TABLE_ROWS, print_rankings
from diel.cli.output import aligned, warn
from diel.cli.run import chosen_part, run
from diel.errors import LaunchError
from diel.exit_codes import FAILED
from diel.loading.environment import set_thread_environment
from diel.loading.functions import ModulePart, check_options, look_at_data, parts_with_options
from diel.loading.models import trainer_of
from diel.loading.sweeps import watch_sweeps
from diel.run.directory import RunDirectory
from diel.run.history import is_run
from diel.run.journal import read_view
from diel.run.part import words_of_choices
from diel.text import format_duration, format_value, trials_in_words
from diel.workflow.load import read_draft

_ANSWER_S: Final = 10.0
"""How long to wait for a sweep's answer: it reads requests twice a second, between two tuples."""
_MOST_DIGITS: Final = 12
"""Of the number of a trial; Python refuses to read numbers of thousands of digits."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diel.workflow.load import Draft


def sweep(options: argparse.Namespace) -> int:
    """Run, preview, steer, show, repeat or export a sweep, as the options say; return exit code.

    Raises
    ------
    DielError
        If the file cannot be run, or has no sweep.
    """
    if options.dry_run and is_run(options.file):
        raise LaunchError(f"{options.file} has been run: --dry-run goes with a workflow file")
    if options.dry_run and options.export:
        raise LaunchError("--dry-run records nothing that --export could write")
    if options.repeat is not None and not is_run(options.file):
        raise LaunchError(f"{options.file} is no run's directory, which --repeat goes with")
    if requests := _requests(options):
        return _steer(options, requests)
    if is_run(options.file):
        if choices := words_of_choices(options.set, chosen_part(options), force=options.force):
            raise LaunchError(f"{choices[0]} goes with a workflow file: this has been run")
        directory = RunDirectory(options.file)
        view, complaint = read_view(directory)
        if complaint:
            warn(complaint)
        if options.repeat is None and not print_rankings(
            view, directory, options.top or TABLE_ROWS
        ):
            print(f"{options.file}: no results yet")
        if options.repeat is not None:
            return _repeat(directory, options.repeat)
        there = [directory.workflow] if not view.file else [Path(view.file), directory.workflow]
        file = next((file for file in there if file.is_file()), directory.workflow)
        return _export(directory, options.export, file)
    if options.dry_run:
        return _preview(options)
    if options.export:
        _check_export(options.file, options.export, options.set)
    given = {"resume": None, "run_dir": None, "trace": False, "directory": None}
    for name, value in given.items():
        setattr(options, name, value)
    file, options.file = options.file, str(options.file)
    exit_code = run(options)
    if options.directory is not None:
        _export(options.directory, options.export, file)
    return exit_code


# -- while it runs ---------------------------------------------------------------------------------


def _requests(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the requests to a running sweep, as JSON objects."""
    requests: list[dict[str, Any]] = []
    for text in options.enqueue:
        try:
            parameters = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LaunchError(f"--enqueue {text}: no JSON: {error}") from None
        if not isinstance(parameters, dict):
            raise LaunchError(f'--enqueue {text}: write a point as {{"parameter": value, ...}}')
        requests.append({"kind": "enqueue", "parameters": parameters})
    requests += [{"kind": "stop", "number": trial} for trial in options.stop_trial]
    if options.trials is not None:
        requests.append({"kind": "trials", "number": options.trials})
    if options.time is not None:
        requests.append({"kind": "time", "time_s": options.time})
    if options.pause and options.resume:
        raise LaunchError("--pause and --resume at once: choose one")
    requests += [{"kind": kind} for kind in ("pause", "resume") if getattr(options, kind)]
    return requests


def _steer(options: argparse.Namespace, requests: list[dict[str, Any]]) -> int:
    if not is_run(options.file):
        raise LaunchError(
            f"{options.file} is no run's directory: only a sweep that runs, or has run, can be "
            "changed"
        )
    from diel.loading.sweeps import steer_sweep

    wait_s = 0.0 if options.no_wait else _ANSWER_S
    answers = steer_sweep(RunDirectory(options.file), requests, sweep=options.sweep, wait_s=wait_s)
    for answer in answers:
        refused = "refused: " if answer["accepted"] is False else ""
        print(f"{answer['kind']}: {refused}{answer['answer']}")
    return FAILED if any(answer["accepted"] is False for answer in answers) else 0


# -- before ---------------------------------------------------------------------------------------


def _preview(options: argparse.Namespace) -> int:
    from diel.executive.launch import available_cores
    from diel.executive.placement.planning import needs, plan_groups

    set_thread_environment(1)
    draft = read_draft(str(options.file), given=options.set)
    workflow = check_options(draft).limited_to(chosen_part(options))
    parts = {part.module.name: part for part in parts_with_options(draft, workflow)}
    ranks = options.ranks or needs(workflow, available_cores()).moment
    plans = plan_groups(workflow, ranks, str(options.file))
    copies = {module.module: module.copies for plan in plans for module in plan.modules}
    sweeps = [part for part in parts.values() if hasattr(part.code, "preview_sweep")]
    if not sweeps:
        raise LaunchError(
            f"{options.file} has no sweep: no file of a module's function has a preview_sweep"
        )
    problems, oddities = look_at_data(draft, workflow)
    draft.finish(problems)
    for odd in oddities:
        warn(odd)
    exit_code = 0
    for part in sweeps:
        found = part.code.preview_sweep(part.options, draft.file.parent)
        trainers = copies.get(found.trainer, 1)
        size = trials_in_words(found.size)
        print(f"{part.module.name}: {size}, {found.strategy}, {trainers} trainers on {ranks} ranks")
        _print_points(found.points)
        trainer = parts.get(found.trainer)
        if trainer is not None and hasattr(trainer.code, "try_point") and found.points:
            seed = getattr(part.options, "seed", 0)
            if not _print_estimate(trainer, draft.file.parent, found, seed, trainers):
                exit_code = FAILED
    return exit_code


def _print_points(points: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for point in points for name in point))
    rows = [("trial", *names)]
    for number, point in enumerate(points):
        rows.append((str(number), *(format_value(point.get(name, ""), digits=6) for name in names)))
    print("\n".join(aligned(rows)))


def _print_estimate(
    trainer: ModulePart, folder: Path, found: Any, seed: int, trainers: int
) -> bool:
    """Try the first point and print how long the sweep would take; return whether it succeeded."""
    reason, seconds, metrics = trainer.code.try_point(
        trainer.options, folder, found.points[0], seed
    )
    reason = reason or found.what_is_wrong(metrics)
    if reason:
        print(f"trial 0 failed: {reason}")
        return False
    if broken := getattr(found, "what_is_broken", lambda metrics: "")(metrics):
        print(f"trial 0 would not count: it {broken}")
    text = f"trial 0 took {format_duration(seconds)}"
    if found.size is not None:
        whole_s = seconds * found.size / trainers
        whole = format_duration(whole_s) if whole_s >= 1 else "less than a second"
        text += f"; if all are like it, the sweep takes {whole}"
    print(text)
    return True


# -- after ----------------------------------------------------------------------------------------


def _repeat(directory: RunDirectory, wanted: str) -> int:
    """Try a recorded trial here once more, and print its metrics beside the recorded ones."""
    name, _, text = wanted.rpartition(":")
    sweeps = [watched for watched in watch_sweeps(directory) if name in ("", watched.name)]
    if len(sweeps) != 1:
        there = ", ".join(watched.name for watched in sweeps) or "none of that name"
        raise LaunchError(f"{directory.path} has several sweeps or none ({there}): --repeat NAME:N")
    (watched,) = sweeps
    watched.catch_up()
    is_number = text.isdecimal() and len(text) <= _MOST_DIGITS
    trial = watched.trial(int(text)) if is_number else None
    if trial is None or not trial["command"]:
        raise LaunchError(f"{directory.path} has no record of a trial {text} of {watched.name}")
    set_thread_environment(1)
    master, trainer, folder = trainer_of(directory, watched.name)
    seed = getattr(master.options, "seed", 0)
    # A trial that was taken over from an earlier sweep has the seed that it had there.
    reason, seconds, metrics = trainer.code.try_point(
        *(trainer.options, folder, trial["parameters"], seed, trial["trial"], trial["seed"]),
        **({"ancestors": trial["ancestors"]} if trial.get("ancestors") else {}),
    )
    if reason:
        print(f"trial {text} failed: {reason}")
        return FAILED
    recorded = trial["metrics"]
    rows = [("", "recorded", "now")]
    for key in recorded:
        rows.append((key, *(format_value(given.get(key, "")) for given in (recorded, metrics))))
    rows.append(("seconds", format_value(trial["seconds"]), format_value(seconds)))
    print("\n".join(aligned(rows)))
    return 0


def _export(directory: RunDirectory, formats: list[str], file: Path) -> int:
    if not formats:
        return 0
    draft, exporters = _exporters(file, directory.given())
    for code in exporters:
        try:
            files = code.export_sweep(directory.path, formats, draft.file.parent)
        except (ValueError, OSError) as error:
            raise LaunchError(str(error)) from error
        for path in files:
            print(path)
    return 0


def _check_export(file: Path, formats: list[str], given: Sequence[str]) -> None:
    for code in _exporters(file, given)[1]:
        try:
            getattr(code, "check_export", lambda _: None)(formats)
        except ValueError as error:
            raise LaunchError(str(error)) from error


def _exporters(file: Path, given: Sequence[str]) -> tuple[Draft, list[Any]]:
    """Return the draft of a file, and the code of its modules that can export, each once."""
    draft = read_draft(str(file), given=given)
    workflow = check_options(draft)
    found = {
        part.code.__name__: part.code
        for part in parts_with_options(draft, workflow)
        if hasattr(part.code, "export_sweep")
    }
    if not found:
        raise LaunchError(f"{file} has no sweep to export")
    return draft, list(found.values())
