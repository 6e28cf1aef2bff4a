"""Searches at equal wall time: what is found after 30, 60, 120 and 300 seconds.

Ours is a workflow file that leaves ``strategy`` out; the peers are Ray Tune (ASHA, with random
points and with Optuna's search) and Optuna (TPE, Hyperband) with PyTorch. All have the same rows,
space and seeds, two networks at a time with a thread each, and 30 epochs at most. The clock begins
with the command. At each time the trial counts that had finished until then with the best accuracy
on the validation rows; its accuracy on the test rows, which no search sees, is computed afterwards.

    race.py [--quick] [--json PATH] [--kept FOLDER] [--task TASK] [--seeds N] [--only CONTENDER]
            [--times 30,60,120,300] [--ray-python PATH] [--optuna-python PATH] [--mnist FOLDER]

A whole race takes five hours, so each search is kept as a file in the folder of ``--kept``, by
task, contender, seed and seconds, and is not run again. ``--quick`` has the table alone, 60 s and
one seed.

race_<task>_val_at_<time>, race_<task>_test_at_<time> (accuracy)
    The median over the seeds, beside the best of the peers' medians.
race_<task>_time_to_best_of_<peer> (s)
    After how long ours has the median of what the peer has at the end, on the validation rows,
    beside how long the peer needs: medians over the seeds, a search that does not come so far
    counting as endless. Missing where that is the median.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from harness import REPOSITORY, THREAD_VARIABLES, Result, parser, report, version_of
from race_peers import PEERS
from race_tasks import STANDARDISED, write

OURS: Final = "ours"
TIMES: Final = (30, 60, 120, 300)
_SCRIPT: Final = Path(__file__).with_name("race_peers.py")
_LATE_S: Final = 120.0
"""A search that has not ended so long after its time is killed."""
_LOOK_EVERY_S: Final = 0.05
_WORKFLOW: Final = """\
[workflow]
name = "race"

[[module]]
name = "master"
function = "modules.master:run"
[module.options]
seed = {seed}
until = {{ time = {seconds} }}
[module.options.space]
depth = {{ from = 1, to = 3 }}
width = {{ from = 16, to = 512, log_steps = 6 }}
activation = ["relu", "tanh"]
learning_rate = {{ from = 1e-4, to = 1.0, scale = "log" }}
momentum = {{ from = 0.0, to = 0.95 }}
weight_decay = {{ from = 1e-6, to = 1e-2, scale = "log" }}
batch_size = {{ from = 16, to = 256, log_steps = 5 }}
epochs = 30

[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = 2
threads = 1
[module.options]
dataset = "npz"
path = "{path}"
standardise = "{by}"
[[module.options.layers]]
type = "fully_connected"
units = "$width"
activation = "$activation"
repeat = "$depth"

[[group]]
name = "search"
modules = ["master", "trainer"]
"""

Found = dict[str, Any]
"""A search: ``finished``, rows of seconds, validation and test accuracy, each better than those
before; and how many trials it has ``begun`` and ``ended``."""


def environment() -> dict[str, str]:
    """Return the variables of a search: the packages here, and one thread."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def better(finished: list[tuple[float, float, Any]]) -> list[tuple[float, float, Any]]:
    """Return the finished trials that were better than all before, in the order of time."""
    best, rows = -math.inf, []
    for row in sorted(finished, key=lambda row: row[0]):
        if row[1] > best:
            best = row[1]
            rows.append(row)
    return rows


def started(line: list[str], folder: Path, seconds: float) -> Iterator[float]:
    """Run a search to its end; yield the seconds since it began, often, and at last once more.

    It has a session of its own, so that all of its processes end with it.
    """
    log = folder / "output"
    began_s = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            line,
            env=environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            yield time.monotonic() - began_s
            time.sleep(_LOOK_EVERY_S)
            if time.monotonic() - began_s > seconds + _LATE_S:
                raise RuntimeError(f"{line[-1]} has not ended: {log.read_text()[-4000:]}")
        yield time.monotonic() - began_s
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise RuntimeError(log.read_text()[-4000:])


def search_ours(ours: Path, theirs: Path, task: str, seed: int, seconds: int) -> Found:
    """Run our search; a trial counts once its line is in the ledger."""
    import numpy as np

    folder = Path(tempfile.mkdtemp(dir=ours.parent))
    file, runs = folder / "race.toml", folder / "runs"
    by = STANDARDISED[task]
    file.write_text(_WORKFLOW.format(seed=seed, seconds=seconds, path=ours, by=by))
    line = [sys.executable, "-m", "diel", "run", "--allow-run-as-root", "--runs", str(runs)]
    sizes: list[tuple[float, int]] = []
    for now_s in started([*line, str(file)], folder, seconds):
        for path in runs.glob("*/sweeps/*/trials.jsonl"):
            size = path.stat().st_size
            if not sizes or size > sizes[-1][1]:
                sizes.append((now_s, size))
    (run_dir,) = runs.iterdir()
    (ledger,) = run_dir.glob("sweeps/*/trials.jsonl")
    rows, end, begun = [], 0, 0
    for text in ledger.read_bytes().splitlines(keepends=True):
        end += len(text)
        record = json.loads(text)
        begun += "trial" in record
        # What time has ended is no trained network.
        if record.get("state") == "finished" and "out_of_time" not in record:
            at_s = next((at_s for at_s, size in sizes if size >= end), math.inf)
            rows.append((at_s, record["metrics"]["accuracy"], record["trial"]))
    import diel

    run, finished = diel.open_run(run_dir), []
    with np.load(theirs) as parts:
        x, y = parts["raw_test"], parts["y_test"]
    for at_s, val, trial in better(rows):
        # Trained again, to the last bit.
        test = run.best_model(trial=trial).evaluate(x, y)["accuracy"]
        finished.append((at_s, val, test))
    return {"finished": finished, "begun": begun, "ended": len(rows)}


def search_peer(contender: str, python: str, theirs: Path, seed: int, seconds: int) -> Found:
    """Run a peer's search."""
    folder = Path(tempfile.mkdtemp(dir=theirs.parent))
    began_s = time.time()
    line = [python, str(_SCRIPT), contender, str(theirs), str(seed), str(seconds), str(folder)]
    for _ in started(line, folder, seconds):
        pass
    rows = [
        json.loads(text)
        for path in folder.glob("log-*.jsonl")
        for text in path.read_text().splitlines()
    ]
    finished = [
        (row["t"] - began_s, row["val"], row["test"]) for row in rows if row["test"] is not None
    ]
    begun = sum(row["epoch"] == 1 for row in rows)
    return {"finished": better(finished), "begun": begun, "ended": len(finished)}


def at(found: Found, time_s: float, place: int = 1) -> float:
    """Return what a search had at a time: of the best trial on validation, or on test rows (2).

    Minus infinity if no trial had finished.
    """
    there = [row for row in found["finished"] if row[0] <= time_s]
    return float(there[-1][place]) if there else -math.inf


def reached(found: Found, accuracy: float) -> float:
    """Return after how many seconds a search has a validation accuracy; infinity for never."""
    return next((float(row[0]) for row in found["finished"] if row[1] >= accuracy), math.inf)


def median(values: list[float]) -> float | None:
    """Return the median; None if most of the searches have nothing to show."""
    found = statistics.median(values)
    return found if math.isfinite(found) else None


def rows_of(task: str, found: dict[str, list[Found]], times: list[int]) -> Iterator[Result]:
    """Yield the rows of a task from the searches of each contender."""
    peers = {name: runs for name, runs in found.items() if name != OURS}
    for time_s in times:
        for place, part in ((1, "val"), (2, "test")):
            ours = median([at(run, time_s, place) for run in found[OURS]])
            medians = {
                name: value
                for name, runs in peers.items()
                if (value := median([at(run, time_s, place) for run in runs])) is not None
            }
            best = max(medians, key=lambda name: medians[name], default="")
            peer = medians.get(best)
            ratio = None if ours is None or peer is None else ours / peer
            name = PEERS[best][0] if best else "no peer has finished a trial"
            title = f"race_{task}_{part}_at_{time_s}s"
            yield Result(title, ours, peer, name, "accuracy", ratio)
    for name, runs in peers.items():
        wanted = median([at(run, times[-1]) for run in runs])
        if wanted is None:
            continue
        ours, peer = (
            median([reached(run, wanted) for run in each]) for each in (found[OURS], runs)
        )
        ratio = None if ours is None or peer is None else peer / ours
        about = f"{PEERS[name][0]}: {wanted:.4f}"
        yield Result(f"race_{task}_time_to_best_of_{name}", ours, peer, about, "s", ratio)


def results(options: Namespace, folder: Path) -> Iterator[Result]:
    """Run the searches that are not kept; yield the rows of each task."""
    times = options.times
    pythons = {
        name: options.optuna_python if name == "optuna" else options.ray_python for name in PEERS
    }
    for name, (title, packages, _) in PEERS.items():
        lacks = [package for package in packages if not version_of(package, pythons[name])]
        if lacks and name in options.only:
            print(f"{title}: missing, no {', '.join(lacks)} in {pythons[name]}", flush=True)
            options.only.remove(name)
    for task in options.task:
        ours, theirs = write(task, folder, options.mnist)
        found: dict[str, list[Found]] = {name: [] for name in options.only}
        # By seed first, so that an interrupted race has some of each contender.
        for seed in range(1, options.seeds + 1):
            for name in options.only:
                kept = options.kept / f"{task}-{name}-{seed}-{times[-1]}s.json"
                if not kept.exists():
                    run = (
                        search_ours(ours, theirs, task, seed, times[-1])
                        if name == OURS
                        else search_peer(name, pythons[name], theirs, seed, times[-1])
                    )
                    part = kept.with_name(kept.name + ".part")
                    part.write_text(json.dumps(run) + "\n")
                    part.replace(kept)
                found[name].append(json.loads(kept.read_text()))
                run = found[name][-1]
                shown = "  ".join(
                    f"{time_s} s: {at(run, time_s):.4f} {at(run, time_s, 2):.4f}"
                    for time_s in times
                )
                counts = f"{run['ended']} of {run['begun']} finished"
                print(f"{task} {name} seed {seed}: {shown}  {counts}", flush=True)
        if OURS in found:
            yield from rows_of(task, found, times)


def main() -> None:
    options = parser(__doc__)
    default = options.get_default("peer_python")
    options.add_argument("--kept", type=Path, default=Path("race"), help="folder of searches")
    options.add_argument("--task", action="append", choices=[*STANDARDISED])
    options.add_argument("--only", action="append", choices=[OURS, *PEERS], help="contenders")
    options.add_argument("--seeds", type=int)
    options.add_argument("--times", help="seconds, as 30,60,120,300")
    options.add_argument("--ray-python", default=default, help="has ray, torch and optuna")
    options.add_argument("--optuna-python", default=default, help="has optuna and torch")
    options.add_argument("--mnist", type=Path, default=Path("data/mnist"), help="its four files")
    given = options.parse_args()
    given.task = given.task or (["table"] if given.quick else [*STANDARDISED])
    given.only = given.only or [OURS, *PEERS]
    given.seeds = given.seeds or (1 if given.quick else 5)
    times = given.times.split(",") if given.times else TIMES[:2] if given.quick else TIMES
    given.times = sorted(map(int, times))
    given.kept.mkdir(parents=True, exist_ok=True)
    # Before NumPy is imported: trials are trained again here, by as many threads as in the search.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no search goes on
    with tempfile.TemporaryDirectory() as folder:
        report(results(given, Path(folder)), given.json)


if __name__ == "__main__":
    main()
