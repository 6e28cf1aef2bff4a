"""Checkpoints: everything comes back, on any number of servers; nothing of a damaged one does."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT

from diel import ANY
from diel.errors import CheckpointError, TupleError, TupleSpaceFull
from diel.tuples import checkpoint, codec
from diel.tuples.client import TupleClient
from diel.tuples.protocol import BODY, STRIPED, Operation, is_piece, pack_put, server_of_piece
from diel.tuples.store import TupleStore
from diel.tuples.striping import PieceLayout
from diel.tuples.tags import decode_tag, encode_tag
from diel.tuples.transport import LocalTransport

SERVERS = [1, 3]
VALUES: list[tuple[Any, Any]] = [
    ("array", np.arange(12.0).reshape(3, 4)),
    (("large", 7), np.arange(50_000)),
    ("bytes", b"as they are"),
    ("empty", b""),
    (("number", -5), 2**62),
    ("float", 0.5),
    (("object", "of", 3, "fields"), {"nested": [1, None]}),
    ("none", None),
]


class Space:
    """Some servers, and clients of them."""

    def __init__(self, servers: int, **limits: Any) -> None:
        self.stores = [TupleStore(**limits) for _ in range(servers)]
        self.transport = LocalTransport(self.stores)
        self.client = TupleClient(self.transport)

    def another_client(self) -> TupleClient:
        return TupleClient(self.transport.another_client())

    def held(self) -> int:
        return sum(store.tuples_held for store in self.stores)


def fill(client: TupleClient) -> None:
    for tag, value in VALUES:
        client.tput(tag, value)
    for number in range(20):
        client.tput(("queue", number % 2), number)
        client.tput("queue", -number)


def assert_filled(client: TupleClient) -> None:
    for tag, value in VALUES:
        found = client.tget(tag, timeout=0)
        assert type(found) is type(value)
        np.testing.assert_array_equal(found, value)
    for parity in (0, 1):
        found = [client.tget(("queue", parity), timeout=0) for _ in range(10)]
        assert found == list(range(parity, 20, 2))
    assert [client.tget("queue", timeout=0) for _ in range(20)] == [-n for n in range(20)]


@pytest.mark.parametrize("after", SERVERS)
@pytest.mark.parametrize("before", SERVERS)
def test_everything_comes_back_in_order(before: int, after: int, tmp_path: Path) -> None:
    old, new = Space(before), Space(after)
    fill(old.client)
    assert old.client.checkpoint(tmp_path / "c") == len(VALUES) + 40
    assert_filled(old.client)  # it is all still there
    assert new.client.restore(tmp_path / "c") == len(VALUES) + 40
    assert_filled(new.client)
    assert new.held() == 0


@pytest.mark.parametrize("servers", SERVERS)
def test_a_claimed_tuple_is_in_its_old_place(servers: int, tmp_path: Path) -> None:
    old, new = Space(servers), Space(servers)
    for number in range(3):
        old.client.tput("job", number)
    worker = old.another_client()
    with worker.claim("job"), worker.claim("job"):
        assert old.client.checkpoint(tmp_path / "c") == 3
    assert new.client.restore(tmp_path / "c") == 3
    assert [new.client.tget("job", timeout=0) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("after", SERVERS)
@pytest.mark.parametrize("before", SERVERS)
def test_striped_tuples_come_back_whole(before: int, after: int, tmp_path: Path) -> None:
    old, new = Space(before), Space(after)
    field = np.random.default_rng(1).random((300, 200))
    old.client.dist_tput("field", field)
    old.client.tput("field", "behind it")
    old.client.dist_tput("small", b"x")
    assert old.client.checkpoint(tmp_path / "c") == 3
    assert new.client.restore(tmp_path / "c") == 3
    out = np.empty_like(field)
    assert new.client.dist_tread("field", out=out, timeout=0) is out
    np.testing.assert_array_equal(out, field)
    np.testing.assert_array_equal(new.client.dist_tget("field", timeout=0), field)
    assert new.client.tget("field", timeout=0) == "behind it"
    assert new.client.dist_tget("small", timeout=0) == b"x"
    assert new.held() == 0


def test_an_empty_space_and_one_that_was_restored_twice(tmp_path: Path) -> None:
    space = Space(3)
    assert space.client.checkpoint(tmp_path / "c") == 0
    assert space.client.restore(tmp_path / "c") == 0
    space.client.tput("a", 1)
    space.client.checkpoint(tmp_path / "c")  # replaces the other
    assert space.client.restore(tmp_path / "c") == 1
    assert space.client.count("a") == 2


@pytest.mark.parametrize("servers", SERVERS)
def test_a_space_in_many_pieces(
    servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put after the snapshot began is not in it, what is taken is."""
    monkeypatch.setattr("diel.tuples.store.store.REPLY_BYTES", 1000)
    old, new = Space(servers), Space(servers)
    for number in range(50):
        old.client.tput((f"t{number}", number), number)
    other = old.another_client()
    ask = old.client._requests.ask

    def ask_late(server: int, operation: int, *rest: Any, **fields: Any) -> Any:
        if operation == Operation.DUMP:
            other.collect((ANY, ANY))
            other.tput("late", 1)
        return ask(server, operation, *rest, **fields)

    monkeypatch.setattr(old.client._requests, "ask", ask_late)
    assert old.client.checkpoint(tmp_path / "c") == 50
    assert new.client.restore(tmp_path / "c") == 50
    assert sorted(value for _, value in new.client.collect((ANY, ANY))) == list(range(50))
    assert new.held() == 0


def striped_with_torn_snapshots(space: Space, change: Any) -> list[Any]:
    """Take the snapshot of each server, with a change of the space between any two of them."""
    replies = []
    for server in range(len(space.stores)):
        replies.append(space.client._requests.ask(server, Operation.DUMP))
        change()
    return replies


@pytest.mark.parametrize("what", ["put", "taken"])
@pytest.mark.parametrize("tag", ["a", "b", "c", "d"])
def test_striped_tuples_that_move_meanwhile(
    what: str, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file they are whole or not at all, wherever the layout lies."""
    old, new = Space(3), Space(3)
    field = np.arange(5000.0)
    if what == "put":
        first = striped_with_torn_snapshots(old, lambda: old.client.dist_tput(tag, field))
    else:
        for _ in range(3):
            old.client.dist_tput(tag, field)
        first = striped_with_torn_snapshots(old, lambda: old.client.dist_tget(tag, timeout=0))
    with monkeypatch.context() as patch:
        patch.setattr(old.client._requests, "ask_all", lambda operation, places: first)
        written = old.client.checkpoint(tmp_path / "c")
    assert new.client.restore(tmp_path / "c") == written
    for _ in range(written):
        np.testing.assert_array_equal(new.client.dist_tget(tag, timeout=0), field)
    assert new.held() == 0
    server = old.client._requests.route(old.client._requests.place(tag)[0])
    assert written == (server if what == "put" else 1)


def test_restoring_respects_the_memory_of_the_servers(tmp_path: Path) -> None:
    old = Space(1)
    for number in range(10):
        old.client.tput("a", np.full(20_000, number, np.uint8))
    old.client.checkpoint(tmp_path / "c")
    small = Space(1, capacity_bytes=2**17, refuse_when_full=True)
    with pytest.raises(TupleSpaceFull):
        small.client.restore(tmp_path / "c")
    assert small.stores[0].memory.held_bytes <= 2**17 * 9 // 8
    assert 1 <= small.client.count("a") < 10
    assert small.client.tget("a", timeout=0)[0] == 0


# -- files ----------------------------------------------------------------------------------------


def test_the_file_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.tuples.store.store.REPLY_BYTES", 1)
    space = Space(3)
    fill(space.client)
    file = tmp_path / "deep" / "er" / "c"
    space.client.checkpoint(file)
    before = file.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real_fsync = os.fsync
    monkeypatch.setattr(checkpoint.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        space.client.checkpoint(file)
    monkeypatch.setattr(checkpoint.os, "fsync", real_fsync)
    assert [path.name for path in file.parent.iterdir()] == ["c"]
    assert file.read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        space.client.checkpoint(tmp_path / "file" / "c")
    # No server keeps a snapshot that nobody will fetch.
    assert all(not store._dumps for store in space.stores)
    assert_filled(space.client)


def test_the_format_is_what_it_is_said_to_be(tmp_path: Path) -> None:
    space = Space(1)
    space.client.tput(("job", 1), b"payload")
    space.client.checkpoint(str(tmp_path / "c"))
    data = (tmp_path / "c").read_bytes()
    line, header, rest = data.split(b"\n", 2)
    assert line == b"diel checkpoint 1"
    assert len(header) == 255
    facts = checkpoint.json.loads(header)
    assert (facts["servers"], facts["tuples"], facts["frames"]) == (1, 1, 1)
    assert facts["diel"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["time"])
    frame, digest = rest[: facts["bytes"]], rest[facts["bytes"] :]
    assert digest == hashlib.sha256(data[:-32]).digest()
    key = b"s\3\0\0\0job" + b"i\1\0\0\0\1"
    head = b"\0\0" + len(key).to_bytes(2, "little") + bytes(4) + (7).to_bytes(8, "little")
    body = head + key + b"payload"
    assert frame == len(body).to_bytes(8, "little") + body


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    """Return a checkpoint with every kind of frame."""
    space = Space(2)
    space.client.tput("a", 1)
    space.client.tput(("b", 2), b"bytes")
    space.client.dist_tput("c", b"striped")
    space.client.tput("d", np.arange(6.0).reshape(2, 3))
    space.client.tput("e", 0.5)
    space.client.tput("f", {"a pickled": ["value"]})
    space.client.checkpoint(tmp_path / "good")
    return (tmp_path / "good").read_bytes()


def assert_refused(data: bytes, file: Path, servers: int, match: str | None = None) -> None:
    file.write_bytes(data)
    space = Space(servers)
    space.client.tput("old", 1)
    with pytest.raises(CheckpointError, match=match) as caught:
        space.client.restore(file)
    assert str(file) in str(caught.value)
    assert space.held() == 1
    assert space.client.tget("old", timeout=0) == 1


@pytest.mark.parametrize("servers", SERVERS)
def test_a_file_cut_short_anywhere_is_refused(small: bytes, servers: int, tmp_path: Path) -> None:
    for length in range(len(small)):
        assert_refused(small[:length], tmp_path / "cut", servers)


@pytest.mark.parametrize("servers", SERVERS)
def test_a_file_with_any_byte_changed_is_refused(
    small: bytes, servers: int, tmp_path: Path
) -> None:
    for at, bits in enumerate(np.random.default_rng(servers).integers(1, 256, len(small))):
        changed = bytearray(small)
        changed[at] ^= int(bits)
        assert_refused(bytes(changed), tmp_path / "changed", servers)


def test_a_file_that_was_made_up_does_no_harm(small: bytes, tmp_path: Path) -> None:
    """With a fitting checksum: it is refused, or its tuples are what they are."""
    refused = 0
    for at in range(len(small) - 32):
        for bits in (0x01, 0xFF):
            changed = bytearray(small[:-32])
            changed[at] ^= bits
            (tmp_path / "made up").write_bytes(changed + hashlib.sha256(changed).digest())
            space = Space(3)
            try:
                space.client.restore(tmp_path / "made up")
            except CheckpointError:
                refused += 1
                assert space.held() == 0
            else:
                space.client.tput("new", 1)
                space.client.count(ANY)
                assert space.client.tget("new", timeout=0) == 1
                take_everything(space)
    assert refused > len(small)


def take_everything(space: Space) -> None:
    """Count in, read and take each tuple; only errors of ours may come."""
    keys = [
        bytes.fromhex(key) for store in (0, 1, 2) for key, _ in space.client.survey(store)["tags"]
    ]
    for tag in [decode_tag(key) for key in keys if not is_piece(key)]:
        for ask in (
            lambda tag: space.client.increment(tag),
            lambda tag: space.client.tread(tag, timeout=0),
            lambda tag: space.client.tread(tag, timeout=0, out=np.empty((2, 3))),
            lambda tag: space.client.tget(tag),
        ):
            with contextlib.suppress(TupleError):
                ask(tag)


def forged(body: bytes) -> bytes:
    """Return a checkpoint of one frame whose checksum is right."""
    data = checkpoint._opening(
        {"servers": 1, "tuples": 1, "frames": 1, "bytes": len(body) + 8, "diel": "", "time": ""}
    )
    data += len(body).to_bytes(8, "little") + body
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("kind", "meta", "payload"),
    [
        (codec.FLOAT, b"", b"123"),
        (codec.INTEGER, b"", b"123456789"),
        (codec.ARRAY, b"('<f8', (3,))", bytes(16)),
        (codec.ARRAY, b"('<f8', (-1,))", bytes(16)),
        (codec.ARRAY, b"('|O', (2,))", bytes(16)),
        (codec.ARRAY, b"(" * 3000, bytes(16)),
        (codec.ARRAY, b"('<f8', 2)", bytes(16)),
        (codec.ARRAY, b"\xff", bytes(16)),
        (7, b"", b"no such kind"),
        (codec.BYTES | STRIPED, b"", b"no layout"),
        (codec.FLOAT | STRIPED, b"", PieceLayout(b"12345678", 1, 9).pack()),
    ],
)
def test_a_forged_value_is_refused(kind: int, meta: bytes, payload: bytes, tmp_path: Path) -> None:
    key = encode_tag("a")
    body = BODY.pack(kind, len(key), len(meta), len(payload)) + key + meta + payload
    assert_refused(forged(body), tmp_path / "forged", 1, "without a proper tag, value or layout")


def test_pieces_that_do_not_have_their_size_are_refused(tmp_path: Path) -> None:
    space = Space(3)
    space.client.dist_tput("field", bytes(20_000))
    (layout,) = (
        PieceLayout.unpack(entry[2][-PieceLayout(b"", 1, 0).pack().__len__() :])
        for store in space.stores
        for key in store.queues
        if not is_piece(key)
        for entry in store.queues.of(key)
    )
    for store in space.stores:
        if store.queues.of(layout.piece_keys()[1]):
            store.queues.take_first(layout.piece_keys()[1])
    message, _ = pack_put(Operation.PUT, 0, 0, 0, layout.piece_keys()[1], b"", b"short")
    server = server_of_piece(layout.piece_keys()[1], 3)
    space.stores[server].handle(0, message, 0.0)
    space.client.checkpoint(tmp_path / "c")
    assert_refused((tmp_path / "c").read_bytes(), tmp_path / "c", 3, "do not have its size")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", 'no checkpoint: it does not begin "diel checkpoint 1"'),
        (b"\x89HDF\r\n\x1a\n" + bytes(500), "no checkpoint"),
        (b"diel checkpoint", "no checkpoint"),
        (b"diel checkpoint 2\n" + bytes(500), "in format '2'; diel .* reads format 1"),
        (b"diel checkpoint 1\n{}", "ends at byte 20, within its header"),
        (b"diel checkpoint 1\n" + b"{}".ljust(300), "its header is not one: KeyError"),
        (b"diel checkpoint 1\n" + b"[1]".ljust(300), "its header is not one: TypeError"),
        (b"diel checkpoint 1\n" + b"[" * 300, "its header is not one"),
    ],
)
def test_a_foreign_file_is_called_what_it_is(data: bytes, words: str, tmp_path: Path) -> None:
    assert_refused(data, tmp_path / "foreign", 1, words)


def test_errors_say_where(small: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad"
    size = len(small)
    assert_refused(small[:-40], file, 1, f"{size - 40} bytes and should have {size}: it was cut")
    assert_refused(small + b"x", file, 1, "it was appended to; nothing was restored")
    at = small.index(b"bytes", 300)  # a payload
    changed = small[:at] + b"B" + small[at + 1 :]
    assert_refused(changed, file, 1, "its SHA-256 is not that of its content")
    first_frame = small.index(b"\n", 20) + 1
    changed = small[:first_frame] + b"\xff" * 8 + small[first_frame + 8 :]
    assert_refused(changed, file, 1, f"at byte {first_frame + 8}, a frame that reaches beyond")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Space(1).client.restore(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        Space(1).client.restore(tmp_path)


@pytest.mark.parametrize("servers", SERVERS)
def test_a_checkpoint_of_an_earlier_version_is_restored(servers: int) -> None:
    file = ROOT / "tests" / "fixtures" / "tuples" / "three-servers.checkpoint"
    tuples = Space(servers).client
    assert tuples.restore(file) == 9
    assert tuples.tget("bytes") == b"some bytes"
    assert tuples.tget(("job", 3, ANY), with_tag=True) == (("job", 3, "fine"), 7)
    assert tuples.tget(("job", 4)) == 2.5
    assert tuples.tget("object") == {"a": [1, 2, None]}
    np.testing.assert_array_equal(tuples.tget("array"), np.arange(6, dtype="f4").reshape(2, 3))
    assert [tuples.tget("queue"), tuples.tget("queue")] == [1, 2]
    np.testing.assert_array_equal(tuples.tget("large"), np.arange(5000))
    np.testing.assert_array_equal(tuples.tget("striped"), np.arange(3000, dtype="i2"))
    assert tuples.is_empty()
