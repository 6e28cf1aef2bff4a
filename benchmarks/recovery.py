"""How long a run takes to recover from the death of a rank, and what is paid for it beforehand.

restart_s (s)
    ``diel run --restarts``: from the SIGKILL of a trainer to the first trial that is recorded after
    the restart. Of it:
restart_ended_s
    until mpiexec has ended all ranks, and the launcher has found out why;
restart_begun_s
    until new ranks have begun: mpiexec, Python, MPI, the checkpoint;
restart_trial_s
    until the sweep has its first trial.
continue_s (s)
    ``on_rank_loss = "continue"``: from the SIGKILL of one of three trainers to the next trial that
    is recorded, by another one.
restart_mpich_s (s)
    The first of these under MPICH: with ``--mpich PYTHON``, of an environment that has it.
checkpoint_cost (%)
    What checkpoints of a tuple space of 64 MiB, once a second, take from a module that uses it all
    the time: puts and takes in a second, without them and with them.
ulfm_tuples_cost, ulfm_trials_cost (%)
    What ``on_rank_loss = "continue"`` takes where nobody dies, since mpiexec is told ``--with-ft
    ulfm``: of small puts and takes in a second, and of trials in a second that do nothing.
replicas_small_cost, replicas_1MiB_cost (%)
    What ``replicas = 1`` takes from one client of two servers, beside that: of puts and takes in a
    second, of a number and of an array of 1 MiB.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import REPOSITORY, Result, compare, parser, report
from launching import diel_run

from diel import ANY

sys.path.insert(0, str(REPOSITORY / "tests" / "workflows"))

SWEEP = """\
{settings}
[[module]]
name = "master"
function = "modules.master:run"
options.objective = "score"
options.maximise = true
options.seed = 1
options.space.x = {{ from = 0, to = {last}, step = 1 }}
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = {trainers}
options = {{ train = "{script}:{function}" }}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""
TUPLES = """\
[workflow]
{settings}
[[module]]
name = "user"
function = "{script}:use_tuples"
options = {{ seconds = {seconds}, mebibytes = {mebibytes}, value_bytes = {value_bytes} }}
[[group]]
name = "work"
modules = ["user"]
"""
MEBIBYTES = 64
PATIENCE_S = 30.0


def train(parameters: dict[str, Any], report: object) -> dict[str, float]:
    """Trial: wait for a hundredth of a second."""
    time.sleep(0.01)
    return {"score": parameters["x"]}


def do_nothing(parameters: dict[str, Any], report: object) -> dict[str, float]:
    """Trial: nothing but the way of a trial through the tuple space."""
    return {"score": parameters["x"]}


def use_tuples(ctx: Any) -> float:
    """Module: fill the tuple space, then put and take values; return how many a second."""
    value = bytes(ctx.options["value_bytes"]) or 1.0
    for number in range(ctx.options["mebibytes"]):
        ctx.tuples.tput(("large", number), bytes(2**20))
    ctx.tuples.flush()
    count, end_s = 0, time.perf_counter() + ctx.options["seconds"]
    while time.perf_counter() < end_s:
        for _ in range(50):
            ctx.tuples.tput("value", value)
            ctx.tuples.tget("value")
        count += 50
    ctx.tuples.collect(("large", ANY))
    return count / float(ctx.options["seconds"])


# -- restarts -------------------------------------------------------------------------------------


def recovered_s(python: str, kills: int, folder: Path) -> list[dict[str, float]]:
    """Kill a trainer so often, and return the seconds of each part of what follows."""
    from kills import family, rank_of

    found = []
    toml = sweep(f"restarts = {kills + 1}", trainers=2)
    with started(python, toml, folder) as (process, ledger):
        journal = ledger.parents[2] / "journal.jsonl"
        for number in range(kills):
            size = ledger.stat().st_size
            wait_for(lambda size=size: ledger.stat().st_size > size + 1000)
            victim = next(pid for pid in family(process.pid) if rank_of(pid) == 3)
            os.kill(victim, signal.SIGKILL)
            killed_s = time.time()
            times = wait_for(lambda number=number: start_after(journal, number + 1))
            size = ledger.stat().st_size
            wait_for(lambda size=size: ledger.stat().st_size > size)
            ended_s, begun_s, trial_s = times["RunLost"], times["RunStarted"], time.time()
            found.append(
                {
                    "restart_s": trial_s - killed_s,
                    "restart_ended_s": ended_s - killed_s,
                    "restart_begun_s": begun_s - ended_s,
                    "restart_trial_s": trial_s - begun_s,
                }
            )
    return found


@contextmanager
def started(python: str, toml: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a sweep in a folder, and end it; give its process, and its ledger once there is one."""
    (folder / "w.toml").write_text(toml)
    output = folder / "output.txt"
    line = [python, "-m", "diel", "run", "w.toml"]
    with output.open("wb") as file:
        process = subprocess.Popen(line, cwd=folder, stdout=file, stderr=file)
    try:
        (ledger,) = wait_for(lambda: list(folder.glob("runs/*/sweeps/*/trials.jsonl")))
        yield process, ledger
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {output.read_text()[-2000:]}") from error
    finally:
        process.terminate()
        process.wait()


def sweep(settings: str, *, trainers: int, trials: int = 100_000, function: str = "train") -> str:
    """Return the workflow file of a sweep, with some settings of the workflow."""
    return SWEEP.format(
        settings=f"[workflow]\n{settings}",
        last=trials - 1,
        trainers=trainers,
        script=Path(__file__).resolve(),
        function=function,
    )


def continued_s(kills: int, folder: Path) -> list[float]:
    """Kill one of three trainers, in so many runs; return the seconds to the next trial of each."""
    from kills import family, rank_of

    found = []
    for number in range(kills):
        place = folder / str(number)
        place.mkdir()
        toml = sweep('on_rank_loss = "continue"', trainers=3)
        with started(sys.executable, toml, place) as (process, ledger):
            wait_for(lambda ledger=ledger: ledger.stat().st_size > 10_000)
            victim = next(pid for pid in family(process.pid) if rank_of(pid) == 4)
            os.kill(victim, signal.SIGKILL)
            size, killed_s = ledger.stat().st_size, time.perf_counter()
            wait_for(lambda ledger=ledger, size=size: ledger.stat().st_size > size, pause_s=1e-3)
            found.append(time.perf_counter() - killed_s)
    return found


def wait_for(find: Callable[[], Any], pause_s: float = 0.01) -> Any:
    """Return what is found, as soon as it is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := find()):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the run has not gone on within {PATIENCE_S:g} s")
        time.sleep(pause_s)
    return found


def start_after(journal: Path, restart: int) -> dict[str, float]:
    """Return when a restart was decided upon and had begun; nothing before that."""
    times: dict[str, float] = {}
    for line in journal.read_bytes().split(b"\n")[:-1]:
        record = json.loads(line)
        if record["event"] == "RunLost" and record.get("restart") == restart:
            times["RunLost"] = record["time_s"]
        elif record["event"] == "RunStarted" and times:
            times["RunStarted"] = record["time_s"]
    return times if "RunStarted" in times else {}


def restart_rows(python: str, kills: int, names: dict[str, str]) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        parts = recovered_s(python, kills, Path(name))
    return [
        compare(row, [part[key] for part in parts], None, "none", "s") for key, row in names.items()
    ]


# -- what is paid beforehand ----------------------------------------------------------------------


def tuples_cost_percent(
    settings: str,
    seconds: float,
    rounds: int,
    mebibytes: int = 0,
    *,
    without: str = "",
    value_bytes: int = 0,
) -> list[float]:
    """Return by how many percent settings slow down a module that uses tuples all the time.

    They are compared with those of `without`.
    """
    found = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "w.toml")
        for _ in range(rounds):
            rates = []
            for chosen in (without, settings):
                text = TUPLES.format(
                    settings=chosen,
                    script=Path(__file__).resolve(),
                    seconds=seconds,
                    mebibytes=mebibytes,
                    value_bytes=value_bytes,
                )
                file.write_text(text)
                ran = diel_run(file, Path(name))
                rates.append(ran.of("CopyFinished")[0]["returned"])
            found.append(100 * (1 - rates[1] / rates[0]))
    return found


def trials_cost_percent(settings: str, trials: int, rounds: int) -> list[float]:
    """Return by how many percent settings slow down a sweep whose trials do nothing."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "w.toml")
        for _ in range(rounds):
            took_s = []
            for chosen in ("", settings):
                file.write_text(sweep(chosen, trainers=3, trials=trials, function="do_nothing"))
                ran = diel_run(file, Path(name))
                (began,) = ran.of("GroupStarted")
                (ended,) = ran.of("GroupFinished")
                took_s.append(ended["time_s"] - began["time_s"])
            found.append(100 * (1 - took_s[0] / took_s[1]))
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--mpich", metavar="PYTHON", help="of an environment with MPICH")
    options = options.parse_args()
    kills = 3 if options.quick else 10
    names = {key: key for key in ("restart_s", "restart_ended_s", "restart_begun_s")}
    names["restart_trial_s"] = "restart_trial_s"
    rows = restart_rows(sys.executable, kills, names)
    with tempfile.TemporaryDirectory() as name:
        continued = continued_s(2 if options.quick else kills, Path(name))
    rows.append(compare("continue_s", continued, None, "none", "s"))
    if options.mpich:
        rows += restart_rows(options.mpich, kills, {"restart_s": "restart_mpich_s"})
    seconds, rounds = (3.0, 1) if options.quick else (10.0, 3)
    survives, saves = 'on_rank_loss = "continue"', 'checkpoint_every = "1 s"'
    two = f"{survives}\n[tuple_space]\nservers = 2\n"
    twins = f"{two}replicas = 1\n"
    trials = 20_000 if options.quick else 200_000
    for row, costs in (
        ("checkpoint_cost", tuples_cost_percent(saves, seconds, rounds, MEBIBYTES)),
        ("ulfm_tuples_cost", tuples_cost_percent(survives, seconds, rounds)),
        ("ulfm_trials_cost", trials_cost_percent(survives, trials, rounds)),
        ("replicas_small_cost", tuples_cost_percent(twins, seconds, rounds, without=two)),
        (
            "replicas_1MiB_cost",
            tuples_cost_percent(twins, seconds, rounds, without=two, value_bytes=2**20),
        ),
    ):
        rows.append(Result(row, statistics.median(costs), None, "none", "%", None))
    report(rows, options.json)


if __name__ == "__main__":
    main()
