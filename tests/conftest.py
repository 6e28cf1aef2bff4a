"""Settings for all tests: which are run, their order, and that Hypothesis draws the same examples.

``HYPOTHESIS_PROFILE=default`` draws new ones.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator

import pytest
from support import THOROUGH, case_count, mpi_implementation

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


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how to list and to run the tests that are left out."""
    if not _leaves_out(config):
        return None
    return (
        "some cases of each kind: DIEL_TESTS=thorough runs all, "
        "and pytest --collect-only -q -m thorough lists the rest"
    )


def _leaves_out(config: pytest.Config) -> bool:
    """Whether thorough tests are left out: nobody has asked for them, or for a test by its name."""
    is_named = any("::" in argument for argument in config.args)
    return not (THOROUGH or is_named or "thorough" in config.getoption("markexpr"))


def _rest_of_samples(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the tests that are not among the few cases that a mark ``sample`` asks for.

    Which ones these are depends on each test's name alone.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        found.sort(key=lambda item: zlib.crc32(item.name.encode()))
        mark = found[0].get_closest_marker("sample")
        assert mark is not None
        yield from found[mark.args[0] if mark.args else 1 :]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out thorough tests; begin with what takes long, then whole runs, then quick tests.

    Each of several processes begins with its own piece of the list, and so has some of all kinds.
    """
    for item in _rest_of_samples(items):
        item.add_marker("thorough")
    if _leaves_out(config):
        rest = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=rest)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why each test failed that was run once more: its failure stands nowhere else."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed at first: {report.nodeid}", sep="_")
        terminalreporter.write_line(str(report.longrepr))


@pytest.fixture(scope="session")
def once() -> None:
    """Skip what depends on no MPI under another one than Open MPI."""
    if mpi_implementation() != "Open MPI":
        pytest.skip("what it shows depends on no MPI: once is enough, under Open MPI")
