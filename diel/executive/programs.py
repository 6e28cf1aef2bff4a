"""A copy of a module that is an executable: what it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diel.comm.devices import VISIBLE_GPUS
from diel.loading.threads import thread_environment
from diel.programs.executables import command_of

if TYPE_CHECKING:
    from diel.executive.messages import RunCopy
    from diel.loading.spec import ModuleSpec
    from diel.programs.executables import ProgramRunner
    from diel.run.directory import RunDirectory


def run_program(
    order: RunCopy,
    spec: ModuleSpec,
    directory: RunDirectory,
    folder: Path,
    runner: ProgramRunner,
    safe_point: Callable[[], None],
) -> int:
    """Run the program of a copy to its end, on the copy's first rank.

    Parameters
    ----------
    order : RunCopy
    spec : ModuleSpec
        Of an executable.
    directory : RunDirectory
    folder : Path
        Of the workflow file.
    runner : ProgramRunner
        This rank's.
    safe_point : callable
        Called while it runs; what it raises ends the program.

    Returns
    -------
    int
        Processes that it had left behind, and that were ended.

    Raises
    ------
    ModuleFailed
        If it cannot be started, or does not end well.
    """
    assert spec.executable is not None
    plan = order.plan
    places: dict[str, object] = {
        "copy": plan.copy_index,
        "copies": plan.copies,
        "iteration": ".".join(map(str, plan.iteration)),
        "run_dir": directory.path,
        "folder": folder,
        "processes": len(plan.ranks),
        "threads": spec.threads,
        "module": plan.module,
        "group": plan.group,
    }
    facts = {
        "DIEL_RUN_DIR": places["run_dir"],
        "DIEL_WORKFLOW_DIR": places["folder"],
        "DIEL_GROUP": plan.group,
        "DIEL_MODULE": plan.module,
        "DIEL_COPY": plan.copy_index,
        "DIEL_COPIES": plan.copies,
        "DIEL_ITERATION": places["iteration"],
        "DIEL_PROCESSES": len(plan.ranks),
        "DIEL_THREADS": spec.threads,
        **thread_environment(spec.threads),
    }
    if order.gpus is not None:
        facts[VISIBLE_GPUS] = ",".join(order.gpus)
    return runner.run(
        command_of(spec.executable, places, facts),
        run_dir=directory.path,
        log=directory.module_log(plan.module, plan.copy_index, 0),
        safe_point=safe_point,
    ).left_behind
