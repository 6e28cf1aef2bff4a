"""Whether MPI takes addresses on a GPU: it is asked, or told."""

from __future__ import annotations

import pytest

from diel.comm.mpi import is_gpu_aware

pytestmark = pytest.mark.mpi


def test_what_the_environment_says_overrules_the_library(parent, monkeypatch):
    said = is_gpu_aware()
    assert said in (True, False)
    for value, expected in (("0", False), ("1", True), ("perhaps", said)):
        monkeypatch.setenv("DIEL_GPU_AWARE_MPI", value)
        assert is_gpu_aware() is expected
