"""The peers of `sweep.py`, each started as a script of its own: ready before the clock starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Result, Worker, compare, parser, serve, version_of
from launching import mpiexec, output_of
from sweep_objective import SHAPE, TRAINERS, objective, points_of, shape_of, sum_of

_SCRIPT = str(Path(__file__).resolve())
_RAY_IN_SILENCE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
}


def futures(trials: int, chunk: int) -> float:
    """Have mpi4py.futures try a grid, in chunks; return how many trials a second it does."""
    line = [*mpiexec(1 + TRAINERS), sys.executable, "-m", "mpi4py.futures", _SCRIPT]
    done = output_of([*line, "--worker", "futures", "--setup", f"{trials},{chunk}"])
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
    sys.path.append(sys.path.pop(0))  # this folder has a distributed.py, too
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
    """Be the peer: actors that are used again, and write nothing down."""
    import contextlib

    os.environ.update(_RAY_IN_SILENCE)
    import ray
    from ray import tune

    ray.init(num_cpus=TRAINERS, include_dashboard=False, log_to_driver=False, logging_level=50)

    class Trial(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.point = config

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.point = new_config
            return True

        def step(self) -> dict[str, Any]:
            return {"score": objective(self.point), "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Have nothing to save."""

        def load_checkpoint(self, checkpoint: object) -> None:
            """Have nothing to load."""

    def tuned(trials: int) -> list[float]:
        space = {name: tune.grid_search(list(range(count)))
                 for name, count in shape_of(trials).items()}  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            found = tune.Tuner(
                Trial,
                param_space=space,
                tune_config=tune.TuneConfig(max_concurrent_trials=TRAINERS, reuse_actors=True),
                run_config=tune.RunConfig(verbose=0, storage_path=folder),
            ).fit()
            return [one.metrics["score"] for one in found]

    def work(trials: int) -> dict[str, Any]:
        tuned(4)  # the processes of its actors are there then
        started_s = time.perf_counter()
        scores = tuned(trials)
        seconds = time.perf_counter() - started_s
        return {"per_s": trials / seconds, "sum": sum(scores), "trials": len(scores)}

    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        serve(work, answers=answers)


def be_optuna() -> None:
    """Be the peer: processes that share a journal in a file, each asking by itself."""

    def work(trials: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            journal = str(Path(folder) / "journal")
            optuna_study(journal)
            share = f"{journal},{trials // TRAINERS}"
            line = [sys.executable, _SCRIPT, "--worker", "optuna_process", "--setup", share]
            workers = [
                subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(TRAINERS)
            ]
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()  # ready
            started_s = time.perf_counter()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.close()
            for worker in workers:
                worker.wait()
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


PEERS = {
    # name: package, trials with --quick, trials without, who it is
    "dask": ("distributed", 2000, 20000, be_dask),
    "ray_tune": ("ray", 100, 1000, be_ray_tune),
    "optuna": ("optuna", 100, 2000, be_optuna),
}


def peer_rows(python: str, *, ours: list[float], quick: bool) -> list[Result]:
    """Compare with the peers that an interpreter has."""
    rows = []
    for name, (package, few, many, _) in PEERS.items():
        trials = few if quick else many
        version = version_of(package, python)
        rates = None
        if version is not None:
            with Worker(__file__, name, python, threads=1) as worker:
                answer = worker.ask(trials=trials)
            if "sum" in answer and answer["sum"] != sum_of(shape_of(trials)):
                raise RuntimeError(f"{name}: a sum of {answer['sum']}")
            if answer.get("trials", trials) != trials:
                raise RuntimeError(f"{name}: {answer['trials']} of {trials} trials")
            rates = [answer["per_s"]]
        title = f"{package} {version}" if version else f"{package}, not installed"
        rows.append(compare(f"trials_vs_{name}", ours, rates, title, "1/s", more_is_better=True))
    return rows


def main() -> None:
    options = parser(__doc__).parse_args()
    setup = (options.setup or "").split(",")
    if options.worker == "futures":
        be_futures(int(setup[0]), int(setup[1]))
    elif options.worker == "optuna_process":
        be_optuna_process(setup[0], int(setup[1]))
    else:
        PEERS[options.worker][-1]()


if __name__ == "__main__":
    main()
