"""Runs the tests in ``tests/mpi`` at 1, 2 and 4 ranks."""

from __future__ import annotations

import faulthandler
import sys

import pytest
from support import ROOT, execute, mpiexec


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 2, 1])
def test_mpi_tests_pass(ranks: int) -> None:
    # Each of them has a limit of its own; all together may take longer than any other test.
    faulthandler.cancel_dump_traceback_later()
    finished = execute(
        [
            *mpiexec(ranks),
            *(sys.executable, "-m", "pytest", "--with-mpi", "-q", "--color=no"),
            # Of all plugins this one: each rank would take a second to import the rest.
            *(
                "-p",
                "pytest_mpi",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=--import-mode=importlib",
            ),
            *("-o", "faulthandler_timeout=100", "-o", "faulthandler_exit_on_timeout=true"),
            ROOT / "tests" / "mpi",
        ],
        cwd=ROOT,
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout_s=600,
    )
    print(finished.stdout)
    assert finished.status == 0, finished.output
    assert finished.stdout.count(" passed") >= ranks, finished.output
