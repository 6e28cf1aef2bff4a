"""Kills whatever belongs to a run, again and again, by a seed; then its results have to be right.

    python tests/workflows/kills.py --kills 1000 --seed 3

The run has a sweep, a loop that hands on a tuple, a program that is started over and over, and more
tuples than the memory holds, so that some are on the disk. Who dies is drawn: ranks of each of
these, rank 0, the tuple server, mpiexec, what stands above it, the supervisor of a program,
everything at once; or somebody is stopped, for a while or for good; or the clock is set, by up to a
day; or, as root, who can mount one, the disk of the run is full. After all of it the sweep has each
trial once, as an undisturbed run has it, the loop has its sum, and no tuple is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader
from diel.run.records import ResultAdded, RunLost, RunStarted
from diel.run.view import RunView

PATIENCE_S = 60.0
"""Until a run goes on; it takes two seconds, but a machine may be busy."""
GONE_S = 15.0
"""Until nothing is left of what was killed."""
DISK_BYTES = 64 * 2**20
_OF_A_TRIAL = 200
"""So many bytes the record of a trial has, about."""
TRIALS_EACH = 12
"""So many trials there are for each kill; the last one, and the loop, end when nobody is killed."""

MODULES = """\
import time

def train(parameters, report):
    with open(report.folder / "tried.txt", "a") as file:
        file.write(f"{report.trial}\\n")
    time.sleep(0.004)
    # A sweep that ends makes a checkpoint, in the middle of an iteration of the loop.
    while parameters["x"] == report.options["last"] and not (report.folder / "over").exists():
        time.sleep(0.01)
    return {"score": -abs(parameters["x"] - 7) + report.seed * 1e-12}

def prepare(ctx):
    ctx.tuples.tput("sum", 0)
    for number in range(14):
        ctx.tuples.tput(("large", number), bytes([number]) * 100_000)

def add(ctx):
    ctx.results.declare(["iteration", "sum"], objective="sum")
    total = ctx.tuples.tget("sum") + ctx.iteration[-1]
    time.sleep(0.01)
    ctx.tuples.tput("sum", total)
    ctx.results.add({"iteration": ctx.iteration[-1], "sum": total})
    # As often as a process was killed, however many iterations are repeated after that.
    if (ctx.folder / "over").exists() and ctx.iteration[-1] + 1 >= ctx.options["kills"]:
        ctx.tuples.tput("over", 1)

def report(ctx):
    ctx.tuples.tget("over")
    for number in range(14):
        assert ctx.tuples.tget(("large", number), timeout=0) == bytes([number]) * 100_000
    return ctx.tuples.tget("sum")
"""
CLOCK = """\
import pathlib, time

_clock, _file = time.time, pathlib.Path(__file__).with_name("set_by")

def _time():
    try:
        return _clock() + float(_file.read_text() or 0)
    except OSError:
        return _clock()

time.time = _time
"""
"""Python begins with it: the clock of each process of a run is set by what a file says."""
WORKFLOW = """\
[workflow]
restarts = 1_000_000
heartbeat_timeout = "2 s"
[tuple_space]
memory = "1 MiB"
spill = true
[[module]]
name = "master"
function = "modules.master:run"
options.objective = "score"
options.maximise = true
options.seed = 9
options.space.x = {{ from = 0, to = {trials}, step = 1 }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = {{ train = "./m.py:train", options = {{ last = {trials} }} }}
[[module]]
name = "prepare"
function = "./m.py:prepare"
[[module]]
name = "add"
function = "./m.py:add"
options = {{ kills = {kills} }}
[[module]]
name = "tool"
executable = ["sleep", "0.02"]
retries = 100000
[[module]]
name = "report"
function = "./m.py:report"
[[group]]
name = "search"
modules = ["master", "trainer"]
[[group]]
name = "first"
modules = ["prepare"]
[[group]]
name = "loop"
depends = ["first"]
modules = ["add", "tool"]
until = "over"
[[group]]
name = "last"
depends = ["loop"]
modules = ["report"]
"""


class Kill(Exception):
    """Something was not as it has to be after a kill; says the seed."""


def family(pid: int) -> list[int]:
    """Return a process and all that it has started, parents first."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(place.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def rank_of(pid: int) -> int | None:
    """Return the rank that a process is; None if it is none."""
    if "start_rank" not in command_of(pid) or "mpiexec" in command_of(pid).split(" ", 1)[0]:
        return None
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"):
                return int(value)
    return None


class KilledRun:
    """A run that is killed, and started again where it does not do so itself."""

    def __init__(self, folder: Path, kills: int, *, has_disk: bool) -> None:
        self.folder = folder
        self.has_disk = has_disk
        self.kills = kills
        text = WORKFLOW.format(trials=kills * TRIALS_EACH - 1, kills=kills)
        (folder / "w.toml").write_text(text)
        (folder / "m.py").write_text(MODULES)
        self.clock = folder / "clock"
        self.clock.mkdir()
        (self.clock / "sitecustomize.py").write_text(CLOCK)
        self.log = (folder / "log.txt").open("ab")
        self.process = self._start("w.toml")
        self._wait("a run directory", lambda: any(folder.glob("runs/*/journal.jsonl")))
        (self.path,) = (folder / "runs").iterdir()
        self.directory = RunDirectory(self.path)
        self._reader = JournalReader(self.directory.journal)
        self.view = RunView()
        self.starts = 0
        self.losses: list[RunLost] = []
        self.rows = 0
        self._done: set[int] = set()  # trials that were recorded at the last look
        self._tried = Counter[int]()  # how often each trial had been begun then

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "diel", "run", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(self._python_path())},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def _python_path(self) -> list[str]:
        return [str(self.clock), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]

    def look(self) -> None:
        for record in self._reader.new_records():
            self.view.apply(record)
            self.starts += isinstance(record, RunStarted)
            self.rows += isinstance(record, ResultAdded)
            if isinstance(record, RunLost):
                self.losses.append(record)

    def _wait(self, what: str, is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline_s:
                raise Kill(f"{what}: not within {timeout_s:g} s")
            time.sleep(0.01)

    def processes(self) -> list[int]:
        return family(self.process.pid)[1:]

    def progress(self) -> int:
        self.look()
        return self.directory.recorded_bytes() + _OF_A_TRIAL * self.rows

    def wait_for_progress(self) -> bool:
        """Wait until the run has got further; return whether it still goes on."""
        before = self.progress()
        self._wait(
            "progress",
            lambda: self.progress() > before + _OF_A_TRIAL or self.process.poll() is not None,
        )
        return self.process.poll() is None

    def rank(self, name: str) -> int | None:
        """Return the process of a rank that a copy runs on, rank 0 or the server."""
        numbers = {"rank 0": 0, "server": 1}
        copy = self.view.running.get(f"{name}.0")
        wanted = numbers.get(name, copy.ranks[0] if copy else None)
        for pid in self.processes():
            if wanted is not None and rank_of(pid) == wanted:
                return pid
        return None

    def launcher(self) -> int | None:
        """Return the supervisor of mpiexec."""
        return next((pid for pid in self.processes() if "supervisor.py" in command_of(pid)), None)

    def mpiexec(self) -> int | None:
        above = self.launcher()
        below = family(above)[1:] if above is not None else []
        return below[0] if below else None

    def tool_supervisor(self) -> int | None:
        rank = self.rank("tool")
        below = family(rank)[1:] if rank is not None else []
        return next((pid for pid in below if "supervisor.py" in command_of(pid)), None)

    # -- what is done to it ---------------------------------------------------------------------

    def lose(self, pid: int, words: str, number: int = signal.SIGKILL) -> None:
        """Kill a process that the run cannot do without; it has to start again, and name it."""
        self.look()
        before, losses, starts = self.processes(), len(self.losses), self.starts
        os.kill(pid, number)

        def is_again() -> bool:
            self.look()
            return self.starts > starts or self.process.poll() is not None

        self._wait(f"another start after {words}", is_again)
        if self.process.poll() is not None:
            raise Kill(f"the run ended with {self.process.returncode} after {words}")
        new = self.losses[losses:]
        if len(new) != 1 or words not in new[0].explanation:
            raise Kill(f"{words} was killed, and told was {[loss.explanation for loss in new]}")
        self._wait("an end of old processes", lambda: not any(map(is_alive, before)), GONE_S)

    def kill_everything(self) -> None:
        before = [*self.processes(), self.process.pid]
        for pid in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._go_on(before)

    def kill_command(self) -> None:
        """Kill ``diel run`` alone: nothing may outlive it."""
        before = self.processes()
        self.process.kill()
        self.process.wait()
        self._go_on(before)

    def _go_on(self, before: list[int]) -> None:
        self._wait("an end of old processes", lambda: not any(map(is_alive, before)), GONE_S)
        self.look()
        starts = self.starts
        self.process = self._start("--resume", str(self.path))

        def is_again() -> bool:
            self.look()
            return self.starts > starts or self.process.poll() is not None

        self._wait("another start by hand", is_again)

    def set_clock(self, seconds: float) -> None:
        part = self.clock / "set_by.part"
        part.write_text(str(seconds))
        part.replace(self.clock / "set_by")

    def fill_disk(self) -> None:
        """Leave no room to a run: it has to say so, and to go on once there is some."""
        before, losses = self.processes(), len(self.losses)
        said_before = (self.folder / "log.txt").stat().st_size
        filling = self.path.with_name("filling")
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(64 * 1024))
        self._wait("an end of a run without room", lambda: self.process.poll() is not None)
        said = (self.folder / "log.txt").read_bytes()[said_before:].decode(errors="replace")
        self.look()
        if self.process.returncode != 1 or any(loss.restart for loss in self.losses[losses:]):
            raise Kill(f"the disk was full, and the run ended with {self.process.returncode}")
        if "the disk is full" not in said and "No space left" not in said:
            raise Kill("the disk was full, and nobody has said so")
        self._wait("an end of old processes", lambda: not any(map(is_alive, before)), GONE_S)
        filling.unlink()
        self._go_on(before)

    def stop_for(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def do(self, what: str, dice: random.Random) -> bool:
        """Do one thing to the run; return whether there was anybody to do it to."""
        if what == "everything":
            self.kill_everything()
        elif what == "command":
            self.kill_command()
        elif what == "clock set":
            self.set_clock(dice.uniform(-86400, 86400))
        elif what == "full disk":
            if not self.has_disk:
                return False
            self.fill_disk()
        elif what == "tool's supervisor":
            if (pid := self.tool_supervisor()) is None:
                return False
            os.kill(pid, signal.SIGKILL)
        elif what in ("mpiexec", "mpiexec's supervisor"):
            pid = self.mpiexec() if what == "mpiexec" else self.launcher()
            if pid is None:
                return False
            words = "mpiexec was killed by SIGKILL" if what == "mpiexec" else f"(process {pid})"
            self.lose(pid, words)
        elif what == "stopped":
            who = dice.choice(["trainer", "master", "rank 0", "server", "add", "mpiexec"])
            pid = self.mpiexec() if who == "mpiexec" else self.rank(who)
            if pid is None:
                return False
            self.stop_for(pid, dice.uniform(0.1, 0.7))
        elif what == "stopped for good":
            if (pid := self.rank(dice.choice(["trainer", "add"]))) is None:
                return False
            self.lose(pid, f"rank {rank_of(pid)} has not been heard of", signal.SIGSTOP)
        else:
            if (pid := self.rank(what)) is None:
                return False
            number = rank_of(pid)
            words = f"rank {number}," if _names_ranks() else "a rank on host"
            self.lose(pid, words)
        return True

    # -- what has come of it --------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        ledger = self.path / "sweeps/search.master/trials.jsonl"
        if not ledger.exists():  # it was killed before the sweep had begun
            return []
        return [json.loads(line) for line in ledger.read_bytes().split(b"\n")[1:-1]]

    def trials(self) -> list[Any]:
        keys = ("trial", "state", "parameters", "metrics", "seed")
        return sorted([record[key] for key in keys] for record in self.records())

    def check_recorded(self) -> None:
        """No trial that was recorded is lost, nor was run again."""
        done = {record["trial"] for record in self.records()}
        file = self.folder / "tried.txt"
        tried = Counter(map(int, file.read_text().split() if file.exists() else []))
        if not self._done <= done:
            raise Kill(f"trials {sorted(self._done - done)} were recorded, and are lost")
        again = [trial for trial in self._done if tried[trial] != self._tried[trial]]
        if again:
            raise Kill(f"trials {sorted(again)} were recorded, and run again")
        self._done, self._tried = done, tried

    def check_end(self, expected: list[Any]) -> None:
        status = self.process.wait(PATIENCE_S + 0.05 * self.kills * TRIALS_EACH)
        self.look()
        if status != 0:
            raise Kill(f"the run has ended with {status}")
        if self.trials() != expected:
            raise Kill("its trials are not those of an undisturbed run")
        (table,) = (each for each in self.view.results.values() if each.module == "add")
        sums = [(n, n * (n + 1) // 2) for n in range(len(table.rows))]
        if [(row["iteration"], row["sum"]) for row in table.rows] != sums:
            raise Kill("a tuple of the loop was lost or taken twice")
        if not sums or dict(self.view.returned)["report.0"] != sums[-1][1]:
            raise Kill("the sum of the loop is wrong")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Make a folder, with a small disk of its own where one can be mounted; say whether it has."""
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        yield False
        return
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _names_ranks() -> bool:
    """Whether the launcher here says which rank was lost: MPICH's does not."""
    from diel.executive.rank_launcher import find_mpiexec, mpi_implementation

    return mpi_implementation(find_mpiexec()) == "Open MPI"


def expected_trials(kills: int) -> list[Any]:
    """Return the trials that an undisturbed run records."""
    from modules.trial import trial_seed

    found = []
    for trial in range(kills * TRIALS_EACH):
        seed = trial_seed(9, trial)
        found.append(
            [trial, "finished", {"x": trial}, {"score": -abs(trial - 7) + seed * 1e-12}, seed]
        )
    return found


KINDS = {
    "trainer": 2,
    "master": 1,
    "add": 1,
    "rank 0": 1,
    "server": 1,
    "mpiexec": 1,
    "mpiexec's supervisor": 1,
    "everything": 1,
    "command": 1,
    "tool's supervisor": 2,
    "stopped": 2,
    "stopped for good": 1,
    "clock set": 1,
    "full disk": 1,
}
"""How often each is drawn in seventeen."""


def draw(kills: int, dice: random.Random) -> Iterator[str]:
    """Draw what is done: each kind in turn as often as it should, in random order."""
    drawn: list[str] = []
    for _ in range(kills):
        if not drawn:
            drawn = [kind for kind, count in KINDS.items() for _ in range(count)]
            dice.shuffle(drawn)
        yield drawn.pop()


def kill_again_and_again(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Do it; return how often each kind was done. A `Kill` says what was wrong."""
    with small_disk(folder / "runs") as has_disk:
        run = KilledRun(folder, kills, has_disk=has_disk)
        return _kill(run, kills, seed)


def _do(run: KilledRun, what: str, dice: random.Random) -> bool:
    """Do one thing as soon as there is somebody to do it to; return whether there was, in time."""
    for _ in range(1 if what == "full disk" else 60):
        if run.do(what, dice):
            return True
        time.sleep(0.05)
        run.look()
    return False


def _kill(run: KilledRun, kills: int, seed: int) -> Counter[str]:
    dice, folder = random.Random(seed), run.folder
    tally: Counter[str] = Counter()
    what = "nothing"
    try:
        for what in draw(kills, dice):
            if not run.wait_for_progress():
                break
            time.sleep(dice.uniform(0, 0.1))
            tally[what if _do(run, what, dice) else "nobody there"] += 1
            run.check_recorded()
        (folder / "over").touch()
        run.check_end(expected_trials(kills))
    except Exception as error:
        end = (folder / "log.txt").read_text(errors="replace")[-3000:]
        raise Kill(f"seed {seed}, after {dict(tally)}, at {what!r}: {error}\n{end}") from error
    finally:
        for pid in [*run.processes(), run.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
        run.log.close()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done: Counter[str] = Counter()
    for first in range(0, options.kills, 100):  # in runs of a hundred
        with tempfile.TemporaryDirectory() as name:
            kills = min(100, options.kills - first)
            done += kill_again_and_again(Path(name), kills, options.seed + first)
        print(sum(done.values()), "kills:", dict(done), flush=True)


if __name__ == "__main__":
    main()
