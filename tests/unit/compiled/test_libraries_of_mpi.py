"""Which MPI a library was compiled with, and whether that of this process will do."""

from __future__ import annotations

import pytest

from diel.compiled.library import is_another_mpi


@pytest.mark.parametrize(
    ("compiled_with", "here", "is_another"),
    [
        ("Open MPI 5.0", "Open MPI v5.0.11", False),
        ("Open MPI 4.1", "Open MPI v5.0.11", True),
        ("Open MPI 5.0", "Open MPI v15.0.1", True),
        ("MPICH 4.2.3", "MPICH Version: 4.3.0", False),
        ("MPICH 3.4", "MPICH Version: 4.3.0", False),
        ("MPICH 4.2.3", "Open MPI v5.0.11", True),
        ("Open MPI 5.0", "MPICH Version: 4.3.0", True),
        ("MPICH 3.4", "Intel(R) MPI Library 2021.13 for Linux* OS", False),
        ("MPI 3.1", "Open MPI v5.0.11", False),
        ("", "Open MPI v5.0.11", False),
    ],
)
def test_another_mpi_is_told_by_its_name(compiled_with: str, here: str, is_another: bool) -> None:
    assert is_another_mpi(compiled_with, here) == is_another
