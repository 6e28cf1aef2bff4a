"""What several kinds of tests need: starting diel and MPI with a time limit."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / "workflows"
# Beside the project where its developers keep it; users name their own folder.
DATA = Path(os.environ.get("DIEL_DATA", ROOT.parent / "shared" / "data"))
THOROUGH = os.environ.get("DIEL_TESTS") == "thorough"
"""Whether tests that draw their cases draw as many as continuous integration does."""


def case_count(number: int) -> int:
    """Return how many cases to draw at random: so many if tests are thorough, a tenth if not."""
    return number if THOROUGH else max(number // 10, 1)


# A daemon, by the book: in a session of its own, and nobody's child. Writes its number, then ready.
DETACH = """
import os, signal, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} ready\\n")
time.sleep(300)
"""


@dataclass
class Finished:
    """A process that has ended."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@cache
def mpi_implementation() -> str:
    from diel.executive.rank_launcher import find_mpiexec, mpi_implementation

    return mpi_implementation(find_mpiexec())


def mpiexec(ranks: int) -> list[str]:
    """Return the start of a command line for so many ranks, more than there are cores too."""
    from diel.executive.rank_launcher import find_mpiexec

    line = [str(find_mpiexec()), "-n", str(ranks)]
    if mpi_implementation() != "Open MPI":
        return line
    # A search for networks would take a program that starts MPI by itself a second.
    return [*line, "--oversubscribe", "--mca", "btl", "^ofi"]


def execute(
    command: list[object],
    *,
    timeout_s: float = 90,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    can_stay_alone: bool = False,
) -> Finished:
    """Run a command to its end; kill all of its session and fail if that takes too long.

    A command that `can_stay_alone` is killed without a failure if its processes have all ended.
    """
    started_s = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        is_left_alone = can_stay_alone and not _living_children(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        if is_left_alone:
            return Finished(-signal.SIGKILL, stdout, stderr, time.monotonic() - started_s)
        raise AssertionError(
            f"{command} took more than {timeout_s} s\n{stdout}\n{stderr}"
        ) from None
    return Finished(process.returncode, stdout, stderr, time.monotonic() - started_s)


def _living_children(pid: int) -> list[str]:
    """Return the process ids of a process's children that have not ended."""
    living = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.append(child)
    return living


def diel(*arguments: object, cwd: Path, **options: object) -> Finished:
    """Run the command line in a folder."""
    return execute([sys.executable, "-m", "diel", *arguments], cwd=cwd, **options)  # type: ignore[arg-type]


def status_of(*arguments: object) -> object:
    """Run the command line within this process; return its exit status."""
    from diel.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def mpirun_diel(ranks: int, *arguments: object, cwd: Path, **options: object) -> Finished:
    """Run the command line under a bare mpirun.

    That of Open MPI does not always return when all ranks have ended (openpmix/prrte issue 1839).
    """
    line = [*mpiexec(ranks), sys.executable, "-m", "diel", *arguments]
    return execute(line, cwd=cwd, can_stay_alone=True, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def started_diel(
    *arguments: object, cwd: Path, output: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run the command line in the background; it is killed, if need be, when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "diel", *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(is_so: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Return as soon as something is so; fail if that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {timeout_s} s"
        time.sleep(0.02)


def pid_in(file: Path) -> int:
    """Wait for the file that a daemon writes; return its number."""
    wait_until(lambda: file.exists() and file.read_text().endswith("ready\n"))
    return int(file.read_text().split()[0])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def parent_of(pid: int) -> int:
    """Return the number of the process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of the processes whose working directory this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve() == folder.resolve():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def kill_all_in(folder: Path) -> None:
    """Kill all processes that work in a folder, again until none has started another."""
    for _ in range(3):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").resolve() == folder.resolve():
                    os.kill(int(process.name), signal.SIGKILL)


def killed_diel(
    *arguments: object,
    cwd: Path,
    when: Callable[[], bool],
    delay_s: float,
    draw: random.Random | None = None,
) -> None:
    """Run the command line, and kill it so long after something is so; return when nothing is left.

    All of its processes are killed, or, with `draw`, in three of five cases one after the other.
    """
    from workflows.kills import family

    with started_diel(*arguments, cwd=cwd, output=subprocess.DEVNULL) as started:
        wait_until(lambda: started.poll() is not None or when())
        time.sleep(delay_s)
        while draw is not None and started.poll() is None and draw.random() > 0.4:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(family(started.pid)), signal.SIGKILL)
            # A program that ignores the death of its child goes on.
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(0.3)
        kill_all_in(cwd)
    wait_until(lambda: not processes_in(cwd))


def run_dir(folder: Path) -> Path:
    """Return the only run directory in a folder."""
    (only,) = (folder / "runs").iterdir()
    return only


def journal(folder: Path) -> list[dict[str, object]]:
    """Return the records of the only run in a folder as they are written; all can be read."""
    from diel.run.fields import encoded
    from diel.run.journal import JournalReader
    from diel.run.json_values import as_json, plain

    reader = JournalReader(run_dir(folder) / "journal.jsonl")
    records = reader.new_records()
    assert not reader.complaint, reader.complaint
    lines = [json.loads(as_json(plain(encoded(record, record.time_s)))) for record in records]
    assert lines[0]["event"] == "RunCreated"
    return lines[1:]


def records_of(folder: Path, event: str, **fields: object) -> list[dict[str, Any]]:
    """Return the records of an event, with these fields, of the only run in a folder."""
    return [
        record
        for record in journal(folder)
        if record["event"] == event and fields.items() <= record.items()
    ]


def check_end(finished: Finished, folder: Path) -> None:
    """Fail unless a run has ended well, without a complaint, and left nothing behind."""
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    last = journal(folder)[-1]
    assert (last["event"], last["tuples_left"]) == ("RunEnded", 0)
    assert str(run_dir(folder)) in finished.stdout


def record(event: str, time_s: float = 0.0, **fields: Any) -> Any:
    """Return a record of the journal as it is read from a line with these fields."""
    from diel.run.json_values import as_json, plain
    from diel.run.records import decode

    return decode(as_json(plain({"time_s": time_s, "event": event, **fields})))


def results(folder: Path) -> list[dict[str, str]]:
    """Return the rows of ``results.csv`` of the only run in a folder."""
    with (run_dir(folder) / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def as_one_workflow(files: Mapping[str, str]) -> str:
    """Return files of modules and groups, by stem, as one: each one's groups after those before.

    Names of modules and groups begin with the stem of their file.
    """
    parts, before = [], ""
    for stem, text in files.items():
        for name in set(re.findall(r'(?m)^name = "(\w+)"', text)):
            text = text.replace(f'"{name}"', f'"{stem}_{name}"')
        groups = re.findall(r'\[\[group]]\nname = "(\w+)"', text)
        first = f'\nname = "{groups[0]}"\n'
        parts.append(text.replace(first, f"{first}depends = [{before}]\n"))
        before = f'"{groups[-1]}"'
    return "\n".join(parts)


def workflow(folder: Path, toml: str, **files: str) -> Path:
    """Write ``w.toml`` and Python files, by stem, into a folder; return the workflow file."""
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    file = folder / "w.toml"
    file.write_text(toml)
    return file
