"""What a trainer computes on: a CPU or a GPU, which precision and routines, how many at once."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from diel import open_regular, part_of

from .hyperparameters import WIDE, Hyperparameters, loss_of, optimizer_of
from .networks import dropout_rates, layers_of

if TYPE_CHECKING:
    from diel import Context
    from dnn import History, RoutineTable

MOST_NETWORKS: Final = 64
"""Most networks in one plan on a CPU: with more, what a step needs outgrows a core's cache."""
SMALL_IMAGE: Final = 100
"""Values of an image up to which several convolutional networks in one plan on a CPU are no slower
than one by one: 4 of them take 0.83 to 1 of that time with 8 x 8 pixels, 0.9 to 2.3 with 28 x 28.
"""
MOST_CONVOLUTIONAL: Final = 4
_MOST_ON_GPU: Final = 4096
_NETWORKS_ON_GPU: Final = "gpu_models"
_BY_PARAMETERS: Final = ((0, 1024), (2_000, 256), (20_000, 64), (200_000, 16), (2_000_000, 1))
"""Least number of parameters of a network, and how many such networks go into one plan on a GPU:
an estimate, where it is not measured."""
_HIDDEN_MEASURED: Final = ((16,), (128,), (230, 230), (750, 750), (2000, 2000))
"""Hidden layers of the network that is measured for each of them, with `_FEATURES` inputs and
`_CLASSES` outputs."""
_FEATURES, _CLASSES = 32, 10
_COUNTS_MEASURED: Final = (1, 16, 64, 256, 1024)
_COUNTS_OF_LAYERS_MEASURED: Final = (1, 4, 16, 64)
"""As `_COUNTS_MEASURED`, of networks that are measured themselves."""
_STEPS_MEASURED: Final = 8
_MOST_MEASURED: Final = 2**24
"""Most parameters of all networks in a measurement: to draw more takes the CPU seconds."""
_SHARE_OF_MEMORY: Final = 0.8
_MARGIN: Final = 1.25
"""Factor on the estimated bytes of a network, for what else a plan needs."""
# Run by another Python with the `sys.path` of this one, so that both import the same packages.
_CUDA_CHECK: Final = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import dnn
print(dnn.cuda_problem() or "")
"""
_CUDA_CHECK_TIMEOUT_S: Final = 60.0
_NARROW: Final = ("float16", "bfloat16")
_ROUTINES_FILE: Final = "routines.json"
_CONVOLUTIONS_FOLDER: Final = "routines"


@dataclass(frozen=True)
class Compute:
    """The device and the precision of a trainer's networks.

    Attributes
    ----------
    device : "cpu" or "cuda"
        ``"cuda"`` is the first GPU that the process sees.
    precision : str
        As `dnn.NeuralNetwork` has it.
    share : float
        Share of the GPU's memory that this process may use, where several copies have one GPU.
    """

    device: str = "cpu"
    precision: str = "float32"
    share: float = 1.0

    @classmethod
    def of(cls, device: str, precision: str, gpus: Sequence[int], share: float = 1.0) -> Compute:
        """Return the device and precision that options mean on a rank with these GPUs."""
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        return cls(device, precision, share)

    def to_options(self) -> dict[str, Any]:
        """Return the fields as plain values, from which ``Compute(**values)`` is made again."""
        return asdict(self)

    @property
    def is_gpu(self) -> bool:
        """Whether networks are trained on a GPU."""
        return self.device != "cpu"

    @property
    def networks(self) -> Mapping[str, Any]:
        """Keyword arguments of `dnn.NeuralNetwork` and `dnn.Ensemble`: device and precision."""
        return {"device": self.device, "dtype": self.precision}

    def begin(self) -> None:
        """Limit this process to its share of the GPU's memory."""
        if self.is_gpu and self.share < 1:
            from dnn import limit_memory

            limit_memory(self.device, self.share)

    @property
    def description(self) -> str:
        """Device and precision for a log; the GPU is not touched: another process may have it."""
        from dnn import ops_for

        return f"a GPU, in {self.precision}" if self.is_gpu else ops_for("cpu").description

    def is_too_narrow(self, history: History) -> bool:
        """Whether a training in float16 had no finite loss in its first epoch."""
        return self.precision == "float16" and not math.isfinite(history.loss[0])

    def metrics_of(self, history: History) -> dict[str, int]:
        """Return metrics that only trainings in this precision have: skipped steps in float16."""
        return {"skipped_steps": history.skipped_steps} if self.precision == "float16" else {}

    @contextmanager
    def without_warnings(self) -> Iterator[None]:
        """Suppress the warning that a network diverged in float16: its trial says so."""
        if self.precision != "float16":
            yield
            return
        from dnn import MixedPrecisionWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedPrecisionWarning)
            yield

    def facts(self) -> dict[str, str]:
        """Return the device and its name, the precision, and the versions of libraries."""
        from dnn import device_facts

        return {**device_facts(self.device), "precision": self.precision}

    def most_networks(
        self,
        wanted: Hyperparameters,
        features: int = 0,
        outputs: int = 0,
        free_bytes: int = 0,
        table: RoutineTable | None = None,
    ) -> int:
        """Return how many networks with such hyperparameters to put into one plan, at least 1.

        On a GPU as many as fit its free memory, but no more than are fastest for networks of that
        size: measured, if `table` has it, or else estimated. Those with layers of other kinds than
        dense ones are measured by `fastest_count`, or else trained alone.
        """
        if wanted.is_recurrent:
            return 1  # several in one plan have not been measured
        if wanted.is_convolutional or (wanted.layers is not None and self.is_gpu):
            return MOST_CONVOLUTIONAL if features <= SMALL_IMAGE and not self.is_gpu else 1
        if not self.is_gpu:
            return 1 if wanted.widest >= WIDE else MOST_NETWORKS
        units = [features, *wanted.hidden, outputs]
        parameters = _parameters_of(units)
        most = next(pays for least, pays in reversed(_BY_PARAMETERS) if parameters >= least)
        measured = table(_NETWORKS_ON_GPU, parameters) if table is not None else None
        if measured is not None:
            most = int(measured)
        arrays = 2 + len(optimizer_of(wanted, wanted.batch_size).state_names)
        wide = 8 if self.precision == "float64" else 4
        narrow = 2 if self.precision in _NARROW else 0
        size_bytes = _MARGIN * (
            (wide * arrays + narrow) * parameters + 3 * wide * wanted.batch_size * sum(units)
        )
        fits = int(_SHARE_OF_MEMORY * self.share * free_bytes / size_bytes)
        return max(1, min(most, fits, _MOST_ON_GPU))

    def fastest_count(
        self,
        wanted: Hyperparameters,
        features: int,
        outputs: int,
        shape: tuple[int, ...] | None,
        table: RoutineTable,
        takes: str = "classes",
    ) -> int:
        """Return how many networks of such layers are trained fastest in one plan on this GPU.

        More are tried as long as each of them takes less time, and memory suffices. The first
        process of a run that asks measures it; `table` has the answer for all others.
        """
        from dnn import OutOfDeviceMemory, free_memory

        measured = (wanted.plan_key(), features, outputs, shape, self.precision)
        key = f"networks-{hashlib.blake2b(repr(measured).encode(), digest_size=8).hexdigest()}"
        choices = table.convolutions
        with choices.measuring():
            found = choices.find(key)
            if found is None:
                seconds: dict[int, float] = {}
                for networks in _COUNTS_OF_LAYERS_MEASURED:
                    try:
                        each_s = self._layers_epoch_s(
                            wanted, features, outputs, shape, takes, networks, table
                        )
                    except OutOfDeviceMemory:
                        break
                    if each_s >= min(seconds.values(), default=math.inf):
                        break
                    seconds[networks] = each_s
                gc.collect()
                free_memory(self.device)
                times_ms = {str(networks): 1e3 * each_s for networks, each_s in seconds.items()}
                fastest = max(seconds, default=1)
                found = choices.keep(key, {"routine": str(fastest), "ms": times_ms})
        return int(found)

    def _layers_epoch_s(
        self,
        wanted: Hyperparameters,
        features: int,
        outputs: int,
        shape: tuple[int, ...] | None,
        takes: str,
        networks: int,
        table: RoutineTable,
    ) -> float:
        """Return the seconds of a short epoch divided by the number of networks trained in it."""
        import numpy as np

        from dnn import Ensemble

        rows = np.arange(_STEPS_MEASURED * wanted.batch_size)
        # With the default rate: the time of a network that diverges says nothing.
        alike = [wanted.model_copy(update={"learning_rate": None})] * networks
        ensemble = Ensemble(
            layers_of(wanted, features, outputs, shape),
            loss_of(alike, takes),
            optimizer_of(alike, len(rows)),
            seeds=range(networks),
            states=dropout_rates(alike),
            routines=table,
            **self.networks,
        )
        x = np.sin(rows[:, None] + np.arange(features))
        y = rows % outputs if takes == "classes" else np.zeros((len(rows), outputs), np.float32)
        histories = ensemble.fit(x, y, epochs=3, batch_size=wanted.batch_size)
        return min(histories[0].epoch_times_s)

    @staticmethod
    def measures_networks(table: RoutineTable | None) -> bool:
        """Whether a run measures how many networks to train in one plan, as `table` says."""
        return table is not None and _NETWORKS_ON_GPU in table.choices

    def measure_routines(self) -> RoutineTable:
        """Measure which routines are fastest on this machine; on a GPU it takes some seconds."""
        from dnn import RoutineTable, ops_for

        table = RoutineTable.measure(ops_for(self.device))
        if not self.is_gpu:
            return table
        return RoutineTable({**table.choices, _NETWORKS_ON_GPU: self._measure_networks()})

    def _measure_networks(self) -> list[tuple[int, str]]:
        """Measure rows of (least parameters of a network, fastest number of networks in a plan)."""
        rows: list[tuple[int, str]] = []
        for (least, _), hidden in zip(_BY_PARAMETERS, _HIDDEN_MEASURED, strict=True):
            parameters = _parameters_of([_FEATURES, *hidden, _CLASSES])
            seconds = {
                networks: self._epoch_per_network_s(hidden, networks)
                for networks in _COUNTS_MEASURED
                if networks == 1 or networks * parameters <= _MOST_MEASURED
            }
            fastest = str(min(seconds, key=lambda networks: seconds[networks]))
            if not rows or rows[-1][1] != fastest:
                rows.append((least if rows else 0, fastest))
        return rows

    def _epoch_per_network_s(self, hidden: Sequence[int], networks: int) -> float:
        """Return the seconds of an epoch divided by the number of networks trained in it."""
        import numpy as np

        from dnn import Ensemble, mlp

        rows = np.arange(256)
        x = np.sin(rows[:, None] + np.arange(_FEATURES))
        ensemble = Ensemble(
            mlp(_FEATURES, hidden, _CLASSES), seeds=range(networks), **self.networks
        )
        return min(ensemble.fit(x, rows % _CLASSES, epochs=3)[0].epoch_times_s)


def _parameters_of(units: Sequence[int]) -> int:
    return sum((above + 1) * below for above, below in pairwise(units))


@contextmanager
def routines_of_run(
    ctx: Context,
    rank: int = 0,
    ranks: int = 1,
    compute: Compute | None = None,
    *,
    measured: bool = True,
) -> Iterator[RoutineTable]:
    """Return a context with the table of routines of a run, the same on every rank.

    The first rank measures them, or finds ``routines.json`` in the run directory; the others wait
    for it in the tuple space. A run that is resumed finds the same file, so that a choice never
    changes a result. The tuple is claimed meanwhile: a copy that is started again finds it again.
    Convolutions are measured when they are met, and the first rank that meets a shape writes its
    choice, for all ranks, to the folder ``routines``.

    `rank` is that of this process within its copy, which has so many `ranks`; `compute` is the
    device to measure. Unless `measured`, sums and products are always done in the same way.
    """
    from dnn import RoutineTable

    folder = ctx.run_dir.absolute() / _CONVOLUTIONS_FOLDER
    if not measured:
        yield RoutineTable({}).kept_in(folder)
        return
    base = (ctx.group, ctx.module, "routines")
    if rank or ctx.copy_index:
        with ctx.tuples.claim((*base, ctx.copy_index, rank)) as claim:
            yield RoutineTable.from_json(claim.value).kept_in(folder)
        return
    file = ctx.run_dir / _ROUTINES_FILE
    if not file.exists():
        own_file = part_of(file)
        table = (compute or Compute()).measure_routines()
        try:
            with own_file.open("x", encoding="utf-8") as made:
                made.write(table.to_json())
            os.link(own_file, file)  # unlike a rename it leaves the table of another group alone
        except FileExistsError:
            pass
        finally:
            own_file.unlink(missing_ok=True)
    with open_regular(file) as found:
        text = found.read().decode(errors="replace")
    for copy in range(ctx.copies_of[ctx.module]):
        for copy_rank in range(ranks):
            if copy or copy_rank:
                ctx.tuples.tput((*base, copy, copy_rank), text)
    yield RoutineTable.from_json(text).kept_in(folder)


def missing_gpu() -> str:
    """Return why no GPU can be used here; empty if one can.

    A child process asks the driver: a process that has asked it itself cannot share GPUs with
    the processes that it starts.
    """
    import dnn

    if importlib.util.find_spec("cupy") is None:
        return dnn.cuda_problem() or ""
    command = [sys.executable, "-c", _CUDA_CHECK, json.dumps(sys.path)]
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CUDA_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the driver was asked in a process of its own: {error}"
    if completed.returncode:
        lines = completed.stderr.strip().splitlines() or [f"status {completed.returncode}"]
        return f"a process that asked the driver failed: {lines[-1]}"
    return completed.stdout.strip()


def describe_machine() -> Iterator[tuple[str, str]]:
    """Yield the GPUs of this machine, and the versions of their libraries, as (name, text)."""
    from dnn import cuda_problem, device_facts, free_bytes

    if problem := cuda_problem():
        yield "GPUs", f"none: {problem}"
        return
    import cupy

    facts: dict[str, str] = {}
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        device = f"cuda:{index}"
        facts = device_facts(device)
        free, total = (size / 2**30 for size in free_bytes(device))
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        yield (
            f"GPU {index}",
            f"{facts['device_name']}, {total:.1f} GiB, {free:.1f} free, "
            f"compute {properties['major']}.{properties['minor']}",
        )
    yield "driver", f"CUDA {facts['driver']}"
    yield "CuPy", f"{facts['cupy']}, for CUDA {facts['cuda'].partition('.')[0]}"
    yield "cuBLAS", facts["cublas"]
