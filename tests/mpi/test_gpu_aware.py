"""Whether MPI takes addresses on a GPU: the library is asked, and the environment overrules it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from diel.comm.mpi import is_gpu_aware

pytestmark = pytest.mark.mpi


class _Library:
    """An MPI library that answers the question, or that has never heard it."""

    def __init__(self, answer: int | None) -> None:
        if answer is not None:
            self.MPIX_Query_cuda_support = lambda: answer


@pytest.mark.parametrize(("answer", "expected"), [(1, True), (0, False), (None, False)])
def test_the_library_is_asked_and_the_environment_overrules_it(
    parent, monkeypatch, answer, expected
):
    monkeypatch.delenv("DIEL_GPU_AWARE_MPI", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode=0: _Library(answer))
    assert is_gpu_aware() is expected
    for value, overruled in (("0", False), ("1", True), ("perhaps", expected)):
        monkeypatch.setenv("DIEL_GPU_AWARE_MPI", value)
        assert is_gpu_aware() is overruled


def test_the_answer_is_that_of_the_installed_library(parent, monkeypatch):
    """`ompi_info` reads how Open MPI was built from its own configuration."""
    from mpi4py import MPI

    ompi_info = shutil.which("ompi_info")
    if ompi_info is None or "Open MPI" not in MPI.Get_library_version():
        pytest.skip("this is not Open MPI, or it has come without ompi_info")
    monkeypatch.delenv("DIEL_GPU_AWARE_MPI", raising=False)
    facts = subprocess.run(
        [ompi_info, "--parsable", "--all"], capture_output=True, text=True, timeout=60
    ).stdout
    assert is_gpu_aware() is ("built_with_cuda_support:value:true" in facts)
