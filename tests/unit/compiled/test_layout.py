"""``diel.h`` and its ctypes say the same: structs, codes and the table of calls."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from compiled import compile_library

from diel.compiled import layout
from diel.compiled.layout import (
    CALLS,
    DTYPES,
    HEADER_FOLDER,
    AddressStruct,
    ArrayStruct,
    CopyStruct,
    LaneStruct,
)
from diel.compiled.table import call_table

HEADER = (HEADER_FOLDER / "diel.h").read_text()
STRUCTS = {
    "diel": CopyStruct,
    "diel_array": ArrayStruct,
    "diel_address": AddressStruct,
    "diel_lane": LaneStruct,
}
C_TYPES = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
}


def test_the_table_has_the_same_calls_in_the_same_order() -> None:
    (table,) = re.findall(r"typedef struct diel_calls \{(.*?)\} diel_calls;", HEADER, re.S)
    found = {
        name: [word.strip() for word in words.split(",")]
        for name, words in re.findall(r"int32_t \(\*(\w+)\)\(diel \*(?:, )?(.*?)\);", table, re.S)
    }
    assert list(found) == list(CALLS)
    for name, arguments in found.items():
        types = [*filter(None, arguments)]
        assert len(types) == len(CALLS[name]), name
        for text, kind in zip(types, CALLS[name], strict=True):
            if "*" not in text:
                assert kind is C_TYPES[text.split()[0]], (name, text)
            else:
                is_text = text.startswith("const char")
                assert kind is (ctypes.c_char_p if is_text else ctypes.c_void_p), (name, text)


@pytest.mark.parametrize("name", STRUCTS)
def test_the_structs_have_the_same_fields_at_the_same_places(name: str, tmp_path: Path) -> None:
    struct = STRUCTS[name]
    fields = [field[0] for field in struct._fields_]
    lines = "".join(
        f'printf("%zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
        for field in fields
    )
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <diel.h>\n#include <stddef.h>\n"
        f'int main(void) {{ printf("%zu\\n", sizeof({name})); {lines} return 0; }}'
    )
    compile_library(source)  # skips without a compiler
    words = ["cc", f"-I{HEADER_FOLDER}", "-o", tmp_path / "sizes", source]
    subprocess.run(words, check=True, timeout=60)
    told = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True)
    size, *places = told.stdout.splitlines()
    assert int(size) == ctypes.sizeof(struct)
    expected = [(getattr(struct, field).offset, getattr(struct, field).size) for field in fields]
    assert [tuple(map(int, place.split())) for place in places] == expected


def test_the_codes_are_the_same() -> None:
    codes = {name: int(number) for name, number in re.findall(r"DIEL_(\w+) = (-?\d+)", HEADER)}
    for code, dtype in DTYPES.items():
        assert codes[dtype.upper()] == code
    names = {name for name in vars(layout) if name.isupper() and name in codes}
    assert {"DONE", "STOPPED", "ABSENT", "JSON", "RENEW", "PULL", "READS", "MOST_AXES"} <= names
    assert {name: getattr(layout, name) for name in names} == {name: codes[name] for name in names}


def test_the_table_is_made_once() -> None:
    assert call_table() is call_table()
    assert call_table().count == len(CALLS)
