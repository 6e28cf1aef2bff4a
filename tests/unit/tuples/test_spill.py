"""Payloads that go to files when a server's memory is short."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

from diel.errors import TupleSpaceFull, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore, memory
from diel.tuples.store.memory import Spilled, SpillFolder
from diel.tuples.tags import ANY
from diel.tuples.transport import LocalTransport

CAPACITY = 2**20


@pytest.mark.parametrize("servers", [1, 3])
def test_more_than_the_memory_holds_goes_in_and_comes_out(servers: int, tmp_path: Path) -> None:
    stores = [
        TupleStore(CAPACITY, spill=SpillFolder(tmp_path / f"server-{index}"))
        for index in range(servers)
    ]
    tuples = TupleClient(LocalTransport(stores))
    for number in range(40):
        tuples.tput(
            (f"field {number % 5}", number), np.full(25_000, number, np.float32), timeout=30
        )
        assert all(store.memory.held_bytes <= CAPACITY * 9 // 8 for store in stores)
    files = list(tmp_path.glob("*/*.payload"))
    assert files
    # Copies, bulk and single takes all find what is on disk.
    assert np.all(tuples.tread(("field 0", 0)) == 0)
    taken = tuples.collect(("field 1", ANY))
    assert [int(value[0]) for _, value in taken] == [1, 6, 11, 16, 21, 26, 31, 36]
    for number in range(40):
        if number % 5 != 1:
            value = tuples.tget((f"field {number % 5}", number), timeout=0)
            assert value.shape == (25_000,)
            assert np.all(value == number)
    assert [store.memory.held_bytes for store in stores] == [0] * servers
    assert not list(tmp_path.glob("*/*.payload"))


@pytest.mark.parametrize("servers", [1, 3])
def test_striped_and_claimed_tuples_spill_too(servers: int, tmp_path: Path) -> None:
    stores = [TupleStore(CAPACITY, spill=SpillFolder(tmp_path)) for _ in range(1)]
    stores += [
        TupleStore(CAPACITY, spill=SpillFolder(tmp_path / str(i))) for i in range(servers - 1)
    ]
    tuples = TupleClient(LocalTransport(stores))
    for number in range(6):
        tuples.dist_tput(("striped", number), np.full(200_000, number, np.uint8), timeout=30)
        tuples.tput("job", bytes(200_000), timeout=30)
    with tuples.claim("job", timeout=0) as job:
        assert job.value == bytes(200_000)
    for number in range(6):
        assert np.all(tuples.dist_tget(("striped", number), timeout=0) == number)
    assert tuples.count("job") == 5


@pytest.mark.parametrize("refuse", [True, False], ids=["refuses", "waits"])
def test_a_disk_that_takes_no_more_is_named_and_nothing_is_lost(
    refuse: bool, tmp_path: Path
) -> None:
    (tmp_path / "disk").write_text("where a folder should be")
    folder = SpillFolder(tmp_path / "disk" / "spilled")
    store = TupleStore(CAPACITY, refuse_when_full=refuse, spill=folder)
    transport = LocalTransport([store])
    tuples = TupleClient(transport)
    tuples.tput("a", bytes(900_000))
    error = TupleSpaceFull if refuse else TupleTimeout
    for timeout_s in (0, 0.05):
        with pytest.raises(error, match=rf"cannot move any to the disk: {folder}: Not a dir") as no:
            tuples.tput("b", bytes(900_000), timeout=timeout_s)
        assert "nothing matched" not in str(no.value)
        assert re.search(r"holds 900,\d\d\d bytes", str(no.value))
    assert "Not a directory" in tuples.survey(0)["spill_error"]
    assert tuples.tget("a", timeout=0) == bytes(900_000)
    # Once the disk takes payloads again, all is as if it always had.
    (tmp_path / "disk").unlink()
    for number in range(3):
        tuples.tput("b", bytes([number]) * 900_000, timeout=0)
    assert tuples.survey(0)["spill_error"] == ""
    assert [tuples.tget("b", timeout=0)[:1] for _ in range(3)] == [b"\0", b"\1", b"\2"]


def test_without_spilling_a_put_waits(tmp_path: Path) -> None:
    tuples = TupleClient(LocalTransport([TupleStore(CAPACITY)]))
    tuples.tput("a", bytes(900_000))
    with pytest.raises(
        TupleTimeout, match=r"no room for 900,\d+ bytes .*holds 900,\d+ bytes\) within"
    ):
        tuples.tput("b", bytes(900_000), timeout=0.1)


def test_a_spilled_payload_has_its_length_and_a_file(tmp_path: Path) -> None:
    spilled = SpillFolder(tmp_path / "new").write(b"0123456789")
    assert isinstance(spilled, Spilled)
    assert (len(spilled), bytes(spilled.read())) == (10, b"0123456789")
    (file,) = (tmp_path / "new").iterdir()
    file.write_bytes(b"012")
    with pytest.raises(Exception, match="too short"):
        spilled.read()
    del spilled
    assert not file.exists()


def test_a_claimed_tuple_that_comes_back_can_spill(tmp_path: Path) -> None:
    store = TupleStore(CAPACITY, spill=SpillFolder(tmp_path / "spilled"))
    tuples = TupleClient(LocalTransport([store]))
    for number in (1, 2):
        tuples.tput(("a", number), bytes(300_000))
        with contextlib.suppress(ValueError), tuples.claim(("a", number)):
            # Made room for meanwhile: it is nowhere in the queues, and so passed over.
            tuples.tput(("b", number), bytes(700_000), timeout=0)
            tuples.tget(("b", number))
            raise ValueError("the tuple goes back")
        tuples.tput(("b", number), bytes(900_000), timeout=0)
        assert tuples.tget(("b", number), timeout=0) == bytes(900_000)
        assert len(list((tmp_path / "spilled").iterdir())) == number
    assert tuples.tget(("a", 1), timeout=0) == tuples.tget(("a", 2), timeout=0) == bytes(300_000)


def test_only_as_much_is_spilled_as_is_missing_and_what_is_gone_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_FIRST_CHECK", 4)
    store = TupleStore(CAPACITY, spill=SpillFolder(tmp_path / "spilled"))
    assert store._spillable is not None
    tuples = TupleClient(LocalTransport([store]))
    for _ in range(40):  # each is gone before the next comes
        tuples.tput("gone", bytes(100_000))
        tuples.tget("gone")
        assert len(store._spillable._places) <= 5
    for number in range(9):
        tuples.tput("kept", bytes([number]) * 100_000)
    tuples.tput("kept", bytes(300_000), timeout=0)
    assert len(list((tmp_path / "spilled").iterdir())) == 2  # of the oldest, no more than needed
    assert (
        sum(
            isinstance(entry[3], Spilled) for entry in store.queues.of(next(iter(store.queues)))[:2]
        )
        == 2
    )
    for number in range(9):
        assert tuples.tget("kept", timeout=0) == bytes([number]) * 100_000
