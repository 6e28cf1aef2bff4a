"""What a sweep costs beside its trials.

trials_vs_futures, trials_vs_futures_chunked (trials a second)
    A grid of points that take no time, two trainers, every trial in the ledger and in results.csv:
    from the first trial's start to the end of the group. The peer is mpi4py.futures with two
    workers, one task at a time, or in chunks of 32; it writes nothing down.
trials_vs_dask, trials_vs_ray_tune, trials_vs_optuna (trials a second)
    Likewise: Dask's local cluster with two processes; Ray Tune with two actors at a time; Optuna's
    random sampler, two processes and a journal storage in a file. Ready before the clock starts.
million_point_grid_s, grid_100k_s (s), master_growth_MiB
    ``diel run`` from the command to its end for a grid of a million points, or of 100,000; and by
    how much the memory of the master grew meanwhile, at its peak.
sweep_efficiency
    Trials of a second each, two trainers: the ideal time over that from the first trial's start to
    the end of the group.
heart_sweep_vs_pytorch, heart_sweep_vs_pytorch_bmm (trials a second)
    See `sweep_heart.py`.
ask_us (us)
    One ask of a strategy that was told 100, 10,000 and 1,000,000 trials.

Every sum of scores is checked against that of the grid.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sweep_heart
from harness import REPOSITORY, Result, Worker, compare, parser, report, serve, version_of
from sweep_objective import SHAPE, objective

TRAINERS = 2
CHUNK = 32
RANKS = 3 + TRAINERS
"""The executive, the tuple server, the master, the trainers."""

WORKFLOW = """\
[[module]]
name = "master"
function = "{script}:weighed_master"
[module.options]
objective = "score"
maximise = true

[module.options.space]
{space}
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = {trainers}
[module.options]
train = "{script}:{train}"
options = {{ seconds = 1.0 }}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def shape_of(points: int) -> dict[str, int]:
    """Return a grid of so many points."""
    shape, rest = dict(SHAPE), points
    for name in ("e", "d", "c", "b"):
        shape[name] = math.gcd(rest, shape[name])
        rest //= shape[name]
    return {**shape, "a": rest}


def points_of(shape: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield all points of a grid."""
    for values in itertools.product(*map(range, shape.values())):
        yield dict(zip(shape, values, strict=True))


def sum_of(shape: dict[str, int]) -> float:
    """Return the sum of the scores of all points."""
    return sum(map(objective, points_of(shape)))


# -- ours -----------------------------------------------------------------------------------------


def sweep(folder: Path, points: int, train: str = "train") -> dict[str, float]:
    """Run a sweep; return its times, and by how much its master grew."""
    shape = shape_of(points)
    space = "\n".join(
        f"{name} = {{ from = 0, to = {count - 1}, step = 1 }}" if count > 1 else f"{name} = 0"
        for name, count in shape.items()
    )
    script = Path(__file__).with_name("sweep_modules.py")
    file = folder / "sweep.toml"
    file.write_text(WORKFLOW.format(script=script, space=space, train=train, trainers=TRAINERS))
    runs = Path(tempfile.mkdtemp(dir=folder))
    started_s = time.perf_counter()
    _run([sys.executable, "-m", "diel", "run", "--allow-run-as-root", file, "--runs", runs])
    wall_s = time.perf_counter() - started_s
    (run,) = runs.iterdir()
    records = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    ended_s = next(one["time_s"] for one in records if one["event"] == "GroupFinished")
    returned = next(one["returned"] for one in records if one.get("module") == "master"
                    and one["event"] == "CopyFinished")  # fmt: skip
    (ledger,) = run.glob("sweeps/*/trials.jsonl")
    first_s, total, seen = ended_s, 0.0, set()
    with ledger.open("rb") as file_:
        file_.readline()
        for line in file_:
            record = json.loads(line)
            first_s = min(first_s, record["started_s"])
            total += record["metrics"]["score"]
            seen.add(record["trial"])
    if seen != set(range(points)) or total != sum_of(shape):
        raise RuntimeError(f"{len(seen)} of {points} trials, and a sum of {total}")
    return {
        "wall_s": wall_s,
        "per_s": points / (ended_s - first_s),
        "growth_MiB": returned["growth_MiB"],
    }


# -- peers ----------------------------------------------------------------------------------------


def _futures(trials: int, chunk: int) -> float:
    script = Path(__file__).resolve()
    line = [*_mpiexec(1 + TRAINERS), sys.executable, "-m", "mpi4py.futures", script]
    done = _run([*line, "--worker", "futures", "--setup", f"{trials},{chunk}"])
    return float(done.splitlines()[-1])


def be_futures(trials: int, chunk: int) -> None:
    """Be the peer; print how many trials a second it does."""
    from mpi4py.futures import MPIPoolExecutor

    shape = shape_of(trials)
    expected = sum_of(shape)
    with MPIPoolExecutor() as executor:
        list(executor.map(objective, points_of(shape_of(1000)), chunksize=chunk))
        started_s = time.perf_counter()
        total = sum(executor.map(objective, points_of(shape), chunksize=chunk, unordered=True))
        seconds = time.perf_counter() - started_s
    if total != expected:
        raise RuntimeError(f"a sum of {total}")
    print(trials / seconds, flush=True)


def be_dask() -> None:
    """Be the peer: answer tasks with trials a second."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=TRAINERS, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    with cluster, Client(cluster) as client:
        client.gather(client.map(objective, list(points_of(shape_of(100)))))

        def work(trials: int) -> dict[str, Any]:
            shape = shape_of(trials)
            started_s = time.perf_counter()
            futures = client.map(objective, list(points_of(shape)), pure=False)
            total = sum(client.gather(futures))
            seconds = time.perf_counter() - started_s
            return {"per_s": trials / seconds, "sum": total}

        serve(work)


def be_ray_tune() -> None:
    """Be the peer."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    import ray
    from ray import tune

    ray.init(num_cpus=TRAINERS, include_dashboard=False, log_to_driver=False, logging_level=50)

    def trial(config: dict[str, Any]) -> dict[str, float]:
        return {"score": objective(config)}

    def work(trials: int) -> dict[str, Any]:
        shape = shape_of(trials)
        space = {name: tune.grid_search(list(range(count))) for name, count in shape.items()}
        started_s = time.perf_counter()
        found = tune.Tuner(
            trial,
            param_space=space,
            tune_config=tune.TuneConfig(max_concurrent_trials=TRAINERS),
            run_config=tune.RunConfig(verbose=0),
        ).fit()
        seconds = time.perf_counter() - started_s
        return {"per_s": trials / seconds, "sum": sum(one.metrics["score"] for one in found)}

    with _quiet_output():
        serve(work, answers=_ANSWERS)


def _quiet_output() -> Any:
    import contextlib

    return contextlib.redirect_stdout(sys.stderr)


_ANSWERS = sys.stdout


def be_optuna() -> None:
    """Be the peer: processes that share a journal in a file, each asking by itself."""
    import subprocess

    script = str(Path(__file__).resolve())

    def work(trials: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            journal = str(Path(folder) / "journal")
            optuna_study(journal)
            share = f"{journal},{trials // TRAINERS}"
            line = [sys.executable, script, "--worker", "optuna_process", "--setup", share]
            workers = [
                subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(TRAINERS)
            ]
            for one in workers:
                assert one.stdout is not None
                one.stdout.readline()  # ready
            started_s = time.perf_counter()
            for one in workers:
                assert one.stdin is not None
                one.stdin.close()
            for one in workers:
                one.wait()
            seconds = time.perf_counter() - started_s
            study = optuna_study(journal)
            for one in study.trials:
                if one.value != objective(one.params):
                    raise RuntimeError(f"trial {one.number} is wrong")
            return {"per_s": len(study.trials) / seconds, "trials": len(study.trials)}

    serve(work)


def optuna_study(journal: str) -> Any:
    """Return the study in a journal."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(journal)),
        study_name="s",
        load_if_exists=True,
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(),
    )


def be_optuna_process(journal: str, trials: int) -> None:
    """Be one of Optuna's processes."""

    def trial(asked: Any) -> float:
        return objective(
            {name: asked.suggest_int(name, 0, count - 1) for name, count in SHAPE.items()}
        )

    study = optuna_study(journal)
    print("ready", flush=True)
    sys.stdin.read()
    study.optimize(trial, n_trials=trials)


PEERS: dict[str, tuple[str, int | None, int]] = {
    # name: package, trials with --quick, trials without
    "dask": ("distributed", 4000, 20000),
    "ray_tune": ("ray", None, 40),
    "optuna": ("optuna", 100, 2000),
}


def peer_rows(python: str, *, ours: list[float], quick: bool) -> list[Result]:
    """Compare with the peers that an interpreter has."""
    rows = []
    for name, (package, few, many) in PEERS.items():
        trials = few if quick else many
        version = version_of(package, python)
        rates = None
        if version is not None and trials is not None:
            with Worker(__file__, name, python, threads=1) as worker:
                answer = worker.ask(trials=trials)
            if "sum" in answer and answer["sum"] != sum_of(shape_of(trials)):
                raise RuntimeError(f"{name}: a sum of {answer['sum']}")
            if answer.get("trials", trials) != trials:
                raise RuntimeError(f"{name}: {answer['trials']} of {trials} trials")
            rates = [answer["per_s"]]
        title = f"{package} {version}" if version else f"{package}, not installed"
        if trials is None:
            title += ", which takes too long for --quick"
        rows.append(compare(f"trials_vs_{name}", ours, rates, title, "1/s", more_is_better=True))
    return rows


# -- asking ---------------------------------------------------------------------------------------


STRATEGIES = {
    # name: how many trials it was told of, with --quick, and without
    "grid": ((100, 1_000_000), (100, 10_000, 1_000_000)),
    "random": ((100, 1_000_000), (100, 10_000, 1_000_000)),
    "cross_entropy": ((100, 10_000), (100, 10_000, 1_000_000)),
    "halving": ((100, 10_000), (100, 10_000, 1_000_000)),
    "optuna:tpe": ((100, 1_000), (100, 1_000, 2_000)),
}
ASK_SPACE = {
    "a": {"from": 0, "to": 9999, "step": 1},
    "b": {"from": 1e-5, "to": 1e-1, "log_steps": 50},
    "c": {"from": 0.0, "to": 0.9, "step": 0.1},
    "d": ["x", "y", "z"],
    "e": {"from": 0, "to": 9, "step": 1},
}


def ask_rows(*, quick: bool) -> list[Result]:
    """Time one ask of each strategy after ever more trials; the peer is itself after 100."""
    rows = []
    for name, (few, many) in STRATEGIES.items():
        if name.startswith("optuna") and version_of("optuna", sys.executable) is None:
            rows.append(Result(f"ask_us_{name}", None, None, "optuna, not installed", "us", None))
            continue
        counts = few if quick else many
        times = {count: ask_s(name, count) * 1e6 for count in counts}
        for count in counts[1:]:
            title = f"ask_us_{name}_{count}"
            rows.append(
                compare(title, [times[count]], [times[counts[0]]], "itself after 100", "us")
            )
    return rows


def ask_s(name: str, told: int) -> float:
    """Return the seconds of one ask of a strategy that was told of so many trials."""
    from modules.options import SweepOptions
    from modules.search import Search

    table: dict[str, Any] = {"space": ASK_SPACE, "strategy": name, "objective": "accuracy"}
    if name == "grid":
        table["order"] = "shuffled"
    else:
        table["trials"] = 10 * told + 10_000
    strategy = Search(SweepOptions.model_validate(table)).strategy
    points = [Search(SweepOptions.model_validate(
        {"space": ASK_SPACE, "strategy": "random", "trials": 1000, "seed": 1}
    )).parameters(trial) for trial in range(1000)]  # fmt: skip
    if not getattr(strategy, "is_stateless", False) or hasattr(strategy, "report"):
        hears = getattr(strategy, "report", None)
        for trial in range(told):
            point = points[trial % len(points)]
            score = -abs(point["a"] - 5000.0) - trial * 1e-9
            if hears is not None:
                hears(trial, 1, score)
            strategy.tell(trial, point, score)
    times = []
    for trial in range(told, told + (20 if name.startswith("optuna") else 500)):
        started_s = time.perf_counter()
        strategy.ask(trial)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


# -- all ------------------------------------------------------------------------------------------


def _mpiexec(ranks: int) -> list[str]:
    from diel.executive import launch

    mpiexec = launch.find_mpiexec()
    return launch.mpiexec_line(
        mpiexec,
        launch.mpi_implementation(mpiexec),
        ranks=ranks,
        cores=launch.available_cores(),
        as_root=os.geteuid() == 0,
        allow_run_as_root=True,
        environment=os.environ,
    )


def _run(line: list[object]) -> str:
    paths = [str(REPOSITORY), str(REPOSITORY / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [str(part) for part in line],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def main() -> None:
    options = parser(__doc__).parse_args()
    setup = (options.setup or "").split(",")
    if options.worker == "futures":
        return be_futures(int(setup[0]), int(setup[1]))
    if options.worker == "optuna_process":
        return be_optuna_process(setup[0], int(setup[1]))
    if options.worker in ("torch", "torch_bmm"):
        return sweep_heart.be_torch(options.setup, bmm=options.worker == "torch_bmm")
    if options.worker:
        return {"dask": be_dask, "ray_tune": be_ray_tune, "optuna": be_optuna}[options.worker]()
    rounds = 1 if options.quick else 3
    rows: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs, single, chunked = [], [], []
        for _ in range(rounds):
            runs.append(sweep(folder, 100_000))
            single.append(_futures(10_000, 1))
            chunked.append(_futures(100_000, CHUNK))
        ours = [one["per_s"] for one in runs]
        for title, peer, about in (
            ("trials_vs_futures", single, "mpi4py.futures, one by one"),
            ("trials_vs_futures_chunked", chunked, f"mpi4py.futures, chunks of {CHUNK}"),
        ):
            rows.append(compare(title, ours, peer, about, "1/s", more_is_better=True))
        rows += peer_rows(options.peer_python, ours=ours, quick=options.quick)
        if options.quick:
            big, title = runs[0], "grid_100k_s"
        else:
            big, title = sweep(folder, 1_000_000), "million_point_grid_s"
        rows.append(compare(title, [big["wall_s"]], None, "none", "s"))
        rows.append(compare("master_growth_MiB", [big["growth_MiB"]], None, "none", "MiB"))
        trials = 6 * TRAINERS if options.quick else 30 * TRAINERS
        efficiency = sweep(folder, trials, "sleep")["per_s"] / TRAINERS
        rows.append(compare("sweep_efficiency", [efficiency], None, "none", "of ideal"))
        rows += sweep_heart.rows(folder, options.peer_python, quick=options.quick)
    rows += ask_rows(quick=options.quick)
    report(rows, options.json)


if __name__ == "__main__":
    main()
