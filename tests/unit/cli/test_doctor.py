"""``diel doctor``: a line for each part, and what is lost where it is missing."""

import argparse
from importlib.metadata import PackageNotFoundError

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
        monkeypatch.setattr(page.shutil, "which", lambda name: "/usr/bin/mpiexec")

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
