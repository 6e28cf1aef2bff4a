"""``diel report``: writes the report on the results of a run, from what lies in its directory."""

from __future__ import annotations

import argparse

from diel.cli.output import warn
from diel.loading.reports import write_reports
from diel.run.directory import RunDirectory


def report(options: argparse.Namespace) -> int:
    """Write a report on each table of results; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run, it has no results, or its directory cannot be written.
    """
    for path in write_reports(RunDirectory(options.run_dir), warn):
        print(path)
    return 0
