"""Library modules in workflow files: what can be told of a shared object without loading it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from compiled import compile_library
from elf_file import write_library
from support import diel

from diel.workflow.elf import machine_here, read_shared_object
from diel.workflow.functions import FunctionNotFound
from diel.workflow.libraries import locate_library, mpi_of

HERE = machine_here() or 62
SOURCE = """
#include <diel.h>
int run(diel *d) { return diel_log(d, DIEL_INFO, "hello"); }
int table[3] = {1, 2, 3};
static int hidden(diel *d) { return run(d); }
int (*keep)(diel *) = hidden;
"""


def refusal(spec: str, folder: Path) -> tuple[str, str]:
    with pytest.raises(FunctionNotFound) as caught:
        locate_library(spec, folder)
    return caught.value.message, caught.value.remedy


def test_a_library_is_found_and_read(tmp_path: Path) -> None:
    (tmp_path / "solver.c").write_text(SOURCE)
    compile_library(tmp_path / "solver.c")
    found = locate_library("./solver.so:run", tmp_path)
    assert found.is_library
    assert (found.function, found.file) == ("run", tmp_path / "solver.so")
    symbols = read_shared_object(tmp_path / "solver.so").symbols
    assert symbols["run"].is_function
    assert not symbols["table"].is_function
    assert "hidden" not in symbols
    assert mpi_of(tmp_path / "solver.so") == ""
    assert "is no function" in refusal("./solver.so:table", tmp_path)[0]


@pytest.mark.parametrize("style", ["sysv", "gnu"])
def test_both_kinds_of_hash_tables_are_read(tmp_path: Path, style: str) -> None:
    (tmp_path / "solver.c").write_text(SOURCE)
    flags = ("-std=c99", f"-Wl,--hash-style={style}")
    compile_library(tmp_path / "solver.c", flags=flags)
    found = set(read_shared_object(tmp_path / "solver.so").symbols)
    assert {"run", "table", "keep", "diel_header_", "diel_crashed_"} <= found
    assert "hidden" not in found


def test_what_cannot_be_called_is_refused_with_a_remedy(tmp_path: Path) -> None:
    write_library(tmp_path / "solver.so", ["run", "step_once"], machine=HERE)
    write_library(tmp_path / "old.so", abi=0, machine=HERE)
    write_library(tmp_path / "arm.so", machine=40)
    write_library(tmp_path / "cpp.so", ["_Z3runP4diel"], machine=HERE)
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "cut.so").write_bytes((tmp_path / "solver.so").read_bytes()[:100])
    assert locate_library("./solver.so:run", tmp_path).file == tmp_path / "solver.so"
    for spec, message, remedy in [
        ("solver", "does not name a function of a shared object", "./solver.so:run"),
        ("./solver.so:", "does not name a function of a shared object", "./solver.so:run"),
        ("./solvr.so:run", "there is no file", 'did you mean "solver.so"?'),
        ("./none/solver.so:run", "there is no file", "there is no folder"),
        ("./solver.so:step_onc", "step_onc is not defined or not exported", '"step_once"'),
        ("./solver.so:other", "other is not defined", "it exports run, step_once"),
        ("./cpp.so:run", "run is not defined", 'extern "C"'),
        ("./old.so:run", "version 0 of diel.h, and this diel has version 1", "compile it again"),
        ("./text.so:run", "is not a shared object", "cc -shared"),
        ("./cut.so:run", "is not a shared object", "cc -shared"),
        ("./arm.so:run", "is for 32-bit Arm, and this machine is", "build it here"),
    ]:
        found = refusal(spec, tmp_path)
        assert message in found[0], found
        assert remedy in found[1], found


def test_a_library_without_the_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.c").write_text("int run(void *d); int run(void *d) { return d == 0; }")
    compile_library(tmp_path / "bare.c")
    message, remedy = refusal("./bare.so:run", tmp_path)
    assert "was not compiled with diel.h" in message
    assert "include diel.h" in remedy


def test_diel_check_tells_it_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        '[[module]]\nname = "a"\nlibrary = "./a.so:run"\n'
        '[[module]]\nname = "b"\nfunction = "./b.py:run"\nlibrary = "./a.so:run"\n'
        '[[module]]\nname = "c"\nlibrary = "./a.so:run"\nexecutable = ["./c"]\n'
        '[[module]]\nname = "d"\nlibrary = "./a.so:run"\nmemory = "1 GiB"\n'
        '[[group]]\nname = "g"\nmodules = ["a", "b", "c", "d"]\n'
    )
    found = diel("check", file, cwd=tmp_path)
    assert found.status == 2
    assert "module[0].library: there is no file" in found.stderr
    assert "either a function or a library" in found.stderr
    assert "either a library or an executable" in found.stderr
    assert "only an executable has a limit of memory" in found.stderr


def test_the_flags_of_diel_config_compile_a_module(tmp_path: Path) -> None:
    found = diel("config", "--cflags", "--libs", cwd=tmp_path)
    assert found.status == 0, found.output
    (tmp_path / "solver.c").write_text(SOURCE)
    compile_library(tmp_path / "solver.c", flags=("-std=c99", *found.stdout.split()))
    words = diel("config", cwd=tmp_path).stdout
    assert "--fortran" in words
    assert "(nothing)" in words


@pytest.mark.skipif(sys.platform != "linux", reason="the header of an executable of Linux")
def test_an_executable_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    compile_library(tmp_path / "main.c")  # skips without a compiler
    subprocess.run(
        ["cc", "-no-pie", "-o", tmp_path / "main.so", tmp_path / "main.c"], check=True, timeout=60
    )
    assert "is not a shared object" in refusal("./main.so:main", tmp_path)[0]
