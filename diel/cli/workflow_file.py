"""Commands about a workflow file: ``diel check``, ``graph``, ``schema`` and ``batch``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from diel.cli.output import aligned, warn
from diel.cli.run import chosen_part
from diel.errors import LaunchError
from diel.executive.batch_scripts import batch_script, job_for, scheduler_here
from diel.executive.launch import available_cores
from diel.executive.placement.planning import needs, plan_groups
from diel.executive.placement.preview import NODE_COLUMNS, SchedulePreview, place_on_nodes
from diel.executive.plans import GroupPlan
from diel.loading.environment import set_thread_environment
from diel.loading.functions import check_options, look_at_data, missing_here
from diel.run.part import words_of_choices
from diel.workflow.drawing import ASCII, draw_dot, draw_mermaid, draw_text, drawing_of
from diel.workflow.load import load_workflow, read_draft
from diel.workflow.model import Module, Workflow
from diel.workflow.svg import draw_svg

_LARGEST_READ_BYTES: Final = 2**24
"""Data in larger files are left to ``--dry-run``: a table of so many takes some seconds to read."""


def check(options: argparse.Namespace) -> int:
    """Check a workflow file and print the ranks that it needs; return the exit code.

    Raises
    ------
    WorkflowError
        With every problem of the file.
    LaunchError
        If the threads of some ranks would not find a core each.
    """
    file, ranks = options.file, options.ranks
    if options.per_node is None and (options.gpus_per_node or options.cores_per_node):
        raise LaunchError("--gpus-per-node and --cores-per-node go with --per-node M")
    set_thread_environment(1)
    draft = read_draft(file, given=options.set)
    workflow = check_options(draft)
    problems, oddities = look_at_data(draft, workflow, _LARGEST_READ_BYTES)
    workflow = workflow.limited_to(chosen_part(options))
    draft.finish([*problems, *draft.missing_inputs(workflow)])
    cores = available_cores()
    plans = plan_groups(workflow, ranks, file) if ranks is not None else []
    need = needs(workflow, cores)
    on_cores = f", on {cores} cores" if _fills(workflow.modules) else ""
    print(
        f"{file}: fine; {_count(workflow.modules, 'module')}, {_count(workflow.groups, 'group')}\n"
        f"ranks, 1 for the executive and {workflow.tuple_space.servers} for tuples included:\n"
        f"  {need.minimum:5d}  the largest group: the least that it runs on\n"
        f"  {need.moment:5d}  the largest moment: what diel run takes{on_cores}\n"
        f"  {need.total:5d}  in sum"
    )
    for group in workflow.groups:
        when = workflow.when_of(group)
        if when is not None and (skip := when.in_words()):
            print(f"group {group.name} {skip}: {when.reason()}")
    for plan in plans:
        if not plan.modules:
            continue
        copies = ", ".join(f"{module.module} x {module.copies}" for module in plan.modules)
        print(f"on {ranks} ranks, group {plan.name}: {copies}")
    if options.per_node is not None:
        if ranks is None:
            ranks = need.moment
            plans = plan_groups(workflow, ranks, file)
        print()
        _print_schedule(
            workflow,
            plans,
            ranks=ranks,
            per_node=options.per_node,
            gpus_per_node=options.gpus_per_node,
            cores_per_node=options.cores_per_node,
            shown_as=file,
        )
    for problem in missing_here(draft):
        print(f"{problem.message} ({problem.remedy})")
    for odd in oddities:
        warn(odd)
    return 0


def _fills(modules: tuple[Module, ...]) -> bool:
    return any(module.copies == "fill" for module in modules)


def _count(items: tuple[object, ...], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _print_schedule(
    workflow: Workflow,
    plans: Sequence[GroupPlan],
    *,
    ranks: int,
    per_node: int,
    gpus_per_node: int | None,
    cores_per_node: int | None,
    shown_as: str,
) -> None:
    """Print a table of nodes, and which copies would run on which of their ranks.

    Without a number of GPUs for each node, nodes have as few as the workflow needs.

    Raises
    ------
    WorkflowError
        If there are too few GPUs.
    LaunchError
        If at some moment the ranks of a node have more threads than it has cores.
    """
    placed = place_on_nodes(
        workflow,
        plans,
        ranks=ranks,
        per_node=per_node,
        gpus_per_node=gpus_per_node,
        shown_as=shown_as,
    )
    head = f"placement, with {per_node} ranks on each node"
    if any(module.gpus for module in workflow.modules):
        fewest = ", as few as are needed" if gpus_per_node is None else ""
        head += f" and {placed.gpus_per_node} GPUs{fewest}"
    print(f"{head}:\n")
    rows: list[tuple[str, ...]] = [("node", *NODE_COLUMNS)]
    for node, lines in enumerate(placed.nodes):
        rows += [(f"node {node}" if not index else "", *line) for index, line in enumerate(lines)]
    print("\n".join(aligned(rows)))
    if cores_per_node is not None:
        _check_cores(placed.preview, ranks=ranks, per_node=per_node, cores=cores_per_node)


def _check_cores(preview: SchedulePreview, *, ranks: int, per_node: int, cores: int) -> None:
    # The executive and the servers sleep while they wait: they need no cores of their own.
    for node in range(-(-ranks // per_node)):
        threads = preview.most_threads(range(node * per_node, min(ranks, (node + 1) * per_node)))
        total = sum(threads.values())
        if total > cores:
            shares = " and ".join(f"{count} of {name}" for name, count in threads.items())
            raise LaunchError(
                f"node {node} has {cores} cores, and at one moment its ranks have "
                f"{total} threads: {shares}; put fewer ranks on a node, or give them fewer threads"
            )


DRAWINGS = {"text": draw_text, "dot": draw_dot, "mermaid": draw_mermaid, "svg": draw_svg}


def graph(options: argparse.Namespace) -> int:
    """Print a drawing of a workflow's groups; return the exit code.

    Raises
    ------
    WorkflowError
        With every problem of the file.
    """
    workflow = load_workflow(options.file, options.set).limited_to(chosen_part(options))
    text = DRAWINGS[options.format](drawing_of(workflow))
    if options.format == "text" and not _can_be_shown(text):
        text = text.translate(ASCII)
    print(text)
    return 0


def _can_be_shown(text: str) -> bool:
    drawn = "".join(character for character in text if ord(character) in ASCII)
    try:
        drawn.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of workflow files, or the page of their keys; return the exit code."""
    if options.format == "json":
        from diel.workflow.schema import workflow_schema

        print(json.dumps(workflow_schema(), indent=2, ensure_ascii=False))
    else:
        from diel.workflow.schema import reference

        print(reference(), end="")
    return 0


def batch(options: argparse.Namespace) -> int:
    """Print a batch script, or write it to a file; return the exit code.

    Raises
    ------
    DielError
        If the workflow or an option is wrong, or the file cannot be written.
    """
    set_thread_environment(1)
    part = chosen_part(options)
    workflow = check_options(read_draft(options.file, given=options.set)).limited_to(part)
    job = job_for(
        workflow,
        options.file,
        ranks=options.ranks,
        nodes=options.nodes,
        per_node=options.per_node,
        time_limit=options.time,
        queue=options.queue,
        account=options.account,
    )
    script = batch_script(
        job,
        options.file,
        scheduler=options.scheduler or scheduler_here(),
        launcher=options.launcher,
        requeue=options.requeue,
        script_file=options.output,
        share=options.share,
        choices=words_of_choices(options.set, part, force=options.force),
    )
    if options.output is None:
        print(script, end="")
        return 0
    try:
        options.output.write_text(script, encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{options.output} cannot be written: {error.strerror}") from error
    return 0
