"""``diel doctor``: a line for each part, and what is lost where it is missing."""

import argparse
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT

from diel.cli import doctor as page
from diel.comm.cores import Topology

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def without(monkeypatch):
    def remove(*packages):
        def version(package):
            if package in packages:
                raise PackageNotFoundError(package)
            return "1.2.3"

        monkeypatch.setattr(page, "version", version)
        monkeypatch.setattr(page, "find_mpiexec", lambda: Path("/usr/bin/mpiexec"))
        monkeypatch.setattr(page.os, "environ", {})
        monkeypatch.setattr(
            page, "run_tool", lambda command, _: completed(command, 0, "MPICH\nFalse\n")
        )
        has = SimpleNamespace(describe_machine=lambda: [("GPUs", "none: no driver")])
        monkeypatch.setattr(page, "reporters", lambda: [has])

    return remove


def completed(command, status, stdout="", stderr=""):
    return subprocess.CompletedProcess(command, status, stdout, stderr)


def test_cores_and_what_a_launcher_has_bound():
    topology = Topology(((0, 2), (1, 3)), ((0, 1, 2, 3),))
    text = "2 cores of 2 hardware threads on 1 NUMA node; this process may use "
    assert page._cores(topology, {0, 1, 2, 3}) == text + "all"
    some = page._cores(topology, {0, 2, 3})
    assert some.startswith(text + "3 of 4 CPUs (0, 2-3): its job, container, shell or launcher")
    assert "(1): several threads take turns there; " in page._cores(topology, {1})


def test_a_missing_numba_is_said_with_its_remedy(without, capsys):
    without("numba")
    assert page.doctor(argparse.Namespace()) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("numba")]
    assert "missing" in line
    assert "NumPy alone" in line
    assert "diel[fast]" in line


def test_without_mpi_no_run_is_possible(without, capsys):
    without("mpi4py")
    assert page.doctor(argparse.Namespace()) == 1
    assert "pip install mpi4py" in capsys.readouterr().out


def extras():
    """Return the packages of each extra that a user may want, as pyproject.toml has them."""
    return {
        extra: [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra not in page.NOT_ASKED_FOR
    }


def test_every_package_of_every_extra_is_named_with_its_extra(monkeypatch):
    listed = [
        f"{requirement}; extra == '{extra}'"
        for extra, packages in PROJECT["optional-dependencies"].items()
        for requirement in packages
    ]
    monkeypatch.setattr(page, "requires", lambda _: [*PROJECT["dependencies"], *listed])
    wanted = {package: extra for extra, packages in extras().items() for package in packages}
    assert page.extra_of_packages() == wanted
    assert page.PARTS.keys() - {"mpi4py", "numpy"} == wanted.keys()


def test_an_extra_that_nobody_has_described_is_asked_for_too(without, capsys, monkeypatch):
    without("wings")
    monkeypatch.setattr(page, "requires", lambda _: ["wings>=2; extra == 'flight'"])
    page.doctor(argparse.Namespace())
    assert (
        "\nwings         missing  a part of 'diel[flight]'; pip install 'diel[flight]'\n"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("folder", ["diel", "dnn", "modules", "docs", "benchmarks", ".ci", "."])
def test_the_extras_that_are_asked_for_are_there(folder):
    asked = set()
    for path in ROOT.joinpath(folder).glob("*" if folder in ".ci" else "**/*"):
        if path.suffix in {".py", ".md", ".sh", ".def", ""} and path.is_file():
            for found in re.findall(r"(?:diel|[\"']\.)\[([a-z,]+)\][\"']", path.read_text()):
                asked |= {*found.split(",")}
    assert asked <= PROJECT["optional-dependencies"].keys()
    assert asked or folder == "modules"


def test_the_readme_lists_every_extra():
    text = (ROOT / "README.md").read_text().partition("The extras:")[2].partition("Everything")[0]
    assert re.findall(r"^- `(\w+)`", text, re.MULTILINE) == sorted(
        extras(), key=lambda extra: text.find(f"`{extra}`")
    )


def test_the_versions_of_what_is_there(without, capsys):
    without()
    assert page.doctor(argparse.Namespace()) == 0
    assert "numba         1.2.3  compiled loops on the CPU" in capsys.readouterr().out


def test_who_can_reach_the_ranks_and_what_says_otherwise(without, capsys, monkeypatch):
    without()
    page.doctor(argparse.Namespace())
    assert "transports    shared memory where all ranks are on one" in capsys.readouterr().out
    monkeypatch.setattr(page.os, "environ", {"OMPI_MCA_btl": "self,tcp"})
    page.doctor(argparse.Namespace())
    assert "as you have set them: OMPI_MCA_btl=self,tcp" in capsys.readouterr().out


def test_without_mpiexec_no_run_is_possible(without, capsys, monkeypatch):
    without()

    def none():
        raise page.LaunchError("no mpiexec beside this Python")

    monkeypatch.setattr(page, "find_mpiexec", none)
    assert page.doctor(argparse.Namespace()) == 1
    assert "mpiexec       missing; no mpiexec beside" in capsys.readouterr().out


def test_cupy_for_another_cuda_is_no_missing_one(without, capsys):
    without("cupy-cuda13x", "cupy")
    page.doctor(argparse.Namespace())
    out = capsys.readouterr().out
    assert "\ncupy-cuda12x  1.2.3  GPUs\n" in out
    assert "cupy-cuda13x" not in out


def test_what_modules_find_on_the_machine_is_said(without, capsys):
    without()
    assert page.doctor(argparse.Namespace()) == 0
    assert "\nGPUs          none: no driver\n" in capsys.readouterr().out


def test_a_reporter_that_cannot_be_imported_is_named(without, capsys, monkeypatch):
    without()

    def broken():
        raise page.PluginError("reporter 'sweeps' of package x: ImportError")

    monkeypatch.setattr(page, "reporters", broken)
    assert page.doctor(argparse.Namespace()) == 0
    assert "reporters     reporter 'sweeps' of package x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((0, "hello\nOpen MPI v5\nTrue\n"), ("Open MPI v5", "yes")),
        ((0, "MPICH 5\nFalse\n"), ("MPICH 5", "no: arrays of GPUs travel through pinned memory")),
        ((0, ""), ("not known: it does not start outside of mpiexec: it says noth", "not known")),
        (
            (1, "", "trouble\nPMIx\n"),
            ("not known: it does not start outside of mpiexec: PMIx", "not known"),
        ),
        (
            TimeoutError("it does not answer"),
            ("not known: it was started to find out, and it does not", "not known"),
        ),
    ],
)
def test_which_mpi_there_is_and_whether_it_takes_arrays_of_gpus(
    without, capsys, monkeypatch, answer, words
):
    without()

    def run_tool(command, timeout_s):
        if isinstance(answer, tuple):
            return completed(command, *answer)
        raise answer

    monkeypatch.setattr(page, "run_tool", run_tool)
    page.doctor(argparse.Namespace())
    out = capsys.readouterr().out
    library, gpu_aware = words
    assert f"\nMPI           {library}" in out
    assert f"\nGPU-aware MPI {gpu_aware}" in out
