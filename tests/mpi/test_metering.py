"""What a client and a server measure of themselves, over MPI."""

from __future__ import annotations

import time

import numpy as np
import pytest

from diel.comm.meter import Meter, ServerMeter, Span
from diel.tuples.client import TupleClient
from diel.tuples.mpi_transport import MpiTransport
from diel.tuples.server import TupleServer
from diel.tuples.tags import decode_tag

pytestmark = pytest.mark.mpi(min_size=2)

_PAUSE_S = 0.3


def serve(parent) -> ServerMeter:
    meter = ServerMeter()
    done = parent.comm.irecv(source=1, tag=99)
    TupleServer(parent.comm, meter=meter).serve(lambda: done.test()[0])
    return meter


def client_of(parent) -> tuple[TupleClient, MpiTransport, Meter]:
    meter = Meter()
    transport = MpiTransport(parent.comm, [0], lambda: None, meter=meter)
    return TupleClient(transport), transport, meter


def brief(span: Span) -> tuple[str, str, object, int | None]:
    tag = decode_tag(span.about) if span.about else None
    return (span.kind, span.what, tag, span.size_bytes)


def test_large_payloads_are_transfers_and_a_pause_is_a_wait_of_the_server(parent):
    field = np.zeros(400_000)
    if parent.rank == 0:
        meter = serve(parent)
        times = meter.times()
        assert times.waiting_s > 0.5 * _PAUSE_S  # it may be late to wait, on a core with others
        assert sum(span.size_bytes or 0 for span in meter.take_spans()) <= 3 * field.nbytes
        return
    if parent.rank > 1:
        return
    client, transport, meter = client_of(parent)
    client.tput(("field", 1), field)
    client.tput("small", b"64", wait=True)
    time.sleep(_PAUSE_S)
    assert client.tget("small") == b"64"
    out = np.empty_like(field)
    client.tget(("field", 1), out=out)
    transfers = [brief(span) for span in meter.take_spans() if span.kind == "transfer"]
    assert transfers == [
        ("transfer", "send", ("field", 1), field.nbytes),
        ("transfer", "receive", ("field", 1), field.nbytes),
    ]
    times = meter.times()
    assert times.communicating_s > 0
    assert times.cpu_s < times.working_s
    assert times.working_s > 0.9 * _PAUSE_S  # a module that sleeps: nobody knows but itself
    transport.close()
    parent.comm.send("done", dest=0, tag=99)


def test_a_wait_for_a_tuple_is_measured_whatever_ends_it(parent):
    if parent.rank == 0:
        serve(parent)
        return
    if parent.rank > 1:
        return
    client, transport, meter = client_of(parent)
    named: list[object] = []

    def name() -> tuple[str, object]:
        named.append(client.waiting_for)
        return "tget", "late"

    meter.name_wait = name
    with pytest.raises(TimeoutError):
        client.tget("late", timeout=_PAUSE_S)
    # Where the server is slow, taking the question back is a wait as well: of nothing by name.
    assert named == [("tget", "late", _PAUSE_S)] + [None] * (len(named) - 1)
    wait, *others = meter.take_spans()
    assert (wait.kind, wait.what, wait.about) == ("wait", "tget", "late")
    assert wait.end_s - wait.start_s > 0.9 * _PAUSE_S
    notable_s = sum(other.end_s - other.start_s for other in [wait, *others])
    assert meter.times().waiting_s >= notable_s - 1e-6
    transport.close()
    parent.comm.send("done", dest=0, tag=99)
