"""What tests of the tuple space share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.tuples.driving import Driver

from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


@pytest.fixture
def store() -> Driver:
    """Return one store, driven request by request."""
    return Driver()


@pytest.fixture(params=[1, 3], ids=["1 server", "3 servers"])
def stores(request: pytest.FixtureRequest) -> list[TupleStore]:
    return [TupleStore() for _ in range(request.param)]


@pytest.fixture
def transport(stores: list[TupleStore]) -> LocalTransport:
    return LocalTransport(stores)


@pytest.fixture
def tuples(transport: LocalTransport) -> TupleClient:
    return TupleClient(transport)


@pytest.fixture
def other(transport: LocalTransport) -> TupleClient:
    """Another rank."""
    return TupleClient(transport.another_client())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool
