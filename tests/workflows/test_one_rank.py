"""Many modules on one rank of a run: none of them meets what another has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Finished, diel, journal, run_dir, workflow

LOGS = """\
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s of {name}: %(message)s")
log = logging.getLogger("{name}")

def run(ctx):
    print("printed by {name} in", ctx.iteration[0])
    log.info("logged in %s", ctx.iteration[0])
"""
STATE = """\
import decimal, logging, os, resource, signal, socket, sys, warnings
import numpy as np

def spoils(ctx):
    os.umask(0)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    np.seterr(all="raise")
    np.set_printoptions(precision=2)
    decimal.getcontext().prec = 3
    socket.setdefaulttimeout(1)
    warnings.simplefilter("error")
    logging.disable()
    sys.argv, sys.path = [], []
    os.environ["LEFT"] = os.environ["TZ"] = "UTC"

def looks(ctx):
    return [
        os.umask(0o22), len(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), str(signal.getsignal(signal.SIGPIPE)),
        np.geterr(), str(np.array([1 / 3])), decimal.getcontext().prec, socket.getdefaulttimeout(),
        "error" in str(warnings.filters), logging.root.manager.disable,
        len(sys.argv), len(sys.path), os.environ.get("LEFT"), os.environ.get("TZ"),
    ]
"""
CHILDREN = """\
import ctypes, multiprocessing, os, subprocess, sys

def forks(ctx):
    pids = []
    for leave in (lambda: "a value", lambda: sys.exit(3), lambda: 1 / 0, lambda: ctx.comm.rank,
                  lambda: ctx.tuples.tput("from a child", 1)):
        pids.append(os.fork())
        if pids[-1] == 0:
            return leave()
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

def uses_a_pool(ctx):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])

def starts_mpi(ctx):
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    line, found = [sys.executable, "-c", program], []
    for environment in (None, ctx.child_environment()):
        ran = subprocess.run(line, stdout=-1, text=True, timeout=100, env=environment)
        found.append(ran.stdout.strip())
    return found

def prints(ctx):
    ctypes.CDLL(None).printf(b"of C\\n")
    subprocess.run(["sh", "-c", "echo of a program; echo its error >&2"])
    print("\\udcff", file=sys.stderr)

class Odd:
    def __repr__(self):
        raise ValueError

def is_odd(ctx):
    return Odd()
"""
SHELL = "umask; nproc; ulimit -n; grep -E 'SigBlk|SigIgn' /proc/self/status"
GROUPS = {
    "state": ["looks", "program", "spoils"],
    "children": ["forks", "uses_a_pool", "starts_mpi", "prints", "is_odd"],
    "logs": ["one", "two", "three"],
}

Run = tuple[Path, Finished]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the folder of the run, and how the command ended."""
    folder = tmp_path_factory.mktemp("one rank")
    toml = ""
    for outer, modules in GROUPS.items():
        file = (lambda name: name) if outer == "logs" else (lambda _: outer)  # noqa: B023
        for index, name in enumerate(modules):
            what = f'function = "./{file(name)}.py:{"run" if outer == "logs" else name}"'
            if name == "program":
                what = f"executable = {['sh', '-c', SHELL]}"
            toml += f'[[module]]\nname = "{name}"\n{what}\n'
            toml += f'[[group]]\nname = "g_{name}"\nmodules = ["{name}"]\n'
            toml += f'depends = ["g_{modules[index - 1]}"]\n' if index else ""
        toml += f'[[group]]\nname = "{outer}"\ngroups = {[f"g_{name}" for name in modules]}\n'
        toml += "iterations = 2\n" if outer != "children" else ""
    files = {name: LOGS.format(name=name) for name in GROUPS["logs"]}
    file = workflow(folder, toml, state=STATE, children=CHILDREN, **files)
    finished = diel("run", "-n", 3, file, cwd=folder)
    assert finished.status == 0, finished.output
    return folder, finished


def returned(folder: Path, module: str) -> list[object]:
    return [
        record["returned"]
        for record in journal(folder)
        if record["event"] == "CopyFinished" and record["module"] == module
    ]


def log_of(folder: Path, module: str) -> list[str]:
    return (run_dir(folder) / "logs" / f"{module}.0.0.log").read_text().splitlines()


@pytest.mark.parametrize("name", GROUPS["logs"])
def test_each_line_is_in_its_own_modules_log_in_its_own_format(ran: Run, name: str) -> None:
    expected = []
    for iteration in range(2):
        expected += [
            f"printed by {name} in {iteration}",
            f"INFO of {name}: logged in {iteration}",
        ]
    assert log_of(ran[0], name) == expected


def test_state_of_the_process_is_restored_for_functions_and_programs(ran: Run) -> None:
    before, after = returned(ran[0], "looks")
    assert before == after
    lines = log_of(ran[0], "program")
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_a_forked_child_is_no_rank(ran: Run) -> None:
    folder, _ = ran
    assert returned(folder, "forks") == [[0, 3, 1, 1, 1]]
    assert returned(folder, "uses_a_pool") == [[1, 2]]
    log = "\n".join(log_of(folder, "forks"))
    assert "ZeroDivisionError" in log
    assert log.count("NotARank: this process was forked from a rank") == 2


def test_an_mpi_program_starts_by_itself(ran: Run) -> None:
    assert returned(ran[0], "starts_mpi") == [["1", "1"]]


def test_all_that_a_module_prints_is_in_its_log(ran: Run) -> None:
    folder, _ = ran
    assert sorted(log_of(folder, "prints")) == ["\\udcff", "its error", "of C", "of a program"]
    assert log_of(folder, "is_odd") == []
    said = (run_dir(folder) / "logs" / "launcher.log").read_text()
    assert [line for line in said.splitlines() if "UCX" not in line] == []  # of MPICH's transport


def test_what_cannot_be_shown_is_no_failure(ran: Run) -> None:
    assert returned(ran[0], "is_odd") == ["<Odd: its __repr__ raises ValueError>"]
