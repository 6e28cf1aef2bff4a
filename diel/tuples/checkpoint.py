r"""Checkpoints: files that hold the whole tuple space.

::

    diel checkpoint 1\n                    the type of file, and the number of its format
    {"servers": 2, "tuples": 9, ...}  \n   the header, JSON, padded with spaces to 256 bytes
    frame, frame, ...                      server by server, oldest tuple first
    32 bytes                               SHA-256 of all preceding bytes

    frame   8 bytes                        length of the head, little-endian
            head    <BxHIQ                 kind, and lengths of key, meta and payload
                    key | meta | payload   the payload only if it has at most 16 KiB
            payload                        if it is larger

A key is a tag as `tags` encodes it; kind, meta and payload are a value as `codec` encodes it. Only
payloads of pickled values are pickled, and these are not inspected.

A claimed tuple is written in its old place in the order. A piece of a striped tuple is a frame of
its own. A piece without its layout, or a layout without all of its pieces, was put or taken while
the checkpoint was written, and is ignored.
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
from diel.run.files import open_regular
from diel.run.json_values import as_integer, parse_json
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
class _Counts:
    """Counts the tuples, pieces and layouts of a checkpoint while it is written or read."""

    frames: int = 0
    tuples: int = 0
    pieces: dict[bytes, int] = field(default_factory=dict)  # sizes in bytes, by key
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
        """Whether the pieces of a layout, none of which is missing, have the sizes it says."""
        pieces = [self.pieces[key] for key in layout.piece_keys()]
        return sum(pieces) == layout.size_bytes and pieces == layout.piece_sizes()

    def missing_keys(self) -> list[bytes]:
        """Return the keys of pieces that are missing from the layouts so far."""
        wanted = (key for layout in self.layouts.values() for key in layout.piece_keys())
        return [key for key in wanted if key not in self.pieces]

    def wanted_keys(self) -> set[bytes]:
        """Return the keys of the pieces of all striped tuples that are complete."""
        whole = filter(self.is_whole, self.layouts.values())
        return {key for layout in whole for key in layout.piece_keys()}


# -- writing --------------------------------------------------------------------------------------


def save(path: PathLike, requests: Requests) -> int:
    """Write a checkpoint, atomically; see `TupleClient.checkpoint`."""
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
        for server, _ in places:  # fetch the snapshots to their ends, so that servers free them
            while requests.ask(server, Operation.DUMP, argument=1).number:
                pass
        raise
    _sync_folder(path.parent)
    return tuples


def _write(file: IO[bytes], first: list[Reply], requests: Requests) -> int:
    counts = _Counts()
    file.write(_opening({}))
    for server in range(requests.servers):
        piece, first[server] = first[server], Reply(0, 0, 0)  # frees the memory after its use
        while piece.number:
            for item in unpack_frames(piece.payload):
                counts.add(item)
            file.write(piece.payload)
            piece = requests.ask(server, Operation.DUMP, argument=1)
    for key in counts.missing_keys():
        # The piece was put after its server's snapshot, but before that of the layout's server.
        found = requests.ask(requests.route(key), Operation.READ, key, timeout_s=0)
        if not found.status:
            counts.add(found)
            file.write(_frame(found))
    incomplete = sum(not counts.is_whole(layout) for layout in counts.layouts.values())
    tuples = counts.tuples - incomplete
    facts = {
        "servers": requests.servers,
        "tuples": tuples,
        "frames": counts.frames,
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
    """Sync a folder, so that a new file name is on the disk; ignored where that is unsupported."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- reading --------------------------------------------------------------------------------------


def restore(path: PathLike, requests: Requests) -> int:
    """Check a checkpoint, then put all its tuples; see `TupleClient.restore`."""
    with Path(path).open("rb") as file:
        counts = _Counts()
        for item in _Reader(path, file).tuples():
            counts.add(item)
        for layout in filter(counts.is_whole, counts.layouts.values()):
            if not counts.has_its_size(layout):
                raise _damaged(path, "a striped tuple whose pieces do not have its size")
        wanted = counts.wanted_keys()
        if wanted:  # pieces first, since a layout must not be visible before its pieces
            for item in _Reader(path, file).tuples():
                if item.key in wanted:
                    requests.put_again(item)
            requests.flush()
        tuples = 0
        for item in _Reader(path, file).tuples():
            if _is_present(item, counts):
                requests.put_again(item)
                tuples += 1
        requests.flush()
    return tuples


def stored_tuples(path: PathLike) -> list[tuple[Any, Stored]]:
    """Return the tags and values of a checkpoint, oldest first, without a tuple space.

    Raises
    ------
    CheckpointError
        If the file is no checkpoint, or is damaged.
    OSError
        If the file cannot be read.
    """
    with open_regular(path) as file:
        counts, items = _Counts(), []
        pieces: dict[bytes, Any] = {}
        for item in _Reader(path, file).tuples():
            counts.add(item)
            if is_piece(item.key):
                pieces[item.key] = item.payload
            else:
                items.append(item)
    found = []
    for item in items:
        if not _is_present(item, counts):
            continue
        payload = item.payload
        if item.kind & STRIPED:
            layout = PieceLayout.unpack(payload)
            payload = b"".join(pieces[key] for key in layout.piece_keys())
        found.append((decode_tag(item.key), Stored(item.kind & ~STRIPED, item.meta, payload)))
    return found


@dataclass(frozen=True)
class Stored:
    """An encoded value from a checkpoint."""

    kind: int
    meta: bytes
    payload: Any

    def value(self) -> Any:
        """Decode the value: bytes, a number, an array, text, or lists and dictionaries of these.

        Raises
        ------
        PayloadError
            If it contains an object of any class, since unpickling that could run any code.
        """
        if self.kind != codec.PICKLE:
            return codec.decode(self.kind, self.meta, self.payload)
        try:
            return _PlainUnpickler(io.BytesIO(self.payload)).load()
        except PayloadError:
            raise
        except Exception as error:  # invalid pickles may raise anything
            raise PayloadError(f"a value that cannot be read: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of values without classes: text, numbers, lists, dictionaries."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise PayloadError(
            f"a value with an object of {module}.{name}: outside of a run only text, numbers, "
            "bytes, arrays, and lists and tables of such are read"
        )


def _is_present(item: Reply, counts: _Counts) -> bool:
    if is_piece(item.key):
        return False
    return not item.kind & STRIPED or counts.is_whole(PieceLayout.unpack(item.payload))


class _Reader:
    """Reads a checkpoint from the beginning, and checks its structure and its digest."""

    def __init__(self, path: PathLike, file: IO[bytes]) -> None:
        self._path = os.fspath(path)
        self._file = file
        self._digest = hashlib.sha256()
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def tuples(self) -> Iterator[Reply]:
        """Yield all tuples and pieces; damage to the file may be found only at the end."""
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
            facts = parse_json(data)
            names = ("servers", "tuples", "frames", "bytes")
            return {name: as_integer(facts[name], 0) for name in names}
        except (ValueError, LookupError, TypeError) as error:
            self._complain(f"its header is not one: {error!r}")

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

    def _complain(self, problem: str) -> NoReturn:
        raise _damaged(self._path, problem)


def _damaged(path: PathLike, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{os.fspath(path)}: a damaged checkpoint: {problem}; nothing was restored"
    )


def _is_sound(item: Reply) -> bool:
    """Whether a frame is valid: the key of a piece, or the key of a tag and a value or layout."""
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
