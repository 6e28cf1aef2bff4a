r"""Checkpoints: the whole tuple space in one file.

::

    diel checkpoint 1\n                    what this file is, and its format
    {"servers": 2, "tuples": 9, ...}  \n   the header, JSON, padded with spaces to 256 bytes
    frame, frame, ...                      server by server, oldest tuple first
    32 bytes                               SHA-256 of everything before

    frame   8 bytes                        length of the head, little-endian
            head    <BxHIQ                 kind, bytes of key, of meta, and of payload
                    key | meta | payload   the payload only if it has 16 KiB at most
            payload                        if it is larger

A key is the bytes of a tag as `tags` makes them, kind and meta say what a payload is as `codec`
has it. Nothing of this is pickled; the payload of a pickled value is, and is not looked into.

A tuple that is claimed stands in its place, as if it were not. A piece of a striped tuple is a
frame like others; one without its layout, or a layout without all of its pieces, was put or taken
while the checkpoint was written and counts as absent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import diel
from diel.errors import CheckpointError, PayloadError
from diel.tuples import codec
from diel.tuples.protocol import (
    BODY,
    INLINE_BYTES,
    STRIPED,
    Operation,
    Reply,
    is_piece,
    unpack_frames,
)
from diel.tuples.striping import PieceLayout
from diel.tuples.tags import decode_tag, encode_tag

if TYPE_CHECKING:
    from diel.tuples.requests import Requests

PathLike: TypeAlias = "str | os.PathLike[str]"

FORMAT: Final = 1
_MAGIC: Final = b"diel checkpoint "
_HEADER_BYTES: Final = 256
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_LENGTH_BYTES: Final = 8
_BLOCK_BYTES: Final = 2**20


@dataclass
class _Census:
    """The tuples, pieces and layouts of a checkpoint, counted while it is written or read."""

    frames: int = 0
    tuples: int = 0
    pieces: dict[bytes, int] = field(default_factory=dict)  # bytes of each, by key
    layouts: dict[bytes, PieceLayout] = field(default_factory=dict)

    def add(self, item: Reply) -> None:
        self.frames += 1
        if is_piece(item.key):
            self.pieces[item.key] = len(item.payload)
            return
        self.tuples += 1
        if item.kind & STRIPED:
            layout = PieceLayout.unpack(item.payload)
            self.layouts[layout.name] = layout

    def is_whole(self, layout: PieceLayout) -> bool:
        enough = layout.pieces <= len(self.pieces)
        return enough and self.pieces.keys() >= set(layout.piece_keys())

    def has_its_size(self, layout: PieceLayout) -> bool:
        """Whether the pieces of a layout, all of which are here, are as large as it says."""
        pieces = [self.pieces[key] for key in layout.piece_keys()]
        return sum(pieces) == layout.size_bytes and pieces == layout.piece_sizes()

    def missing_keys(self) -> list[bytes]:
        """Return the keys of pieces that layouts name and that are not here."""
        wanted = (key for layout in self.layouts.values() for key in layout.piece_keys())
        return [key for key in wanted if key not in self.pieces]

    def wanted_keys(self) -> set[bytes]:
        """Return the keys of the pieces of tuples that are whole."""
        whole = filter(self.is_whole, self.layouts.values())
        return {key for layout in whole for key in layout.piece_keys()}


# -- writing --------------------------------------------------------------------------------------


def save(path: PathLike, requests: Requests) -> int:
    """Write a checkpoint, whole or not at all; see `TupleClient.checkpoint`."""
    path = Path(path)
    places = [(server, b"") for server in range(requests.servers)]
    first = requests.ask_all(Operation.DUMP, places)  # each server has taken its snapshot
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x+b") as file:
                tuples = _write(file, first, requests)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        for server, _ in places:  # a snapshot that nobody fetches would stay in memory
            while requests.ask(server, Operation.DUMP, argument=1).number:
                pass
        raise
    _sync_folder(path.parent)
    return tuples


def _write(file: IO[bytes], first: list[Reply], requests: Requests) -> int:
    census = _Census()
    file.write(_opening({}))
    for server in range(requests.servers):
        piece, first[server] = first[server], Reply(0, 0, 0)  # so that its memory can go
        while piece.number:
            for item in unpack_frames(piece.payload):
                census.add(item)
            file.write(piece.payload)
            piece = requests.ask(server, Operation.DUMP, argument=1)
    for key in census.missing_keys():
        # Put after the snapshot of its own server, but before that of the layout's.
        found = requests.ask(requests.route(key), Operation.READ, key, timeout_s=0)
        if not found.status:
            census.add(found)
            file.write(_frame(found))
    incomplete = sum(not census.is_whole(layout) for layout in census.layouts.values())
    tuples = census.tuples - incomplete
    facts = {
        "servers": requests.servers,
        "tuples": tuples,
        "frames": census.frames,
        "bytes": file.tell() - len(_opening({})),
        "diel": diel.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    file.seek(0)
    file.write(_opening(facts))
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    file.write(digest.digest())
    file.flush()
    os.fsync(file.fileno())
    return tuples


def _opening(facts: dict[str, Any]) -> bytes:
    header = json.dumps(facts).encode()
    return _MAGIC + b"%d\n" % FORMAT + header.ljust(_HEADER_BYTES - 1) + b"\n"


def _frame(item: Reply) -> bytes:
    size = len(item.payload)
    body = BODY.pack(item.kind, len(item.key), len(item.meta), size) + item.key + item.meta
    length = len(body) + (size if size <= INLINE_BYTES else 0)
    return length.to_bytes(_LENGTH_BYTES, "little") + body + bytes(item.payload)


def _sync_folder(folder: Path) -> None:
    """Bring a new name to the disk, where the file system can do that for a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- reading --------------------------------------------------------------------------------------


def restore(path: PathLike, requests: Requests) -> int:
    """Put the tuples of a checkpoint, once all of it is good; see `TupleClient.restore`."""
    with Path(path).open("rb") as file:
        census = _Census()
        for item in _Reader(path, file).tuples():
            census.add(item)
        for layout in filter(census.is_whole, census.layouts.values()):
            if not census.has_its_size(layout):
                raise _damaged(path, "a striped tuple whose pieces do not have its size")
        wanted = census.wanted_keys()
        if wanted:  # the pieces first: a layout must not be seen before them
            for item in _Reader(path, file).tuples():
                if item.key in wanted:
                    requests.put_again(item)
            requests.flush()
        tuples = 0
        for item in _Reader(path, file).tuples():
            if _is_present(item, census):
                requests.put_again(item)
                tuples += 1
        requests.flush()
    return tuples


def stored_tuples(path: PathLike) -> list[tuple[Any, Stored]]:
    """Return the tags and values of a checkpoint, without a tuple space, the oldest first.

    Raises
    ------
    CheckpointError
        If it is none, or damaged.
    OSError
        If it cannot be read.
    """
    with Path(path).open("rb") as file:
        census, items = _Census(), []
        pieces: dict[bytes, Any] = {}
        for item in _Reader(path, file).tuples():
            census.add(item)
            if is_piece(item.key):
                pieces[item.key] = item.payload
            else:
                items.append(item)
    found = []
    for item in items:
        if not _is_present(item, census):
            continue
        payload = item.payload
        if item.kind & STRIPED:
            layout = PieceLayout.unpack(payload)
            payload = b"".join(pieces[key] for key in layout.piece_keys())
        found.append((decode_tag(item.key), Stored(item.kind & ~STRIPED, item.meta, payload)))
    return found


@dataclass(frozen=True)
class Stored:
    """A value as it lies in a checkpoint."""

    kind: int
    meta: bytes
    payload: Any

    def value(self) -> Any:
        """Return the value: bytes, a number, an array, text, or lists and tables of such.

        Raises
        ------
        PayloadError
            If it holds an object of any class: to rebuild it could run whatever the file says.
        """
        if self.kind != codec.PICKLE:
            return codec.decode(self.kind, self.meta, self.payload)
        try:
            return _PlainUnpickler(io.BytesIO(self.payload)).load()
        except PayloadError:
            raise
        except Exception as error:  # whatever bytes may raise that are no pickle
            raise PayloadError(f"a value that cannot be read: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Rebuilds values without classes: text, numbers, lists, tables."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise PayloadError(
            f"a value with an object of {module}.{name}: outside of a run only text, numbers, "
            "bytes, arrays, and lists and tables of such are read"
        )


def _is_present(item: Reply, census: _Census) -> bool:
    if is_piece(item.key):
        return False
    return not item.kind & STRIPED or census.is_whole(PieceLayout.unpack(item.payload))


class _Reader:
    """Reads a checkpoint from its beginning and checks all that can be checked."""

    def __init__(self, path: PathLike, file: IO[bytes]) -> None:
        self._path = os.fspath(path)
        self._file = file
        self._digest = hashlib.sha256()
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def tuples(self) -> Iterator[Reply]:
        """Iterate over all tuples and pieces; what is wrong may turn out at the end only."""
        self._file.seek(0)
        self._check_magic()
        facts = self._header()
        end = self._at + facts["bytes"]
        if self._size != end + _DIGEST_BYTES:
            cut = self._size < end + _DIGEST_BYTES
            self._complain(
                f"it has {self._size:,} bytes and should have {end + _DIGEST_BYTES:,}: it was "
                + ("cut short" if cut else "appended to")
            )
        frames = 0
        while self._at < end:
            yield self._tuple(end)
            frames += 1
        if frames != facts["frames"]:
            self._complain(f"it holds {frames:,} frames and its header says {facts['frames']:,}")
        digest = self._digest.digest()
        if self._read(_DIGEST_BYTES) != digest:
            self._complain("its SHA-256 is not that of its content: it was changed")

    def _check_magic(self) -> None:
        line = self._file.readline(len(_MAGIC) + 20)
        self._digest.update(line)
        self._at += len(line)
        if not line.startswith(_MAGIC) or not line.endswith(b"\n"):
            words = _MAGIC.decode().strip()
            raise CheckpointError(f'{self._path}: no checkpoint: it does not begin "{words} 1"')
        version = line[len(_MAGIC) : -1]
        if version != b"%d" % FORMAT:
            shown = version.decode(errors="replace")
            raise CheckpointError(
                f"{self._path}: a checkpoint in format {shown!r}; diel {diel.__version__} "
                f"reads format {FORMAT}"
            )

    def _header(self) -> dict[str, int]:
        if self._size - self._at < _HEADER_BYTES:
            self._complain(f"it ends at byte {self._size:,}, within its header: it was cut short")
        data = self._read(_HEADER_BYTES)
        try:
            facts = json.loads(data)
            counts = {name: facts[name] for name in ("servers", "tuples", "frames", "bytes")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._complain(f"its header is not one: {error!r}")
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            self._complain(f"its header is not one: {counts!r}")
        return counts

    def _tuple(self, end: int) -> Reply:
        started = self._at
        length = int.from_bytes(self._read(_LENGTH_BYTES, end), "little")
        body = self._read(length, end)
        if length < BODY.size:
            self._complain(f"at byte {started:,}, a frame of {length} bytes")
        kind, key_bytes, meta_bytes, size = BODY.unpack_from(body)
        meta_at = BODY.size + key_bytes
        payload_at = meta_at + meta_bytes
        if length != payload_at + (size if size <= INLINE_BYTES else 0):
            self._complain(f"at byte {started:,}, a frame whose lengths contradict each other")
        payload = body[payload_at:] if size <= INLINE_BYTES else self._read(size, end)
        key, meta = body[BODY.size : meta_at], body[meta_at:payload_at]
        item = Reply(0, 0, 0, kind, key, meta, payload)
        if not _is_sound(item):
            self._complain(f"at byte {started:,}, a frame without a proper tag, value or layout")
        return item

    def _read(self, size: int, end: int | None = None) -> bytes:
        if end is not None and size > end - self._at:
            self._complain(f"at byte {self._at:,}, a frame that reaches beyond the last")
        data = self._file.read(size)
        if len(data) < size:
            self._complain(f"it ends at byte {self._at + len(data):,}: it was cut short")
        self._at += size
        self._digest.update(data)
        return data

    def _complain(self, what: str) -> NoReturn:
        raise _damaged(self._path, what)


def _damaged(path: PathLike, what: str) -> CheckpointError:
    return CheckpointError(f"{os.fspath(path)}: a damaged checkpoint: {what}; nothing was restored")


def _is_sound(item: Reply) -> bool:
    """Whether a frame has the key of a tag or a piece, and a value or a layout of one."""
    try:
        if is_piece(item.key):
            return len(item.key) == len(PieceLayout(bytes(8), 1, 0).piece_keys()[0])
        size_bytes = len(item.payload)
        if item.kind & STRIPED:
            layout = PieceLayout.unpack(item.payload)
            if not layout.pieces:
                return False
            size_bytes = layout.size_bytes
        codec.check(item.kind & ~STRIPED, item.meta, size_bytes)
        return encode_tag(decode_tag(item.key)) == item.key
    except (ValueError, struct.error, OverflowError, PayloadError):
        return False
