"""``diel sbatch``: a Slurm script for a workflow file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from diel.errors import LaunchError
from diel.executive.launch import own_mpiexec
from diel.executive.sbatch import job_for, sbatch_script
from diel.loading.environment import set_thread_environment
from diel.loading.options import finish
from diel.workflow.load import read_draft


def sbatch(options: argparse.Namespace) -> int:
    """Print the script; return the exit code.

    Raises
    ------
    DielError
        If the workflow is wrong, or what is asked for is.
    """
    set_thread_environment(1)
    workflow = finish(read_draft(options.file))
    job = job_for(
        workflow,
        options.file,
        ranks=options.ranks,
        nodes=options.nodes,
        per_node=options.per_node,
    )
    script = sbatch_script(
        job,
        # Absolute: the script may be submitted from anywhere, without this environment.
        [_diel(), "run", os.path.abspath(options.file)],
        launcher=options.launcher or ("mpiexec" if own_mpiexec() else "srun"),
        time_limit=options.time,
        partition=options.partition,
    )
    try:
        script.encode()
    except UnicodeEncodeError:
        raise LaunchError(
            "the path of the workflow file is not UTF-8, so no script can name it: rename it"
        ) from None
    print(script, end="")
    return 0


def _diel() -> str:
    beside_python = Path(sys.executable).parent / "diel"
    return str(beside_python) if beside_python.exists() else "diel"
