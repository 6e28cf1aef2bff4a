"""Write shared objects without a compiler, for tests that only read them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_HEADER_BYTES = 64 + 2 * 56


def write_library(
    file: Path,
    functions: Sequence[str] = ("run",),
    *,
    abi: int = 1,
    machine: int = 62,
    needed: Sequence[str] = (),
) -> Path:
    """Write a shared object for 64 bits that defines functions, and says its version of diel.h."""
    names = [*functions, "diel_header_", *needed]
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = {name: strings.index(b"\0" + name.encode() + b"\0") + 1 for name in names}
    data_at = _HEADER_BYTES
    strings_at = data_at + 16
    symbols_at = -(-(strings_at + len(strings)) // 8) * 8
    count = 2 + len(functions)
    hash_at = symbols_at + 24 * count
    dynamic_at = -(-(hash_at + 8) // 8) * 8
    symbols = bytes(24)
    for name in functions:
        symbols += struct.pack("<IBBHQQ", places[name], 0x12, 0, 1, data_at, 1)
    symbols += struct.pack("<IBBHQQ", places["diel_header_"], 0x21, 0, 1, data_at, 16)
    entries = [(1, places[name]) for name in needed]
    entries += [(5, strings_at), (6, symbols_at), (4, hash_at), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    head += struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, 0, len(dynamic), 0, 8)
    parts = {
        0: head,
        data_at: struct.pack("<iiii", abi, 0, 0, 0),
        strings_at: strings,
        symbols_at: symbols,
        hash_at: struct.pack("<II", 0, count),
        dynamic_at: dynamic,
    }
    content = bytearray(size)
    for at, part in parts.items():
        content[at : at + len(part)] = part
    file.write_bytes(content)
    return file
