"""Training of one network on many ranks.

`communicator_of` makes a communicator over one of mpi4py, `nccl_communicator_of` a communicator
that sums arrays of GPUs by NCCL, and `run_on_threads` runs a function on ranks that are threads of
one process.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnn.distributed.communicator import Communicator as Communicator
    from dnn.distributed.communicator import Request as Request
    from dnn.distributed.data_parallel import DataParallel as DataParallel
    from dnn.distributed.local_sgd import LocalSGD as LocalSGD
    from dnn.distributed.mesh import Mesh as Mesh
    from dnn.distributed.mpi import communicator_of as communicator_of
    from dnn.distributed.nccl import nccl_communicator_of as nccl_communicator_of
    from dnn.distributed.parameter_server import AsynchronousSGD as AsynchronousSGD
    from dnn.distributed.parameter_server import ParameterServer as ParameterServer
    from dnn.distributed.simulation import SimulatedWorkers as SimulatedWorkers
    from dnn.distributed.threads import run_on_threads as run_on_threads
    from dnn.distributed.tuple_space import TupleCommunicator as TupleCommunicator

_PUBLIC = {
    "communicator": "Communicator Request",
    "data_parallel": "DataParallel",
    "mesh": "Mesh",
    "local_sgd": "LocalSGD",
    "mpi": "communicator_of",
    "nccl": "nccl_communicator_of",
    "parameter_server": "AsynchronousSGD ParameterServer",
    "simulation": "SimulatedWorkers",
    "threads": "run_on_threads",
    "tuple_space": "TupleCommunicator",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_MODULE_OF, key=lambda name: (name[0].islower(), name))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dnn.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dnn.distributed.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
