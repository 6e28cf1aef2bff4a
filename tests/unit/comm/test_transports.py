"""Ranks of one machine use shared memory, and listen where nobody else could reach them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import mpiexec

from diel.comm.mpi import all_ranks_are_here, chosen_transports, transports_for


@pytest.mark.parametrize(
    ("environment", "here"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        ({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}, True),
        ({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "1"}, False),
        ({"PMI_SIZE": "3"}, False),
        ({"SLURM_JOB_ID": "7", "PMIX_RANK": "0"}, False),
        ({}, False),
    ],
)
def test_whether_all_ranks_are_here_is_the_launchers_word(
    environment: dict[str, str], here: bool
) -> None:
    assert all_ranks_are_here(environment) == here
    assert ("OMPI_MCA_pml" in transports_for(environment)) == here
    assert transports_for({**environment, "OMPI_MCA_btl": "self,tcp"}) == {}


def test_mpich_is_kept_from_ucx_where_ranks_are_on_several_machines() -> None:
    apart = {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "1"}
    assert transports_for(apart) == {"MPIR_CVAR_CH4_NETMOD": "ofi"}
    assert transports_for({"PMI_SIZE": "3"}) == transports_for(apart)  # as srun starts them
    assert "MPIR_CVAR_CH4_NETMOD" not in transports_for({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"})
    assert transports_for({**apart, "MPIR_CVAR_CH4_NETMOD": "ucx"}) == {}
    assert transports_for({"PMI_SIZE": "1"}) == transports_for({}) == {}


def test_what_a_person_has_chosen_in_the_environment_or_in_open_mpis_file(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert chosen_transports({"OMPI_MCA_btl": "self,tcp"}) == ["OMPI_MCA_btl=self,tcp"]
    assert chosen_transports({"UCX_TLS": "self,sm", **home}) == ["UCX_TLS=self,sm"]
    assert chosen_transports({"OMPI_COMM_WORLD_SIZE": "4", **home}) == []
    settings = tmp_path / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("# btl = tcp\nmpi_show_handle_leaks = 1\n")
    assert chosen_transports(home) == []
    settings.write_text("btl = self,tcp  # of mine\n")
    assert chosen_transports(home) == ["btl=self,tcp"]


# What MPICH's launcher listens on is inherited by all of its ranks: not theirs.
_LISTENING = """
import os
from pathlib import Path
from diel.comm.mpi import world

def listening():
    mine = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
    ]
    return {
        words[1]
        for words in lines
        if words[3] == "0A"
        and f"socket:[{words[9]}]" in mine
        and words[1].rpartition(":")[0] != "0100007F"
    }

comm = world()
found = comm.gather(listening())
if comm.rank == 0:
    own = [len(ports - set.intersection(*found)) for ports in found]
    print(f"ranks:{len(own)} reachable:{sum(own)}", flush=True)
"""


def test_ranks_of_one_machine_listen_on_nothing_that_others_could_reach() -> None:
    environment = {name: text for name, text in os.environ.items() if "MCA_btl" not in name}
    line = [word for word in mpiexec(2) if word not in ("--mca", "btl", "^ofi")]
    command = [*line, sys.executable, "-c", _LISTENING]
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.split() == ["ranks:2", "reachable:0"]
