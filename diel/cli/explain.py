"""``diel explain``: why groups of a run do not start, and what its ranks wait for."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence

from diel.cli.output import aligned, warn
from diel.cli.run import chosen_part
from diel.errors import LaunchError, ModuleFailed, RunDirectoryError
from diel.executive.explanation import GroupExplanation
from diel.executive.explanation import explain as explain_run
from diel.executive.launch import available_cores
from diel.executive.placement.planning import (
    assign_ranks,
    fewest_gpus_per_node,
    needs,
    plan_run,
    simulated_nodes,
)
from diel.executive.placement.preview import moments
from diel.executive.plans import GroupPlan, recorded
from diel.loading.environment import set_thread_environment
from diel.loading.functions import check_options
from diel.loading.module_spec import ModuleSpec
from diel.loading.outputs import CopyOutputs
from diel.run.directory import RunDirectory
from diel.run.history import DEFAULT_RUNS, find_run, summarize
from diel.run.journal import read_view
from diel.run.part import Part, words_of_choices
from diel.run.records import GroupSkipped, RunStarted
from diel.run.status import StatusView, read_status
from diel.run.view import RunView
from diel.workflow.load import read_draft
from diel.workflow.model import Workflow
from diel.workflow.outputs import makers_of
from diel.workflow.when import When


def explain(options: argparse.Namespace) -> int:
    """Print why groups do not start, and what ranks wait for; return the exit code.

    Raises
    ------
    DielError
        If there is no such run, or the workflow file cannot be run.
    """
    path = options.path or DEFAULT_RUNS
    if os.path.isfile(path):  # False also of a name that is too long
        return _explain_file(str(path), options.ranks, options.set, chosen_part(options))
    if options.ranks is not None:
        raise LaunchError("-n N goes with a workflow file: a run has its ranks")
    if choices := words_of_choices(options.set, chosen_part(options)):
        raise LaunchError(f"{choices[0]} goes with a workflow file: {path} is no such file")
    directory = RunDirectory(find_run(path))
    view, complaint = read_view(directory)
    if complaint:
        warn(complaint)
    now_s = time.time()
    summary = summarize(directory.path, now_s)
    status = StatusView() if summary.state == "killed" else read_status(directory)
    try:
        lines = explain_run(view, status, now_s).lines()
    except ValueError as error:
        raise RunDirectoryError(f"{directory.journal} is damaged: {error}") from None
    if summary.state == "killed":
        print(f"the run was killed: diel run --resume {directory.path} goes on; when it ended:")
    print("\n".join(lines) or f"{directory.path}: {summary.reason or summary.state}")
    return 0


def _explain_file(file: str, ranks: int | None, given: Sequence[str], part: Part) -> int:
    """Print when each group of a workflow file would start, and what it waits for."""
    set_thread_environment(1)
    draft = read_draft(file, given=given)
    workflow = check_options(draft).limited_to(part)
    ranks = ranks or needs(workflow, available_cores()).moment
    plan = plan_run(workflow, draft, ranks)
    gpus = fewest_gpus_per_node(workflow, plan.groups, plan.pool, ranks)
    nodes = simulated_nodes(plan.pool, ranks, gpus)
    groups, assignment = assign_ranks(plan.groups, plan.needs, nodes, file)
    view = RunView()
    view.apply(
        RunStarted(
            workflow=plan.name,
            ranks=ranks,
            servers=plan.server_ranks,
            resources=plan.resources,
            **recorded(groups),
        )
    )
    skips = {group.name: (group.when.in_words(), group.when) for group in groups if group.when}
    for name, (skip, when) in skips.items():
        if skip == "will be skipped":
            iteration, around = [0], view.groups[name].inside
            while around:
                iteration, around = [*iteration, 0], view.groups[around].inside
            seen = when.seen({}, {})
            view.apply(
                GroupSkipped(
                    group=name, iteration=tuple(iteration), condition=when.text, values=seen
                )
            )
    found = explain_run(view, StatusView(), 0.0)
    steps = moments(groups, assignment, plan.resources)
    first = {
        copy.group: number
        for number, copies in reversed(list(enumerate(steps, start=1)))
        for copy in copies
    }
    print(
        f"{file} on {ranks} ranks, {len(plan.pool)} of them for modules; moments are as if all "
        "groups of one ended together"
    )
    rows = [("moment", "group", "ranks", "at the start")]
    rows += [
        (
            str(first.get(entry.group, "")),
            entry.group,
            str(entry.wanted or ""),
            _text(entry, skips),
        )
        for entry in found.groups
    ]
    print("\n".join(aligned(rows)))
    current = _whether_current(workflow, groups, plan.specs)
    if current:
        print("\n".join(["", *aligned([("copy", "group", "whether it will run"), *current])]))
    return 0


def _text(entry: GroupExplanation, skips: Mapping[str, tuple[str, When]]) -> str:
    """Return what a group waits for, and whether it may or will be skipped."""
    skip, when = skips.get(entry.group, ("", None))
    if entry.situation == "skipped":
        return f"will be {entry.text}"
    if entry.situation != "waiting" and skip and when is not None:
        return f"{entry.text}; {skip}: {when.reason()}"
    return entry.text  # which says so where it waits


def _whether_current(
    workflow: Workflow, groups: Sequence[GroupPlan], specs: Mapping[str, ModuleSpec]
) -> list[tuple[str, ...]]:
    """Return a row for each copy that declares outputs: whether it will run, and why."""
    found: dict[tuple[str, str, str], str] = {}
    for group in groups:
        around = workflow.links.around(group.name)
        for module in group.modules:
            spec = specs[module.module]
            for copy in range(module.copies if spec.outputs else 0):
                places = spec.places(
                    copy=copy,
                    copies=module.copies,
                    processes=module.processes,
                    group=group.name,
                    iteration=[0] * (len(around) + 1),
                    run_dir=workflow.file.parent / "new run",
                    folder=workflow.file.parent,
                )
                try:
                    why = CopyOutputs(spec, places, workflow.file).why()
                except ModuleFailed as error:
                    why = str(error)
                found[module.module, f"{module.module}.{copy}", group.name] = why
    makers = makers_of(
        [name for name, *_ in found], workflow.modules, workflow.file.parent, workflow.expansion
    )
    runs = {name for (name, *_), why in found.items() if why}
    runs |= {each.name for each in workflow.modules if not each.outputs}
    while more := {name for name, made_by in makers.items() if made_by & runs} - runs:
        runs |= more
    rows: list[tuple[str, ...]] = []
    for (name, copy_name, group_name), why in found.items():
        if anew := sorted(makers[name] & runs):
            why = f"{', '.join(anew)} may make its input anew"
        rows.append((copy_name, group_name, why or "up to date"))
    return rows
