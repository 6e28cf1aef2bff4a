"""Settings for all tests: their order, and Hypothesis draws the same examples each time.

``HYPOTHESIS_PROFILE=default`` draws new ones.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Generator

import pytest
from support import case_count

# Open MPI asks for these as root, as in a container.
for _name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
    os.environ.setdefault(_name, "1")
    os.environ.setdefault(f"{_name}_CONFIRM", "1")

# Whoever starts the tests in the background of a script has SIGINT ignored, which every process
# inherits that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# BLAS threads wait busily for each other, and tests run side by side on the same cores. Those that
# are about several threads set their number themselves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Which routine of convolution is fastest takes a while to find out, with all of them compiled.
os.environ.setdefault("DNN_ROUTINES", "fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw the same examples each time, where it is used."""
    if config.pluginmanager.hasplugin("hypothesispytest"):  # not under mpiexec
        from hypothesis import settings

        settings.register_profile(
            "ci", max_examples=case_count(100), derandomize=True, deadline=None, print_blob=True
        )
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, then whole runs: quick tests fill the time to the end.

    Each of several processes begins with its own piece of the list, and so has some of all kinds.
    """
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in filter(_starts_runs, items):
            item.add_marker(pytest.mark.flaky(reruns=1))

    def is_slow(item: pytest.Item) -> bool:
        return item.get_closest_marker("slow") is not None

    def is_whole_run(item: pytest.Item) -> bool:
        return item.path.parent.name in ("workflows", "gui")

    pieces: list[list[pytest.Item]]
    pieces = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    for number, item in enumerate(filter(is_slow, items)):
        pieces[number % len(pieces)].append(item)
    rest = sorted(itertools.filterfalse(is_slow, items), key=is_whole_run)
    quick = list(itertools.filterfalse(is_whole_run, rest))
    for _, file in itertools.groupby(rest[len(quick) :], lambda item: item.path):
        min(pieces, key=len).extend(file)  # they share what is set up for the file
    length = len(items) // len(pieces)
    for piece in pieces:
        more = max(0, length - len(piece))
        piece += quick[:more]
        del quick[:more]
    items[:] = itertools.chain(*pieces, quick)


def _starts_runs(item: pytest.Item) -> bool:
    """Whether a test is run once more if it fails, as the end of the output says by name.

    Whole runs, clusters and mpiexec start many processes on whatever cores are free. Of tests under
    mpiexec it is the test that starts it: a rank that repeated one alone would wait for the others.
    """
    return item.path.parent.name in ("workflows", "cluster") or item.path.stem == "test_under_mpi"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let garbage collection pass over what lives to the end: thousands of tests, and modules."""
    gc.disable()  # a quarter of the time that collecting tests takes
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)
