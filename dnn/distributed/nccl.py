"""Sums and broadcasts of GPUs' arrays by NCCL, through CuPy.

Arrays of the host, messages between two ranks, small values and reports of failures go by the
communicator below, such as MPI's: NCCL has no tags, and no time limits. A rank waits for a sum by
polling an event of the GPU, so that failures of other ranks and the time limit end its wait too.

This has never run on a GPU: it was tested with a stand-in for CuPy and NCCL.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dnn.backend import Array
from dnn.distributed.communicator import Communicator, Transfer
from dnn.distributed.device_arrays import finish_work, on_device
from dnn.distributed.messages import MessageCommunicator
from dnn.distributed.mpi import communicator_of
from dnn.errors import ConfigurationError, DtypeError, MissingDependencyError, PeerError

if TYPE_CHECKING:
    from dnn.distributed.allreduce import Steps

__all__ = ["NcclCommunicator", "nccl_communicator_of"]

_TYPES = {
    **{"float16": "NCCL_FLOAT16", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"},
    **{"int32": "NCCL_INT32", "int64": "NCCL_INT64", "uint8": "NCCL_UINT8"},
}


def nccl_communicator_of(comm: Any) -> Communicator:
    """Return a communicator that sums arrays of GPUs by NCCL; each rank has a GPU of its own.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Communicator
        For everything but arrays of GPUs; all its ranks call this, each with its GPU as CuPy's
        current device.

    Returns
    -------
    Communicator

    Raises
    ------
    MissingDependencyError
        If CuPy, or its part for NCCL, is not installed.
    """
    below = communicator_of(comm)
    if not isinstance(below, MessageCommunicator):
        raise ConfigurationError(f"NCCL needs a communicator of messages below, not {below!r}")
    return NcclCommunicator(below)


def _library() -> Any:
    remedy = (
        "install cupy-cuda13x and nvidia-nccl-cu13, or leave NCCL out: arrays then go through MPI"
    )
    try:
        with warnings.catch_warnings():  # CuPy warns of a library that it cannot load
            warnings.simplefilter("ignore")
            from cupy.cuda import nccl
    except ImportError as error:
        message = f"CuPy's part for NCCL cannot be imported: {error}; {remedy}"
        raise MissingDependencyError(message) from error
    if not hasattr(nccl, "NcclCommunicator"):  # an empty module stands for it
        raise MissingDependencyError(f"CuPy cannot load the library of NCCL; {remedy}")
    return nccl


class NcclCommunicator(MessageCommunicator):
    """Communicator that sums and broadcasts arrays of GPUs by NCCL.

    Parameters
    ----------
    below : MessageCommunicator
        Communicator for everything else.
    """

    def __init__(self, below: MessageCommunicator) -> None:
        super().__init__(below.rank, below.size, below.nodes, below.timeout_s)
        self._below = below
        self._ending = below._ending
        self._library = _library()
        own = list(self._library.get_unique_id()) if below.rank == 0 else None
        number = tuple(below.gather_values(own)[0])
        self._nccl = self._library.NcclCommunicator(below.size, number, below.rank)
        self.device_transport = "NCCL"

    def _device_steps(self, array: Any, wire: str | None, routine: str | None) -> Steps:
        if wire is not None or routine is not None:
            return super()._device_steps(array, wire, routine)
        return self._by_nccl("allReduce", array, self._library.NCCL_SUM)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace an array, contiguous, by the array of one rank."""
        if not on_device(array):
            super().broadcast(array, root)
            return
        self._start(self._by_nccl("bcast", array, root), "a broadcast by NCCL").wait()

    def _by_nccl(self, operation: str, array: Any, last: int) -> Steps:
        """Return the steps of an operation of NCCL on an array, after checking its type."""
        if array.dtype.name not in _TYPES:
            raise DtypeError(f"NCCL takes {', '.join(_TYPES)}, not {array.dtype}")
        return self._steps_by_nccl(operation, array, last)

    def _steps_by_nccl(self, operation: str, array: Any, last: int) -> Steps:
        import cupy

        kind = getattr(self._library, _TYPES[array.dtype.name])
        finish_work(array)  # NCCL does not wait for other streams
        address = array.data.ptr
        addresses = (address, address) if operation == "allReduce" else (address,)
        with array.device:
            stream = cupy.cuda.get_current_stream()
            getattr(self._nccl, operation)(*addresses, array.size, kind, last, stream.ptr)
            done = stream.record()
        yield [Transfer(lambda: bool(done.done), f"NCCL's {operation}", self)]

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        return self._below._start_send(memory, rank, tag)

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        return self._below._start_receive(memory, rank, tag)

    def _part(self, ranks: Sequence[int], color: int) -> NcclCommunicator:
        return NcclCommunicator(self._below._part(ranks, color))

    def _allocate(self, size_bytes: int, common: bool = False) -> Sequence[Array] | None:
        return self._below._allocate(size_bytes, common)

    def _send_failure(self, error: BaseException) -> None:
        self._below._send_failure(error)

    def received_failure(self) -> PeerError | None:
        """Return the failure that another rank has reported, or None."""
        return self._below.received_failure()

    def _cancel_receives(self) -> None:
        self._below._cancel_receives()

    def close(self) -> None:
        """Release the communicator of NCCL, and close the communicator below."""
        super().close()
        self._nccl.destroy()
        self._below.close()
