"""What tests of whole runs share."""

from __future__ import annotations

import pytest
from support import mpi_implementation


@pytest.fixture(scope="session")
def once() -> None:
    """Skip what depends on no MPI under another one than Open MPI."""
    if mpi_implementation() != "Open MPI":
        pytest.skip("what it shows depends on no MPI: once is enough, under Open MPI")
