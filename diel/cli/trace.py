"""``diel trace``: writes the trace of a run that goes on, or that was killed."""

from __future__ import annotations

import argparse

from diel.cli.output import warn
from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.trace import merge_trace


def trace(options: argparse.Namespace) -> int:
    """Write the trace; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run, or its directory cannot be written.
    """
    try:
        path = merge_trace(RunDirectory(options.run_dir), warn)
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"the trace cannot be written: {error}") from error
    print(f"{path}: open it at https://ui.perfetto.dev")
    return 0
