"""Modules that do something odd and yet end well: one run, for several tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Finished, diel, journal, processes_in, run_dir, workflow

MODULES = """\
import os, subprocess, sys

def exits_with_0(ctx):
    sys.exit(0)

def returns_what_cannot_travel(ctx):
    import enum
    class Colour(enum.IntEnum):
        RED = 1
    return [Colour.RED, lambda: 0, 10**5000]

def leaves_messages(ctx):
    ctx.comm.isend("unread", dest=1 - ctx.comm.rank).wait()

def prints(ctx):
    print("to standard output")
    print("to standard error", file=sys.stderr)
    os.chdir("/")
    os.environ["LEFT_BEHIND"] = "1"
    ctx.log.warning("something is odd")

def checks(ctx):
    assert "LEFT_BEHIND" not in os.environ
    assert os.getcwd() == str(ctx.folder)

def leaves_children(ctx):
    subprocess.Popen(["sleep", "7654"])  # holds the standard output that mpiexec reads
    subprocess.Popen(["sleep", "7655"], start_new_session=True)

def prints_without_end(ctx):
    print("begin")
    for number in range(30_000):
        print("line", number)
    os.system("yes | head -c 300000")  # past its log file
    print("the end")
    return bytes(10_000_000)

def waits_a_while(ctx):
    from diel.errors import TupleTimeout
    try:
        ctx.tuples.tget("never", timeout=4)
    except TupleTimeout:
        ctx.tuples.tput("late", "but it came")

def waits_for_it(ctx):
    return ctx.tuples.tget("late")
"""
YES = ["sh", "-c", "echo begin; yes | head -c 3000000; sleep 0.2; echo the end"]
# One after the other, on the fewest ranks.
GROUPS = [
    {"exits": "exits_with_0", "returns": "returns_what_cannot_travel"},
    {"talkers": "leaves_messages"},
    {"first": "prints"},
    {"second": "checks"},
    {"starter": "leaves_children"},
    {"prints": "prints_without_end", "yes": YES},
    {"slow": "waits_a_while", "patient": "waits_for_it"},
]
MORE = {"talkers": "processes = 2\n", "second": "copies = 2\n"}

Run = tuple[Path, Finished]


@pytest.fixture(scope="module")
def ended_well(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the folder of the run, and how the command ended."""
    folder = tmp_path_factory.mktemp("odd")
    toml = '[workflow]\nlog_size = "64 KiB"\n'
    for number, modules in enumerate(GROUPS):
        for name, what in modules.items():
            what = (
                f"executable = {what!r}"
                if isinstance(what, list)
                else f'function = "./m.py:{what}"'
            )
            toml += f'[[module]]\nname = "{name}"\n{what}\n{MORE.get(name, "")}'
        toml += f'[[group]]\nname = "g{number}"\nmodules = {list(modules)}\n'
        toml += f'depends = ["g{number - 1}"]\n' if number else ""
    finished = diel("run", "-n", 4, workflow(folder, toml, m=MODULES), cwd=folder)
    assert finished.status == 0, finished.output
    return folder, finished


def returned(folder: Path, module: str) -> list[object]:
    records = journal(folder)
    return [
        record["returned"]
        for record in records
        if record["event"] == "CopyFinished" and record["module"] == module
    ]


def test_sys_exit_with_0_is_an_end(ended_well: Run) -> None:
    folder, _ = ended_well
    assert returned(folder, "exits") == [None]


def test_anything_can_be_returned(ended_well: Run) -> None:
    folder, _ = ended_well
    ((colour, function, _),) = returned(folder, "returns")
    assert colour == 1
    assert "lambda" in function


def test_a_message_that_nobody_received_is_a_warning(ended_well: Run) -> None:
    _, finished = ended_well
    assert "warning from talkers.0: 1 message(s)" in finished.stdout
    assert "never received" in finished.stdout


def test_output_goes_to_the_log_and_a_rank_is_given_back_as_it_was(ended_well: Run) -> None:
    """What comes next looks, on both of the ranks that there are."""
    folder, finished = ended_well
    log = (run_dir(folder) / "logs" / "first.0.0.log").read_text()
    assert "to standard output" in log
    assert "to standard error" in log
    assert "something is odd" in log
    assert "warning from first.0: something is odd" in finished.stdout
    assert returned(folder, "second") == [None, None]


def test_children_that_a_function_leaves_end_with_the_run_and_are_named(ended_well: Run) -> None:
    """Else mpiexec would wait for the end of the output that one of them holds."""
    folder, finished = ended_well
    warning = "warning from starter.0: it left running, and diel has ended: process"
    (told,) = (line for line in finished.stdout.splitlines() if warning in line)
    assert "(sleep 7654)" in told
    assert "(sleep 7655)" in told
    assert processes_in(folder) == []


def test_what_is_printed_and_returned_without_end_fills_no_disk(ended_well: Run) -> None:
    folder, finished = ended_well
    logs = run_dir(folder) / "logs"
    for name in ("yes", "prints"):
        text = (logs / f"{name}.0.0.log").read_text()
        assert len(text) < 2**16 + 200
        assert text.startswith("begin\n")
        assert text.endswith("the end\n")
        assert f"warning from {name}.0: it printed more than 65,536 bytes" in finished.stdout
    assert (logs / "launcher.log").stat().st_size < 2**16 + 200
    (finish,) = (one for one in journal(folder) if one.get("returned_file"))
    assert finish["returned"] is None
    assert (finish["returned_type"], finish["returned_bytes"]) == ("bytes", 10_000_000)
    kept = run_dir(folder) / "returned" / "prints.0.g5.0.bin"
    assert kept.read_bytes() == bytes(10_000_000)
    assert (run_dir(folder) / "journal.jsonl").stat().st_size < 2**15
    told = "bytes of 10,000,000 bytes: returned/prints.0.g5.0.bin"
    assert "warning from prints.0: it returned more than 65,536 bytes" in finished.stdout
    assert f"prints.0 returned {told}\n" in finished.stdout


def test_a_wait_with_a_timeout_is_no_deadlock(ended_well: Run) -> None:
    folder, _ = ended_well
    assert returned(folder, "patient") == ["but it came"]


STOPPED = """\
import os, subprocess, time

def is_stopped_for_a_while(ctx):
    signals = f"sleep 0.5; kill -STOP {os.getpid()}; sleep 7; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", signals], start_new_session=True)

def lasts(ctx):
    time.sleep(1.5)
"""


@pytest.mark.thorough
def test_a_rank_that_is_slow_to_leave_does_not_make_a_finished_run_fail(tmp_path: Path) -> None:
    names = ("is_stopped_for_a_while", "lasts")
    toml = "".join(
        f'[[module]]\nname = "{name}"\nfunction = "./m.py:{name}"\n'
        f'[[group]]\nname = "{name}s"\nmodules = ["{name}"]\n'
        for name in names
    )
    finished = diel("run", workflow(tmp_path, toml, m=STOPPED), cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert "RanksAborted" not in {record["event"] for record in journal(tmp_path)}
