"""A client that keeps every call does what any client does."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from diel.comm.meter import Meter, Span
from diel.errors import TupleTimeout
from diel.executive.rank_times import TRACED, trace_calls
from diel.tuples.client import TupleClient
from diel.tuples.transport import LocalTransport


def traced_client(meter: Meter) -> TupleClient:
    client = TupleClient(LocalTransport())
    trace_calls(client, meter)
    return client


def kept(meter: Meter) -> list[tuple[str, object, int | None]]:
    return [(span.what, span.about, span.size_bytes) for span in meter.take_spans()]


def test_every_call_is_kept_with_its_tag_and_its_bytes() -> None:
    meter = Meter()
    client = traced_client(meter)
    client.tput("a", b"abc")
    client.tput(("b", 1), np.zeros(100))
    assert client.tget("a") == b"abc"
    assert client.tread(("b", 1)).size == 100
    tag, value = client.tget(("b", 1), with_tag=True)
    assert (tag, value.size) == (("b", 1), 100)
    client.tput("job", b"12345")
    with client.claim("job") as job:
        assert job.value == b"12345"
    assert client.increment("n", by=2) == 2
    assert client.count("n") == 1
    assert kept(meter) == [
        ("tput", "a", 3),
        ("tput", ("b", 1), 800),
        ("tget", "a", 3),
        ("tread", ("b", 1), 800),
        ("tget", ("b", 1), 800),
        ("tput", "job", 5),
        ("claim", "job", 5),
        ("increment", "n", None),
        ("count", "n", None),
    ]


def test_a_call_that_fails_is_kept() -> None:
    meter = Meter()
    client = traced_client(meter)
    with pytest.raises(TupleTimeout):
        client.tget("a", timeout=0)
    (span,) = meter.take_spans()
    assert isinstance(span, Span)
    assert (span.kind, span.what) == ("tuples", "tget")
    assert span.end_s >= span.start_s


def test_every_public_call_with_a_tag_is_traced() -> None:
    with_tag = {
        name
        for name, function in inspect.getmembers(TupleClient, inspect.isfunction)
        if not name.startswith("_") and "tag" in inspect.signature(function).parameters
    }
    # Those that return what waits later, whose waits are kept like any other; and a tget by name.
    assert with_tag - set(TRACED) == {"subscribe", "watch", "tget_unless"}
    client = traced_client(Meter())
    for name in TRACED:
        assert getattr(client, name).__doc__ == getattr(TupleClient, name).__doc__


def test_the_client_of_every_other_run_is_untouched() -> None:
    for name in TRACED:
        assert not hasattr(getattr(TupleClient, name), "__wrapped__"), name
