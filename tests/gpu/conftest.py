"""All here needs a GPU that CuPy finds, and is skipped with the reason where there is none."""

from __future__ import annotations

import pytest

from dnn.backend import ops_for
from dnn.backend.device import cuda_problem


@pytest.fixture(scope="session")
def ops():
    problem = cuda_problem()
    if problem:
        pytest.skip(problem)
    return ops_for("cuda")
