"""What a trainer computes on: a CPU or a GPU, in which precision, how many networks at once."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from .hyperparameters import Hyperparameters, optimizer_of

if TYPE_CHECKING:
    from dnn import History, RoutineTable

MOST_NETWORKS: Final = 64
"""In one plan on a CPU: with more of them what a step needs no longer stays in a core's cache."""
WIDE: Final = 128
"""On a CPU, layers of so many units and more take longer in products than in calls: nothing is
gained by several networks in one plan."""
SMALL_IMAGE: Final = 100
"""Values of an image up to which several convolutional networks in one plan on a CPU are no slower
than one by one: 4 of them take 0.83 to 1 of that time with 8 x 8 pixels, 0.9 to 2.3 with 28 x 28.
"""
MOST_CONVOLUTIONAL: Final = 4
_MOST_ON_GPU: Final = 4096
_NETWORKS_ON_GPU: Final = "gpu_models"
_BY_PARAMETERS: Final = ((0, 1024), (2_000, 256), (20_000, 64), (200_000, 16), (2_000_000, 1))
"""Parameters of one network from which on so many networks go into one plan on a GPU: an estimate,
where it is not measured."""
_HIDDEN_MEASURED: Final = ((16,), (128,), (230, 230), (750, 750), (2000, 2000))
"""What is measured for each of them, with `_FEATURES` and `_CLASSES`."""
_FEATURES, _CLASSES = 32, 10
_COUNTS_MEASURED: Final = (1, 16, 64, 256, 1024)
_MOST_MEASURED: Final = 2**24
"""Parameters of all networks together: more take the CPU seconds to draw."""
_SHARE_OF_MEMORY: Final = 0.8
_MARGIN: Final = 1.25
"""Times the estimate of a network's bytes: what else a plan needs."""
# With the same places to import from, in the same order.
_ASKING: Final = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import dnn
print(dnn.cuda_problem() or "")
"""
_ASKING_S: Final = 60.0
_NARROW: Final = ("float16", "bfloat16")


@dataclass(frozen=True)
class Compute:
    """The device and the precision of a trainer's networks.

    Attributes
    ----------
    device : "cpu" or "cuda"
        The first of the GPUs that the process sees is meant by ``"cuda"``.
    precision : str
        As `dnn.NeuralNetwork` has it.
    share : float
        Of the GPU's memory, where several copies have one GPU.
    """

    device: str = "cpu"
    precision: str = "float32"
    share: float = 1.0

    @classmethod
    def of(cls, device: str, precision: str, gpus: Sequence[int], share: float = 1.0) -> Compute:
        """Return what options mean for a rank that was given some GPUs."""
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        return cls(device, precision, share)

    def to_options(self) -> dict[str, Any]:
        """Return plain values, from which ``Compute(**values)`` is the same."""
        return asdict(self)

    @property
    def is_gpu(self) -> bool:
        """Whether networks are trained on a GPU."""
        return self.device != "cpu"

    @property
    def networks(self) -> Mapping[str, Any]:
        """What `dnn.NeuralNetwork` and `dnn.Ensemble` are told."""
        return {"device": self.device, "dtype": self.precision}

    def begin(self) -> None:
        """Take no more of the GPU's memory, in this process, than the share allows."""
        if self.is_gpu and self.share < 1:
            from dnn import limit_memory

            limit_memory(self.device, self.share)

    @property
    def description(self) -> str:
        """What computes, for a log: without a word to the GPU, which may be another process's."""
        from dnn import ops_for

        return f"a GPU, in {self.precision}" if self.is_gpu else ops_for("cpu").description

    def is_too_narrow(self, history: History) -> bool:
        """Whether a training in float16 has never had a finite loss."""
        return self.precision == "float16" and not math.isfinite(history.loss[0])

    def metrics_of(self, history: History) -> dict[str, int]:
        """Return what a precision adds to the metrics of a training."""
        return {"skipped_steps": history.skipped_steps} if self.precision == "float16" else {}

    @contextmanager
    def without_warnings(self) -> Iterator[None]:
        """Leave out the warning that a network diverged in float16: its trial says so."""
        if self.precision != "float16":
            yield
            return
        from dnn import MixedPrecisionWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedPrecisionWarning)
            yield

    def facts(self) -> dict[str, str]:
        """Return what computes: the device and its name, the precision, versions of libraries."""
        from dnn import device_facts

        return {**device_facts(self.device), "precision": self.precision}

    def most_networks(
        self,
        wanted: Hyperparameters,
        features: int = 0,
        classes: int = 0,
        free_bytes: int = 0,
        table: RoutineTable | None = None,
    ) -> int:
        """Return how many networks of a kind to put into one plan, at least 1.

        On a GPU as many as its free memory holds, at most what pays for networks of that size: as
        the table of the run says, if that was measured.
        """
        if wanted.is_recurrent:
            return 1  # several in one plan have not been measured
        if wanted.is_convolutional or (wanted.layers is not None and self.is_gpu):
            return MOST_CONVOLUTIONAL if features <= SMALL_IMAGE and not self.is_gpu else 1
        if not self.is_gpu:
            return 1 if wanted.widest >= WIDE else MOST_NETWORKS
        units = [features, *wanted.hidden, classes]
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

    def measure_routines(self) -> RoutineTable:
        """Return which routines are fastest on this machine; on a GPU it takes some seconds."""
        from dnn import RoutineTable, ops_for

        table = RoutineTable.measure(ops_for(self.device))
        if not self.is_gpu:
            return table
        return RoutineTable({**table.choices, _NETWORKS_ON_GPU: self._measure_networks()})

    def _measure_networks(self) -> list[tuple[int, str]]:
        """Return from how many parameters on which number of networks in one plan is fastest."""
        rows: list[tuple[int, str]] = []
        for (least, _), hidden in zip(_BY_PARAMETERS, _HIDDEN_MEASURED, strict=True):
            parameters = _parameters_of([_FEATURES, *hidden, _CLASSES])
            seconds = {
                networks: self._epoch_of_one_s(hidden, networks)
                for networks in _COUNTS_MEASURED
                if networks == 1 or networks * parameters <= _MOST_MEASURED
            }
            fastest = str(min(seconds, key=lambda networks: seconds[networks]))
            if not rows or rows[-1][1] != fastest:
                rows.append((least if rows else 0, fastest))
        return rows

    def _epoch_of_one_s(self, hidden: Sequence[int], networks: int) -> float:
        """Return what an epoch takes, divided by the number of networks trained in it."""
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


def missing_gpu() -> str:
    """Return why no GPU can be used here; empty if one can.

    Another process asks the driver: one that has asked cannot share GPUs with those it starts.
    """
    import dnn

    if importlib.util.find_spec("cupy") is None:
        return dnn.cuda_problem() or ""
    asking = [sys.executable, "-c", _ASKING, json.dumps(sys.path)]
    try:
        asked = subprocess.run(
            asking, capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the driver was asked in a process of its own: {error}"
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"status {asked.returncode}"]
        return f"a process that asked the driver failed: {lines[-1]}"
    return asked.stdout.strip()


def describe_machine() -> Iterator[tuple[str, str]]:
    """Yield what this machine has to train on: a name and a text each."""
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
