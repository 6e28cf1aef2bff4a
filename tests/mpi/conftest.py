"""Tests in this folder run under mpiexec: ``tests/test_under_mpi.py`` starts them.

They can be run by hand too: ``mpiexec -n 2 python -m pytest --with-mpi tests/mpi``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from diel.comm.parent import Parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("--with-mpi") else True


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens and end all ranks: the others wait for this one."""
    if report.failed:
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.Get_rank()
        print(f"\nrank {rank}: {report.nodeid}\n{report.longreprtext}", file=sys.__stderr__)
        sys.__stderr__.flush()
        MPI.COMM_WORLD.Abort(1)


@pytest.fixture
def parent() -> Iterator[Parent]:
    """A parent communicator over all ranks; they leave the test together."""
    from mpi4py import MPI

    from diel.comm.parent import Parent

    parent = Parent(MPI.COMM_WORLD)
    yield parent
    parent.let_module_block(True)
    MPI.COMM_WORLD.Barrier()
    parent.close()
    parent.comm.Free()


@pytest.fixture
def place(parent: Parent) -> Iterator[Path]:
    """A folder for all ranks, by which they tell each other what MPI is not to know of."""
    folder = parent.comm.bcast(tempfile.mkdtemp() if parent.rank == 0 else None)
    yield Path(folder)
    parent.comm.Barrier()
    if parent.rank == 0:
        shutil.rmtree(folder)
