"""What keeps a file from being started as a program, in words: for ``diel check``, and in a run."""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path

import pytest

from diel.errors import ModuleFailed
from diel.programs.executables import ProgramRunner
from diel.programs.supervised import Program
from diel.testing import TupleSpace
from diel.workflow import programs
from diel.workflow.programs import check_program, obstacle

THIS_PROGRAM = Path(sys.executable).read_bytes()[: programs._HEAD_BYTES]
MACHINE, LOADER = programs._machine_and_loader(THIS_PROGRAM)


def binary(machine: int = MACHINE, loader: str = LOADER) -> bytes:
    """Return an ELF file of 64 bits whose only header names a dynamic loader."""
    name = os.fsencode(loader) + b"\0"
    head = struct.pack(
        "<4sBBB9xHHIQQQIHHH", b"\x7fELF", 2, 1, 1, 3, machine, 1, 0, 64, 0, 0, 64, 56, 1
    )
    header = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    return head.ljust(64, b"\0") + header + name


CASES = {
    "crlf": (b"#!/bin/sh\r\necho\r\n", "has Windows line ends .*sed -i"),
    "crlf_and_word": (b"#!/bin/sh -e\r\necho\r\n", "has Windows line ends"),
    "missing": (
        b"#!/nowhere/sh -e\n",
        "has the interpreter /nowhere/sh in its first line, and the",
    ),
    "no_newline": (b"#!/nowhere/sh", "has the interpreter /nowhere/sh"),
    "spaces": (b"#!  /nowhere/sh  \n", "has the interpreter /nowhere/sh in"),
    "folder": (b"#!/tmp\n", "has the interpreter /tmp in its first line, which is a folder"),
    "plain": (b"#!/etc/passwd\n", "has the interpreter /etc/passwd in .*, which is not executable"),
    "nothing": (b"#!\n", "names no interpreter"),
    "no_path": (b"#!python3\n", 'has the interpreter "python3" .*write "#!/usr/bin/env python3"'),
    "mark": (b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order mark"),
    "text": (b"echo hello\n", "is neither a script nor a program"),
    "empty": (b"", "is empty"),
    "arm": (binary(machine=40 if MACHINE != 183 else 62), "is a program for .*, and this machine"),
    "loader": (binary(loader="/lib/ld-nowhere.so.1"), "needs the dynamic loader /lib/ld-nowhere"),
    "device": (b"#!/dev/null\n", "has the interpreter /dev/null in .*, which is no regular file"),
    "too_long": (b"#!/%s/sh\n" % (b"a" * 300), "has an interpreter in its first line that ends be"),
    "far_header": (THIS_PROGRAM[:24] + b"\xff" * 40, "is a damaged or incomplete program"),
    "short": (THIS_PROGRAM[:30], "is a damaged or incomplete program"),
}
ENDED_BY_ENV = {
    "env": (b"#!/usr/bin/env nowhere-python\n", 'has the interpreter "nowhere-python" in its'),
    "env_words": (
        b"#!/usr/bin/env sh -e\n",
        'has env in its first line, which gets "sh -e" as one word .*write "#!/usr/bin/env -S',
    ),
    "env_split": (b"#!/usr/bin/env -S A=1 nowhere -e\n", 'has the interpreter "nowhere"'),
}
BY_ANOTHER = {*ENDED_BY_ENV, "crlf_and_word"}
"""The system starts an interpreter or env, which fails by itself."""
FINE = {
    "script": b"#!/bin/sh\nexit 0\n",
    "argument": b"#! /bin/sh -e\n",
    "env_sh": b"#!/usr/bin/env sh\n",
    "tab": b"#!\t/bin/sh\t-e\n",
    "env_tab": b"#!/usr/bin/env\tsh\n",
    "env_option": b"#!/usr/bin/env -S -u PYTHONPATH sh\n",
    "env_quoted": b'#!/usr/bin/env -S "sh" -e\n',
    "env_path": b"#!/usr/bin/env -S PATH=/opt/nowhere nowhere\n",
    "nul": b"#!/bin/sh\0 -e\n",
    "env_python": b"#!/usr/bin/env -S PYTHONPATH=x sh -e\n",
    "own": binary(),
}


@pytest.fixture(autouse=True)
def no_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_takes_other_formats", lambda: False)


def written(folder: Path, content: bytes) -> Path:
    file = folder / "program"
    file.write_bytes(content)
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("name", [*CASES, *ENDED_BY_ENV])
def test_a_check_says_why_a_program_would_not_start(name: str, tmp_path: Path) -> None:
    content, words = (CASES | ENDED_BY_ENV)[name]
    file = written(tmp_path, content)
    for program in ("./program", str(file), "program"):
        (problem,) = check_program(
            program, "module[0].executable[0]", tmp_path, f"{tmp_path}{os.pathsep}/usr/bin:/bin"
        )
        assert re.search(f"{file} {words}", str(problem)), problem


@pytest.mark.parametrize("name", FINE)
def test_programs_that_start_have_no_obstacle(name: str, tmp_path: Path) -> None:
    assert obstacle(written(tmp_path, FINE[name]), "/usr/bin:/bin") is None


@pytest.mark.parametrize("name", [*CASES, *ENDED_BY_ENV])
def test_a_run_says_why_a_program_did_not_start(name: str, tmp_path: Path) -> None:
    content, words = (CASES | ENDED_BY_ENV)[name]
    file = written(tmp_path, content)
    if os.access("/proc/sys/fs/binfmt_misc/status", os.R_OK) and name == "arm":
        pytest.skip("this system may run programs for other machines")
    lines = [
        Program((str(file),), tmp_path, {}),
        Program(("program",), tmp_path, {"PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin"}),
    ]
    with TupleSpace() as space:
        runner = ProgramRunner(space.client())
        outcomes = runner.run(
            lines, run_dir=tmp_path, log=tmp_path / "log", safe_point=lambda: None
        )
        runner.close()
    for outcome in outcomes:
        assert isinstance(outcome, ModuleFailed)
        how = r"exited with status \d+" if name in BY_ANOTHER else "cannot be started(: [^:]+)?"
        with pytest.raises(ModuleFailed, match=f"program {how}: it {words}"):
            raise outcome


def test_what_is_no_regular_program_is_told_apart(tmp_path: Path) -> None:
    file = written(tmp_path, b"#!/bin/sh\n")
    file.chmod(0o644)
    found = obstacle(file)
    assert found == ("is not executable", f"chmod +x {file}")
    folder = obstacle(tmp_path)
    assert folder is not None
    assert folder.message == "is a folder, not a program"
    wrapper = tmp_path / "wrapper"
    wrapper.write_bytes(b"#!%s\n" % os.fsencode(file))
    wrapper.chmod(0o755)
    file.chmod(0o755)
    assert obstacle(wrapper) is None
    file.write_bytes(b"#!/nowhere\n")
    found = obstacle(wrapper)
    assert found is not None
    assert found.message.startswith(f"has the interpreter {file} in its first line, which has the")


def test_a_pipe_is_not_opened_and_a_loop_of_interpreters_ends(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o755)
    found = obstacle(pipe)
    assert found is not None
    assert found.message == "is no regular file"
    loop = written(tmp_path, b"#!%s\n" % os.fsencode(tmp_path / "program"))
    found = obstacle(loop)
    assert found is not None
    assert found.message.endswith("Linux starts no longer chain of interpreters")


@pytest.mark.parametrize("program", ["./" + "a" * 300, "a" * 300, "./" + "a/" * 3000])
def test_a_name_too_long_for_any_file_is_a_missing_program(program: str, tmp_path: Path) -> None:
    (problem,) = check_program(program, "module[0].executable[0]", tmp_path, "/usr/bin:/bin")
    assert problem.message.startswith("there is no ")


def test_other_formats_may_be_run_where_the_system_has_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "_takes_other_formats", lambda: True)
    assert obstacle(written(tmp_path, b"MZ of Windows")) is None
    assert obstacle(written(tmp_path, CASES["arm"][0])) is None
