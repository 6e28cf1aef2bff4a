"""What MPI does to ranks that wait: sends to those that sleep, and empty polls."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from mpi4py import MPI
from support import wait_until

from diel.comm import tags
from diel.comm.parent import Parent
from diel.tuples.mpi_transport import MpiTransport

pytestmark = pytest.mark.mpi


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("size_bytes", [64, 257, 600, 3000])
def test_a_request_leaves_while_its_server_does_not_poll(
    parent: Parent, place: Path, size_bytes: int
) -> None:
    """Whoever sends wakes the receiver afterwards: a send must not wait for the receiver."""
    comm = parent.comm
    sent = place / "sent"
    if comm.rank == 0:
        transport = MpiTransport(comm, [1], lambda: None)
        transport.sender(0)(bytes(size_bytes))
        transport.send(0, bytes(size_bytes))
        sent.touch()
        comm.Barrier()
        transport.close()
        return
    if comm.rank == 1:
        wait_until(sent.exists, 30)
        for _ in range(2):
            buffer = bytearray(size_bytes)
            comm.Recv(buffer, 0, tags.CLIENT_TO_SERVER)
    comm.Barrier()


def test_empty_polls_keep_the_core_unless_a_module_may_block(
    request: pytest.FixtureRequest,
) -> None:
    if "Open MPI" not in MPI.Get_library_version():
        pytest.skip("Open MPI alone has this flag")
    library = ctypes.CDLL("libopen-pal.so.80", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    flag = ctypes.c_bool.in_dll(library, "opal_progress_yield_when_idle")
    chosen = flag.value
    parent: Parent = request.getfixturevalue("parent")
    assert not flag.value
    parent.let_module_block(True)
    assert flag.value == chosen
    parent.let_module_block(False)
    assert not flag.value
