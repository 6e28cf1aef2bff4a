"""Warnings of ranks that are bound to fewer cores than what runs on them needs."""

from __future__ import annotations

import pytest

from diel.executive.binding import Binding, Cores
from diel.executive.plans import CopyPlan
from diel.loading.module_spec import ExecutableSpec, ModuleSpec

HOSTS = ["a"] * 4 + ["b"] * 2
BY_MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}


def binding(cores: Cores, by: dict[str, str], *, own: bool = False) -> Binding:
    return Binding(cores, HOSTS, by, launched_by_diel=own)


def spec(threads: int = 1, launcher: tuple[str, ...] | None = None) -> ModuleSpec:
    program = None if launcher is None else ExecutableSpec(("x",), launcher)
    return ModuleSpec("m", None, program, threads, {})


def plan(*ranks: int, copy: int = 0) -> CopyPlan:
    return CopyPlan(
        serial=1, group="g", module="m", copy_index=copy, copies=2, ranks=ranks, module_serial=0,
        module_ranks=ranks, iteration=(0,),
    )  # fmt: skip


def test_threads_on_a_single_core_are_warned_of_once() -> None:
    bound = binding({2: (1,), 3: (1,)}, BY_MPIRUN)
    assert bound.too_few_for(plan(2), spec(1)) == ""
    assert bound.too_few_for(plan(1), spec(2)) == "", "rank 1 may use all cores"
    warning = bound.too_few_for(plan(2), spec(2))
    assert warning == (
        "threads = 2 on rank 2, which is bound to core 1 of a: they take turns there; start the "
        "ranks with mpirun --bind-to none, or --map-by slot:PE=2, or by diel run itself"
    )
    assert bound.too_few_for(plan(3, copy=1), spec(2)) == ""


def test_every_rank_of_a_function_is_looked_at() -> None:
    bound = binding({3: (0, 1)}, BY_MPIRUN)
    assert "threads = 3 on rank 3, which is bound to 2 cores (0, 1)" in bound.too_few_for(
        plan(1, 2, 3), spec(3)
    )
    assert bound.too_few_for(plan(1, 2, 3), spec(3)) == ""


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "words"),
    [
        ((2, 3), 1, (0,), "2 processes on rank 2"),
        ((2, 3), 2, (0, 1), "2 processes of threads = 2 on rank 2"),
        ((2, 3), 1, (0, 1), ""),
        ((3, 4, 5), 1, (0,), ""),  # the others start on another host
    ],
)
def test_processes_of_a_launcher_inherit_the_cores_of_its_rank(
    ranks: tuple[int, ...], threads: int, cores: tuple[int, ...], words: str
) -> None:
    bound = binding({ranks[0]: cores, ranks[1]: (0,)}, BY_MPIRUN)
    warning = bound.too_few_for(plan(*ranks), spec(threads, ("mpiexec",)))
    assert (words in warning) if words else (warning == "")


def test_only_the_rank_that_starts_a_program_matters() -> None:
    assert binding({3: (0,)}, BY_MPIRUN).too_few_for(plan(2, 3), spec(2, ())) == ""


@pytest.mark.parametrize(
    ("by", "own", "remedy"),
    [
        (BY_MPIRUN, False, "mpirun --bind-to none, or --map-by slot:PE=2"),
        ({"SLURM_JOB_ID": "1", "PMIX_RANK": "0"}, False, "--cpus-per-task=2"),
        ({"SLURM_JOB_ID": "1", **BY_MPIRUN}, True, "--cpus-per-task=2"),
        ({"PMI_RANK": "0"}, False, "mpiexec -bind-to none"),
        ({"PMI_RANK": "0"}, True, "let the job, the container or the shell use more cores"),
        (BY_MPIRUN, True, "let the job, the container or the shell use more cores"),
    ],
)
def test_the_remedy_is_for_whatever_has_started_the_ranks(
    by: dict[str, str], own: bool, remedy: str
) -> None:
    assert remedy in binding({2: (1,)}, by, own=own).too_few_for(plan(2), spec(2))


def test_ranks_that_share_a_core_are_named() -> None:
    cores: Cores = {0: (0,), 1: (0,), 2: (0,), 3: (0,), 4: (0,), 5: (1,)}
    assert binding(cores, BY_MPIRUN).shared([2, 3, 4, 5]) == (
        "ranks 2, 3 are all bound to core 0 of a: they take turns there; start the ranks with "
        "mpirun --bind-to none, or by diel run itself"
    )
    assert binding(cores, BY_MPIRUN, own=True).shared([2, 3, 4, 5]) == ""
    assert binding({2: (0,), 3: (1,), 4: (0,)}, BY_MPIRUN).shared([2, 3, 4]) == ""
    assert binding({2: (0, 1), 3: (0, 1)}, BY_MPIRUN).shared([2, 3]) == ""
    both = {2: (0,), 3: (0,), 4: (1,), 5: (1,)}
    assert ", and 1 more such cores" in binding(both, BY_MPIRUN).shared([2, 3, 4, 5])
