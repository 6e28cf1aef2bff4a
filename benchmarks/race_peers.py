"""The peers of `race.py`, with PyTorch: Optuna, and Ray Tune with random points or Optuna's search.

    python race_peers.py CONTENDER TASK.npz SEED SECONDS FOLDER

Each is started by the interpreter that has it, trains two networks at a time with a thread each,
and writes lines about its trials into ``FOLDER/log-PROCESS.jsonl``. Settings are those that were
fastest: Optuna's processes share a journal, Ray's actors are used again, and loggers and
checkpoints are off. The seconds count from the start of this script.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN_S = time.time()
EPOCHS, WORKERS = 30, 2
_RAY_IN_SILENCE = {
    "OMP_NUM_THREADS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_MAX_PENDING_TRIALS_PG": str(WORKERS),
}


def arrays_of(file: str) -> dict[str, Any]:
    """Return the rows of a task as tensors, and compute with one thread from now on."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    with np.load(file) as found:
        tensors = {name: torch.from_numpy(found[name]) for name in found.files}
    return {
        name: each.float() if name.startswith("x") else each.long()
        for name, each in tensors.items()
    }


class Network:
    """A multilayer perceptron of a point, trained an epoch at a time."""

    def __init__(self, arrays: dict[str, Any], point: dict[str, Any], seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self._arrays, self._rows = arrays, point["batch_size"]
        activation = nn.ReLU if point["activation"] == "relu" else nn.Tanh
        units, layers = arrays["x_train"].shape[1], []
        for _ in range(point["depth"]):
            layers += [nn.Linear(units, point["width"]), activation()]
            units = point["width"]
        classes = int(arrays["y_train"].max()) + 1
        self._model = nn.Sequential(*layers, nn.Linear(units, classes))
        self._optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=point["learning_rate"],
            momentum=point["momentum"],
            weight_decay=point["weight_decay"],
            fused=True,
        )
        self._loss = nn.CrossEntropyLoss()

    def train(self) -> float:
        """Train for an epoch; return the accuracy on the validation rows."""
        import torch

        x, y = self._arrays["x_train"], self._arrays["y_train"]
        order = torch.randperm(len(x))
        x, y = x[order], y[order]
        for some_x, some_y in zip(x.split(self._rows), y.split(self._rows), strict=True):
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(self._model(some_x), some_y).backward()
            self._optimizer.step()
        return self.accuracy("val")

    def accuracy(self, part: str) -> float:
        """Return the accuracy on the rows of a part."""
        import torch

        with torch.inference_mode():
            found = self._model(self._arrays[f"x_{part}"]).argmax(1)
            return float((found == self._arrays[f"y_{part}"]).float().mean())


class Log:
    """Writes down the first epoch of each trial, and the last one with its test accuracy."""

    def __init__(self, folder: str) -> None:
        self._file = Path(folder, f"log-{os.getpid()}.jsonl")

    def __call__(self, network: Network, epoch: int, val: float) -> None:
        if epoch not in (1, EPOCHS):
            return
        test = network.accuracy("test") if epoch == EPOCHS else None
        line = {"t": time.time(), "epoch": epoch, "val": val, "test": test}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


# -- Optuna ---------------------------------------------------------------------------------------


def optuna_worker(file: str, seed: int, end_s: float, folder: str, number: int) -> None:
    """Be one of the processes of a study: TPE, told of trials under way, and Hyperband."""
    import warnings

    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # of features that Optuna calls experimental
    arrays, log = arrays_of(file), Log(folder)
    study = optuna.create_study(
        study_name="race",
        direction="maximize",
        load_if_exists=True,
        storage=JournalStorage(JournalFileBackend(f"{folder}/journal")),
        sampler=optuna.samplers.TPESampler(seed=WORKERS * seed + number, constant_liar=True),
        pruner=optuna.pruners.HyperbandPruner(1, EPOCHS, 3),
    )

    def objective(trial: Any) -> float:
        point = {
            "depth": trial.suggest_int("depth", 1, 3),
            "width": 2 ** trial.suggest_int("log2_width", 4, 9),
            "activation": trial.suggest_categorical("activation", ["relu", "tanh"]),
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
            "momentum": trial.suggest_float("momentum", 0.0, 0.95),
            "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
            "batch_size": 2 ** trial.suggest_int("log2_batch_size", 4, 8),
        }
        network, val = Network(arrays, point, seed * 100_003 + trial.number), 0.0
        for epoch in range(1, EPOCHS + 1):
            val = network.train()
            log(network, epoch, val)
            trial.report(val, epoch)
            if epoch < EPOCHS and trial.should_prune():
                raise optuna.TrialPruned
        return val

    study.optimize(objective, timeout=max(end_s - time.time(), 0.0))


def optuna_search(file: str, seed: int, seconds: float, folder: str) -> None:
    """Run a study in two processes, whose trials under way end with the time."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    end_s = BEGAN_S + seconds
    workers = [
        spawn.Process(target=optuna_worker, args=(file, seed, end_s, folder, number))
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(end_s - time.time(), 0.0))
        if worker.exitcode:
            raise SystemExit(worker.exitcode)
    for worker in workers:
        worker.terminate()


# -- Ray Tune -------------------------------------------------------------------------------------


def ray_search(file: str, seed: int, seconds: float, folder: str, search: str) -> None:
    """Run Ray Tune with ASHA, on random points or those of Optuna's search."""
    os.environ.update(_RAY_IN_SILENCE)
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    class Trainable(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.arrays, self.log = arrays_of(file), Log(folder)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            point = dict(new_config)
            for name in ("width", "batch_size"):
                point[name] = 2 ** point.pop(f"log2_{name}")
            number = zlib.crc32(str(self.trial_id).encode()) % 99_991
            self.network, self.epoch = Network(self.arrays, point, seed * 100_003 + number), 0
            return True

        def step(self) -> dict[str, Any]:
            val = self.network.train()
            self.epoch += 1
            self.log(self.network, self.epoch, val)
            return {"val": val, "done": self.epoch >= EPOCHS}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Have nothing to save."""

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    space = {
        "depth": tune.randint(1, 4),
        "log2_width": tune.randint(4, 10),
        "activation": tune.choice(["relu", "tanh"]),
        "learning_rate": tune.loguniform(1e-4, 1.0),
        "momentum": tune.uniform(0.0, 0.95),
        "weight_decay": tune.loguniform(1e-6, 1e-2),
        "log2_batch_size": tune.randint(4, 9),
    }
    searcher: Any
    if search == "optuna":
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        searcher = OptunaSearch(metric="val", mode="max", seed=seed)
    else:
        from ray.tune.search.basic_variant import BasicVariantGenerator

        searcher = BasicVariantGenerator(random_state=seed, max_concurrent=WORKERS)
    tune.Tuner(
        tune.with_resources(Trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="val",
            mode="max",
            num_samples=-1,
            search_alg=searcher,
            reuse_actors=True,
            max_concurrent_trials=WORKERS if search == "optuna" else None,
            time_budget_s=seconds - (time.time() - BEGAN_S),
            scheduler=ASHAScheduler(
                time_attr="training_iteration", max_t=EPOCHS, grace_period=1, reduction_factor=3
            ),
        ),
        run_config=tune.RunConfig(
            storage_path=folder,
            name="tune",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    ray.shutdown()


PEERS: dict[str, tuple[str, tuple[str, ...], Callable[[str, int, float, str], None]]] = {
    # contender: what it is, the packages that it needs, its search
    "ray_random": (
        "Ray Tune, ASHA, random",
        ("torch", "ray"),
        lambda *given: ray_search(*given, "random"),
    ),
    "ray_optuna": (
        "Ray Tune, ASHA, Optuna's search",
        ("torch", "ray", "optuna"),
        lambda *given: ray_search(*given, "optuna"),
    ),
    "optuna": ("Optuna, TPE, Hyperband", ("torch", "optuna"), optuna_search),
}


if __name__ == "__main__":
    contender, task_file, number, limit_s, out = sys.argv[1:]
    PEERS[contender][2](task_file, int(number), float(limit_s), out)
