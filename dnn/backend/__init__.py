"""Where arrays live and what computes on them.

The plan compiler asks an `Ops` for functions once; replaying a plan never comes back here.
"""

from __future__ import annotations

import importlib.util

from dnn.backend.device import Device
from dnn.backend.formula import Formula
from dnn.backend.ops import ALIGNMENT_BYTES, Array, Chain, Ops, Step, empty
from dnn.backend.routines import RoutineTable
from dnn.errors import unknown_name

__all__ = [
    "ALIGNMENT_BYTES",
    "Array",
    "Chain",
    "Formula",
    "Ops",
    "RoutineTable",
    "Step",
    "empty",
    "ops_for",
]


def ops_for(device: str, routines: RoutineTable | None = None) -> Ops:
    """Return the array functions of a device.

    Parameters
    ----------
    device : str
        ``"cpu"``: compiled loops where Numba is installed, else NumPy; ``"numpy"``: NumPy always;
        ``"cuda"`` or ``"cuda:1"``: a GPU, through CuPy.
    routines : RoutineTable, optional
        Which of several routines computes what; only compiled loops have a choice.

    Returns
    -------
    Ops

    Raises
    ------
    ConfigurationError
        If there is no such device.
    DeviceError
        If the GPU cannot be used; it says what is missing.
    """
    if device == "numpy":
        return Ops()
    if device == "cuda" or str(device).startswith("cuda:"):
        from dnn.backend.cuda.ops import CudaOps

        return CudaOps(Device.of(device))
    if device != "cpu":
        raise unknown_name("device", device, ["cpu", "numpy", "cuda"])
    if not has_numba():
        return Ops()
    from dnn.backend.cpu.ops import CpuOps

    return CpuOps(routines)


def has_numba() -> bool:
    """Say whether the loops on the CPU can be compiled; without Numba they are NumPy's."""
    return importlib.util.find_spec("numba") is not None
