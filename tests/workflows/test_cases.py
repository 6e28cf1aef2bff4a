"""Small inputs that once showed a fault, each with what must come out.

They lie in a folder of their own beside the data (`support.DATA`), and are copied before they are
run, as they write beside themselves. A row without `opens` must come out so; one with `opens` is of
something that is not built yet, and fails once it is: then the row is to be turned.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import DATA, ROOT, execute

CASES = DATA.parent / "cases"
if not CASES.is_dir():
    pytest.skip("there is no folder of cases beside the data", allow_module_level=True)

GIB = 2**30
DIEL = ("{python}", "-m", "diel")
REPRO = ("bash", "repro.sh", "{prefix}")
GPU_PATH = "tests/standin:tests:benchmarks:.:{folder}"


@dataclass(frozen=True)
class Case:
    """A case: its place, the command that is run there, and what must come out.

    Attributes
    ----------
    file : str
        In the folder of cases. It is run in its own folder, or with `in_checkout` in this checkout.
    command : tuple of str
        ``{python}``, ``{prefix}`` (of its environment), ``{folder}`` and ``{file}`` are replaced.
    status : int
    says, never : tuple of str
        Regular expressions for what is printed or logged: all of these, none of those.
    times : mapping of str to int
        How often an expression is found.
    shorter : tuple of (str, str, str)
        A file, what stands in it, and what is put there: a wait that ends sooner, fewer trials.
    check : function (text), optional
        Raises an AssertionError if something is wrong with it.
    needs : tuple of str
        Programs, or modules of Python after ``import``.
    """

    file: str
    command: tuple[str, ...]
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ("Traceback",)
    status: int = 0
    times: dict[str, int] = field(default_factory=dict)
    check: Callable[[str], None] | None = None
    shorter: tuple[tuple[str, str, str], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 300
    in_checkout: bool = False
    needs: tuple[str, ...] = ()
    needs_root: bool = False
    memory_bytes: int = 0
    opens: str = ""

    def __str__(self) -> str:
        return f"{self.file}-{self.command[3]}" if self.command[:3] == DIEL else self.file


def run(file: str, *says: str, **more: object) -> Case:
    """Return a case whose workflow file is run."""
    command = (*DIEL, "run", "{file}", *more.pop("options", ()))  # type: ignore[misc]
    return Case(file, command, says, **more)  # type: ignore[arg-type]


def repro(folder: str, *says: str, **more: object) -> Case:
    """Return a case whose script tells what happened."""
    return Case(f"faults/{folder}/repro.sh", REPRO, says, **more)  # type: ignore[arg-type]


def script(file: str, *says: str, **more: object) -> Case:
    """Return a case that is a script of Python."""
    return Case(file, ("{python}", "{file}"), says, **more)  # type: ignore[arg-type]


def grows_little(text: str) -> None:
    """Fail if a sender of 500 MiB that wait for their reader has taken more than three times."""
    grown = [int(found) for found in re.findall(r"\(\d+, (\d+), [\d.]+\)", text)]
    assert len(grown) >= 20
    assert max(grown) < 1500


WAIT = "time.sleep(15)"
UNTIL_TOLD = "[time.sleep(0.1) for _ in range(150) if not __import__('os').path.exists('told')]"
"""As long at most, and only until another has done what it waits for."""
NVRTC = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "lib", "libnvrtc.so.13")
ON_GPU = {"in_checkout": True, "environment": {"PYTHONPATH": GPU_PATH}}

TABLE = (
    # -- modules of one rank, and their programs ---------------------------------------------------
    run(
        "executive/array-subclass/q.toml",
        r"^Quantity km$",
        r"in a list: Quantity km",
        r"matrix product (\[\[7, 10\], \[15, 22\]\]) not \1",
        r"recv: Quantity km",
        never=("UNIT LOST",),
    ),
    Case(
        "executive/bound-ranks/threads.toml",
        ("taskset", "-c", "0", *DIEL, "run", "{file}"),
        (r"(?i)warning.*\bcore",),
        needs=("taskset",),
    ),
    Case(
        "executive/bound-ranks/nested.toml",
        ("taskset", "-c", "0", *DIEL, "run", "{file}"),
        (r"(?i)warning.*\bcore",),
        needs=("taskset", "mpiexec"),
    ),
    run("executive/class-in-subfolder/state.toml", r"State\(t=1\.5\)"),
    run(
        "executive/interpreter-missing/crlf.toml",
        r"(?i)interpreter|line end|carriage return",
        status=2,
    ),
    Case(
        "executive/interpreter-missing/crlf.toml",
        (*DIEL, "check", "{file}"),
        (r"(?i)interpreter|line end|carriage return",),
        status=2,
    ),
    run(
        "executive/logging/logging.toml",
        options=("-n", "3"),
        times={r"\blog of (one|two|three) \(": 6, r"^print of (one|two|three) \(": 6},
        never=("closed file", "Traceback"),
    ),
    run(
        "executive/mpi-from-function/fmpi.toml",
        r"n\.0 returned '?1",
    ),
    run(
        "executive/same-helper-name/ab.toml",
        r"a\.0 returned '?a'?\s",
        r"b\.0 returned '?b'?\s",
        options=("-n", "3"),
    ),
    run("executive/spawn-in-subfolder/pool.toml", r"pool\.0 returned \[1, 4, 9\]"),
    # -- payloads that wait for their reader -------------------------------------------------------
    run(
        "coupling/ahead2.toml",
        check=grows_little,
        shorter=(
            ("ahead2.py", WAIT, UNTIL_TOLD),
            ("ahead2.py", "    ctx.log.info", "    open('told', 'w').close(); ctx.log.info"),
        ),
        memory_bytes=4 * GIB,
    ),
    run(
        "coupling/sendahead.toml",
        r"finished after",
        shorter=(
            ("sendahead.py", WAIT, UNTIL_TOLD),
            ("sendahead.py", "    return out", "    open('told', 'w').close(); return out"),
        ),
        memory_bytes=4 * GIB,
    ),
    # -- faults ------------------------------------------------------------------------------------
    repro("gone_sweep", r"sweep: exit 0", r"joined run: exit 0, \d\d? s"),
    repro(
        "memory",
        r"ulimit -v 305000",
        r"ulimit -v 330000",
        never=("exit 124", r"\(40 s: hung\).*exit 124"),
        # All below end as the first of these does, in OpenBLAS; the second one in Python.
        shorter=(("repro.sh", "290000 295000 300000 305000", "305000 330000"),),
    ),
    # The last command of the next ones is a grep, which finds no fault.
    repro(
        "npy",
        r"diel tuple: exit [12]$",
        r"diel run: exit 0$",
        status=1,
        shorter=(
            ("wait.py", WAIT, UNTIL_TOLD),
            ("repro.sh", "\nwait $L", "\nsleep 1; touch told; wait $L"),
        ),
    ),
    repro(
        "parts",
        times={r"0 traceback\(s\)": 2},
        shorter=(
            ("repro.sh", "to = 8/", "to = 2/"),
            # What is empty is read as a list is: tests/unit/modules/test_joined_workers.py.
            ("repro.sh", ': > $d/sweeps/takes-part.json; try $1 "takes-part.json empty"; ', ""),
        ),
    ),
    repro(
        "socket",
        r"answer:.*refused",
        r"diel run: exit 0$",
        status=1,
        shorter=(
            ("../npy/wait.py", WAIT, UNTIL_TOLD),
            ("repro.sh", "\nwait $L", "\nsleep 1; touch told; wait $L"),
        ),
    ),
    repro(
        "spill",
        times={r"resumed.*: exit 0": 2},
        shorter=(("spill.py", "bytes(100_000), timeout=10)", "bytes(100_000), timeout=3)"),),
        needs_root=True,
    ),
    repro(
        "worker",
        times={r"diel run: exit 0$": 2},
        shorter=(
            ("repro.sh", '"silence_s": 30, "host"', '"silence_s": 6, "host"'),
            ("repro.sh", r"\"silence_s\": 30/", r"\"silence_s\": 6/"),
            ("repro.sh", "to = 60", "to = 40"),
        ),
    ),
    Case(
        "faults/spill/once.toml",
        ("bash", "-c", "touch die; {python} -m diel run {file} --restarts 1"),
        (r"finished after",),
        never=("File exists",),
    ),
    # -- data, objectives, networks of others ------------------------------------------------------
    script(
        "training/csv_too_large.py",
        r"DataError: large\.csv, line 7, column 'b'",
        never=("nan in row", "^loaded:"),
        status=1,
    ),
    run("training/text_metric/texts.toml", r"(?i)'score'.*'0\.9'|'0\.9'.*score", status=1),
    run(
        "training/text_metric/some.toml",
        r"trial 3 failed",
        r"best score 6",
        never=("Traceback", "no results"),
    ),
    script(
        "training/onnx_external_data.py",
        r"^/ (?!.*Error)",
        never=("Error",),
        needs=("import onnx",),
    ),
    script(
        "training/onnx_pytorch_reshape.py",
        r"^0 read: \(2, 3\)",
        r"^1 read: \(2, 3\)",
        needs=("import onnx",),
    ),
    # -- GPUs, without one -------------------------------------------------------------------------
    script(
        "gpu/infinite_constant.py",
        r"update: compiles",
        r"formula: compiles",
        never=("REFUSED",),
        needs=(str(NVRTC),),
        **ON_GPU,
    ),
    Case(
        "gpu/count_calls.py",  # a measurement: it is to be repeated with fewer calls
        ("{python}", "{file}"),
        times={r"\bstep: \d+ calls = \d+ products \+ \d+ kernels$": 14},
        environment={
            "PYTHONPATH": GPU_PATH,
            "CUDA_VISIBLE_DEVICES": "0",
            "DNN_ROUTINES": "fixed",
        },
        in_checkout=True,
        needs=("c++",),
    ),
    script(
        "gpu/cublaslt_descriptors.py",
        r"create MatmulDesc 68 status 0",
        never=(r"^  (set|get)", "Traceback"),
        needs=(str(NVRTC.with_name("libcublasLt.so.13")),),
        **ON_GPU,
    ),
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=str(case),
            marks=[pytest.mark.xfail(strict=True, reason=case.opens)] * bool(case.opens),
        )
        for case in TABLE
    ],
)
@pytest.mark.usefixtures("once")
def test_a_case(case: Case, tmp_path: Path) -> None:
    skip_without(case)
    # The command has a limit of its own, which may be longer than that of any other test.
    faulthandler.cancel_dump_traceback_later()
    area = tmp_path / "cases"
    shutil.copytree(CASES / case.file.split("/")[0], area)
    for path in [area, *area.rglob("*")]:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    file = area.joinpath(*case.file.split("/")[1:])
    folder = ROOT if case.in_checkout else file.parent
    for name, text, instead in case.shorter:
        there = (folder / name).read_text()
        assert there.count(text) == 1, f"{text!r} is to be once in {name}\n{there}"
        (folder / name).write_text(there.replace(text, instead))
    names = {
        "python": sys.executable,
        "prefix": sys.prefix,
        "folder": str(file.parent),
        "file": str(file) if case.in_checkout else file.name,
    }
    command: list[object] = [word.format_map(names) for word in case.command]
    given = {name: text.format_map(names) for name, text in case.environment.items()}
    finished = execute(command, cwd=folder, environment=given, timeout_s=case.timeout_s)
    text = finished.output + logs(folder if not case.in_checkout else area)
    assert finished.status == case.status, text
    for pattern in case.says:
        assert re.search(pattern, text, re.MULTILINE), f"{pattern}\n{text}"
    for pattern in case.never:
        assert not re.search(pattern, text, re.MULTILINE), f"{pattern}\n{text}"
    for pattern, count in case.times.items():
        assert len(re.findall(pattern, text, re.MULTILINE)) == count, f"{pattern}\n{text}"
    if case.check is not None:
        case.check(text)


def logs(folder: Path) -> str:
    """Return what the modules of runs in a folder have printed."""
    files = sorted(folder.glob("runs/*/logs/*.*.*"))
    return "\n".join(["", *(file.read_text(errors="replace") for file in files)])


def skip_without(case: Case) -> None:
    """Skip a case that this machine, or this run of the tests, is not for."""
    if case.needs_root and os.geteuid() != 0:
        pytest.skip("needs root")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if memory_bytes < case.memory_bytes:
        pytest.skip(f"needs {case.memory_bytes / GIB:.0f} GiB of free memory")
    for need in case.needs:
        module = need.removeprefix("import ")
        if module != need and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
        if module == need and shutil.which(need) is None and not Path(need).is_file():
            pytest.skip(f"there is no {need}")


OUTDATED = {"gpu/not_in_catalogue.py", "gpu/nvrtc_all.py", "gpu/strict_plugin.py"}
"""Cases of a list of kernels that is there no more, as each that a test builds is compiled, and of
rules that the stand-in for CuPy has itself by now."""
OTHERS_ALONE = {"coupling/raw_isend_testfirst.py", "coupling/raw_isend_testall.py"}
"""Measurements of MPI, beside which ours were made: nothing of this project runs in them."""
ELSEWHERE = {"training/onnx_pytorch_exports.py": "unit/dnn/test_dnn_onnx_torch.py"}
"""Cases whose networks and ways of writing them are among those of another file of tests."""


def test_every_case_has_a_row() -> None:
    there = {
        str(file.relative_to(CASES))
        for folder in (folder for folder in CASES.rglob("*") if folder.is_dir())
        for file in (
            [folder / "repro.sh"]
            if (folder / "repro.sh").exists()
            else [file for file in folder.iterdir() if is_started(file)]
        )
    }
    left_out = OUTDATED | OTHERS_ALONE | set(ELSEWHERE)
    assert there - {case.file for case in TABLE} - left_out == set()
    assert all((ROOT / "tests" / file).is_file() for file in ELSEWHERE.values())


def is_started(file: Path) -> bool:
    """Whether a file is a case by itself, and no module of one."""
    if file.suffix == ".py":
        above = (folder for folder in file.parents if folder.is_relative_to(CASES))
        return file.stem.startswith("raw_") or not any([*folder.glob("*.toml")] for folder in above)
    return file.suffix == ".toml"
