"""``diel doctor``: a line for each part, and what is lost where it is missing."""

import argparse
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from diel.cli import doctor as page


@pytest.fixture
def without(monkeypatch):
    def remove(*packages):
        def version(package):
            if package in packages:
                raise PackageNotFoundError(package)
            return "1.2.3"

        monkeypatch.setattr(page, "version", version)
        monkeypatch.setattr(page.launch, "find_mpiexec", lambda: Path("/usr/bin/mpiexec"))
        monkeypatch.setattr(page.os, "environ", {})

    return remove


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

    monkeypatch.setattr(page.launch, "find_mpiexec", none)
    assert page.doctor(argparse.Namespace()) == 1
    assert "mpiexec       missing; no mpiexec beside" in capsys.readouterr().out
