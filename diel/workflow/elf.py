"""What the headers of a shared object say, without loading it: machine, needed libraries, symbols.

References
----------
.. [1] elf(5); System V ABI, "Dynamic Linking".
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

from diel.frozen import Frozen

MAGIC: Final = b"\x7fELF"
MACHINES: Final = {3: "32-bit x86", 40: "32-bit Arm", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}

_SHARED_OBJECT: Final = 3
_LOADED, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _SYMBOLS, _SONAME, _HASH, _GNU_HASH = 1, 5, 6, 14, 4, 0x6FFFFEF5
_MOST_SYMBOLS: Final = 1_000_000
_FUNCTION: Final = 2


class Symbol(Frozen):
    """A name that a shared object defines, and where in the file its content begins."""

    name: str
    is_function: bool
    offset: int
    size_bytes: int


class SharedObject(Frozen):
    """What is known of a shared object from its file."""

    machine: int
    is_shared: bool
    needed: tuple[str, ...] = ()
    symbols: dict[str, Symbol] = {}  # noqa: RUF012 - never changed


class NotElf(ValueError):
    """A file is no ELF file, or a damaged one."""


def read_shared_object(file: Path) -> SharedObject:
    """Return what the headers of a file say; a `NotElf` if it has none, or an OSError."""
    found = os.stat(file)
    return _read_version(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _read_version(file: Path, _mtime_ns: int, size_bytes: int) -> SharedObject:
    with open(file, "rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise NotElf
        with mmap.mmap(stream.fileno(), size_bytes, access=mmap.ACCESS_READ) as data:
            try:
                return _Elf(data).shared_object()
            except (struct.error, IndexError, ValueError, OverflowError, UnicodeDecodeError):
                raise NotElf from None


def content_of(file: Path, symbol: Symbol) -> bytes:
    """Return the bytes of a constant that a shared object defines."""
    with open(file, "rb") as stream:
        stream.seek(symbol.offset)
        return stream.read(symbol.size_bytes)


def machine_here() -> int | None:
    """Return the machine of this Python; None where it is no ELF file."""
    try:
        with open(sys.executable, "rb") as stream:
            head = stream.read(20)
        return (
            struct.unpack_from("<>"[head[5] - 1] + "H", head, 18)[0] if head[:4] == MAGIC else None
        )
    except (OSError, struct.error, IndexError):
        return None


class _Elf:
    """The headers of an ELF file of 64 or 32 bits, in either byte order."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._wide = data[4] == 2
        self._order = "<>"[data[5] - 1]
        self._word = "Q" if self._wide else "I"
        self._kind, self._machine = self._at("HH", 16)
        self._segments = list(self._read_segments())

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + layout, self._data, offset)

    def _read_segments(self) -> list[tuple[int, int, int, int]]:
        """Return (kind, offset, address, size in the file) of each segment."""
        (table,) = self._at(self._word, 32 if self._wide else 28)
        size, count = self._at("HH", 54 if self._wide else 42)
        found = []
        for at in range(table, table + size * count, size or 1):
            if self._wide:
                kind, _, offset, address, _, size_bytes = self._at("IIQQQQ", at)
            else:
                kind, offset, address, _, size_bytes = self._at("IIIII", at)
            found.append((kind, offset, address, size_bytes))
        return found

    def _offset_of(self, address: int) -> int:
        for kind, offset, begins, size_bytes in self._segments:
            if kind == _LOADED and begins <= address < begins + size_bytes:
                return offset + address - begins
        raise ValueError(f"no segment has address {address:#x}")

    def shared_object(self) -> SharedObject:
        dynamic = self._read_dynamic()
        if self._kind != _SHARED_OBJECT or not dynamic:
            return SharedObject(self._machine, is_shared=False)
        strings = self._offset_of(dynamic[_STRINGS][0])
        needed = tuple(self._text(strings + each) for each in dynamic.get(_NEEDED, ()))
        return SharedObject(self._machine, True, needed, self._read_symbols(dynamic, strings))

    def _read_dynamic(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        step = 16 if self._wide else 8
        for kind, offset, _, size_bytes in self._segments:
            for at in range(offset, offset + size_bytes, step) if kind == _DYNAMIC else ():
                tag, value = self._at(self._word * 2, at)
                if not tag:
                    break
                found.setdefault(tag, []).append(value)
        return found

    def _text(self, offset: int) -> str:
        end = self._data.find(b"\0", offset)
        return os.fsdecode(self._data[offset:end])

    def _read_symbols(self, dynamic: dict[int, list[int]], strings: int) -> dict[str, Symbol]:
        table, found = self._offset_of(dynamic[_SYMBOLS][0]), {}
        for index in range(1, min(self._count_symbols(dynamic), _MOST_SYMBOLS)):
            if self._wide:
                name, info, _, section, value, size = self._at("IBBHQQ", table + 24 * index)
            else:
                name, value, size, info, _, section = self._at("IIIBBH", table + 16 * index)
            if not section or info >> 4 not in (1, 2):  # not defined here, or not global or weak
                continue
            try:
                offset = self._offset_of(value)
            except ValueError:  # zeros, which are not in the file
                offset = 0
            text = self._text(strings + name)
            found[text] = Symbol(text, info & 15 == _FUNCTION, offset, size)
        return found

    def _count_symbols(self, dynamic: dict[int, list[int]]) -> int:
        if _HASH in dynamic:
            return self._at("II", self._offset_of(dynamic[_HASH][0]))[1]
        at = self._offset_of(dynamic[_GNU_HASH][0])
        buckets, first, blooms, _ = self._at("IIII", at)
        at += 16 + blooms * (8 if self._wide else 4)
        last = max(self._at(f"{buckets}I", at), default=0)
        if last < first:
            return first
        at += 4 * buckets
        while not self._at("I", at + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1
