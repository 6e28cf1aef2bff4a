"""A Slurm batch script from what a workflow file asks for: pure.

Slurm sends the script SIGTERM a minute before the time limit. The script passes it on, so that the
run ends in order, and waits for that: a shell's ``wait`` returns at once when a trap is run.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from diel.errors import LaunchError
from diel.executive.launch import own_mpiexec
from diel.executive.placement.planning import fewest_gpus_per_node, needs, plan_groups, pool_ranks
from diel.frozen import Frozen
from diel.workflow.model import Workflow

_WARNING_S: Final = 60
# minutes, minutes:seconds, hours:minutes:seconds; days-hours, with minutes, with seconds
_TIME_LIMIT: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_PARTITION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*")


class Job(Frozen):
    """What is asked of Slurm.

    Attributes
    ----------
    name : str
    ranks : int
    nodes, per_node : int or None
        Nodes, and ranks on each of them at most; None where Slurm may choose.
    threads : int
        Cores of each rank.
    gpus_per_node : int
    """

    name: str
    ranks: int
    nodes: int | None
    per_node: int | None
    threads: int
    gpus_per_node: int


def job_for(
    workflow: Workflow,
    shown_as: str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
) -> Job:
    """Return what a workflow needs.

    Parameters
    ----------
    workflow : Workflow
    shown_as : str
        The workflow file as the user named it.
    ranks, nodes, per_node : int, optional
        What the user has decided. Without `ranks` it is all that the nodes hold, if both others
        are given, and else what the file can use at once.

    Raises
    ------
    LaunchError
        If the numbers contradict each other, or a "fill" leaves the number of ranks open.
    WorkflowError
        If these are too few ranks.
    """
    if ranks is None and nodes is not None and per_node is not None:
        ranks = nodes * per_node
    if ranks is None:
        fills = [module.name for module in workflow.modules if module.copies == "fill"]
        if fills:
            raise LaunchError(
                f'{", ".join(fills)} of {shown_as} has copies = "fill", as many as the ranks '
                "allow: say how many ranks, with --ranks N or with --nodes N --per-node M"
            )
        ranks = needs(workflow, cores=1).moment
    plans = plan_groups(workflow, ranks, shown_as)
    if nodes is None and any(module.gpus for module in workflow.modules):
        nodes = 1 if per_node is None else -(-ranks // per_node)
    if nodes is not None:
        least = -(-ranks // nodes)
        per_node = least if per_node is None else per_node
        if per_node < least:
            raise LaunchError(
                f"{nodes} nodes with {per_node} ranks each hold {nodes * per_node} ranks, "
                f"{ranks} are needed"
            )
    elif per_node is not None:
        nodes = -(-ranks // per_node)
    gpus_per_node = 0
    if per_node is not None:
        pool = pool_ranks(workflow, ranks)
        gpus_per_node = fewest_gpus_per_node(workflow, plans, pool, per_node)
    return Job(workflow.name, ranks, nodes, per_node, workflow.max_threads, gpus_per_node)


def sbatch_script(
    job: Job,
    command: Sequence[str],
    *,
    launcher: Literal["srun", "mpiexec"] = "srun",
    time_limit: str | None = None,
    partition: str | None = None,
) -> str:
    """Return the script.

    Parameters
    ----------
    job : Job
    command : sequence of str
        diel's own: what each rank runs; and, where diel starts mpiexec itself, the script too.
    launcher : str, optional
        Who starts the ranks.
    time_limit, partition : str, optional
        As Slurm writes them.

    Raises
    ------
    LaunchError
        If Slurm would not understand one of them.
    """
    if partition is not None and not _PARTITION.fullmatch(partition):
        raise LaunchError(f"{partition!r} is no partition: letters, digits, _, -, . and commas")
    warning_s = _WARNING_S
    if time_limit is not None:
        # A short job would be stopped as soon as it has started.
        warning_s = min(warning_s, time_limit_s(time_limit) // 4)
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks": job.ranks,
        "ntasks-per-node": job.per_node,
        "cpus-per-task": job.threads,
        "gpus-per-node": job.gpus_per_node or None,
        "time": time_limit,
        "partition": partition,
        "signal": f"B:TERM@{warning_s}",
    }
    lines = [
        f"#SBATCH --{option}={shlex.quote(str(value))}"
        for option, value in options.items()
        if value is not None
    ]
    if launcher == "srun":
        # Since Slurm 22.05 a step does not take the job's cores for a task by itself.
        start = ["srun", f"--ntasks={job.ranks}", f"--cpus-per-task={job.threads}", *command]
    else:
        start = [*command, "-n", str(job.ranks)]
    return _SCRIPT.format(options="\n".join(lines), start=shlex.join(start), seconds=warning_s)


_SCRIPT: Final = """\
#!/bin/bash
{options}

{start} &
run=$!

# Slurm sends SIGTERM {seconds} s before the time limit: the run is told, and ends in order.
trap 'kill -TERM "$run" 2>/dev/null' TERM INT
while
    wait "$run"
    status=$?
    kill -0 "$run" 2>/dev/null
do
    :
done
exit "$status"
"""


def time_limit_s(limit: str) -> int:
    """Return a time limit of Slurm's in seconds.

    Raises
    ------
    LaunchError
        If it is none.
    """
    found = _TIME_LIMIT.fullmatch(limit)
    if found is None or not any(int(part or 0) for part in found.groups()):
        raise LaunchError(
            f"{limit!r} is no time limit: write minutes, H:M:S, D-H or D-H:M:S, as in 1:30:00"
        )
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # hours, minutes, seconds
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:  # minutes, seconds
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script_of_file(
    workflow: Workflow,
    file: str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    launcher: Literal["srun", "mpiexec"] | None = None,
    time_limit: str | None = None,
    partition: str | None = None,
) -> str:
    """Return the script that runs a workflow file with the diel of this Python.

    Parameters
    ----------
    workflow : Workflow
        What the file says.
    file : str
        As the user named it.
    ranks, nodes, per_node, time_limit, partition
        As for `job_for` and `sbatch_script`.
    launcher : str, optional
        By default mpiexec where it lies beside diel, as with MPI from PyPI, which Slurm may not
        know; else srun.

    Raises
    ------
    DielError
        If what is asked for cannot be.
    """
    job = job_for(workflow, file, ranks=ranks, nodes=nodes, per_node=per_node)
    script = sbatch_script(
        job,
        # Absolute: the script may be submitted from anywhere, without this environment.
        [_diel(), "run", os.path.abspath(file)],
        launcher=launcher or ("mpiexec" if own_mpiexec() else "srun"),
        time_limit=time_limit,
        partition=partition,
    )
    try:
        script.encode()
    except UnicodeEncodeError:
        raise LaunchError(
            "the path of the workflow file is not UTF-8, so no script can name it: rename it"
        ) from None
    return script


def _diel() -> str:
    beside_python = Path(sys.executable).parent / "diel"
    return str(beside_python) if beside_python.exists() else "diel"
