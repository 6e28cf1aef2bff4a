"""Limits on BLAS and OpenMP threads, as threadpoolctl sees them from within."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Finished

from diel.loading.environment import THREAD_VARIABLES, thread_environment


@pytest.fixture
def printed(run_python: Callable[..., Finished]) -> Callable[..., list[str]]:
    """Return what runs a script and returns the lines that it prints."""

    def run(script: str, **environment: str) -> list[str]:
        finished = run_python(script, **environment)
        assert finished.status == 0, finished.output
        return finished.stdout.splitlines()

    return run


def test_the_variables_all_say_the_same() -> None:
    assert thread_environment(3) == dict.fromkeys(THREAD_VARIABLES, "3")


def test_limits_set_before_numpy_is_imported_hold(printed: Callable[..., list[str]]) -> None:
    found = printed(
        """
from diel.loading.environment import ThreadLimiter, set_thread_environment
import sys
assert "numpy" not in sys.modules
set_thread_environment(1)
import numpy
from threadpoolctl import threadpool_info, threadpool_limits
pools = threadpool_info()
print(bool(pools), {pool["num_threads"] for pool in pools})
limiter = ThreadLimiter()
print(limiter.exceeding(1))
threadpool_limits(2)
print(len(limiter.exceeding(1)) == len(pools), "has 2 threads, not 1" in limiter.exceeding(1)[0])
""",
        OPENBLAS_NUM_THREADS="4",
    )
    assert found == ["True {1}", "[]", "True True"]


def test_limits_change_from_module_to_module(printed: Callable[..., list[str]]) -> None:
    found = printed(
        """
import gc, os
from diel.loading.environment import ThreadLimiter
limiter = ThreadLimiter()
limiter.apply(1)  # before anything is loaded: by the environment
import numpy
from threadpoolctl import threadpool_info
def show():
    gc.collect()
    print({pool["num_threads"] for pool in threadpool_info()}, os.environ["OMP_NUM_THREADS"])
show()
for threads in (2, 1, 1):
    limiter.apply(threads)
    show()
    assert limiter.exceeding(threads) == []
from threadpoolctl import threadpool_limits
limiter.apply(1)
threadpool_limits(2)  # by a module that then fails, so that nobody looks
limiter.apply(1)
show()
limiter.close()
show()
""",
        OPENBLAS_NUM_THREADS="4",
    )
    assert found == ["{1} 1", "{2} 2", "{1} 1", "{1} 1", "{1} 1", "{1} 1"]
