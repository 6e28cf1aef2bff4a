"""Kills a trainer of a sweep every few seconds; the sweep ends by itself, with the same table.

python tests/workflows/killed_trainers.py --way restarts    # a minute, killed every ten seconds
python tests/workflows/killed_trainers.py --way continue    # under Open MPI alone
python tests/workflows/killed_trainers.py --way restarts --slurm    # as a job of four nodes
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SETTINGS = {"restarts": "restarts = 1000", "continue": 'on_rank_loss = "continue"'}
SEED = 9
_FIRST = 3
"""The first trainer: before it are the executive, the tuple server and the master."""
TRAIN = """\
import time
from pathlib import Path

def train(parameters, report):
    time.sleep({trial_s})
    until_s = time.monotonic() + 10 * {trial_s} * (parameters["x"] >= {trials} / 2)
    while time.monotonic() < until_s and not Path({killed!r}).exists():
        time.sleep({trial_s} / 5)
    return {{"score": -abs(parameters["x"] - 7) + report.seed * 1e-12}}
"""
"""How a trial is run: those of the second half take longer as long as kills are to come."""
WORKFLOW = """\
[workflow]
{settings}
[[module]]
name = "master"
function = "modules.master:run"
options.objective = "score"
options.maximise = true
options.seed = {seed}
options.space.x = {{ from = 0, to = {last}, step = 1 }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = {trainers}
options.train = "./m.py:train"
[[group]]
name = "search"
modules = ["master", "trainer"]
"""
_RANK = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK")


@dataclass(frozen=True)
class Plan:
    """A sweep, and how often one of its trainers is killed."""

    way: str
    trials: int
    trial_s: float
    trainers: int
    kills: int
    every_s: float


@dataclass(frozen=True)
class Outcome:
    """What has come of it: how often a trainer was killed, and how long it all took."""

    kills: int
    seconds: float


def ranks_below(folder: Path) -> dict[int, int]:
    """Return the processes, by rank, of a run whose directory is in a folder."""
    found = {}
    here = bytes(Path(sys.executable).parent)  # the same Python may go by several names there
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (place / "cmdline").read_bytes().split(b"\0")
            if os.path.dirname(line[0]) != here or bytes(folder) not in b" ".join(line[2:]):
                continue
            names = dict(
                one.partition(b"=")[::2] for one in (place / "environ").read_bytes().split(b"\0")
            )
            rank = next((names[name] for name in _RANK if name in names), None)
            if rank is not None and b"start_rank" in line[2]:
                found[int(rank)] = int(place.name)
    return found


def expected_rows(trials: int) -> list[tuple[int, int, float]]:
    """Return trial, x and score of each row of an undisturbed run."""
    from modules.trial import trial_seed

    return [(n, n, -abs(n - 7) + trial_seed(SEED, n) * 1e-12) for n in range(trials)]


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Callable[[], int | None]]:
    """Start a run on this machine; give what says how it has ended."""
    with (folder / "diel.out").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "diel", "run", "--allow-run-as-root", "w.toml"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process.poll
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def submitted(folder: Path) -> Iterator[Callable[[], int | None]]:
    """Submit a run as a job of a Slurm of four nodes, which is made for it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from slurm_cluster import NODES, Slurm

    place = Path(tempfile.mkdtemp(prefix="diel-slurm-"))
    slurm = Slurm(place)
    line = [sys.executable, "-m", "diel", "sbatch", "w.toml", "--nodes", str(NODES), "--time", "9"]
    script = subprocess.run(line, cwd=folder, check=True, capture_output=True).stdout
    (folder / "job.sh").write_bytes(script)
    try:
        slurm.start()
        job = slurm.submit(folder / "job.sh")

        def ended() -> int | None:
            if slurm.command("squeue", "-h", "-j", job, "-t", "PD,R,CG,S").stdout.strip():
                return None
            return slurm.exit_code(job)

        yield ended
    finally:
        slurm.stop()
        shutil.rmtree(place, ignore_errors=True)


def kill_trainers(
    folder: Path,
    plan: Plan,
    start: Callable[[Path], contextlib.AbstractContextManager[Callable[[], int | None]]] = started,
    timeout_s: float = 900.0,
) -> Outcome:
    """Run a sweep whose trainers are killed one after the other, and check its table.

    Raises
    ------
    AssertionError
        If anything is not as without the kills; says what, and what the run has printed.
    """
    killed = folder / "killed"
    train = TRAIN.format(trial_s=plan.trial_s, trials=plan.trials, killed=str(killed))
    (folder / "m.py").write_text(train)
    text = WORKFLOW.format(
        settings=SETTINGS[plan.way], seed=SEED, last=plan.trials - 1, trainers=plan.trainers
    )
    (folder / "w.toml").write_text(text)
    dice = random.Random(SEED)
    began_s = time.monotonic()
    deadline_s = began_s + timeout_s
    kills = 0
    next_s = recorded_bytes = math.inf
    with start(folder) as ended:
        while (status := ended()) is None:
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {_log(folder)}"
            told = len(_told(folder))
            size_bytes = _recorded_bytes(folder)
            if recorded_bytes == math.inf and size_bytes and told == kills:
                recorded_bytes = size_bytes
                next_s = min(next_s, time.monotonic() + plan.every_s)
            is_time = kills < plan.kills and time.monotonic() >= next_s
            if is_time and size_bytes > recorded_bytes:  # it has gone on since the last one
                trainers = [pid for rank, pid in ranks_below(folder).items() if rank >= _FIRST]
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(dice.choice(sorted(trainers)), signal.SIGKILL)
                    kills, next_s = kills + 1, next_s + plan.every_s
                    recorded_bytes = math.inf
            if kills == plan.kills:
                killed.touch()
            time.sleep(0.05)
    seconds = time.monotonic() - began_s
    assert status == 0, _log(folder)
    assert kills == plan.kills, f"it was over after {kills} kills: {_log(folder)}"
    (run,) = (folder / "runs").iterdir()
    with (run / "results.csv").open(newline="") as file:
        rows = [
            (int(row["trial"]), int(row["x"]), float(row["score"])) for row in csv.DictReader(file)
        ]
    assert sorted(rows) == expected_rows(plan.trials), _log(folder)
    assert len(_told(folder)) == kills, f"{kills} kills, and told was {_told(folder)}"
    assert not ranks_below(folder), "ranks are left"
    return Outcome(kills, seconds)


def _told(folder: Path) -> list[str]:
    """Return what the run has said of the ranks that it has lost."""
    lines = [
        line
        for file in folder.glob("runs/*/journal.jsonl")
        for line in file.read_bytes().split(b"\n")[:-1]
    ]
    records = map(json.loads, lines)
    return [
        record["explanation"] for record in records if record["event"] in ("RunLost", "RanksLost")
    ]


def _recorded_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("runs/*/sweeps/*/trials.jsonl"))


def _log(folder: Path) -> str:
    printed = [file.read_text(errors="replace") for file in sorted(folder.glob("*.out"))]
    return "".join(printed)[-3000:] or "nothing was printed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=list(SETTINGS), default="restarts")
    parser.add_argument("--slurm", action="store_true", help="in a job on a Slurm of four nodes")
    parser.add_argument("--trials", type=int, default=1600)
    options = parser.parse_args()
    plan = Plan(options.way, options.trials, trial_s=0.2, trainers=7, kills=5, every_s=10.0)
    with tempfile.TemporaryDirectory() as name:
        outcome = kill_trainers(Path(name), plan, submitted if options.slurm else started)
    print(f"{options.way}: {outcome.kills} trainers killed, right after {outcome.seconds:.0f} s")


if __name__ == "__main__":
    main()
