"""Whether ranks are bound to enough cores for the modules that run on them. Pure.

A launcher may bind each rank to a core: all threads of a module, and all processes of a launcher in
its entry, then take turns on it. That is correct and slow, and nobody sees why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diel.executive.plans import CopyPlan
    from diel.loading.module_spec import ModuleSpec

Cores = Mapping[int, tuple[int, ...]]
"""The cores of each rank that may not use all cores of its host, as it was started."""


class Binding:
    """Compares the cores that ranks are bound to with what modules need; warns once for each.

    Parameters
    ----------
    cores : Cores
    hosts : sequence of str
        Of all ranks.
    environment : mapping of str to str
        Of a rank: it tells what has started it.
    launched_by_diel : bool
        Whether that was ``diel run``, which binds to no core: the cores are those of its shell.
    """

    def __init__(
        self,
        cores: Cores,
        hosts: Sequence[str],
        environment: Mapping[str, str],
        *,
        launched_by_diel: bool,
    ) -> None:
        self._cores = cores
        self._hosts = hosts
        self._environment = environment
        self._launched_by_diel = launched_by_diel
        self._warned: set[str] = set()

    def shared(self, pool: Sequence[int]) -> str:
        """Return a warning if ranks that run modules are bound to one core together; else empty."""
        ranks_on: dict[tuple[str, int], list[int]] = {}
        for rank in pool:
            if len(cores := self._cores.get(rank, ())) == 1:
                ranks_on.setdefault((self._hosts[rank], cores[0]), []).append(rank)
        crowds = {place: ranks for place, ranks in ranks_on.items() if len(ranks) > 1}
        if not crowds or self._launched_by_diel:
            return ""
        (host, core), ranks = next(iter(crowds.items()))
        others = f", and {len(crowds) - 1} more such cores" if len(crowds) > 1 else ""
        return (
            f"ranks {', '.join(map(str, ranks))} are all bound to core {core} of {host}{others}: "
            f"they take turns there; {self._remedy(1)}"
        )

    def too_few_for(self, plan: CopyPlan, spec: ModuleSpec) -> str:
        """Return a warning if a copy has fewer cores than threads, once a module; else empty."""
        if spec.name in self._warned:
            return ""
        # The first rank of an executable starts it.
        for rank in plan.ranks if spec.executable is None else plan.ranks[:1]:
            cores = self._cores.get(rank)
            if cores is None:
                continue
            needed, words = spec.threads, f"threads = {spec.threads}"
            if spec.executable is not None and spec.executable.launcher:
                # The launcher's processes inherit the cores of the rank that starts it.
                here = sum(self._hosts[each] == self._hosts[rank] for each in plan.ranks)
                needed *= here
                words = f"{here} processes" + (f" of {words}" if spec.threads > 1 else "")
            if needed > len(cores):
                self._warned.add(spec.name)
                return (
                    f"{words} on rank {rank}, which is bound to {_described(cores)} of "
                    f"{self._hosts[rank]}: they take turns there; {self._remedy(needed)}"
                )
        return ""

    def _remedy(self, needed: int) -> str:
        environment = self._environment
        several = f" or --map-by slot:PE={needed}," if needed > 1 else ""
        if "OMPI_COMM_WORLD_RANK" in environment and not self._launched_by_diel:
            return f"start the ranks with mpirun --bind-to none,{several} or by diel run itself"
        if "SLURM_JOB_ID" in environment:
            return f"give each rank more cores: --cpus-per-task={needed} for the job and for srun"
        if "PMI_RANK" in environment and not self._launched_by_diel:
            return "start the ranks with mpiexec -bind-to none, or by diel run itself"
        return "let the job, the container or the shell use more cores, or ask for fewer threads"


def _described(cores: Sequence[int]) -> str:
    if len(cores) == 1:
        return f"core {cores[0]}"
    return f"{len(cores)} cores ({', '.join(map(str, cores))})"
