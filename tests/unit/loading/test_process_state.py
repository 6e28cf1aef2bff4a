"""What a module changes in its process, one item of the table after the other, is changed back.

Run as a script, this file does it for all of them in a process of its own, and prints what was not.
"""

from __future__ import annotations

import asyncio
import builtins
import decimal
import gc
import importlib
import locale
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from diel.loading.process_items import end_timers, table
from diel.loading.process_state import ProcessState, restoring


def set_time_zone() -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def set_logging() -> None:
    logging.basicConfig(level=logging.DEBUG, force=True)
    logging.disable(logging.INFO)
    for logger in (logging.getLogger("a library"), logging.getLogger("new")):
        logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.ERROR)
        logger.propagate, logger.disabled = False, True


def lower_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def replace_lists() -> None:
    sys.argv = ["another"]
    sys.path.insert(0, "/another")


def set_hooks() -> None:
    sys.excepthook = lambda *_: None
    sys.settrace(lambda *_: None)
    threading.setprofile(lambda *_: None)
    logging.captureWarnings(True)


def set_interpreter() -> None:
    sys.setrecursionlimit(5000)
    gc.disable()
    sys.dont_write_bytecode = not sys.dont_write_bytecode
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    sys.tracebacklimit = 0


def set_event_loop() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())


def set_signals() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGSEGV, signal.SIG_IGN)


def set_start_method() -> None:
    import multiprocessing

    multiprocessing.set_start_method("spawn")


def raise_field_size() -> None:
    import csv

    csv.field_size_limit(2**30)


def move_temporary_files() -> None:
    import tempfile

    os.environ["TMPDIR"] = "/dev/shm"
    tempfile.gettempdir()


def trace_memory() -> None:
    import tracemalloc

    tracemalloc.start()


CHANGES: dict[str, Callable[[], object]] = {
    "working directory": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(LEFT="1"),
    "umask": lambda: os.umask(0o007),
    "sys.argv and sys.path": replace_lists,
    "standard streams": lambda: setattr(sys, "stdout", open(os.devnull, "w")),  # noqa: SIM115
    "hooks": set_hooks,
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "time zone": set_time_zone,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "niceness": lambda: os.nice(1),
    "CPU affinity": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    "scheduling policy": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "resource limits": lower_limit,
    "signal handlers": set_signals,
    "descriptor for signals": lambda: signal.set_wakeup_fd(pipe_that_does_not_block()),
    "signal mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "interpreter": set_interpreter,
    "builtins": lambda: setattr(builtins, "_", str),
    "logging": set_logging,
    "socket timeout": lambda: socket.setdefaulttimeout(1.0),
    "start method": set_start_method,
    "event loops": set_event_loop,
    "temporary folder": move_temporary_files,
    "field size of csv": raise_field_size,
    "memory tracing": trace_memory,
}


def pipe_that_does_not_block() -> int:
    writing = os.pipe()[1]
    os.set_blocking(writing, False)
    return writing


def main() -> None:
    """Make each change, and print the names of those that had no effect or were not undone."""
    logging.getLogger("a library")
    if len(os.sched_getaffinity(0)) == 1:
        CHANGES["CPU affinity"] = lambda: None
    state, items = ProcessState(), table()
    before = [item.base() for item in items]
    for item, value in zip(items, before, strict=True):
        warned: list[str] = []
        CHANGES[item.name]()
        changed = item.get() != value
        state.restore(warned.append)
        is_restored = item.get() == value
        if item.name == "niceness" and not is_restored:  # only a privileged process may
            is_restored = "niceness" in warned.pop()
        if not (changed or item.name == "CPU affinity") or not is_restored or warned:
            print(item.name, changed, is_restored, warned)
    state.restore(print)  # nothing is left to be restored, or to be told


def test_each_item_that_is_changed_is_restored() -> None:
    assert [item.name for item in table()] == list(CHANGES)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", __file__],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "change",
    [
        "os.environ = dict(os.environ, LEFT='1')",
        "del sys.stdin",
        "del sys.argv",
        "sys.path = None",
        "warnings.filters = ()",
        "logging.root.handlers = None",
        "del sys.excepthook",
    ],
)
def test_what_a_module_has_broken_is_whole_for_the_next(change: str) -> None:
    code = (
        "import logging, os, sys, warnings\n"
        "from diel.loading.process_items import table\n"
        "from diel.loading.process_state import ProcessState\n"
        "state, items = ProcessState(), table()\n"
        "before = [item.get() for item in items if not item.library]\n"
        f"{change}\n"
        "state.restore(print)\n"
        "assert [item.get() for item in items if not item.library] == before\n"
        "os.environ['LEFT'] = '1'\n"
        "state.restore(print)\n"
        "assert 'LEFT' not in os.environ\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# -- files ----------------------------------------------------------------------------------------

Code = Callable[[], object]


class Rank:
    """Runs functions of files, as a rank of a run does."""

    def __init__(self) -> None:
        self.state = ProcessState()
        self._files: dict[str, ModuleType] = {}

    def run(self, name: str, on_load: Code, function: Callable[[], Any]) -> Any:
        def load() -> ModuleType:
            code = ModuleType(name)
            on_load()
            return code

        if name not in self._files:
            self._files[name] = self.state.load(load)
        try:
            return self.state.begin(name).run(function)
        finally:
            self.state.restore(pytest.fail)


def nothing() -> None: ...


def test_timers_end() -> None:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    for timer in timers:
        signal.setitimer(timer, 1000, 1000)
    end_timers()
    assert [signal.getitimer(timer) for timer in timers] == [(0, 0)] * 3


def test_what_a_file_sets_when_it_is_loaded_holds_for_its_functions_alone() -> None:
    def set_it() -> None:
        logging.getLogger().setLevel(logging.DEBUG)
        np.seterr(all="raise")
        np.set_printoptions(precision=2)
        decimal.getcontext().prec = 7
        warnings.simplefilter("error")
        os.environ["OF_FILE"] = "1"

    def what_holds() -> tuple[object, ...]:
        found = (
            logging.getLogger().level == logging.DEBUG,
            np.geterr()["divide"] == "raise",
            str(np.array([1 / 3])) == "[0.33]",
            decimal.getcontext().prec == 7,
            any(entry[:3] == ("error", None, Warning) for entry in warnings.filters),
            "OF_FILE" in os.environ,
        )
        np.seterr(all="ignore")  # until the function returns
        decimal.getcontext().prec = 3
        os.environ["OF_FILE"] = "of a function"
        logging.getLogger().setLevel(logging.CRITICAL)
        return found

    with warnings.catch_warnings():
        warnings.resetwarnings()
        rank = Rank()
        for _ in range(2):
            assert rank.run("plain", nothing, what_holds) == (False,) * 6
            assert rank.run("sets", set_it, what_holds) == (True,) * 6


def test_a_file_with_the_functions_of_two_modules_keeps_what_it_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = ModuleType("of_two_modules")

    def load() -> ModuleType:
        if code.__name__ not in sys.modules:
            monkeypatch.setitem(sys.modules, code.__name__, code)
            os.environ["OF_FILE"] = "1"
            np.seterr(all="raise")
        return code

    state = ProcessState()
    for _ in ("first", "second"):
        state.load(load)
        state.restore(pytest.fail)
        own = state.begin(code.__name__)
        assert os.environ["OF_FILE"] == "1"
        assert own.run(np.geterr)["divide"] == "raise"
        state.restore(pytest.fail)


@pytest.mark.parametrize("is_module_too", [False, True])
def test_what_a_helper_sets_holds_for_each_file_that_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_module_too: bool
) -> None:
    (tmp_path / "sets_much.py").write_text(
        "import logging, os\nimport numpy as np\n"
        "logging.getLogger('helped').setLevel(17)\nos.environ['OF_HELPER'] = '1'\n"
        "np.seterr(all='raise')\nname = 'sets_much'\n"
    )
    (tmp_path / "first_one.py").write_text("import sets_much\n")
    (tmp_path / "second_one.py").write_text("import os\nfrom sets_much import name\n")
    (tmp_path / "third_one.py").write_text("import second_one\n")
    (tmp_path / "without_it.py").write_text("import os\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["first_one", "without_it", "second_one", "third_one", "first_one", "without_it"]
    names = ["sets_much"] * is_module_too + names
    for name in {*names, "sets_much"}:
        monkeypatch.delitem(sys.modules, name, raising=False)
    state, loaded = ProcessState(), set()
    for name in names:
        if name not in loaded:
            state.load(partial(importlib.import_module, name))
            loaded.add(name)
        own = state.begin(name)
        found = (
            logging.getLogger("helped").level,
            os.environ.get("OF_HELPER"),
            own.run(np.geterr)["divide"],
        )
        state.restore(pytest.fail)
        assert found == ((0, None, "warn") if name == "without_it" else (17, "1", "raise"))
    for name in loaded:
        del sys.modules[name]


def test_a_logger_gets_no_second_handler_when_a_module_runs_again() -> None:
    def configure() -> int:
        logger = logging.getLogger("application")
        logger.addHandler(logging.NullHandler())
        return len(logger.handlers)

    rank = Rank()
    assert [rank.run("app", nothing, configure) for _ in range(3)] == [1, 1, 1]


def seed() -> None:
    random.seed(1)
    np.random.seed(1)


def draws() -> tuple[float, float]:
    return random.random(), float(np.random.random())


@pytest.mark.parametrize("on_load", [nothing, draws], ids=["untouched", "drawn from"])
def test_random_numbers_without_a_seed_differ_from_copy_to_copy(on_load: Code) -> None:
    rank = Rank()
    drawn = [rank.run("chance", on_load, draws) for _ in range(3)]
    drawn.append(
        rank.run("seeds", nothing, lambda: (random.seed(1), np.random.seed(1), draws())[2])
    )
    drawn.append(rank.run("chance", on_load, draws))
    assert len(set(drawn)) == 5


def test_a_seed_that_a_file_sets_holds_for_each_of_its_copies() -> None:
    seed()
    expected = draws()
    rank = Rank()
    for _ in range(3):
        rank.run("other", nothing, draws)
        assert rank.run("seeded", seed, draws) == expected


def test_a_trial_of_a_users_meets_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def found() -> tuple[object, ...]:
        return (
            os.getcwd(),
            os.environ.get("LEFT"),
            _umask(),
            sys.argv,
            list(sys.path),
            sys.stdout,
            list(warnings.filters),
            np.geterr(),
            decimal.getcontext().prec,
        )

    def train(fails: bool) -> int:
        os.chdir("/")
        os.environ["LEFT"] = "1"
        os.umask(0o007)
        sys.argv = []
        sys.path.insert(0, "/another")
        del sys.stdout
        warnings.simplefilter("ignore")
        np.seterr(all="raise")
        decimal.getcontext().prec = 3
        return 1 // (not fails)

    before = found()
    run = restoring(train)
    assert run(False) == 1
    assert found() == before
    with pytest.raises(ZeroDivisionError):
        run(True)
    assert found() == before


def _umask() -> int:
    os.umask(value := os.umask(0))
    return value


def test_a_trial_that_forks_leaves_its_child_no_further_trials() -> None:
    code = (
        "import os; from diel.loading.process_state import restoring\n"
        "pid = restoring(os.fork)()\n"
        "print('trial', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert printed.stdout == b"trial 0\n"


def test_numpy_is_not_imported_for_its_state() -> None:
    code = (
        "import sys; from diel.loading.process_state import ProcessState as S\n"
        "state = S(); state.begin('x'); state.restore(print)\n"
        "assert 'numpy' not in sys.modules and 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path("/"))


if __name__ == "__main__":
    main()
