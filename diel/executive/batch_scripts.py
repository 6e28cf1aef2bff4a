"""Batch jobs: what a workflow asks of each batch scheduler, and the script that asks. Pure.

The script only starts ``diel run``, which starts the ranks by whatever works within the job, passes
a stop on to them, and returns the exit code that counts. Some time before the time limit it is sent
SIGUSR1: by the scheduler if that can signal the script alone, else by a timer in the script. The
script calls ``wait`` in a loop, since a shell's ``wait`` returns at once when a trap is run. A
signal that comes before the run has a process id is passed on as soon as it has one.

References
----------
.. [1] Slurm 22.05, sbatch(1).
.. [2] OpenPBS 23.06, qsub(1B), pbs_resources(7B) and pbs_job_attributes(7B).
.. [3] IBM Spectrum LSF 10.1, command reference: bsub and its options -gpu, -J, -o, -R and -W.
.. [4] Flux 0.88, flux-batch(1), flux-job(1) and flux-environment(7).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from diel.errors import LaunchError
from diel.exit_codes import NOT_FINISHED
from diel.frozen import Frozen
from diel.loading.deadline import END_TIME

if TYPE_CHECKING:
    from diel.workflow.model import Workflow

_WARNING_S: Final = 60
# minutes, minutes:seconds, hours:minutes:seconds; days-hours, with minutes, with seconds
_TIME_LIMIT: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*")


class Job(Frozen):
    """The resources and settings that a batch job asks for.

    Attributes
    ----------
    name : str
    ranks : int
    nodes, per_node : int or None
        Nodes, and ranks on each of them at most; None where the scheduler may choose.
    threads : int
        Cores of each rank.
    gpus_per_node : int
    time_limit_s : int or None, seconds
    queue, account : str or None
        The queue, which Slurm calls a partition, and the account to charge; None for the
        site's defaults.
    """

    name: str
    ranks: int
    nodes: int | None
    per_node: int | None
    threads: int
    gpus_per_node: int
    time_limit_s: int | None = None
    queue: str | None = None
    account: str | None = None

    @property
    def ranks_by_node(self) -> tuple[int, ...]:
        """The number of ranks on each node; empty where the scheduler may choose."""
        if self.nodes is None or self.per_node is None:
            return ()
        full, rest = divmod(self.ranks, self.per_node)
        return (self.per_node,) * full + ((rest,) if rest else ())


def job_for(
    workflow: Workflow,
    shown_as: str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    time_limit: str | None = None,
    queue: str | None = None,
    account: str | None = None,
) -> Job:
    """Return the batch job that a workflow needs.

    Parameters
    ----------
    workflow : Workflow
    shown_as : str
        The workflow file as the user named it.
    ranks, nodes, per_node : int, optional
        What the user has decided. The default of `ranks` is what the nodes hold, if `nodes` and
        `per_node` are given, and else what the file can use at once.
    time_limit : str, optional
        As Slurm writes it: minutes, H:M:S, D-H, ...
    queue, account : str, optional

    Raises
    ------
    LaunchError
        If the numbers contradict each other, a "fill" leaves the number of ranks open, or the
        scheduler would not understand a word.
    WorkflowError
        If these are too few ranks.
    """
    # Imported here: the table of schedulers below is needed for the help of commands.
    from diel.executive.placement.planning import fewest_gpus_per_node, plan_groups, pool_ranks

    for option, name in (("queue", queue), ("account", account)):
        if name is not None and not _NAME.fullmatch(name):
            raise LaunchError(f"{name!r} is no {option}: letters, digits and _ - . , @ +")
    if ranks is None:
        ranks = _usable_ranks(workflow, shown_as, nodes, per_node)
    plans = plan_groups(workflow, ranks, shown_as)
    uses_gpus = any(module.gpus for module in workflow.modules)
    nodes, per_node = _places(ranks, nodes, per_node, uses_gpus=uses_gpus)
    gpus_per_node = 0
    if per_node is not None:
        pool = pool_ranks(workflow, ranks)
        gpus_per_node = fewest_gpus_per_node(workflow, plans, pool, per_node)
    return Job(
        name=workflow.name,
        ranks=ranks,
        nodes=nodes,
        per_node=per_node,
        threads=workflow.max_threads,
        gpus_per_node=gpus_per_node,
        time_limit_s=None if time_limit is None else time_limit_s(time_limit),
        queue=queue,
        account=account,
    )


def _usable_ranks(
    workflow: Workflow, shown_as: str, nodes: int | None, per_node: int | None
) -> int:
    """Return how many ranks the nodes hold, or, without these, the file can use at once."""
    from diel.executive.placement.planning import needs

    if nodes is not None and per_node is not None:
        return nodes * per_node
    fills = [module.name for module in workflow.modules if module.copies == "fill"]
    if fills:
        raise LaunchError(
            f'{", ".join(fills)} of {shown_as} has copies = "fill", as many as the ranks '
            "allow: say how many ranks (--ranks N), or how many nodes and how many ranks on "
            "each (--nodes N --per-node M)"
        )
    return needs(workflow, cores=1).moment


def _places(
    ranks: int, nodes: int | None, per_node: int | None, *, uses_gpus: bool
) -> tuple[int | None, int | None]:
    """Return on how many nodes the ranks are, and how many on each; None for any number."""
    if nodes is None and (per_node is not None or uses_gpus):
        nodes = 1 if per_node is None else -(-ranks // per_node)
    if nodes is None:
        return None, None
    least = -(-ranks // nodes)
    per_node = least if per_node is None else per_node
    if per_node < least:
        raise LaunchError(
            f"{nodes} nodes with {per_node} ranks each hold {nodes * per_node} ranks, "
            f"{ranks} are needed"
        )
    return nodes, per_node


def time_limit_s(limit: str) -> int:
    """Return a time limit, as Slurm writes it, in seconds.

    Raises
    ------
    LaunchError
        If the time limit is invalid.
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


# -- batch schedulers ------------------------------------------------------------------------------


class BatchScheduler(Frozen):
    """The syntax of a batch scheduler: its options, its variables and its commands.

    Attributes
    ----------
    name : str
        The name as it is shown.
    sentinel : str
        The beginning of each line with options for the scheduler.
    options : callable
        Returns the options for a job, in order, each as it is written after the sentinel.
    job_variable : str
        The environment variable that has the job's id.
    within_job : str
        The environment variable that says that mpiexec may start ranks on other hosts of a job.
    submit : str
        The command that submits the file ``$script`` once more, with the variables `_HANDED_ON`.
    submit_stdin : tuple of str
        The command that submits a script from its standard input; jobs are submitted to this
        scheduler if the program is on the PATH.
    warns : bool
        Whether it sends the script SIGUSR1 itself, some time before the time limit.
    job_id : str
        The shell expression for the job's id; empty if that is the value of `job_variable`.
    folder : str
        The command that changes to the folder of submission, if scripts do not start there.
    launcher : str
        The command, besides mpiexec, that can start ranks within its jobs, of which
        `diel.executive.rank_launcher` knows how; empty without one.
    """

    name: str
    sentinel: str
    options: Callable[[Job], list[str]]
    job_variable: str
    within_job: str
    submit: str
    submit_stdin: tuple[str, ...]
    warns: bool = False
    job_id: str = ""
    folder: str = ""
    launcher: str = ""


def _slurm(job: Job) -> list[str]:
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks": job.ranks,
        "ntasks-per-node": job.per_node,
        "cpus-per-task": job.threads,
        "gpus-per-node": job.gpus_per_node,
        "time": None if job.time_limit_s is None else _clock(job.time_limit_s),
        "partition": job.queue,
        "account": job.account,
        "signal": f"B:USR1@{warning_s(job)}",
    }
    return _long_options(options)


def _pbs(job: Job) -> list[str]:
    # A node is a chunk; without nodes each rank is one, and PBS places them as it likes.
    chunks = job.ranks_by_node or (1,) * job.ranks
    selected = "+".join(
        f"{len(list(same))}:ncpus={ranks * job.threads}:mpiprocs={ranks}:ompthreads={job.threads}"
        + (f":ngpus={job.gpus_per_node}" if job.gpus_per_node else "")
        for ranks, same in groupby(chunks)
    )
    # PBS accepts only ASCII in a job's name, and requires a letter or digit first.
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", job.name)
    name = name if name[0].isalnum() else f"w{name}"
    options = [f"-N {name}", f"-l select={selected}", "-j oe"]
    if job.ranks_by_node:
        options.append("-l place=scatter")
    if job.time_limit_s is not None:
        options.append(f"-l walltime={_clock(job.time_limit_s)}")
    options += [] if job.queue is None else [f"-q {job.queue}"]
    return options + ([] if job.account is None else [f"-A {job.account}"])


def _lsf(job: Job) -> list[str]:
    options = [
        f"-J {shlex.quote(job.name)}",
        f"-n {job.ranks}",
        f"-o {shlex.quote(job.name)}-%J.out",
    ]
    if job.per_node is not None:
        options.append(f'-R "span[ptile={job.per_node}]"')
    if job.threads > 1:
        options.append(f'-R "affinity[core({job.threads})]"')
    if job.gpus_per_node:
        options.append(f'-gpu "num={job.gpus_per_node}/host"')
    if job.time_limit_s is not None:
        minutes = -(-job.time_limit_s // 60)
        options.append(f"-W {minutes // 60}:{minutes % 60:02}")
    options += [] if job.queue is None else [f"-q {job.queue}"]
    return options + ([] if job.account is None else [f"-P {job.account}"])


def _flux(job: Job) -> list[str]:
    # A node is a slot: ranks are placed in it later, by flux run.
    per_node = job.per_node or 1
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "nslots": job.nodes or job.ranks,
        "cores-per-slot": per_node * job.threads,
        "gpus-per-slot": job.gpus_per_node,
        "time-limit": None if job.time_limit_s is None else f"{job.time_limit_s}s",
        "queue": job.queue,
        "bank": job.account,
    }
    return _long_options(options)


_HANDED_ON: Final = ("DIEL_RUN_DIR", "DIEL_SUBMISSION")

SCHEDULERS: Final = {
    "slurm": BatchScheduler(
        name="Slurm",
        sentinel="#SBATCH",
        options=_slurm,
        job_variable="SLURM_JOB_ID",
        within_job="SLURM_JOB_ID",
        submit='sbatch "$script"',
        submit_stdin=("sbatch",),
        warns=True,
        launcher="srun",
    ),
    "pbs": BatchScheduler(
        name="PBS",
        sentinel="#PBS",
        options=_pbs,
        job_variable="PBS_JOBID",
        within_job="PBS_NODEFILE",
        submit=f'qsub -v {",".join(_HANDED_ON)} "$script"',
        submit_stdin=("qsub",),
        folder='cd "$PBS_O_WORKDIR" || exit',
    ),
    "lsf": BatchScheduler(
        name="LSF",
        sentinel="#BSUB",
        options=_lsf,
        job_variable="LSB_JOBID",
        within_job="LSB_JOBID",
        submit='bsub <"$script"',
        submit_stdin=("bsub",),
    ),
    "flux": BatchScheduler(
        name="Flux",
        sentinel="# flux:",
        options=_flux,
        job_variable="FLUX_JOB_ID",
        within_job="FLUX_URI",
        submit='flux --parent batch "$script"',  # without --parent: a job within this job
        submit_stdin=("flux", "batch"),
        job_id='$(flux job id "$(flux getattr jobid)")',  # digits alone
        launcher="flux",
    ),
}
"""All batch schedulers, by the value of ``--scheduler``."""

LAUNCHERS: Final = ("mpiexec", *(each.launcher for each in SCHEDULERS.values() if each.launcher))
"""Commands that start ranks: the values of ``--launcher``."""


def batch_job() -> str:
    """Return the id of the batch job that this process is in; empty outside of one."""
    ids = (os.environ.get(scheduler.job_variable) for scheduler in SCHEDULERS.values())
    return next(filter(None, ids), "")


def warning_s(job: Job) -> int:
    """Return how many seconds before its time limit a job is sent SIGUSR1."""
    # At most a quarter of the limit: else a short job would be stopped as soon as it has started.
    return _WARNING_S if job.time_limit_s is None else min(_WARNING_S, job.time_limit_s // 4)


def scheduler_here() -> str:
    """Return the `SCHEDULERS` key of the batch scheduler whose submit command is on the PATH.

    Raises
    ------
    LaunchError
        If no such command is on the PATH.
    """
    for word, scheduler in SCHEDULERS.items():
        if shutil.which(scheduler.submit_stdin[0]):
            return word
    programs = ", ".join(scheduler.submit_stdin[0] for scheduler in SCHEDULERS.values())
    raise LaunchError(
        f"none of {programs} is on the PATH: say for which batch scheduler, with --scheduler "
        + ", ".join(SCHEDULERS)
    )


def batch_script(
    job: Job,
    file: str,
    *,
    scheduler: str,
    launcher: str | None = None,
    requeue: int = 0,
    script_file: Path | None = None,
    share: Path | None = None,
    choices: Sequence[str] = (),
) -> str:
    """Return the script that runs a workflow file with the diel of this Python.

    Parameters
    ----------
    job : Job
    file : str
        The workflow file.
    scheduler : str
        One of `SCHEDULERS`.
    launcher : str, optional
        The ``--launcher`` of ``diel run``; by default ``diel run`` chooses within the job.
    requeue : int, optional
        How many times the script submits itself again while the run is not finished.
    script_file : Path, optional
        The file that the script will be written to: a job runs a copy of it, and not every
        scheduler tells the job of which file.
    share : Path, optional
        The folder in which the runs of all jobs of this script share their sweeps.
    choices : sequence of str, optional
        Words of ``diel run`` that say what is run, as `diel.run.part.words_of_choices` makes them.

    Raises
    ------
    LaunchError
        If a path cannot be written into a script, or `requeue` is given without `script_file`, or
        without a time limit for a scheduler that does not warn.
    """
    if requeue and script_file is None:
        raise LaunchError(
            "a script that submits itself again has to know where it lies: say in which file, "
            "with --output job.sh"
        )
    syntax = SCHEDULERS[scheduler]
    if requeue and not syntax.warns and job.time_limit_s is None:
        raise LaunchError(
            f"{syntax.name} warns no script before its time limit, so a script that submits itself "
            "again has to know the limit: say --time"
        )
    # Absolute: the script may be submitted from anywhere, without this environment.
    command = [_diel(), "run", _absolute(file), "--ranks", str(job.ranks)]
    if launcher is not None:
        command += ["--launcher", launcher]
    if share is not None:
        command += ["--share", _absolute(share)]
    start = shlex.join([*command, *choices])
    head = [f"{syntax.sentinel} {option}" for option in syntax.options(job)]
    parts = ["#!/bin/bash", *head, ""]
    parts += [syntax.folder] if syntax.folder else []
    if requeue and script_file is not None:
        stem, path = f"runs/{job.name}-", _absolute(script_file)
        parts.append(
            _CHAIN.format(
                stem=shlex.quote(stem),
                job_id=syntax.job_id or f"${syntax.job_variable}",
                script=shlex.quote(path),
            )
        )
        start += ' --run-dir "$run_dir"'
    seconds, ends = warning_s(job), ""
    if job.time_limit_s is not None:
        parts.append(_END.format(variable=END_TIME, left_s=job.time_limit_s - seconds))
    parts.append(_RUN.format(start=start, note="is_late=yes; " if requeue else ""))
    if not syntax.warns and job.time_limit_s is not None:
        parts.append(
            _TIMER.format(name=syntax.name, seconds=seconds, left_s=job.time_limit_s - seconds)
        )
        ends = '\nkill "$timer" 2>/dev/null\n'
    parts.append(_WAIT + ends)
    if requeue:
        parts.append(
            _REQUEUE.format(requeue=requeue, not_finished=NOT_FINISHED, submit=syntax.submit)
        )
    return "\n".join([*parts, 'exit "$status"', ""])


_CHAIN: Final = """\
# All jobs that follow each other go on with one run.
run_dir=${{DIEL_RUN_DIR:-{stem}{job_id}}}
submission=${{DIEL_SUBMISSION:-0}}
script={script}
[ -r "$script" ] || echo "$script is gone: no job will follow this one" >&2
is_late=
"""

_END: Final = """\
# When the run is asked to end, so that modules know how much time is left.
export {variable}=$(($(date +%s) + {left_s}))
"""

_RUN: Final = """\
# SIGUSR1, some time before the time limit, and SIGTERM are passed on: the run ends in order.
run=
asked=
pass_on() {{
    if [ -n "$run" ]; then kill -"$1" "$run" 2>/dev/null; else asked=$1; fi
}}
trap '{note}pass_on USR1' USR1
trap 'pass_on TERM' TERM INT

# diel starts the ranks itself, by what works within the job, and says by what.
{start} &
run=$!
[ -z "$asked" ] || pass_on "$asked"
"""

_TIMER: Final = """\
# {name} warns no script alone, so this does, {seconds} s before the time limit.
(
    trap 'kill "$asleep"; exit' TERM
    sleep {left_s} &
    asleep=$!
    wait "$asleep"
    kill -USR1 $$
) >/dev/null 2>&1 &
timer=$!
"""

_WAIT: Final = """\
while
    wait "$run"
    status=$?
    kill -0 "$run" 2>/dev/null
do
    :
done
"""

_REQUEUE: Final = """\
# A run that is not finished in time is gone on with by the next job, {requeue} times at most.
if [ "$status" = {not_finished} ] && [ -n "$is_late" ]; then
    if [ "$submission" -lt {requeue} ]; then
        export DIEL_RUN_DIR=$run_dir DIEL_SUBMISSION=$((submission + 1))
        {submit} || echo "not submitted again: diel run --resume $run_dir goes on" >&2
    else
        echo "no requeue is left of {requeue}: diel run --resume $run_dir goes on" >&2
    fi
fi
"""


def _absolute(path: str | Path) -> str:
    """Return the absolute path of a file that a script names.

    Raises
    ------
    LaunchError
        If the path has a line break, since schedulers look for their options in every line, or is
        not UTF-8.
    """
    absolute = os.path.abspath(path)
    try:
        absolute.encode()
    except UnicodeEncodeError:
        raise LaunchError(
            f"{absolute!r} is not UTF-8, so no script can name it: rename it"
        ) from None
    if "\n" in absolute:
        raise LaunchError(f"{absolute!r} has a line break, so no script can name it: rename it")
    return absolute


def _long_options(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value]


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _diel() -> str:
    beside_python = Path(sys.executable).parent / "diel"
    return str(beside_python) if beside_python.exists() else "diel"
